"""Scalers as scikit-learn computes them, one rounded operation after another.

`ColumnScales` joins the steps before a model into one product and sum for each column. Steps that
compare numbers, such as bins, would decide otherwise at their edges by its last bit.
"""

from typing import Any, TypeAlias

import numpy as np

from sparsejit.estimators.column_steps import SELECTORS, each_step
from sparsejit.ir.values import Array

# A function of two operands and the numbers of all columns; or "take" and places of columns,
# "fill" and the numbers for NaN, or the reason why a step is none of these.
ScalingOperation: TypeAlias = tuple[str, Array]

TAKE, FILL, UNKNOWN = "take", "fill", "unknown"

# Steps that jump at edges, and the origin of the edges: a number of the user, 0 by default, at
# which scalers put their ends; or numbers of the fit.
GIVEN, FITTED = "given", "fitted"
COMPARING = {
    "BernoulliNB": GIVEN,
    "Binarizer": GIVEN,
    "KBinsDiscretizer": FITTED,
    "QuantileTransformer": FITTED,
}


def _clipped(
    step: Any, dtype: np.dtype[Any], low: float, high: float
) -> list[ScalingOperation]:
    if not getattr(step, "clip", False):
        return []
    ends = _rounded(np.array([[low], [high]]), dtype)
    return [("maximum", ends[0]), ("minimum", ends[1])]


def _standard(step: Any, dtype: np.dtype[Any]) -> list[ScalingOperation]:
    centred = [("sub", _rounded(step.mean_, dtype))] if step.with_mean else []
    return [*centred, *([("div", _rounded(step.scale_, dtype))] if step.with_std else [])]


def _rounded(numbers: Array, dtype: np.dtype[Any]) -> Array:
    """Numbers that the library rounds to X's dtype before it computes."""
    return np.asarray(numbers, dtype).astype(np.float64)


def _robust(step: Any, dtype: np.dtype[Any]) -> list[ScalingOperation]:
    centred = [("sub", step.center_)] if step.with_centering else []
    return [*centred, *([("div", step.scale_)] if step.with_scaling else [])]


def _of_range(step: Any, dtype: np.dtype[Any]) -> list[ScalingOperation]:
    return [("mul", step.scale_), ("add", step.min_), *_clipped(step, dtype, *step.feature_range)]


def _of_largest(step: Any, dtype: np.dtype[Any]) -> list[ScalingOperation]:
    return [("div", step.scale_), *_clipped(step, dtype, -1.0, 1.0)]


SCALERS = {
    "StandardScaler": _standard,
    "RobustScaler": _robust,
    "MinMaxScaler": _of_range,
    "MaxAbsScaler": _of_largest,
}


def has_scaler(step: Any) -> bool:
    """Whether a step is a scaler, or has one inside."""
    return any(type(each).__name__ in SCALERS for each in each_step([step]))


def scaling_operations(step: Any, dtype: np.dtype[Any]) -> list[ScalingOperation]:
    """The operations of a step on an X of that dtype, in order; each is rounded to it."""
    kind = type(step).__name__
    if kind in SCALERS:
        return SCALERS[kind](step, dtype)
    if kind in SELECTORS:
        return [(TAKE, step.get_support(indices=True))]
    if kind == "SimpleImputer" and step.indicator_ is None:
        statistics = np.asarray(step.statistics_)
        if statistics.dtype.kind == "f" and not np.isnan(statistics).any():
            return [(FILL, statistics)]
    return [(UNKNOWN, np.array([kind]))]
