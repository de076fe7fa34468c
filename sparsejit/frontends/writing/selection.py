"""Rows by index, and the largest elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from sparsejit.frontends.writing.arranging import (
    joined,
    moved,
    permuted,
    reshaped,
    sliced,
    with_axis,
)
from sparsejit.frontends.writing.writer import Operand, Writer
from sparsejit.ir.ops import selection as ops
from sparsejit.ir.values import Array, Element, Value, axis_of

# A known choice of more separate runs than this becomes a look-up.
_MOST_RUNS = 8


def taken(write: Writer, x: Operand, axis: int, places: Array) -> Value:
    """Known places of an axis: as slices where they are few runs, else rows of a table."""
    value = write.value(x)
    axis = axis_of(axis, len(value.shape))
    wrapped = np.where(places < 0, places + value.shape[axis], places).astype(np.int64)
    runs = _runs(wrapped.tolist())
    if len(runs) <= _MOST_RUNS and runs:
        return joined(write, [sliced(write, value, axis, *run) for run in runs], axis)
    return looked_up(write, value, axis, wrapped)


def _runs(places: Sequence[int]) -> list[tuple[int, int, int]]:
    """(first, end, step) of ascending ranges that make up the places in order."""
    runs: list[list[int]] = []
    for place in places:
        run = runs[-1] if runs else None
        if run and place > run[-1] and (len(run) == 1 or place - run[-1] == run[1] - run[0]):
            run.append(place)
        else:
            runs.append([place])
    return [(run[0], run[-1] + 1, run[1] - run[0] if len(run) > 1 else 1) for run in runs]


def looked_up(write: Writer, x: Operand, axis: int, indices: Operand) -> Value:
    """Elements of an axis by indices (...), whose axes replace it."""
    if write.element(x) is Element.BOOL:
        return write.cast(looked_up(write, write.floats(x), axis, indices), Element.BOOL)
    rows = moved(write, x, axis, 0)
    table = reshaped(write, rows, (rows.shape[0], prod(rows.shape[1:])))
    places = write.cast(indices, Element.INT64)
    found = write.one(ops.Embedding(), places, table)
    full = reshaped(write, found, (*places.shape, *rows.shape[1:]))
    front = range(len(places.shape))
    order = list(range(len(front), len(full.shape)))
    for number, own in enumerate(front):
        order.insert(axis_of(axis, len(rows.shape)) + number, own)
    return permuted(write, full, order)


def reversed_up_to(
    write: Writer, x: Operand, lengths: Operand, batch_axis: int, time_axis: int
) -> Value:
    """Reverse each sample's first steps, up to its length; later steps stay as they are.

    A length below 0, or above the number of steps, names a place that does not exist.
    """
    if write.element(x) is Element.BOOL:
        reversed_floats = reversed_up_to(write, write.floats(x), lengths, batch_axis, time_axis)
        return write.cast(reversed_floats, Element.BOOL)
    rank = len(write.shape(x))
    others = [axis for axis in range(rank) if axis not in (batch_axis, time_axis)]
    order = [batch_axis, time_axis, *others]
    rows = permuted(write, x, order)
    batch, time, *rest = rows.shape
    whole = [write.number(n, Element.INT64) for n in (0, -1)]
    steps = write.constant(np.arange(time), "steps")
    length = reshaped(write, write.cast(lengths, Element.INT64), (batch, 1))
    f = write.formula("reversed steps")
    mirrored = f("add", f("sub", length, steps), whole[1])
    own = f("where", f("less", steps, length), mirrored, steps)
    places = f.finish(f("where", f("less", length, whole[0]), whole[1], own))
    tables = reshaped(write, rows, (batch, time, prod(rest)))
    made = reshaped(write, write.one(ops.OwnRows(), places, tables), rows.shape)
    return permuted(write, made, np.argsort(order).tolist())


def flip(write: Writer, x: Operand, dims: Sequence[int]) -> Value:
    """Reverse axes."""
    result = write.value(x)
    for axis in dims:
        result = taken(write, result, axis, np.arange(result.shape[axis])[::-1])
    return result


def top_k(
    write: Writer, x: Operand, k: int, dim: int = -1, largest: bool = True, in_order: bool = True
) -> tuple[Value, ...]:
    """The largest or least elements along an axis, in order, and their places."""
    element = write.element(x)
    if not write.shape(x):
        found, places = top_k(write, with_axis(write, x), k, dim, largest, in_order)
        return reshaped(write, found, ()), reshaped(write, places, ())
    if element is Element.INT64:
        found, places = _whole_top_k(write, moved(write, x, dim, -1), k, largest)
    else:
        rows = moved(write, write.floats(x), dim, -1)
        found, places = write.many(ops.TopK(k, not largest), rows)
    found = write.cast(found, element)
    if write.shape(x) == (k,):
        write.orders.add(places)
    return moved(write, found, -1, dim), moved(write, places, -1, dim)


def _whole_top_k(write: Writer, rows: Value, k: int, largest: bool) -> tuple[Value, Value]:
    """`top_k` of whole numbers: an element's rank is the number of elements that come before it.

    These are the larger elements, or the smaller ones, and equal ones at earlier places.
    """
    *lead, length = rows.shape
    each = reshaped(write, rows, (*lead, length, 1))
    others = reshaped(write, rows, (*lead, 1, length))
    stands = write.constant(np.arange(length), "places")
    one, zero = write.number(1, Element.INT64), write.number(0, Element.INT64)
    f = write.formula("ranks")
    earlier = f("less", stands, reshaped(write, stands, (length, 1)))
    tied = f("logical_and", f("equal", others, each), earlier)
    beyond = f("greater" if largest else "less", others, each)
    before = f("where", f("logical_or", beyond, tied), one, zero)
    rank = f.finish(f("row_sum", before), shape=(*lead, length, length))
    rank = reshaped(write, rank, (*lead, 1, length))
    wanted = write.constant(np.arange(k)[:, None], "ranks")
    lowest = write.number(np.iinfo(np.int64).min, Element.INT64)
    f = write.formula("in order")
    is_there = f("equal", rank, wanted)
    steps = [f("row_max", f("where", is_there, x, lowest)) for x in (others, stands)]
    found, places = f.all(*steps, shape=(*lead, k, length))
    return reshaped(write, found, (*lead, k)), reshaped(write, places, (*lead, k))


def lower_triangle(write: Writer, x: Operand, diagonal: int = 0) -> Value:
    """x with zeros above a diagonal."""
    return _triangle(write, x, below(write.shape(x), diagonal))


def upper_triangle(write: Writer, x: Operand, diagonal: int = 0) -> Value:
    """x with zeros below a diagonal."""
    return _triangle(write, x, ~below(write.shape(x), diagonal - 1))


def below(shape: Sequence[int], diagonal: int = 0) -> Array:
    """Mask of the elements of the last two axes that are on a diagonal or below it."""
    rows, columns = (np.arange(n) for n in shape[-2:])
    return np.asarray(columns <= rows[:, None] + diagonal)


def _triangle(write: Writer, x: Operand, kept: Array) -> Value:
    return write.pointwise("where", kept, x, write.cast(0, write.element(x)))
