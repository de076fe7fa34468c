"""The interface that scikit-learn asks of an estimator: its type, its tags, its score.

    estimator_kind   scikit-learn's type of a fitted estimator
    sklearn_tags     the tags of a compiled one
    SCORES           the scores of classifiers and regressors
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.inputs import EstimatorInput
from sparsejit.estimators.left_out_zeros import LeftOut
from sparsejit.ir.values import Array


def estimator_kind(estimator: Any) -> str:
    """Return the type that scikit-learn knows an estimator by; empty for a booster."""
    if not hasattr(estimator, "get_params"):
        return ""
    from sklearn.utils import get_tags

    return str(get_tags(estimator).estimator_type or "")


def sklearn_tags(kind: str, methods: Sequence[str], rules: EstimatorInput) -> Any:
    """Return the tags of an estimator of a type, with these methods and rules for X."""
    from sklearn.utils import (
        ClassifierTags,
        InputTags,
        RegressorTags,
        Tags,
        TargetTags,
        TransformerTags,
    )

    predicts = kind in SCORES
    return Tags(
        estimator_type=kind or None,
        target_tags=TargetTags(required=predicts),
        transformer_tags=TransformerTags() if "transform" in methods else None,
        classifier_tags=ClassifierTags() if kind == "classifier" else None,
        regressor_tags=RegressorTags() if kind == "regressor" else None,
        requires_fit=False,
        input_tags=InputTags(
            sparse=rules.left_out not in (LeftOut.REFUSED, LeftOut.ROUNDED),
            allow_nan=not rules.refusals.no_nan.any(),
        ),
    )


def _weights(y: Array, found: Array, given: Any) -> Array:
    """The weight of each sample. Raises InvalidInput for shapes that do not fit."""
    weights = np.ones(len(found)) if given is None else np.asarray(given, np.float64)
    if y.shape != found.shape or weights.shape != found.shape[:1]:
        raise InvalidInput(
            f"y has shape {y.shape} and sample_weight {weights.shape}, and predictions have "
            f"{found.shape}; give one label or value for each"
        )
    return weights


def _accuracy(y: Array, found: Array, given: Any) -> float:
    """The share of samples with the right label, or with all labels right."""
    if found.shape == (*y.shape, 1):  # as CatBoost has it
        found = found[:, 0]
    weights = _weights(y, found, given)
    right = (y == found).reshape(len(found), -1).all(axis=1)
    return float(np.average(right, weights=weights))


def _r_squared(y: Array, found: Array, given: Any) -> float:
    """1 - u / v for the weighted sums of squares u of residuals, v around the mean: over outputs.

    As scikit-learn has it, an output that is constant counts 1 if it is predicted, else 0.
    """
    weights = _weights(y, found, given)[:, None]
    wanted = y.astype(np.float64).reshape(len(found), -1)
    residual = wanted - found.astype(np.float64).reshape(wanted.shape)
    u = (weights * residual**2).sum(axis=0)
    mean = np.average(wanted, axis=0, weights=weights[:, 0])
    v = (weights * (wanted - mean) ** 2).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = np.where(v > 0, 1 - u / v, np.where(u > 0, 0.0, 1.0))
    return float(scores.mean())


SCORES: Mapping[str, Callable[[Array, Array, Any], float]] = {
    "classifier": _accuracy,
    "regressor": _r_squared,
}
