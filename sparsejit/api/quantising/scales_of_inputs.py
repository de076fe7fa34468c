"""Choice of the steps of a layer's x by the error that they cause, on rows that it multiplied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import sqrt
from typing import NamedTuple

import numpy as np

from sparsejit.api.quantising.seen_inputs import SeenInput, SeenValues
from sparsejit.ir.layer_scales import LayerKey, LayerScales
from sparsejit.ir.reference import stored_weights
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import LARGEST_INT8, OVERFLOWS_AT, SMALLEST_SCALE, DType, Quantisation
from sparsejit.ir.values import Array

# Shares of the range of x to try: clipping may cost less error than coarse steps.
_SHARES = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
_PERCENTILES = (99.99, 99.9, 99.0)
# A step for each row costs a pass over x, so one step for all rows may have up to this multiple of
# its error.
_MOST_TIMES = 1.1
# Fewer rows than this do not represent others.
_FEWEST_ROWS = 64
# Channels are equalised only if that leaves less than this share of the error.
_EQUALISED_GAIN = 0.95
# A correction is kept if it removes at least this share of the squared error of other rows.
_LEAST_GAIN = 0.005


class _InputSteps(NamedTuple):
    """Steps of x: integer = round(x / scale) + shift; `how` is the origin of their range."""

    scale: float
    shift: int
    how: str

    def of(self, x: Array) -> Array:
        """Return x, rounded to these steps."""
        integers = np.rint(x * np.float32(1 / self.scale)) + np.float32(self.shift)
        clipped = integers.clip(-LARGEST_INT8 - 1, LARGEST_INT8) - np.float32(self.shift)
        return np.asarray(clipped * np.float32(self.scale), np.float32)


Forms = Mapping[DType, LayerScales]


def short_forms(
    layers: Mapping[LayerKey, SeenInput], may_equalise: bool = False, may_measure: bool = True
) -> dict[LayerKey, Forms]:
    """Return the best form of each layer in each short dtype; the layers read the same x.

    With int8 they share the scale and zero point of x. A dtype that cannot hold the weights is left
    out. Channels are equalised, and each row is measured at every call, only where allowed and
    clearly better.
    """
    ((key, seen), *_) = layers.items()
    if may_equalise and seen.knows_channels:
        twin = seen.equalised()
        plain, other = (
            short_forms({key: each}, may_measure=may_measure)[key] for each in (seen, twin)
        )
        if other[DType.INT8].error < _EQUALISED_GAIN * plain[DType.INT8].error:
            form = replace(other[DType.INT8], factors=seen.factors)
            return {key: {**plain, DType.INT8: form}}
        return {key: plain}
    errors = [_LayerErrors(key, seen) for key, seen in layers.items()]
    choices = list(_choices(errors[0].seen))
    best = min(choices, key=lambda steps: sum(each.of_steps(steps) for each in errors))
    return {each.key: dict(each.forms(best, may_measure)) for each in errors}


def stored_x(layer: LayerScales, x: Array, axis: int) -> Array:
    """Return x as a layer multiplies it: divided by its factors and rounded; channels on `axis`."""
    if layer.factors is not None:
        around = (1,) * (x.ndim - 1 - axis % x.ndim)
        x = x / layer.factors.reshape(-1, *around)
    if layer.dtype is not DType.INT8:
        return x
    if layer.x_steps is None:
        return _by_rows(x.reshape(-1, x.shape[-1])).reshape(x.shape)
    return _InputSteps(layer.x_steps.scale, layer.x_steps.zero_point, layer.how).of(x)


def equalised_weights(layer: LayerScales, weights: Array) -> Array:
    """Return weights (out, in, *kernel) times the factors by which the layer's x is divided."""
    if layer.factors is None:
        return weights
    return weights * layer.factors.reshape(-1, *(1,) * (weights.ndim - 2))


def stored_matrix(layer: LayerScales, weights: Array) -> Array:
    """Return weights (out, in, *kernel) as a layer stores them, in float32."""
    weights = equalised_weights(layer, weights)
    matrix = SparseMatrix(weights.reshape(len(weights), -1).astype(np.float32))
    return stored_weights(matrix, layer.dtype).astype(np.float32).reshape(weights.shape)


