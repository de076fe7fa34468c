"""Shapes, and the same elements in another shape or order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsejit.frontends.onnx.call import Call
from sparsejit.frontends.writing import arranging, selection, views
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.ops.pointwise import WRAPS, Pointwise
from sparsejit.ir.ops.views import Concat, Reshape
from sparsejit.ir.values import Array, Value, axis_of


def shape(write: Writer, call: Call) -> Array:
    """The sizes of the axes from start to end, known now."""
    operand = call.operand(0)
    sizes = tuple(operand.shape) if operand is not None else ()
    return np.array(sizes[call.attribute("start", 0) : call.attribute("end")], np.int64)


def size(write: Writer, call: Call) -> Array:
    """The number of elements, known now."""
    return np.array(call.value(write, 0).type.size, np.int64)


def reshape(write: Writer, call: Call) -> Value:
    """Reshape; 0 keeps a size unless allowzero is set."""
    x = call.value(write, 0)
    sizes = call.numbers(1, "shape")
    if not call.flag("allowzero"):
        sizes = [x.shape[axis] if n == 0 else n for axis, n in enumerate(sizes)]
    return _stacked(write, x, sizes) or arranging.reshaped(write, x, sizes)


def _stacked(write: Writer, x: Value, sizes: list[int]) -> Value | None:
    """Parts one after another as the rows that they become, so that each keeps its samples."""
    op, parts = write.producer(x) or (None, ())
    if op != Concat(0) or any(part.shape != parts[0].shape for part in parts):
        return None
    length = parts[0].type.size
    if sizes not in ([len(parts), length], [len(parts), -1], [-1, length]):
        return None
    return arranging.joined(write, [arranging.reshaped(write, each, (1, -1)) for each in parts], 0)


def flatten(write: Writer, call: Call) -> Value:
    """Reshape to a matrix: the axes before `axis`, and the others."""
    x = call.value(write, 0)
    axis = call.attribute("axis", 1)
    axis = axis + len(x.shape) if axis < 0 else axis
    return arranging.reshaped(write, x, (int(np.prod(x.shape[:axis])), -1))


def squeeze(write: Writer, call: Call) -> Value:
    """Remove axes of one element: the axes named, or all."""
    return views.squeeze(write, call.value(write, 0), call.axes(1, since=13))


def unsqueeze(write: Writer, call: Call) -> Value:
    """Add axes of one element at these places of the result."""
    x, axes = call.value(write, 0), call.axes(1, since=13)
    if axes is None:
        raise Unmapped("its axes are missing")
    rank = len(x.shape) + len(axes)
    sizes, new = iter(x.shape), {axis_of(axis, rank) for axis in axes}
    return arranging.reshaped(write, x, [1 if n in new else next(sizes) for n in range(rank)])


def transpose(write: Writer, call: Call) -> Value:
    """Permute the axes; by default reverse them."""
    x = call.value(write, 0)
    return arranging.permuted(write, x, call.attribute("perm") or range(len(x.shape))[::-1])


def concatenate(write: Writer, call: Call) -> Value:
    """Join operands along an axis."""
    return views.concatenate(write, call.values(write), call.attribute("axis"))


def split(write: Writer, call: Call) -> tuple[Value, ...]:
    """Parts of given lengths, or one for each output, with a shorter last part."""
    x = call.value(write, 0)
    axis = axis_of(call.attribute("axis", 0), len(x.shape))
    lengths = call.attribute("split") if call.opset < 13 else None
    if call.has(1):
        lengths = call.numbers(1, "split")
    if lengths is None:
        parts = call.attribute("num_outputs", call.outputs)
        return tuple(views.chunk(write, x, parts, axis))
    return tuple(views.cut(write, x, list(lengths), axis))


def slice_axes(write: Writer, call: Call) -> Value:
    """Slice axes, as in Python where starts and ends are known and steps are positive.

    Negative steps follow ONNX, whose slices begin at the first element where Python's are empty.
    A computed start takes one axis with step 1; a call with places off it raises InvalidInput.
    """
    x = call.value(write, 0)
    if isinstance(call.operand(1), Value) and isinstance(call.operand(2), Value):
        return _from_a_place(write, call, x)
    starts, ends = call.numbers(1, "starts"), call.numbers(2, "ends")
    axes = call.numbers(3, "axes") if call.has(3) else range(len(starts))
    steps = call.numbers(4, "steps") if call.has(4) else [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise Unmapped("its starts, ends, axes and steps differ in length, or a step is 0")
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step > 0:
            x = views.slice_axis(write, x, axis, start, end, step)
        else:
            places = views.backward_places(x.shape[axis], slice(start, end, step))
            x = selection.taken(write, x, axis, places)
    return x


def _from_a_place(write: Writer, call: Call, x: Value) -> Value:
    """Slice an axis from a computed start, to an end at a known distance.

    All places must lie on the axis: a call with others raises InvalidInput.
    """
    first, end = call.value(write, 1), call.value(write, 2)
    (one, before), (other, behind) = _origin_of(write, first), _origin_of(write, end)
    steps = call.numbers(4, "steps") if call.has(4) else [1]
    if first.type.size != 1 or one != other or behind < before or steps != [1]:
        raise Unmapped("its number of elements is not known before the model runs")
    axis = call.number(3, "axes") if call.has(3) else 0
    start = arranging.reshaped(write, first, (1,))
    places = write.pointwise("add", start, np.arange(behind - before))
    return selection.looked_up(write, x, axis_of(axis, len(x.shape)), places)


def _origin_of(write: Writer, x: Value) -> tuple[Value, int]:
    """The value to which known numbers are added to compute x, and the sum of these numbers."""
    total = 0
    while (made := write.producer(x)) is not None:
        op, operands = made
        known = [write.known(each) for each in operands]
        numbers = [int(each) for each in known if each is not None and each.size == 1]
        kind = op.kind if isinstance(op, Pointwise) else ""
        if isinstance(op, Reshape) or kind in WRAPS.values():
            x = operands[0]
        elif kind in ("add", "sub") and len(numbers) == 1:
            if known[1] is None and kind == "sub":
                break
            total += -numbers[0] if kind == "sub" else numbers[0]
            x = operands[1] if known[1] is None else operands[0]
        else:
            break
    return x, total


def expand(write: Writer, call: Call) -> Value:
    """Broadcast x to a shape, in which sizes of 1 stand for x's own."""
    x = call.value(write, 0)
    sizes = call.numbers(1, "shape")
    try:
        whole = np.broadcast_shapes(x.shape, tuple(sizes))
    except ValueError as error:
        raise Unmapped(f"expands {list(x.shape)} to {sizes}: {error}") from None
    return arranging.expanded(write, x, whole)


