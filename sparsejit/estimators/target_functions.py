"""Inverses of functions of a target: of scalers, and numpy functions of a FunctionTransformer."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.writer import EstimatorWriter
from sparsejit.frontends.arrays import check_held
from sparsejit.ir.ops.columns import ScaledColumns
from sparsejit.ir.values import Array, Element, Value

# Writes values of the target (batch, targets) for values of its function.
Inverse = Callable[[EstimatorWriter, Value], Value]


def inverse_of(transformer: Any) -> Inverse:
    """The inverse of a fitted transformer. Raises InvalidInput for one that has no graph."""
    kind = type(transformer).__name__
    if kind == "FunctionTransformer":
        return _function(transformer)
    if kind in _LINES:
        return _line(transformer)
    raise InvalidInput(
        f"the inverse of a {kind} has no graph; transform targets with one of "
        f"{', '.join(sorted(_LINES))}, or a numpy function"
    )


def _of(kind: str) -> Inverse:
    return lambda writer, x: writer.at("target").pointwise(kind, x)


# numpy functions of one argument, by name.
_FUNCTIONS: Mapping[str, Inverse] = {
    "abs": _of("abs"),
    "absolute": _of("abs"),
    "exp": _of("exp"),
    "exp2": _of("exp2"),
    "expm1": _of("expm1"),
    "log": _of("log"),
    "log1p": _of("log1p"),
    "negative": _of("neg"),
    "reciprocal": _of("reciprocal"),
    "sqrt": _of("sqrt"),
    "square": _of("square"),
    "tanh": _of("tanh"),
}


def _function(transformer: Any) -> Inverse:
    function = transformer.inverse_func
    if function is None:
        return lambda writer, x: x
    name = getattr(function, "__name__", "")
    is_plain = not transformer.inv_kw_args and isinstance(function, np.ufunc)
    if not is_plain or name not in _FUNCTIONS:
        raise InvalidInput(
            f"the inverse_func {function} has no graph; give one of numpy's functions "
            f"{', '.join(_FUNCTIONS)}"
        )
    return _FUNCTIONS[name]


def _of_standard(scaler: Any) -> tuple[Any, Any]:
    return scaler.scale_, scaler.mean_ if scaler.with_mean else None


def _of_range(scaler: Any) -> tuple[Any, Any]:
    return 1 / scaler.scale_, -scaler.min_ / scaler.scale_


def _of_quantiles(scaler: Any) -> tuple[Any, Any]:
    return (
        scaler.scale_ if scaler.with_scaling else None,
        scaler.center_ if scaler.with_centering else None,
    )


# The factor and the shift of each scaler's inverse; None for neither.
_LINES: Mapping[str, Callable[[Any], tuple[Any, Any]]] = {
    "MaxAbsScaler": lambda scaler: (scaler.scale_, None),
    "MinMaxScaler": _of_range,
    "RobustScaler": _of_quantiles,
    "StandardScaler": _of_standard,
}


def _line(scaler: Any) -> Inverse:
    factor, shift = _LINES[type(scaler).__name__](scaler)
    count = int(scaler.n_features_in_)
    zeros = np.zeros(count)
    scale = np.ones(count) if factor is None else np.asarray(factor, np.float64)
    moved = zeros if shift is None else np.asarray(shift, np.float64)
    check_held(scaler, "its numbers", np.append(scale, moved))
    numbers: Array = np.stack(
        [zeros, scale, moved, np.full(count, -np.inf), np.full(count, np.inf), zeros]
    )

    def write(writer: EstimatorWriter, x: Value) -> Value:
        writer.at("target")
        constants = (
            writer.constant(np.arange(count), "targets"),
            writer.constant(numbers, "target.numbers", Element.FLOAT64),
        )
        return writer.one(ScaledColumns(), x, *constants)

    return write
