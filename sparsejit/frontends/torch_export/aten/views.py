"""ATen's views, joins, repetitions, splits, slices and writes into them, padding, rolling, windows.

    view, transpose, expand   other shapes and orders of axes, and repetition by broadcasting
    tensor_split, unbind      splits
    select, narrow            slices
    slice_replaced            writes into a slice; `element_replaced` into one element
    pad_with                  padding
    roll                      cyclic moves along axes
    windows                   windows of an axis
    filled                    fills: tensors of one number in the shape of another

Joins and the other operators in `OPERATORS` map to functions of `frontends.writing.views`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsejit.frontends.writing.arranging import (
    at,
    expanded,
    joined,
    moved,
    permuted,
    reshaped,
    sliced,
    swapped,
    with_axis,
)
from sparsejit.frontends.writing.convolution import folded
from sparsejit.frontends.writing.fourier import frames
from sparsejit.frontends.writing.selection import taken
from sparsejit.frontends.writing.views import (
    Sizes,
    chunk,
    concatenate,
    constant_pad,
    cut,
    pad_any,
    pixel_shuffle,
    repeat,
    repeat_each,
    size,
    slice_axis,
    split,
    squeeze,
    stack,
    unsqueeze,
)
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer, element_of
from sparsejit.ir.values import Value, axis_of


def view(write: Writer, x: Operand, shape: Sizes, *_: Any) -> Value:
    """x in another shape, in row-major order."""
    return reshaped(write, x, shape)


def view_as(write: Writer, x: Operand, other: Operand) -> Value:
    """x reshaped to the shape of another tensor."""
    return reshaped(write, x, write.shape(other))


def flatten(write: Writer, x: Operand, start_dim: int = 0, end_dim: int = -1) -> Value:
    """Axes start_dim to end_dim as one."""
    shape = write.shape(x)
    if not shape:
        return reshaped(write, x, (1,))
    first, last = axis_of(start_dim, len(shape)), axis_of(end_dim, len(shape))
    middle = int(np.prod(shape[first : last + 1]))
    return reshaped(write, x, (*shape[:first], middle, *shape[last + 1 :]))


def unflatten(write: Writer, x: Operand, dim: int, sizes: Sizes) -> Value:
    """One axis as several."""
    shape = write.shape(x)
    axis = axis_of(dim, len(shape))
    known = int(np.prod([n for n in sizes if n != -1]))
    filled = [shape[axis] // known if n == -1 else n for n in sizes]
    return reshaped(write, x, (*shape[:axis], *filled, *shape[axis + 1 :]))


def transpose(write: Writer, x: Operand, dim0: int, dim1: int) -> Value:
    """Two axes exchanged."""
    return swapped(write, x, dim0, dim1)


def transpose_matrix(write: Writer, x: Operand) -> Value:
    """The two axes of a matrix exchanged; a vector as it is."""
    return swapped(write, x, 0, 1) if len(write.shape(x)) == 2 else write.value(x)


def transpose_last(write: Writer, x: Operand) -> Value:
    """The last two axes exchanged."""
    return swapped(write, x, -2, -1)


def move_axis(write: Writer, x: Operand, source: int, destination: int) -> Value:
    """One axis moved to another position."""
    return moved(write, x, source, destination)


def expand(write: Writer, x: Operand, sizes: Sizes, *_: Any, **__: Any) -> Value:
    """x repeated by broadcasting; -1 keeps a size."""
    shape = write.shape(x)
    old = (1,) * (len(sizes) - len(shape)) + tuple(shape)
    return expanded(write, x, [m if n == -1 else n for n, m in zip(sizes, old, strict=True)])


def expand_as(write: Writer, x: Operand, other: Operand) -> Value:
    """x repeated to the shape of another tensor."""
    return expanded(write, x, write.shape(other))


def tensor_split(write: Writer, x: Operand, sections: int, dim: int = 0) -> list[Value]:
    """`sections` parts of an axis; the first ones are one element longer where it needs that."""
    length, longer = divmod(write.shape(x)[dim], sections)
    return cut(write, x, [length + (n < longer) for n in range(sections)], dim)


def unbind(write: Writer, x: Operand, dim: int = 0) -> list[Value]:
    """Each element of an axis, which is removed."""
    return [at(write, x, dim, place) for place in range(write.shape(x)[dim])]


def select(write: Writer, x: Operand, dim: int, index: int) -> Value:
    """One element of an axis, which is removed."""
    return at(write, x, dim, index % write.shape(x)[dim])


def narrow(write: Writer, x: Operand, dim: int, start: int, length: int) -> Value:
    """`length` elements of an axis."""
    first = start % max(write.shape(x)[dim], 1) if start < 0 else start
    return sliced(write, x, dim, first, first + length)


def slice_replaced(
    write: Writer,
    x: Operand,
    source: Operand,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    """x with another tensor in the place of a slice."""
    length = write.shape(x)[dim]
    first, last, stride = slice(start, end, step).indices(length)
    if stride != 1:
        raise Unmapped(f"writes every {stride}nd element")
    inside = write.converted(source, write.dtype(x))
    shape = list(write.shape(x))
    shape[dim] = max(last - first, 0)
    parts = [
        sliced(write, x, dim, 0, first),
        expanded(write, inside, shape),
        sliced(write, x, dim, max(last, first), length),
    ]
    return joined(write, parts, dim)


def element_replaced(write: Writer, x: Operand, source: Operand, dim: int, index: int) -> Value:
    """x with another tensor in the place of one element of an axis."""
    place = index % write.shape(x)[dim]
    return slice_replaced(write, x, unsqueeze(write, source, dim), dim, place, place + 1)


def repeat_by(
    write: Writer, x: Operand, repeats: Operand, dim: int | None = None, **_: Any
) -> Value:
    """Every element of an axis, repeated by the counts in a known tensor."""
    counts = write.known(repeats)
    if counts is None:
        raise Unmapped("repeats as often as an input says, which leaves the size open")
    value = reshaped(write, x, (-1,)) if dim is None else write.value(x)
    axis = axis_of(dim or 0, len(value.shape))
    if counts.size == 1:
        return repeat_each(write, value, int(counts.reshape(())), axis)
    return taken(write, value, axis, np.repeat(np.arange(value.shape[axis]), counts))


def pad_with(mode: str) -> Callable[..., Value]:
    """Mapping of torch's padding in one mode."""
    return lambda write, x, pad: pad_any(write, x, pad, mode)


