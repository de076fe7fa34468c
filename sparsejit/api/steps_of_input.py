"""The steps of a layer's x and the error that they cause, from what the layer multiplied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sparsejit.api.seen_inputs import SeenInput
from sparsejit.ir.graph import Array
from sparsejit.ir.layer_scales import LayerKey, LayerScales
from sparsejit.ir.reference import stored_weights
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import LARGEST_INT8, OVERFLOWS_AT, SMALLEST_SCALE, DType

# What is left of the range of x, where cutting it may cost less than coarse steps do.
_SHARES = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
_PERCENTILES = (99.99, 99.9, 99.0)
# A step for each row costs a look at x: one for all rows may have so many times its error.
_MOST_TIMES = 1.1
# So few rows do not tell how large others are.
_FEWEST_ROWS = 64
# A correction is kept where rows that it was not made from lose at least this share of their error.
_LEAST_GAIN = 0.005


class _InputSteps(NamedTuple):
    """Integers of x, (x / scale) + shift."""

    scale: float
    shift: int
    how: str

    def of(self, x: Array) -> Array:
        """x in these steps."""
        integers = np.rint(x * np.float32(1 / self.scale)) + np.float32(self.shift)
        clipped = integers.clip(-LARGEST_INT8 - 1, LARGEST_INT8) - np.float32(self.shift)
        return np.asarray(clipped * np.float32(self.scale), np.float32)


def short_forms(key: LayerKey, seen: SeenInput) -> Mapping[DType, LayerScales]:
    """The best that each short dtype can do for a layer, without those that cannot hold it."""
    x, exact = seen.rows, seen.rows @ seen.weights.T
    matrix, whole = SparseMatrix(seen.weights), float(np.square(exact).mean()) or 1.0
    found = {DType.INT8: _as_int8(key, seen, matrix, exact)}
    largest = float(np.abs(seen.weights).max(initial=0.0))
    for dtype in (DType.BFLOAT16, DType.FLOAT16):
        if largest < OVERFLOWS_AT[dtype]:
            stored = stored_weights(matrix, dtype).astype(np.float32)
            error = np.square(x @ stored.T - exact).mean()
            found[dtype] = LayerScales(*key, dtype, error=float(error))
    return {
        dtype: replace(each, error=float(np.sqrt(each.error / whole)))
        for dtype, each in found.items()
    }


def _as_int8(key: LayerKey, seen: SeenInput, matrix: SparseMatrix, exact: Array) -> LayerScales:
    """With one step for x, or one a row where that is better or safer; errors are squares."""
    x, weights = seen.rows, stored_weights(matrix, DType.INT8).astype(np.float32).T
    pairs = ((steps, steps.of(x) @ weights - exact) for steps in _choices(seen))
    best, off = min(pairs, key=lambda pair: float(np.square(pair[1]).mean()))
    correction = _correction(off)
    if correction is not None:
        off = off + correction
    error = float(np.square(off).mean())
    if seen.has_own_rows:
        own = float(np.square(_by_rows(x) @ weights - exact).mean())
        if own * _MOST_TIMES**2 < error or len(x) < _FEWEST_ROWS:
            return LayerScales(*key, DType.INT8, how="each row", error=own)
    steps = float(np.float32(best.scale)), best.shift
    return LayerScales(
        *key, DType.INT8, *steps, how=best.how, error=error, correction=correction
    )


def _choices(seen: SeenInput) -> Iterator[_InputSteps]:
    least, largest = seen.least, seen.largest
    yield _between(least, largest, "range")
    for share in _SHARES:
        yield _between(share * least, share * largest, "least squares")
    for percentile in _PERCENTILES:
        low, high = np.percentile(seen.rows, (100 - percentile, percentile))
        yield _between(min(float(low), 0.0), max(float(high), 0.0), "percentile")


def _between(least: float, largest: float, how: str) -> _InputSteps:
    """All 256 integers for least <= 0 to largest >= 0; 0 is one of them."""
    scale = max((largest - least) / (2 * LARGEST_INT8 + 1), SMALLEST_SCALE)
    scale = float(np.float32(scale))
    shift = round(-LARGEST_INT8 - 1 - least / scale)
    return _InputSteps(scale, min(max(shift, -LARGEST_INT8 - 1), LARGEST_INT8), how)


def _by_rows(x: Array) -> Array:
    """x in steps of its own for each row, as kernels measure them."""
    largest = np.maximum(np.abs(x).max(axis=1, keepdims=True), np.float32(SMALLEST_SCALE))
    scale = largest * np.float32(1 / LARGEST_INT8)
    return np.asarray(np.rint(x * (np.float32(LARGEST_INT8) / largest)) * scale, np.float32)


def _correction(off: Array) -> Array | None:
    """Less the mean error of each output, where half of the rows tells that of the others."""
    if len(off) < 4:
        return None
    from_some, on_others = off[::2].mean(axis=0), off[1::2]
    before = float(np.square(on_others).sum())
    if float(np.square(on_others - from_some).sum()) > (1 - _LEAST_GAIN) * before:
        return None
    return np.asarray(-off.mean(axis=0), np.float32)
