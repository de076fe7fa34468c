"""Elements by index, triangles, and images of another size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsejit.frontends.onnx import resizing
from sparsejit.frontends.onnx.call import Call
from sparsejit.frontends.onnx.reading import dtype_of
from sparsejit.frontends.writing import arranging, grid_sample, open_sizes, pooling, selection
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.values import Array, Value, axis_of

_MOST_CLASSES = 1 << 20


def gather(write: Writer, call: Call) -> Value:
    """Elements of an axis at one known place or several, or rows of a table by computed indices."""
    x = call.value(write, 0)
    axis = axis_of(call.attribute("axis", 0), len(x.shape))
    indices = call.operand(1)
    if not isinstance(indices, np.ndarray):
        places = _from_the_front(write, call.value(write, 1), x.shape[axis])
        return selection.looked_up(write, x, axis, places)
    taken = selection.taken(write, x, axis, indices.reshape(-1))
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return arranging.reshaped(write, taken, shape)


def _from_the_front(write: Writer, places: Value, length: int) -> Value:
    """Places on an axis of that length, with its length added to negative ones."""
    if write.dtype(places).kind == "u":
        return places
    is_behind = write.pointwise("less", places, 0)
    return write.pointwise("where", is_behind, write.pointwise("add", places, length), places)


def reverse_sequence(write: Writer, call: Call) -> Value:
    """Reverse each sample's first steps, up to its length."""
    x, lengths = call.value(write, 0), call.value(write, 1)
    batch_axis, time_axis = call.attribute("batch_axis", 1), call.attribute("time_axis", 0)
    if {batch_axis, time_axis} != {0, 1} or len(x.shape) < 2:
        raise Unmapped(f"its batch is on axis {batch_axis} and its time on axis {time_axis}")
    if lengths.shape != (x.shape[batch_axis],):
        raise Unmapped(f"has lengths {list(lengths.shape)} for {x.shape[batch_axis]} samples")
    return selection.reversed_up_to(write, x, lengths, batch_axis, time_axis)


def triangle(write: Writer, call: Call) -> Value:
    """x with zeros below a diagonal, or above it."""
    diagonal = call.number(1, "diagonal") if call.has(1) else 0
    upper = call.flag("upper", True)
    function = selection.upper_triangle if upper else selection.lower_triangle
    return function(write, call.value(write, 0), diagonal)


def diagonal_like(write: Writer, call: Call) -> Array:
    """A matrix of the operand's shape with ones on a diagonal, known now."""
    x = call.operand(0)
    dtype = write.dtype(x) if isinstance(x, Value) else np.asarray(x).dtype
    if call.attribute("dtype"):
        dtype = dtype_of(call.attribute("dtype"), "attribute dtype")
    shape = call.value(write, 0).shape
    if len(shape) != 2:
        raise Unmapped(f"has {len(shape)} axes, not two")
    if not isinstance(dtype, np.dtype):
        raise Unmapped(f"has dtype {dtype}")
    return np.eye(*shape, k=call.attribute("k", 0), dtype=dtype)


def one_hot(write: Writer, call: Call) -> Value:
    """A new axis of `depth` places: values[1] at the place that an index names, else values[0]."""
    index = call.value(write, 0)
    depth, values = call.number(1, "depth"), call.known(2, "values")
    if values.shape != (2,):
        raise Unmapped(f"its values have shape {values.shape}, not (2,)")
    off, on = values.tolist()
    if not 0 < depth <= _MOST_CLASSES:
        raise Unmapped(f"has {depth} classes, not 1 to {_MOST_CLASSES}")
    axis = axis_of(call.attribute("axis", -1), len(index.shape) + 1)
    wrapped = _from_the_front(write, index, depth)
    column = arranging.reshaped(write, wrapped, (*index.shape, 1))
    is_there = write.pointwise("equal", column, np.arange(depth))
    hot = write.pointwise("where", is_there, on, off)
    return arranging.moved(write, hot, -1, axis)


def resize(write: Writer, call: Call) -> Value:
    """Resize: multiply each axis by a matrix of the weights of old positions in new ones."""
    x = call.value(write, 0)
    named = call.attribute("axes") or range(len(x.shape))
    axes = [axis_of(axis, len(x.shape)) for axis in named]
    wanted: list[tuple[int, float | None, int | None]]
    how = resizing.Resizing(
        call.choice("mode", resizing.MODES),
        call.choice("coordinate_transformation_mode", resizing.COORDINATES),
        call.choice("nearest_mode", resizing.ROUNDINGS),
        call.attribute("cubic_coeff_a", -0.75),
        call.flag("exclude_outside"),
        call.flag("antialias"),
    )
    if how.coordinates == "tf_crop_and_resize":
        raise Unmapped("crops")
    if call.has(3):
        if call.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise Unmapped("keeps the aspect ratio")
        sizes = call.numbers(3, "sizes")
        wanted = [(axis, None, size) for axis, size in zip(axes, sizes, strict=True)]
    else:
        scales = call.known(2, "scales").astype(float).reshape(-1).tolist()
        wanted = [(axis, scale, None) for axis, scale in zip(axes, scales, strict=True)]
    if 0 in x.shape or any(size == 0 for _, _, size in wanted):
        raise Unmapped("has no elements")
    for axis, scale, size in wanted:
        if scale != 1 and size != x.shape[axis]:
            x = _resized(write, x, axis, how.weights(x.shape[axis], scale, size))
    return x


def _resized(write: Writer, x: Value, axis: int, positions: Array) -> Value:
    is_choice = np.all((positions == 0) | (positions == 1)) and np.all(positions.sum(axis=1) == 1)
    if is_choice:
        return pooling.picked(write, x, axis, positions.argmax(axis=1))
    return pooling.weighed(write, x, axis, positions)


# Modes by their names before opset 20.
_OLD_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def sample_grid(write: Writer, call: Call) -> Value:
    """Sample images at the points of a grid."""
    mode = call.choice("mode", ("linear", "nearest", "cubic", *_OLD_MODES))
    padding = call.choice("padding_mode", ("zeros", "border", "reflection"))
    x, grid, is_centred = call.value(write, 0), call.value(write, 1), call.flag("align_corners")
    mode = _OLD_MODES.get(mode, mode)
    return grid_sample.grid_sampled(write, x, grid, mode, padding, is_centred)


def nonzero(write: Writer, call: Call) -> Value:
    """The indices of elements that are not 0: (axes of x, count)."""
    x = call.value(write, 0)
    table, _ = open_sizes.coordinates(write, x if x.shape else arranging.reshaped(write, x, (1,)))
    return arranging.permuted(write, table, (1, 0))


def compress(write: Writer, call: Call) -> Value:
    """The elements of x at the places of an axis, or of x in a row, where a condition is true."""
    x, condition = call.value(write, 0), call.value(write, 1)
    axis = call.attribute("axis")
    if axis is None:
        x, axis = arranging.reshaped(write, x, (x.type.size,)), 0
    axis = axis_of(axis, len(x.shape))
    (length,) = condition.shape
    if length > x.shape[axis]:
        raise Unmapped(f"has {length} conditions for {x.shape[axis]} places")
    return open_sizes.chosen(write, arranging.sliced(write, x, axis, 0, length), axis, condition)[0]


OPERATORS: dict[str, Callable[[Writer, Call], Any]] = {
    "Compress": compress,
    "EyeLike": diagonal_like,
    "Gather": gather,
    "GridSample": sample_grid,
    "NonZero": nonzero,
    "OneHot": one_hot,
    "Resize": resize,
    "ReverseSequence": reverse_sequence,
    "Trilu": triangle,
}
