"""Views, selection, and places of several axes: random nodes of each row of ONNX's operators."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from fuzzing.onnx_growing import OnnxGrowing

Maker = Callable[[OnnxGrowing], Any]
_FAR = 2**31 - 1  # what exporters write for "to the end"


def _reshape(grow: OnnxGrowing) -> None:
    x = grow.tensor("fiub", ranks=(0, 5))
    shape, draw = grow.values[x].shape, grow.draw
    sizes = list(shape)
    for _ in range(draw.randint(0, 3)):
        way = draw.randrange(3)
        if way == 0 and len(sizes) > 1:  # two axes as one
            place = draw.randrange(len(sizes) - 1)
            sizes[place : place + 2] = [sizes[place] * sizes[place + 1]]
        elif way == 1:
            sizes.insert(draw.randint(0, len(sizes)), 1)
        elif len(sizes) and prod(sizes):  # one as two
            place = draw.randrange(len(sizes))
            least = next((n for n in (2, 3, 5) if sizes[place] % n == 0), 1)
            sizes[place : place + 1] = [least, sizes[place] // least]
    given = {"allowzero": grow.flag()} if grow.has("Reshape", 14) and draw.random() < 0.3 else {}
    if not given.get("allowzero"):
        sizes = [
            0 if shape[n : n + 1] == (m,) and draw.random() < 0.2 else m
            for n, m in enumerate(sizes)
        ]
    if sizes and draw.random() < 0.3:
        sizes[draw.randrange(len(sizes))] = -1
    grow.add("Reshape", [x, grow.longs(sizes)], **given)


def _flatten(grow: OnnxGrowing) -> None:
    x = grow.tensor("fiub", ranks=(0, 5))
    rank = grow.values[x].ndim
    low = -rank if grow.has("Flatten", 11) else 0
    grow.add("Flatten", [x], **grow.some(axis=grow.draw.randint(low, rank)))


def _squeeze(grow: OnnxGrowing) -> None:
    x = grow.tensor("fiub", ranks=(0, 5), fits=lambda a: 1 in a.shape or a.ndim == 0)
    shape = grow.values[x].shape
    ones = [n for n, size in enumerate(shape) if size == 1]
    axes = grow.draw.sample(ones, grow.draw.randint(0, len(ones)))
    if grow.has("Squeeze", 11):
        axes = [axis - grow.draw.choice((0, len(shape))) for axis in axes]
    _with_axes(grow, "Squeeze", x, axes or None)


def _unsqueeze(grow: OnnxGrowing) -> None:
    x = grow.tensor("fiub", ranks=(0, 3))
    count = grow.draw.randint(1, 2)
    rank = grow.values[x].ndim + count
    axes = grow.draw.sample(range(rank), count)
    if grow.has("Unsqueeze", 11):
        axes = [axis - grow.draw.choice((0, rank)) for axis in axes]
    _with_axes(grow, "Unsqueeze", x, axes)


def _with_axes(grow: OnnxGrowing, name: str, x: str, axes: list[int] | None) -> None:
    if axes is None:
        grow.add(name, [x])
    elif grow.has(name, 13):
        grow.add(name, [x, grow.longs(axes)])
    else:
        grow.add(name, [x], axes=axes)


def _transpose(grow: OnnxGrowing) -> None:
    x = grow.tensor("fiub", ranks=(0, 5))
    order = list(range(grow.values[x].ndim))
    grow.draw.shuffle(order)
    grow.add("Transpose", [x], **grow.some(perm=order or None))


def _concat(grow: OnnxGrowing) -> None:
    x = grow.tensor("fiub", ranks=(1, 4))
    array, parts = grow.values[x], [x]
    axis = grow.axis(array.ndim) if grow.has("Concat", 11) else grow.draw.randrange(array.ndim)
    for _ in range(grow.draw.randint(0, 3)):
        sizes = list(array.shape)
        sizes[axis] = grow.draw.choice((0, 1, 2, 3))
        parts.append(x if grow.draw.random() < 0.2 else grow.either(grow.array(sizes, array.dtype)))
    grow.draw.shuffle(parts)
    grow.add("Concat", parts, axis=axis)


def _split(grow: OnnxGrowing) -> None:
    x = grow.tensor("fib", ranks=(1, 4))
    shape, draw = grow.values[x].shape, grow.draw
    axis = grow.axis(len(shape)) if grow.has("Split", 11) else draw.randrange(len(shape))
    length, parts = shape[axis], draw.choice((1, 2, 3))
    cuts = sorted(draw.randint(0, length) for _ in range(parts - 1))
    lengths = [int(n) for n in np.diff([0, *cuts, length])]
    if draw.random() < 0.4:
        count = {"num_outputs": parts} if grow.has("Split", 18) else {}
        grow.add("Split", [x], parts, axis=axis, **count)
    elif grow.has("Split", 13):
        grow.add("Split", [x, grow.longs(lengths)], parts, axis=axis)
    else:
        grow.add("Split", [x], parts, axis=axis, split=lengths)


def _slice(grow: OnnxGrowing) -> None:
    x = grow.tensor("fiub", ranks=(1, 4))
    shape, draw = grow.values[x].shape, grow.draw
    axes = draw.sample(range(len(shape)), draw.randint(1, len(shape)))
    backwards = grow.has("Slice", 10)
    starts, ends, steps = [], [], []
    for axis in axes:
        step = draw.choice((1, 1, 1, 2, 3, -1, -2)) if backwards else 1
        edges = [draw.randint(-shape[axis] - 1, shape[axis] + 1) for _ in range(2)]
        start, end = sorted(edges, reverse=step < 0)
        if draw.random() < 0.3:
            end = draw.choice((_FAR, 2**63 - 1)) if step > 0 else draw.choice((-_FAR, -(2**63)))
        starts, ends, steps = [*starts, start], [*ends, end], [*steps, step]
    if not backwards:
        grow.add("Slice", [x], starts=starts, ends=ends, axes=axes)
        return
    axes = [axis - draw.choice((0, len(shape))) for axis in axes]
    dtype = "int64" if any(abs(n) > _FAR for n in ends) else draw.choice(("int64", "int32"))
    operands = [grow.fixed(each, dtype) for each in (starts, ends, axes, steps)]
    keep = 2 if axes == list(range(len(shape))) and steps == [1] * len(steps) else 4
    keep = 3 if keep == 4 and set(steps) == {1} and grow.flag() else keep
    grow.add("Slice", [x, *operands[:keep]])


def _expand(grow: OnnxGrowing) -> None:
    x = grow.tensor("fiub", ranks=(0, 4), fits=lambda a: a.size < 500)
    shape = list(grow.values[x].shape)
    whole = [grow.draw.choice((2, 3)) if n == 1 and grow.flag() else n for n in shape]
    whole = [1 if grow.draw.random() < 0.2 else n for n in whole]
    lead = list(grow.shape(0, 2)) if grow.flag() else []
    grow.add(
        "Expand", [x, grow.longs([*lead, *whole] if lead or grow.flag() else whole[grow.flag() :])]
    )


def _tile(grow: OnnxGrowing) -> None:
    x = grow.tensor("fiub", ranks=(1, 4), fits=lambda a: a.size < 500)
    times = [grow.draw.choice((0, 1, 1, 1, 2, 2, 3)) for _ in grow.values[x].shape]
    grow.add("Tile", [x, grow.longs(times)])


def _pad(grow: OnnxGrowing) -> None:
    modes = ["constant", "edge", "reflect"] + ["wrap"] * grow.has("Pad", 19)
    mode = grow.draw.choice(modes)
    x = grow.tensor("ffi", ranks=(1, 4))
    array, draw = grow.values[x], grow.draw
    rank = array.ndim
    axes = list(range(rank))
    if grow.has("Pad", 18) and draw.random() < 0.5:
        axes = draw.sample(axes, draw.randint(1, rank))

    def width(size: int) -> int:
        most = {"constant": 3, "edge": 3, "reflect": size - 1, "wrap": size}[mode]
        low = -1 if mode == "constant" or draw.random() < 0.1 else 0
        return draw.randint(low, max(min(most, 3), 0))

    widths = [width(array.shape[axis]) for axis in (*axes, *axes)]
    given = {"mode": mode} if mode != "constant" or draw.random() < 0.5 else {}
    if not grow.has("Pad", 11):
        value = {"value": draw.choice((1.5, -1.0))} if grow.flag() else {}
        grow.add("Pad", [x], pads=widths, **given, **value)
        return
    operands = [x, grow.longs(widths)]
    if len(axes) < rank or axes != sorted(axes):
        dtype = draw.choice(("int64", "int32"))
        axes = [axis - draw.choice((0, rank)) for axis in axes]
        operands += ["", grow.fixed(axes, dtype)]
    if grow.flag():
        operands[2:3] = [grow.fixed(draw.choice((0, 2, -1)), array.dtype)]
    grow.add("Pad", operands, **given)


def _blocks(name: str) -> Maker:
    def make(grow: OnnxGrowing) -> None:
        block, channels = grow.draw.choice((1, 2, 3)), grow.draw.choice((1, 2, 3))
        height, width = grow.draw.choice((1, 2, 3)), grow.draw.choice((1, 2, 4))
        shape = (2, channels * block**2, height, width)
        if name == "SpaceToDepth":
            shape = (2, channels, height * block, width * block)
        x = grow.tensor("f", ranks=(4, 4), shape=shape)
        orders = {"mode": grow.draw.choice(("DCR", "CRD"))} if grow.has(name, 11) else {}
        if name == "SpaceToDepth":
            orders = {}
        grow.add(name, [x], blocksize=block, **grow.some(**orders))

    return make


def _shape(grow: OnnxGrowing) -> None:
    x = grow.tensor("fiub")
    rank = grow.values[x].ndim
    given = {}
    if grow.has("Shape", 15):
        given = grow.some(
            start=grow.draw.randint(-rank - 1, rank), end=grow.draw.randint(-rank, rank)
        )
    grow.add("Shape", [x], **given)


def _places(grow: OnnxGrowing, shape: Any, length: int, known: bool = False) -> str:
    """Indices of an axis, from the front or, seldom, from the end; an input or known."""
    low = -length if grow.draw.random() < 0.2 else 0
    dtype = grow.draw.choice(("int64", "int64", "int32"))
    found = grow.numbers.integers(low, max(length, low + 1), shape).astype(dtype)
    return grow.fixed(found) if known or grow.flag() else grow.input(found)


def _gather(grow: OnnxGrowing) -> None:
    x = grow.tensor("fiub", ranks=(1, 4), fits=lambda a: a.size > 0)
    array = grow.values[x]
    axis = grow.axis(array.ndim)
    found = _places(grow, grow.shape(0, 2), array.shape[axis])
    grow.add("Gather", [x, found], **({"axis": axis} if axis or grow.flag() else {}))


def _along(grow: OnnxGrowing, array: Any, axis: int) -> tuple[int, ...]:
    sizes = [grow.draw.choice((n, n, max(n - 1, 1))) for n in array.shape]
    sizes[axis] = grow.draw.choice((0, 1, 2, 3, 4, 5))
    return tuple(sizes)


def _gather_elements(grow: OnnxGrowing) -> None:
    x = grow.tensor("fiub", ranks=(1, 4), fits=lambda a: a.size > 0)
    array = grow.values[x]
    axis = grow.axis(array.ndim)
    found = _places(grow, _along(grow, array, axis), array.shape[axis])
    grow.add("GatherElements", [x, found], **({"axis": axis} if axis or grow.flag() else {}))


def _tuples(grow: OnnxGrowing, array: Any, lead: tuple[int, ...], first: int, depth: int) -> Any:
    columns = [
        grow.numbers.integers(0, array.shape[first + n], lead)
        - (array.shape[first + n] if grow.draw.random() < 0.1 else 0)
        for n in range(depth)
    ]
    return np.stack(columns, -1).astype(np.int64)


def _gather_nd(grow: OnnxGrowing) -> None:
    x = grow.tensor("fib", ranks=(1, 4), fits=lambda a: a.size > 0)
    array = grow.values[x]
    first = grow.draw.randint(0, array.ndim - 1) if grow.has("GatherND", 12) else 0
    depth = grow.draw.randint(1, array.ndim - first)
    lead = (*array.shape[:first], *grow.shape(0, 2))
    found = grow.either(_tuples(grow, array, lead, first, depth))
    given = {"batch_dims": first} if first or (grow.has("GatherND", 12) and grow.flag()) else {}
    grow.add("GatherND", [x, found], **given)


_REDUCTIONS = ("none", "add", "mul", "min", "max")


def _reduced(grow: OnnxGrowing, name: str) -> dict[str, Any]:
    if not grow.has(name, 16) or grow.flag():
        return {}
    return {"reduction": grow.draw.choice(_REDUCTIONS[: 5 if grow.has(name, 18) else 3])}


def _scatter_elements(name: str) -> Maker:
    def make(grow: OnnxGrowing) -> None:
        x = grow.tensor("ffi", ranks=(1, 3), fits=lambda a: a.size > 0)
        array, given = grow.values[x], _reduced(grow, name)
        axis = grow.axis(array.ndim)
        shape = _along(grow, array, axis)
        length = array.shape[axis]
        if given.get("reduction", "none") == "none":  # else which one stays is not said
            shape = tuple(
                min(n, length) if m == axis % array.ndim else n for m, n in enumerate(shape)
            )
            order = np.argsort(grow.numbers.random((*shape[:0], length)))
            column = [1] * array.ndim
            column[axis] = -1
            found = np.broadcast_to(order[: shape[axis]].reshape(column), shape)
            indices = grow.fixed(np.ascontiguousarray(found))
        else:
            indices = _places(grow, shape, length, known=True)
        updates = grow.either(grow.array(shape, array.dtype))
        grow.add(name, [x, indices, updates], axis=axis, **given)

    return make


def _scatter_nd(grow: OnnxGrowing) -> None:
    x = grow.tensor("ffi", ranks=(1, 3), fits=lambda a: a.size > 0)
    array, given = grow.values[x], _reduced(grow, "ScatterND")
    depth = grow.draw.randint(1, array.ndim)
    count = grow.draw.randint(0, 4)
    if given.get("reduction", "none") == "none":
        parts = prod(array.shape[:depth])
        numbers = grow.numbers.permutation(parts)[:count]
        found = np.stack(np.unravel_index(numbers, array.shape[:depth]), -1).astype(np.int64)
    else:
        found = _tuples(grow, array, (count,), 0, depth)
    updates = grow.array((len(found), *array.shape[depth:]), array.dtype)
    grow.add("ScatterND", [x, grow.longs(found), grow.either(updates)], **given)


def _one_hot(grow: OnnxGrowing) -> None:
    index = grow.tensor("i", ranks=(0, 3), low=-3, high=5, fits=lambda a: a.dtype != np.int8)
    depth = grow.draw.choice((1, 3, 6))
    rank = grow.values[index].ndim + 1
    low = -depth  # beyond them all are off in ONNX Runtime
    if grow.values[index].size and grow.values[index].min() < low:
        return
    dtype = grow.draw.choice(("float32", "int64", "int32"))
    depths = grow.fixed(depth if grow.flag() else [depth], np.int64)
    operands = [index, depths, grow.fixed([-1, 2], dtype)]
    grow.add("OneHot", operands, **grow.some(axis=grow.axis(rank)))


def _triangle(grow: OnnxGrowing) -> None:
    x = grow.tensor("fib", ranks=(2, 4))
    diagonal = [grow.longs(grow.draw.randint(-3, 3))] if grow.flag() else []
    grow.add("Trilu", [x, *diagonal], **grow.some(upper=grow.flag()))


def _nonzero(grow: OnnxGrowing) -> None:
    grow.add("NonZero", [grow.tensor("fib", ranks=(1, 3), fits=lambda a: a.size > 0)])


def _compress(grow: OnnxGrowing) -> None:
    x = grow.tensor("fib", ranks=(1, 3), fits=lambda a: a.size > 0)
    array = grow.values[x]
    axis = grow.axis(array.ndim) if grow.flag() else None
    length = array.size if axis is None else array.shape[axis]
    condition = grow.input(grow.array((grow.draw.randint(1, length),), "bool"))
    grow.add("Compress", [x, condition], **({} if axis is None else {"axis": axis}))


_MODES = ("nearest", "linear", "cubic")
_COORDINATES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def _resize(grow: OnnxGrowing) -> None:
    draw, mode = grow.draw, grow.draw.choice(_MODES)
    x = grow.tensor(
        "f", ranks=(3, 4) if mode != "cubic" else (4, 4), fits=lambda a: 0 < a.size < 600
    )
    shape = grow.values[x].shape
    steps = [draw.choice((0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 0.75)) for _ in shape[2:]]
    if not grow.has("Resize", 11):
        if grow.has("Resize", 10):
            scales = grow.fixed([1, 1, *steps], np.float32)
            grow.add("Resize", [x, scales], mode=draw.choice(_MODES[:2]))
        return
    given = grow.some(
        coordinate_transformation_mode=draw.choice(
            (*_COORDINATES, *["half_pixel_symmetric"] * grow.has("Resize", 19))
        ),
        nearest_mode=draw.choice(_ROUNDINGS),
    )
    if mode == "cubic":
        given |= grow.some(cubic_coeff_a=draw.choice((-0.5, -0.75)), exclude_outside=grow.flag())
    if grow.has("Resize", 18) and mode != "nearest" and draw.random() < 0.2:
        given["antialias"] = 1
    sizes = [max(int(n * step), 1) for n, step in zip(shape[2:], steps, strict=True)]
    region = "" if grow.has("Resize", 13) else grow.fixed([], np.float32)
    if draw.random() < 0.5:
        empty = "" if grow.has("Resize", 13) else grow.fixed([], np.float32)
        operands = [x, region, empty, grow.longs([*shape[:2], *sizes])]
    else:
        operands = [x, region, grow.fixed([1, 1, *steps], np.float32)]
    if grow.has("Resize", 18) and draw.random() < 0.3:
        given["axes"] = [n - draw.choice((0, len(shape))) for n in range(2, len(shape))]
        operands[-1] = grow.longs(sizes) if len(operands) == 4 else grow.fixed(steps, np.float32)
    grow.add("Resize", operands, mode=mode, **given)


ROWS: dict[str, Maker] = {
    "Compress": _compress,
    "Concat": _concat,
    "DepthToSpace": _blocks("DepthToSpace"),
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "NonZero": _nonzero,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Reshape": _reshape,
    "Resize": _resize,
    "Scatter": _scatter_elements("Scatter"),
    "ScatterElements": _scatter_elements("ScatterElements"),
    "ScatterND": _scatter_nd,
    "Shape": _shape,
    "Slice": _slice,
    "SpaceToDepth": _blocks("SpaceToDepth"),
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _triangle,
    "Unsqueeze": _unsqueeze,
}
