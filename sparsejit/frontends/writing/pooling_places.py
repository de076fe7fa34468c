"""Max pooling with the place of each largest element in the image, counted row by row.

image (4, 4), windows of (2, 2)    place 4 y + x of the element at (y, x)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from sparsejit.frontends.writing.arranging import expanded
from sparsejit.frontends.writing.pointwise import is_nan
from sparsejit.frontends.writing.pooling import picked
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.values import Array, Value
from sparsejit.whole_numbers import ceil_div


def positions(
    length: int, windows: int, kernel: int, stride: int, padding: int, dilation: int
) -> Array:
    """The index along an axis of each element of each window, (windows, kernel).

    An element in the padding gets the nearest index of its window that is not. Raises Unmapped
    where a window has nothing but padding.
    """
    starts = np.arange(windows)[:, None] * stride - padding
    return _within(starts + np.arange(kernel) * dilation, length)


def adaptive_positions(length: int, windows: int) -> Array:
    """`positions` of windows from floor(i n / m) to ceil((i + 1) n / m).

    A window shorter than the longest repeats its last element.
    """
    numbers = np.arange(windows)
    starts, ends = numbers * length // windows, ceil_div((numbers + 1) * length, windows)
    longest = int((ends - starts).max(initial=0))
    return np.minimum(starts[:, None] + np.arange(longest), ends[:, None] - 1)


def _within(elements: Array, length: int) -> Array:
    inside = (elements >= 0) & (elements < length)
    if not inside.any(1).all():
        raise Unmapped("has a window of nothing but padding")
    first = np.where(inside, elements, length).min(1)
    last = np.where(inside, elements, -1).max(1)
    return np.clip(elements, first[:, None], last[:, None])


def largest_with_places(write: Writer, x: Value, tables: Sequence[Array]) -> tuple[Value, Value]:
    """The largest element of each window, or its last NaN, and the element's place.

    `tables` have the positions of windows along the last axes of x, one for each.
    """
    lengths = x.shape[-len(tables) :]
    best: Value | None = None
    place: Value | None = None
    for offsets in product(*(range(table.shape[1]) for table in tables)):
        value, number = x, np.zeros((), np.int64)
        for n, (table, offset, length) in enumerate(zip(tables, offsets, lengths, strict=True)):
            column = table[:, offset]
            value = picked(write, value, len(x.shape) - len(tables) + n, column)
            number = number[..., None] * length + column
        own = write.constant(number, "places")
        if best is None or place is None:
            best, place = value, expanded(write, own, value.shape)
            continue
        is_better = write.pointwise(
            "logical_or", write.pointwise("greater", value, best), is_nan(write, value)
        )
        best = write.pointwise("where", is_better, value, best)
        place = write.pointwise("where", is_better, own, place)
    if best is None or place is None:
        raise Unmapped("has windows without elements")
    return best, place