class _LayerErrors:
    """Mean square errors of a layer's outputs by rounding, over the outputs' mean square."""

    def __init__(self, key: LayerKey, seen: SeenInput) -> None:
        self.key, self.seen = key, seen
        self._x, self._matrix = seen.rows, SparseMatrix(seen.weights)
        self._exact = self._x @ seen.weights.T
        self._whole = float(np.square(self._exact).mean()) or 1.0
        self._int8 = stored_weights(self._matrix, DType.INT8).astype(np.float32).T

    def of_steps(self, steps: _InputSteps) -> float:
        """Return the error with int8 weights, and x rounded to this scale and zero point."""
        return self._square(self._off(steps))

    def _off(self, steps: _InputSteps) -> Array:
        return np.asarray(steps.of(self._x) @ self._int8 - self._exact)

    def _square(self, off: Array) -> float:
        return float(np.square(off).mean()) / self._whole

    def forms(
        self, steps: _InputSteps, may_measure: bool
    ) -> Iterator[tuple[DType, LayerScales]]:
        """Yield the layer's form in each short dtype that can hold it, with these steps in int8."""
        yield DType.INT8, self._as_int8(steps, may_measure)
        largest = float(np.abs(self.seen.weights).max(initial=0.0))
        for dtype in (DType.BFLOAT16, DType.FLOAT16):
            if largest < OVERFLOWS_AT[dtype]:
                stored = stored_weights(self._matrix, dtype).astype(np.float32)
                square = self._square(self._x @ stored.T - self._exact)
                yield dtype, LayerScales(*self.key, dtype, error=sqrt(square))

    def _as_int8(self, steps: _InputSteps, may_measure: bool) -> LayerScales:
        """Return the int8 form: one step for x, or one a row where that is better or safer."""
        off = self._off(steps)
        correction = _correction(off)
        square = self._square(off if correction is None else off + correction)
        if may_measure and self.seen.has_own_rows:
            own = self._square(_by_rows(self._x) @ self._int8 - self._exact)
            if own * _MOST_TIMES**2 < square or len(self._x) < _FEWEST_ROWS:
                return LayerScales(*self.key, DType.INT8, how="each row", error=sqrt(own))
        x_steps = Quantisation(float(np.float32(steps.scale)), steps.shift)
        return LayerScales(
            *(*self.key, DType.INT8, x_steps, steps.how),
            error=sqrt(square),
            correction=correction,
        )


def steps_of_values(seen: SeenValues) -> Quantisation:
    """Return the scale and zero point that round a value with the least mean square error."""
    rows = seen.rows
    best = min(
        _choices(seen), key=lambda steps: float(np.square(steps.of(rows) - rows).mean())
    )
    return Quantisation(best.scale, best.shift)


def _choices(seen: SeenValues) -> Iterator[_InputSteps]:
    least, largest = seen.least, seen.largest
    yield _between(least, largest, "range")
    for share in _SHARES:
        yield _between(share * least, share * largest, "least squares")
    for percentile in _PERCENTILES:
        low, high = np.percentile(seen.rows, (100 - percentile, percentile))
        yield _between(min(float(low), 0.0), max(float(high), 0.0), "percentile")


def _between(least: float, largest: float, how: str) -> _InputSteps:
    """Return the scale and zero point that spread 256 integers over `least` to `largest`.

    `least` is at most 0 and `largest` at least 0; 0 itself stays exact.
    """
    scale = max((largest - least) / (2 * LARGEST_INT8 + 1), SMALLEST_SCALE)
    scale = float(np.float32(scale))
    shift = round(-LARGEST_INT8 - 1 - least / scale)
    return _InputSteps(scale, min(max(shift, -LARGEST_INT8 - 1), LARGEST_INT8), how)


def _by_rows(x: Array) -> Array:
    """Return x, each row rounded to multiples of its own largest magnitude / 127."""
    largest = np.maximum(np.abs(x).max(axis=1, keepdims=True), np.float32(SMALLEST_SCALE))
    scale = largest * np.float32(1 / LARGEST_INT8)
    return np.asarray(np.rint(x * (np.float32(LARGEST_INT8) / largest)) * scale, np.float32)


def _correction(off: Array) -> Array | None:
    """Return the negated mean error of each output, or None.

    It is kept only if the mean over half of the rows reduces the error of the other half.
    """
    if len(off) < _FEWEST_ROWS:
        return None
    from_some, on_others = off[::2].mean(axis=0), off[1::2]
    before = float(np.square(on_others).sum())
    if float(np.square(on_others - from_some).sum()) > (1 - _LEAST_GAIN) * before:
        return None
    return np.asarray(-off.mean(axis=0), np.float32)
