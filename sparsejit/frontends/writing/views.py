"""The same elements in another shape or order, joined, divided, repeated and padded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from sparsejit.frontends.writing.arranging import (
    expanded,
    joined,
    padded,
    permuted,
    reshaped,
    sliced,
)
from sparsejit.frontends.writing.selection import taken
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.values import Array, Value, axis_of
from sparsejit.whole_numbers import ceil_div

Sizes = Sequence[int]


def size(write: Writer, x: Operand, dim: int) -> int:
    """The length of an axis, a number."""
    return write.shape(x)[dim]


def unsqueeze(write: Writer, x: Operand, dim: int) -> Value:
    """x with a new axis of one element."""
    shape = list(write.shape(x))
    shape.insert(axis_of(dim, len(shape) + 1), 1)
    return reshaped(write, x, shape)


def squeeze(write: Writer, x: Operand, dim: int | Sizes | None = None) -> Value:
    """x without axes of one element, the named ones or all."""
    shape = write.shape(x)
    named = range(len(shape)) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {axis_of(axis, len(shape)) for axis in named if shape and shape[axis] == 1}
    return reshaped(write, x, [n for axis, n in enumerate(shape) if axis not in gone])


def repeat(write: Writer, x: Operand, repeats: Sizes) -> Value:
    """Repeat each axis as a whole."""
    repeats = (1,) * (len(write.shape(x)) - len(repeats)) + tuple(repeats)
    shape = (1,) * (len(repeats) - len(write.shape(x))) + tuple(write.shape(x))
    apart = [size for n in shape for size in (1, n)]
    wide = [size for count, n in zip(repeats, shape, strict=True) for size in (count, n)]
    whole = [count * n for count, n in zip(repeats, shape, strict=True)]
    return reshaped(write, expanded(write, reshaped(write, x, apart), wide), whole)


def repeat_each(write: Writer, x: Operand, repeats: int, dim: int | None = None, **_: Any) -> Value:
    """Repeat every element of an axis several times in a row."""
    value = reshaped(write, x, (-1,)) if dim is None else write.value(x)
    axis = axis_of(dim or 0, len(value.shape))
    before, after = value.shape[: axis + 1], value.shape[axis + 1 :]
    apart = reshaped(write, value, (*before, 1, *after))
    wide = expanded(write, apart, (*before, repeats, *after))
    return reshaped(write, wide, (*before[:-1], before[-1] * repeats, *after))


def concatenate(write: Writer, tensors: Sequence[Operand], dim: int = 0) -> Value:
    """Join tensors along an axis."""
    return joined(write, write.promoted(*tensors), dim)


def stack(write: Writer, tensors: Sequence[Operand], dim: int = 0) -> Value:
    """Join tensors along a new axis."""
    return joined(write, [unsqueeze(write, x, dim) for x in write.promoted(*tensors)], dim)


def cut(write: Writer, x: Operand, lengths: Sizes, dim: int = 0) -> list[Value]:
    """Parts of these lengths along an axis."""
    ends = np.cumsum([0, *lengths]).tolist()
    return [sliced(write, x, dim, first, end) for first, end in pairwise(ends)]


def split(write: Writer, x: Operand, length: int | Sizes, dim: int = 0) -> list[Value]:
    """Parts of one length, where the last may be shorter, or of given lengths."""
    if not isinstance(length, int):
        return cut(write, x, length, dim)
    total = write.shape(x)[dim]
    starts = range(0, total, length) if length else [0]
    return cut(write, x, [min(length, total - start) for start in starts], dim)


def chunk(write: Writer, x: Operand, chunks: int, dim: int = 0) -> list[Value]:
    """At most `chunks` parts of one length, where the last may be shorter."""
    return split(write, x, ceil_div(write.shape(x)[dim], chunks), dim)


def slice_axis(
    write: Writer,
    x: Operand,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    """Python's x[start:end:step] of one axis."""
    first, last, stride = slice(start, end, step).indices(write.shape(x)[dim])
    return sliced(write, x, dim, first, last, stride)


def backward_places(length: int, part: slice) -> Array:
    """Places of ONNX's backward slices, which start at the first element if Python's are empty."""
    first, end = (n + length if n < 0 else n for n in (part.start, part.stop))
    first, end = (int(np.clip(n, low, length - 1)) for n, low in ((first, 0), (end, -1)))
    return np.arange(first, end, part.step)[:length]


def constant_pad(write: Writer, x: Operand, pad: Sizes, value: float | None = None) -> Value:
    """Pad with a number; `pad` = (before, after) of the last axis, then of the one before it ..."""
    around = float(value or 0.0)
    if value is not None and around != value:
        raise Unmapped(f"has {value}, which float64 does not hold")
    return padded(write, x, _widths(pad, len(write.shape(x))), around)


def _widths(pad: Sizes, rank: int) -> list[tuple[int, int]]:
    pairs = list(zip(pad[::2], pad[1::2], strict=True))
    return [(0, 0)] * (rank - len(pairs)) + pairs[::-1]


def pad_any(
    write: Writer, x: Operand, pad: Sizes, mode: str = "constant", value: float | None = None
) -> Value:
    """Pad with a number, or with elements of x, as torch's pad does in that mode."""
    if mode == "constant":
        return constant_pad(write, x, pad, value)
    result = write.value(x)
    for axis, (before, after) in enumerate(_widths(pad, len(result.shape))):
        if before or after:
            result = _pad_axis(write, result, axis, before, after, mode)
    return result


def _pad_axis(write: Writer, x: Value, axis: int, before: int, after: int, mode: str) -> Value:
    """Pad one axis with its mirror image, its ends, or its other end.

    A negative width cuts elements off. The mirror image and the ends are taken from all elements,
    the other end from the elements left.
    """
    length = x.shape[axis]
    first, end = max(-before, 0), length + min(after, 0)
    if mode == "circular":
        return _wrapped(write, sliced(write, x, axis, first, end), axis, before, after)

    def place(n: int) -> int:
        if mode == "replicate":
            return min(max(n, 0), length - 1)
        return abs(n) if n < length else 2 * (length - 1) - n

    def parts(places: range) -> list[Value]:
        around = np.array([place(n) for n in places], np.int64)
        return [taken(write, x, axis, around)] if around.size else []

    left = parts(range(-before, min(length + after, 0)))
    right = parts(range(max(length, -before), length + after))
    middle = [sliced(write, x, axis, first, end)] if first < end else []
    return joined(write, [*left, *middle, *right], axis)


def _wrapped(write: Writer, x: Value, axis: int, before: int, after: int) -> Value:
    """An axis with its other end before and after it; a negative width adds nothing."""
    length, widths = x.shape[axis], (max(before, 0), max(after, 0))
    if max(widths) > length:
        raise Unmapped(f"repeats {max(widths)} of {length} elements")
    start = sliced(write, x, axis, length - widths[0], length)
    return joined(write, [start, x, sliced(write, x, axis, 0, widths[1])], axis)


def pixel_shuffle(write: Writer, x: Operand, upscale_factor: int) -> Value:
    """Channels (.., c r^2, h, w) to positions (.., c, h r, w r)."""
    *lead, channels, height, width = write.shape(x)
    r, n = upscale_factor, len(lead)
    apart = reshaped(write, x, (*lead, channels // r**2, r, r, height, width))
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    shape = (*lead, channels // r**2, height * r, width * r)
    return reshaped(write, permuted(write, apart, order), shape)