def tile(write: Writer, call: Call) -> Value:
    """Repeat each axis as a whole."""
    return views.repeat(write, call.value(write, 0), call.numbers(1, "repeats"))


# ONNX's modes of padding, the default first, and the names in `views.pad_any`.
_PADDING = {"constant": "constant", "edge": "replicate", "reflect": "reflect", "wrap": "circular"}


def pad(write: Writer, call: Call) -> Value:
    """Pad with a number, or with elements of x."""
    x, widths = call.value(write, 0), call.numbers(1, "pads")
    axes = call.numbers(3, "axes") if call.has(3) else range(len(x.shape))
    around = [(0, 0)] * len(x.shape)
    for place, axis in enumerate(axes):
        around[axis_of(axis, len(x.shape))] = widths[place], widths[place + len(widths) // 2]
    mode = _PADDING[call.choice("mode", list(_PADDING))]
    constant = write.known(call.value(write, 2)) if call.has(2) else np.zeros(())
    if constant is None:
        raise Unmapped("its constant is not known before the model runs")
    number = float(constant.reshape(()))
    last_first = [width for pair in reversed(around) for width in pair]
    return views.pad_any(write, x, last_first, mode, number)


def depth_to_space(write: Writer, call: Call) -> Value:
    """Move blocks of channels to positions."""
    x, block = call.value(write, 0), call.attribute("blocksize")
    if call.choice("mode", ("DCR", "CRD")) == "CRD":
        return views.pixel_shuffle(write, x, block)
    batch, _, height, width = x.shape
    apart = arranging.reshaped(write, x, (batch, block, block, -1, height, width))
    moved = arranging.permuted(write, apart, (0, 3, 4, 1, 5, 2))
    return arranging.reshaped(write, moved, (batch, -1, height * block, width * block))


def space_to_depth(write: Writer, call: Call) -> Value:
    """Move blocks of positions to channels."""
    x, block = call.value(write, 0), call.attribute("blocksize")
    batch, channels, height, width = x.shape
    rows, columns = height // block, width // block
    apart = arranging.reshaped(write, x, (batch, channels, rows, block, columns, block))
    orders = {"DCR": (0, 3, 5, 1, 2, 4), "CRD": (0, 1, 3, 5, 2, 4)}
    moved = arranging.permuted(write, apart, orders[call.choice("mode", (*orders,))])
    return arranging.reshaped(write, moved, (batch, -1, rows, columns))


OPERATORS: dict[str, Callable[[Writer, Call], Any]] = {
    "Concat": concatenate,
    "DepthToSpace": depth_to_space,
    "Expand": expand,
    "Flatten": flatten,
    "Pad": pad,
    "Reshape": reshape,
    "Shape": shape,
    "Size": size,
    "Slice": slice_axes,
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "Squeeze": squeeze,
    "Tile": tile,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
}
