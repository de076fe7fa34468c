"""Elements and rows by places of several axes: taken, and replaced where the places are known.

x (4, 3, 5), places (2, 2)    rows of x as (12, 5), those numbered 3 p[0] + p[1]
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from sparsejit.frontends.writing.arranging import joined, moved, reshaped, sliced
from sparsejit.frontends.writing.selection import looked_up, taken
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.graph import Array, Element, Value
from sparsejit.ir.ops.selection import OwnRows

# The function that a reduction of a scatter is.
REDUCTIONS = {"none": "", "add": "add", "mul": "mul", "min": "minimum", "max": "maximum"}
_MOST_ROUNDS = 16  # of updates of the same place, one after another


def by_axis(write: Writer, x: Operand, places: Operand, axis: int) -> Value:
    """y[i, j, ...] = x[i, p, ...] for p = places[i, j, ...] along that axis.

    Each row of x along the axis is a table of its own, so samples of a batch on another axis stay
    apart. Where all these rows are the same, they are one table.
    """
    given, known = _shape(places), write.known(x)
    _check_along(write.shape(x), given, axis)
    if isinstance(places, np.ndarray):
        value = write.value(x)
        numbers = _along(write, value.shape, places, axis)
        return reshaped(
            write, _rows(write, reshaped(write, value, (prod(value.shape), 1)), numbers), given
        )
    if known is not None and (row := _common_row(known, axis)) is not None:
        table = write.constant(row.astype(write.element(x).value), "row")
        return looked_up(write, table, 0, _from_start(write, places, len(row)))
    return _of_own_rows(write, write.value(x), write.value(places), axis)


def _of_own_rows(write: Writer, x: Value, places: Value, axis: int) -> Value:
    """As `by_axis`, with a table for each row of x."""
    element = x.type.element
    value = write.floats(x) if element is Element.BOOL else x
    for other, size in enumerate(places.shape):
        value = value if other == axis else sliced(write, value, other, 0, size)
    tables, numbers = (moved(write, each, axis, -1) for each in (value, places))
    *others, count = numbers.shape
    rows, length = prod(others), tables.shape[-1]
    found = write.one(
        OwnRows(),
        _from_start(write, reshaped(write, numbers, (rows, count)), length),
        reshaped(write, tables, (rows, length, 1)),
    )
    made = moved(write, reshaped(write, found, (*others, count)), -1, axis)
    return write.cast(made, element)


def _common_row(array: Array, axis: int) -> Array | None:
    """The elements along an axis, where they are the same at all places of the others."""
    rows = np.moveaxis(array, axis, -1)
    if 0 in rows.shape:
        return None
    first = rows[(0,) * (rows.ndim - 1)]
    return np.asarray(first) if np.array_equal(rows, np.broadcast_to(first, rows.shape)) else None


def _from_start(write: Writer, places: Operand, length: int) -> Value:
    """Places as int64, with those below 0 counted from the end."""
    place, zero = write.cast(places, Element.INT64), write.number(0, Element.INT64)
    f = write.formula("places")
    from_end = f("add", place, write.number(length, Element.INT64))
    return f.finish(f("where", f("less", place, zero), from_end, place))


def by_tuples(write: Writer, x: Operand, places: Operand, batch_axes: int = 0) -> Value:
    """The parts of x that tuples along the last axis of `places` name, behind equal first axes."""
    value, shape = write.value(x), _shape(places)
    depth = batch_axes + shape[-1]
    numbers = _of_tuples(write, value.shape, places, batch_axes)
    rest = value.shape[depth:]
    flat = reshaped(write, value, (prod(value.shape[:depth]), prod(rest)))
    return reshaped(write, _rows(write, flat, numbers), (*shape[:-1], *rest))


def replaced_by_axis(
    write: Writer, x: Operand, places: Array, updates: Operand, axis: int, reduction: str = "none"
) -> Value:
    """x with y[i, p, ...] = updates[i, j, ...] for p = places[i, j, ...], or reduced with it."""
    value = write.value(x)
    numbers = np.asarray(_along(write, value.shape, places, axis))
    flat = reshaped(write, value, (prod(value.shape), 1))
    new = _updates(write, updates, places.shape, (numbers.size, 1))
    return reshaped(write, _replaced(write, flat, numbers, new, reduction), value.shape)


def replaced_by_tuples(
    write: Writer, x: Operand, places: Array, updates: Operand, reduction: str = "none"
) -> Value:
    """x with the parts that tuples along the last axis name replaced, or reduced with updates."""
    value, depth = write.value(x), places.shape[-1]
    numbers = np.asarray(_of_tuples(write, value.shape, places, 0))
    rest = value.shape[depth:]
    length = prod(rest)
    flat = reshaped(write, value, (prod(value.shape[:depth]), length))
    new = _updates(write, updates, (*places.shape[:-1], *rest), (numbers.size, length))
    return reshaped(write, _replaced(write, flat, numbers, new, reduction), value.shape)


def _shape(places: Operand) -> tuple[int, ...]:
    assert isinstance(places, Value | np.ndarray)
    return tuple(places.shape)


def _rows(write: Writer, rows: Value, numbers: Operand) -> Value:
    if isinstance(numbers, np.ndarray):
        return taken(write, rows, 0, numbers.reshape(-1))
    return looked_up(write, rows, 0, numbers)


def _updates(
    write: Writer, updates: Operand, shape: tuple[int, ...], rows: tuple[int, int]
) -> Value:
    """Updates of that shape as rows: others of as many elements would go to other places."""
    value = write.value(updates)
    if value.shape != shape:
        raise Unmapped(f"its updates are {value.shape}, not {shape}")
    return reshaped(write, value, rows)


def _replaced(write: Writer, rows: Value, numbers: Array, new: Value, reduction: str) -> Value:
    """In rounds, in each of which no row is named twice."""
    if reduction not in REDUCTIONS:
        raise Unmapped(f"its reduction is {reduction!r}, not one of {', '.join(REDUCTIONS)}")
    kind, flat = REDUCTIONS[reduction], numbers.reshape(-1)
    rounds = _rounds(flat) if kind else [np.arange(len(flat))]
    if len(rounds) > _MOST_ROUNDS:
        raise Unmapped(f"reduces {len(rounds)} updates of one place, at most {_MOST_ROUNDS}")
    for part in rounds:
        named, updates = flat[part], taken(write, new, 0, part)
        if kind:
            updates = write.pointwise(kind, taken(write, rows, 0, named), updates)
        source = np.arange(rows.shape[0])
        source[named] = rows.shape[0] + np.arange(len(part))
        rows = taken(write, joined(write, [rows, updates], 0), 0, source)
    return rows


def _rounds(numbers: Array) -> list[Array]:
    """Where in `numbers` each number comes for the first time, for the second, and so on."""
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    turns = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    turn_of = np.empty_like(turns)
    turn_of[order] = turns
    return [np.flatnonzero(turn_of == turn) for turn in range(turns.max(initial=-1) + 1)]


def _check_along(shape: Sequence[int], given: Sequence[int], axis: int) -> None:
    """Raise Unmapped for places of another rank, or of more elements beside the axis, than x."""
    sizes = enumerate(zip(given, shape, strict=False))
    fits = (own <= most for number, (own, most) in sizes if number != axis)
    if len(given) != len(shape) or not all(fits):
        raise Unmapped(f"has places {list(given)} of {list(shape)} along axis {axis}")


def _along(write: Writer, shape: Sequence[int], places: Array, axis: int) -> Operand:
    """The number, in an array of this shape, of each place along an axis."""
    given = _shape(places)
    _check_along(shape, given, axis)
    grids = np.ogrid[tuple(slice(0, n) for n in given)]
    step = prod(shape[axis + 1 :])
    others = sum(
        (grid * prod(shape[n + 1 :]) for n, grid in enumerate(grids) if n != axis),
        np.zeros((), np.int64),
    )
    return _numbered(write, [(places, shape[axis], step)], others, prod(shape))


def _of_tuples(write: Writer, shape: Sequence[int], places: Operand, batch_axes: int) -> Operand:
    """The number of the part that each tuple names, among all parts of as many axes."""
    lead = _shape(places)
    depth = batch_axes + lead[-1]
    if depth > len(shape):
        raise Unmapped(f"names {depth} axes of {len(shape)}")
    steps = [prod(shape[n + 1 : depth]) for n in range(depth)]
    grids = np.ogrid[tuple(slice(0, n) for n in lead[:-1])] if len(lead) > 1 else []
    others = sum((grids[n] * steps[n] for n in range(batch_axes)), np.zeros((), np.int64))
    parts = []
    for n in range(lead[-1]):
        column = taken(write, places, -1, np.array([n])) if isinstance(places, Value) else None
        own = np.asarray(places[..., n]) if column is None else reshaped(write, column, lead[:-1])
        parts.append((own, shape[batch_axes + n], steps[batch_axes + n]))
    return _numbered(write, parts, others, prod(shape[:depth]))


def _numbered(
    write: Writer, parts: Sequence[tuple[Operand, int, int]], others: Array, count: int
) -> Operand:
    """The sum of (places, how many there are, step), and of `others`.

    A place that is none gives `count`, which no row has. Raises Unmapped for one that is known.
    """
    if all(isinstance(places, np.ndarray) for places, _, _ in parts):
        total = others.astype(np.int64)
        for places, length, step in parts:
            known = np.asarray(places, np.int64)
            if known.size and not -length <= known.min() <= known.max() < length:
                raise Unmapped(f"names a place beyond {length}")
            total = total + np.where(known < 0, known + length, known) * step
        return np.asarray(total)
    f = write.formula("places")
    zero, number, exists = write.number(0, Element.INT64), None, None
    for places, length, step in parts:
        place, limit = write.cast(places, Element.INT64), write.number(length, Element.INT64)
        own = f("where", f("less", place, zero), f("add", place, limit), place)
        within = f("logical_and", f("greater_equal", own, zero), f("less", own, limit))
        exists = within if exists is None else f("logical_and", exists, within)
        scaled = f("mul", own, write.number(step, Element.INT64))
        number = scaled if number is None else f("add", number, scaled)
    whole = f("add", number, write.constant(others, "places"))
    return f.finish(f("where", exists, whole, write.number(count, Element.INT64)))