def roll(write: Writer, x: Operand, shifts: int | Sizes, dims: int | Sizes = ()) -> Value:
    """Elements moved cyclically along axes."""
    steps = [shifts] if isinstance(shifts, int) else list(shifts)
    axes = [dims] if isinstance(dims, int) else list(dims)
    if not axes:
        return reshaped(write, roll(write, reshaped(write, x, (-1,)), steps, [0]), write.shape(x))
    result = write.value(x)
    for shift, axis in zip(steps, axes, strict=True):
        length = result.shape[axis]
        cut_at = -shift % max(length, 1)
        parts = [(cut_at, length), (0, cut_at)]
        result = joined(write, [sliced(write, result, axis, a, b) for a, b in parts], axis)
    return result


def windows(write: Writer, x: Operand, dimension: int, size: int, step: int) -> Value:
    """Windows of an axis: the axis counts them, and a new last axis holds their elements."""
    value = with_axis(write, x)
    axis = axis_of(dimension, len(value.shape))
    if not write.shape(x):  # its only axis holds the elements
        return sliced(write, value, 0, 0, size)
    if not size:
        lengths = list(value.shape)
        lengths[axis] = value.shape[axis] // step + 1
        return write.cast(write.zeros((*lengths, 0)), value.type.element)
    return moved(write, frames(write, moved(write, value, axis, -1), size, step), -2, axis)


def filled(number: float | None) -> Callable[..., Value]:
    """Mapping to a tensor of one number in the shape of another tensor."""

    def mapping(write: Writer, x: Operand, *rest: Any, dtype: Any = None, **_: Any) -> Value:
        value = rest[-1] if number is None else number
        shape = rest[0] if rest and isinstance(rest[0], list | tuple) else write.shape(x)
        element = write.element(x) if dtype is None else element_of(dtype)
        return expanded(write, write.cast(value, element), shape)

    return mapping


_REPEATING = {"reflect": "reflection", "replicate": "replication"}

OPERATORS: dict[str, Callable[..., Any]] = {
    "aten.sym_size.int": size,
    "aten.size.int": size,
    "aten.view.default": view,
    "aten.reshape.default": view,
    "aten._unsafe_view.default": view,
    "aten.view_as.default": view_as,
    "aten.reshape_as.default": view_as,
    "aten.flatten.using_ints": flatten,
    "aten.unflatten.int": unflatten,
    "aten.unsqueeze.default": unsqueeze,
    "aten.squeeze.default": squeeze,
    "aten.squeeze.dim": squeeze,
    "aten.squeeze.dims": squeeze,
    "aten.transpose.int": transpose,
    "aten.swapaxes.default": transpose,
    "aten.swapdims.default": transpose,
    "aten.t.default": transpose_matrix,
    "aten.numpy_T.default": transpose_matrix,
    "aten.mT.default": transpose_last,
    "aten.permute.default": permuted,
    "aten.movedim.int": move_axis,
    "aten.expand.default": expand,
    "aten.expand_as.default": expand_as,
    "aten.broadcast_to.default": expand,
    "aten.repeat.default": repeat,
    "aten.tile.default": repeat,
    "aten.repeat_interleave.self_int": repeat_each,
    "aten.repeat_interleave.self_Tensor": repeat_by,
    "aten.cat.default": concatenate,
    "aten.concat.default": concatenate,
    "aten.concatenate.default": concatenate,
    "aten.stack.default": stack,
    "aten.split.Tensor": split,
    "aten.split.sizes": split,
    "aten.split_with_sizes.default": cut,
    "aten.chunk.default": chunk,
    "aten.tensor_split.sections": tensor_split,
    "aten.unbind.int": unbind,
    "aten.select.int": select,
    "aten.slice.Tensor": slice_axis,
    "aten.narrow.default": narrow,
    "aten.slice_scatter.default": slice_replaced,
    "aten.select_scatter.default": element_replaced,
    "aten.pad.default": pad_any,
    "aten.constant_pad_nd.default": constant_pad,
    **{
        f"aten.{name}_pad{rank}d.default": pad_with(mode)
        for mode, name in _REPEATING.items()
        for rank in (1, 2)
    },
    "aten.unfold.default": windows,
    "aten.col2im.default": folded,
    "aten.roll.default": roll,
    "aten.pixel_shuffle.default": pixel_shuffle,
    "aten.zeros_like.default": filled(0),
    "aten.ones_like.default": filled(1),
    "aten.full_like.default": filled(None),
    "aten.new_zeros.default": filled(0),
    "aten.new_ones.default": filled(1),
    "aten.new_full.default": filled(None),
    "aten.fill.Scalar": filled(None),
    "aten.fill.Tensor": filled(None),
    "aten.zero.default": filled(0),
}
