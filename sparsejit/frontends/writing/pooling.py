"""Pooling to the largest element or the mean of windows, and enlarging of images.

    over_windows          pooling over one to three spatial axes
    weighed, picked       enlarging, by weights of old positions or by repetition
    positions             the index of each element of each window
    largest_with_places   max pooling with the place of each largest element in the image

Places are counted row by row:

    image (4, 4), windows of (2, 2)    place 4 y + x of the element at (y, x)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product

import numpy as np

from sparsejit.frontends.writing.arranging import expanded, moved, reshaped
from sparsejit.frontends.writing.pointwise import is_nan
from sparsejit.frontends.writing.selection import taken
from sparsejit.frontends.writing.views import repeat_each
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.ops.convolution import Pooling, PoolingKind
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.values import Array, Value
from sparsejit.whole_numbers import ceil_div

Sizes = tuple[int, ...]


def over_windows(
    write: Writer,
    kind: PoolingKind,
    x: Value,
    kernel: Sizes,
    stride: Sizes,
    padding: tuple[tuple[int, int], ...],
    dilation: Sizes,
    counts_padding: bool,
    beyond: Sizes = (),
) -> Value:
    """Pooling over one to three spatial axes; of three, first the last two, then the first.

    A mean that counts padding does not count the last `beyond` places of each axis's padding, which
    `beyond_the_end` adds.
    """
    if kind is PoolingKind.AVERAGE and counts_padding and any(beyond):
        whole = over_windows(write, kind, x, kernel, stride, padding, dilation, True)
        geometry = zip(
            x.shape[-len(kernel) :], kernel, stride, padding, dilation, beyond, strict=True
        )
        shares = [_counted_share(*axis) for axis in geometry]
        factor = 1 / reduce(np.multiply.outer, shares)
        return write.pointwise("mul", whole, factor.astype(np.float32))
    if len(kernel) < 3:
        return write.one(Pooling(kind, kernel, stride, padding, dilation, counts_padding), x)
    batch, channels, depth, *rest = x.shape
    planes = reshaped(write, x, (batch, channels * depth, *rest))
    inner = Pooling(kind, kernel[1:], stride[1:], padding[1:], dilation[1:], counts_padding)
    flat = write.one(inner, planes)
    first = ((kernel[0], 1), (stride[0], 1), (padding[0], (0, 0)), (dilation[0], 1))
    columns = reshaped(write, flat, (batch, channels, depth, -1))
    whole = write.one(Pooling(kind, *first, counts_padding), columns)
    return reshaped(write, whole, (*whole.shape[:3], *flat.shape[2:]))


def _counted_share(
    length: int, kernel: int, stride: int, padding: tuple[int, int], dilation: int, beyond: int
) -> Array:
    """The share of each window's taps that lie before the last `beyond` places of the axis.

    The axis has `length` elements and its padding.
    """
    whole = length + sum(padding)
    first = np.arange(0, whole - dilation * (kernel - 1), stride)
    taps = first[:, None] + dilation * np.arange(kernel)
    return np.asarray((taps < whole - beyond).mean(axis=1))


def beyond_the_end(
    length: int, kernel: int, stride: int, padding: tuple[int, int], dilation: int
) -> int:
    """Extra padding after `padding` (before, after) that rounds the number of windows up.

    The last window must begin inside or in the first padding.
    """
    reach = dilation * (kernel - 1) + 1
    whole = length + sum(padding)
    windows = ceil_div(whole - reach, stride) + 1
    if (windows - 1) * stride >= length + padding[0]:
        windows -= 1
    return max((windows - 1) * stride + reach - whole, 0)


def weighed(write: Writer, x: Value, axis: int, weights: Array) -> Value:
    """Multiply an axis by a matrix (new length, length): weights of old positions in new ones."""
    rows = moved(write, x, axis, -1)
    return moved(write, write.one(Linear(), rows, weights), -1, axis)


def picked(write: Writer, x: Value, axis: int, places: Array) -> Value:
    """The elements of x at known places of an axis; a repetition where that is the same."""
    length = x.shape[axis]
    if len(places) % length == 0:
        times = len(places) // length
        if np.array_equal(places, np.repeat(np.arange(length), times)):
            return repeat_each(write, x, times, axis)
    return taken(write, x, axis, places)


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
