"""Views that other mappings need; a view that changes nothing is not written."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from sparsejit.frontends.writing.writer import Operand, Writer
from sparsejit.ir.ops.views import Concat, Expand, Pad, Permute, Reshape, Slice
from sparsejit.ir.values import Value, axis_of


def reshaped(write: Writer, x: Operand, shape: Sequence[int]) -> Value:
    """x reshaped to `shape`, in which one size may be -1."""
    value = write.value(x)
    sizes = tuple(shape)
    if -1 in sizes:
        others = prod(n for n in sizes if n != -1)
        missing = value.type.size // others if others else 0
        sizes = tuple(missing if n == -1 else n for n in sizes)
    return value if sizes == value.shape else write.one(Reshape(sizes), value)


def with_axis(write: Writer, x: Operand) -> Value:
    """x itself; a tensor without axes as one element along an axis."""
    value = write.value(x)
    return value if value.shape else reshaped(write, value, (1,))


def permuted(write: Writer, x: Operand, axes: Sequence[int]) -> Value:
    """Axis i of the result is axis axes[i] of x."""
    value = write.value(x)
    order = tuple(axis_of(axis, len(value.shape)) for axis in axes)
    if order == tuple(range(len(order))):
        return value
    long = [axis for axis in order if value.shape[axis] != 1]
    if long == sorted(long):  # only axes of one element move
        return reshaped(write, value, [value.shape[axis] for axis in order])
    return write.one(Permute(order), value)


def moved(write: Writer, x: Operand, axis: int, to: int) -> Value:
    """x with an axis at another place, the others in their order."""
    rank = len(write.shape(x))
    axis, to = axis_of(axis, rank), axis_of(to, rank)
    order = [other for other in range(rank) if other != axis]
    order.insert(to, axis)
    return permuted(write, x, order)


def swapped(write: Writer, x: Operand, one: int, other: int) -> Value:
    """x with two axes exchanged."""
    order = list(range(len(write.shape(x))))
    if order:
        order[one], order[other] = order[other], order[one]
    return permuted(write, x, order)


def sliced(write: Writer, x: Operand, axis: int, first: int, end: int, step: int = 1) -> Value:
    """Elements first, first + step ... before end of an axis, all within it."""
    value = write.value(x)
    axis = axis_of(axis, len(value.shape))
    if (first, end, step) == (0, value.shape[axis], 1):
        return value
    return write.one(Slice(axis, first, max(first, end), step), value)


def at(write: Writer, x: Operand, axis: int, place: int) -> Value:
    """One element of an axis, which is removed."""
    value = write.value(x)
    axis = axis_of(axis, len(value.shape))
    part = sliced(write, value, axis, place, place + 1)
    return reshaped(write, part, value.shape[:axis] + value.shape[axis + 1 :])


def expanded(write: Writer, x: Operand, shape: Sequence[int]) -> Value:
    """x repeated to `shape` by broadcasting."""
    value = write.value(x)
    sizes = tuple(shape)
    return value if sizes == value.shape else write.one(Expand(sizes), value)


def joined(write: Writer, parts: Sequence[Operand], axis: int) -> Value:
    """Join parts along an axis; parts without elements are left out."""
    values = [write.value(part) for part in parts]
    full = [value for value in values if value.type.size] or values
    if len(full) == 1:
        return full[0]
    return write.one(Concat(axis_of(axis, len(full[0].shape))), *full)


def padded(
    write: Writer, x: Operand, widths: Sequence[tuple[int, int]], value: float = 0.0
) -> Value:
    """x with `widths` (before, after) elements around each axis; a negative width cuts them off."""
    result = write.value(x)
    for axis, (before, after) in enumerate(widths):
        end = result.shape[axis] + min(after, 0)
        result = sliced(write, result, axis, max(-before, 0), end)
    around = tuple((max(before, 0), max(after, 0)) for before, after in widths)
    return write.one(Pad(around, value), result) if any(map(any, around)) else result
