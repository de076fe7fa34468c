"""Estimators that contain others, as chains of steps from X to an estimator that predicts.

    Pipeline([scaler, VotingClassifier([a, Pipeline([PCA, b])])])  ->  [scaler, a], [scaler, PCA, b]

Behind a step that mixes columns, no column depends on one column of X alone. Such steps are
decompositions, and `Stack`: the predictions that a stacking estimator's final estimator reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.values import Array

VOTES = frozenset({"VotingClassifier", "VotingRegressor"})
STACKS = frozenset({"StackingClassifier", "StackingRegressor"})
CALIBRATED = frozenset({"CalibratedClassifierCV"})
ENSEMBLES = VOTES | STACKS | CALIBRATED
DECOMPOSITIONS = frozenset({"IncrementalPCA", "PCA", "TruncatedSVD"})
# Models of `own_models.MODELS` whose columns others may read.
MAPPING = frozenset(
    """
    BernoulliRBM BisectingKMeans Birch CCA FactorAnalysis FastICA FeatureAgglomeration
    GaussianRandomProjection KMeans KernelCenterer KernelPCA LinearDiscriminantAnalysis
    MiniBatchKMeans MiniBatchSparsePCA NeighborhoodComponentsAnalysis Nystroem PLSCanonical
    PLSRegression PLSSVD RBFSampler SparsePCA SparseRandomProjection
    """.split()
)
# Estimators that predict with an inner estimator, and its attribute.
_HOLDERS = {
    "FrozenEstimator": "estimator",
    **dict.fromkeys(
        ("GridSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV", "RandomizedSearchCV"),
        "best_estimator_",
    ),
}


@dataclass(frozen=True, eq=False)
class Stack:
    """A step from X to the predictions of a stacking estimator's first estimators.

    `writes` write the predictions, each float32 (batch, columns), from X on; `before` are the steps
    between X and the columns of X that it passes on.
    """

    estimator: Any
    before: tuple[Any, ...] = ()
    writes: tuple[Callable[[Any], Any], ...] = ()

    @property
    def passes_x(self) -> bool:
        """Whether columns of X follow the predictions."""
        return bool(self.estimator.passthrough)


@dataclass(frozen=True, eq=False)
class Mapped:
    """A step of `MAPPING`, and the function that writes its columns from the current ones."""

    step: Any
    write: Callable[[Any], Any]

    @property
    def columns(self) -> int:
        return columns_of(self.step)


def columns_of(step: Any) -> int:
    """The number of columns of a decomposition, or of a step of `MAPPING`."""
    return step.columns if isinstance(step, Mapped) else int(step._n_features_out)


def is_pipeline(estimator: Any) -> bool:
    return _kind(estimator) == "Pipeline"


def is_mixing(step: Any) -> bool:
    """Whether a column of the step's result may depend on several columns."""
    return isinstance(step, Stack | Mapped) or _kind(step) in DECOMPOSITIONS | MAPPING


def held(estimator: Any) -> Any:
    """The estimator that predicts: this one, or the one that a search or FrozenEstimator holds."""
    while (name := _HOLDERS.get(_kind(estimator))) is not None:
        if not hasattr(estimator, name):
            raise InvalidInput(
                f"the {_kind(estimator)} has no {name}; fit it, with refit=True, first"
            )
        estimator = getattr(estimator, name)
    return estimator


def parts_of_ensemble(estimator: Any) -> list[Any]:
    """The fitted estimators that read an ensemble's X. Raises InvalidInput if it is not fitted."""
    name = "calibrated_classifiers_" if _kind(estimator) in CALIBRATED else "estimators_"
    if not hasattr(estimator, name):
        raise InvalidInput(f"the {_kind(estimator)} is not fitted; call its fit(X, y) first")
    found = list(getattr(estimator, name))
    return [each.estimator for each in found] if _kind(estimator) in CALIBRATED else found


def steps_of(pipeline: Any) -> tuple[list[Any], Any]:
    """The steps before the last of a pipeline, with the steps of inner pipelines, and the last."""
    stages = [held(stage) for _, stage in pipeline.steps if stage not in (None, "passthrough")]
    if not stages:
        raise InvalidInput("the Pipeline has no steps; add a scaler or an estimator")
    before = []
    for stage in stages[:-1]:
        inner, last = steps_of(stage) if is_pipeline(stage) else ([], stage)
        before += [*inner, last]
    return before, stages[-1]


def chains_of(estimator: Any) -> list[list[Any]]:
    """Every chain of steps from X to an estimator that predicts, also inside of stacks.

    Raises InvalidInput for an estimator that is not fitted.
    """
    estimator = held(estimator)
    if is_pipeline(estimator):
        before, last = steps_of(estimator)
        return [[*before, *chain] for chain in chains_of(last)]
    if _kind(estimator) in STACKS:
        behind = [[Stack(estimator), *chain] for chain in chains_of(estimator.final_estimator_)]
    elif _kind(estimator) in ENSEMBLES:
        behind = []
    else:
        return [[estimator]]
    return [*behind, *(chain for part in parts_of_ensemble(estimator) for chain in chains_of(part))]


def linear_map(step: Any) -> tuple[Array, Array]:
    """A decomposition's weights (components, features) and bias, float64.

    Computed as in `_base.py` and `_truncated_svd.py` of sklearn.decomposition.
    """
    weights = np.asarray(step.components_, np.float64)
    bias = np.zeros(len(weights))
    if _kind(step) != "TruncatedSVD":
        bias = -(np.asarray(step.mean_, np.float64) @ weights.T)
        if step.whiten:
            spread = np.sqrt(np.asarray(step.explained_variance_))
            spread = np.maximum(spread, np.finfo(spread.dtype).eps).astype(np.float64)
            weights, bias = weights / spread[:, None], bias / spread
    return weights, bias


def _kind(estimator: Any) -> str:
    """The name of the estimator's class; empty for libraries other than scikit-learn."""
    kind = type(estimator)
    return kind.__name__ if kind.__module__.split(".")[0] == "sklearn" else ""
