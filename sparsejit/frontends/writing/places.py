"""Elements and rows at places along several axes: taken, replaced, or reduced with updates.

    by_axis, by_tuples     taken: elements at places along one axis, or parts at tuples of places
    replaced_by_axis       elements replaced, or reduced with updates
    replaced_by_tuples     parts replaced, or reduced with updates
    replaced_parts         parts at indices along one axis replaced, or reduced with updates
    own_rows               rows of one table for each element of a batch

Tuples of places are row numbers:

    x (4, 3, 5), places (2, 2)    rows 3 p[0] + p[1] of x as (12, 5)

Where places vary along an axis other than the indexed one, each element of that axis has a table of
its own, so that a batch there stays a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from sparsejit.frontends.writing.arranging import expanded, joined, moved, reshaped, sliced
from sparsejit.frontends.writing.selection import looked_up, taken
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.ops.selection import OwnRows, PlacedRows, Reduction
from sparsejit.ir.ops.views import Expand
from sparsejit.ir.values import Array, Element, Value

# The pointwise function of each reduction of a scatter.
REDUCTIONS = {"none": "", "add": "add", "mul": "mul", "min": "minimum", "max": "maximum"}
_MOST_ROUNDS = 16  # of updates of the same place, one after another
# Parts that are replaced without a transposition: floats of a row, and of how many one is replaced.
_LEAST_WIDTH, _FEW = 4, 4


def by_axis(write: Writer, x: Operand, places: Operand, axis: int) -> Value:
    """y[i, j, ...] = x[i, p, ...] for p = places[i, j, ...] along that axis.

    Where x is known and all its rows along the axis are the same, they are one table.
    """
    value, known = write.value(x), write.known(x)
    if (line := _one_line(value.shape, places, axis)) is not None:
        return taken(write, value, axis, line)
    _check_along(value.shape, _shape(places), axis)
    if known is not None and (row := _common_row(known, axis)) is not None:
        table = write.constant(row.astype(write.element(x).value), "row")
        numbers = numbered(write, [(places, len(row), 1)], np.zeros((), np.int64), len(row))
        return looked_up(write, table, 0, numbers)
    along = _along(write, value.shape, places, axis)
    found = own_rows(write, along.tables(write, value), along.numbers)
    return along.back(write, found, _shape(places))


def by_tuples(write: Writer, x: Operand, places: Operand, batch_axes: int = 0) -> Value:
    """The parts of x that tuples of places name, which lie along the last axis of `places`.

    A tuple names places on the axes of x after the first `batch_axes`, which x and `places` share;
    a part is all elements along the axes behind these.
    """
    value, shape = write.value(x), _shape(places)
    rest = value.shape[batch_axes + shape[-1] :]
    size = prod(shape[:batch_axes])
    numbers = _rearranged(write, _of_tuples(write, value.shape, places, batch_axes), (size, -1))
    tables = reshaped(write, value, (size, -1, prod(rest)))
    return reshaped(write, own_rows(write, tables, numbers), (*shape[:-1], *rest))


def replaced_by_axis(
    write: Writer, x: Operand, places: Operand, updates: Operand, axis: int, reduction: str = "none"
) -> Value:
    """x after x[i, p, ...] = updates[i, j, ...] for all p = places[i, j, ...] along that axis.

    A reduction combines the old element with the new ones in place of the assignment.
    """
    value, new = write.value(x), write.value(updates)
    _check_updates(new, _shape(places))
    along = _along(write, value.shape, places, axis)
    tables, rows = along.tables(write, value), along.tables(write, new)
    made = replaced_rows(write, tables, along.numbers, rows, reduction)
    return along.back(write, made, value.shape)


def replaced_by_tuples(
    write: Writer, x: Operand, places: Operand, updates: Operand, reduction: str = "none"
) -> Value:
    """x with the parts that tuples name (see `by_tuples`) replaced by updates, or reduced."""
    value, new = write.value(x), write.value(updates)
    shape = _shape(places)
    rest = value.shape[shape[-1] :]
    _check_updates(new, (*shape[:-1], *rest))
    numbers = _rearranged(write, _of_tuples(write, value.shape, places, 0), (1, -1))
    tables = reshaped(write, value, (1, -1, prod(rest)))
    rows = reshaped(write, new, (1, -1, prod(rest)))
    made = replaced_rows(write, tables, numbers, rows, reduction)
    return reshaped(write, made, value.shape)


def own_rows(write: Writer, tables: Value, numbers: Operand) -> Value:
    """result[b, i] = tables[b, numbers[b, i]] of tables (batch, rows, width)."""
    if (line := _same_for_all(numbers)) is not None:
        return taken(write, tables, 1, line)
    if tables.type.element is Element.BOOL:
        return write.cast(own_rows(write, write.floats(tables), numbers), Element.BOOL)
    return write.one(OwnRows(), numbers, tables)


def replaced_rows(
    write: Writer, tables: Value, numbers: Operand, updates: Value, reduction: str
) -> Value:
    """Tables (batch, rows, width) with updates (batch, n, width) at rows `numbers` (batch, n).

    A reduction leaves the sum, product or extreme of old and new rows, one update after another.
    """
    if reduction not in REDUCTIONS:
        raise Unmapped(f"its reduction is {reduction!r}, not one of {', '.join(REDUCTIONS)}")
    if not updates.type.size:
        return tables
    if tables.type.element is Element.BOOL:
        reduction = {"add": "max", "mul": "min"}.get(reduction, reduction)
        old, new = write.floats(tables), write.floats(updates)
        return write.cast(replaced_rows(write, old, numbers, new, reduction), Element.BOOL)
    kind, line = REDUCTIONS[reduction], _same_for_all(numbers)
    if line is not None:
        rounds = _rounds(line) if kind else [np.arange(len(line))]
        if len(rounds) <= _MOST_ROUNDS:
            return _replaced(write, tables, line, updates, kind, rounds)
    if tables.type.element is Element.INT64 and reduction not in ("none", "add"):
        raise Unmapped(f"reduces whole numbers by {reduction!r} at places that a call decides")
    return write.one(PlacedRows(Reduction(reduction)), numbers, updates, tables)


def replaced_parts(
    write: Writer, x: Value, axis: int, index: Operand, updates: Value, reduction: str
) -> Value:
    """x with parts at indices along an axis replaced by `updates`, or reduced with them.

    A few parts of long rows stay where they are: each place on the axes before has a table of its
    own. Else the axis comes first, and a row is all that one index names.
    """
    known = index if isinstance(index, np.ndarray) else None
    shape, count = x.shape or (1,), prod(_shape(index))
    whole = (*shape[:axis], count, *shape[axis + 1 :])
    new = updates if updates.shape else expanded(write, updates, whole)
    lines: Operand = reshaped(write, index, (1, count)) if known is None else known.reshape(1, -1)
    outer, width = prod(shape[:axis]), prod(shape[axis + 1 :])
    if known is None and outer > 1 and width >= _LEAST_WIDTH and count * _FEW <= shape[axis]:
        tables = reshaped(write, x, (outer, shape[axis], width))
        rows = reshaped(write, new, (outer, count, width))
        lines = expanded(write, lines, (outer, count))
        return reshaped(write, replaced_rows(write, tables, lines, rows, reduction), x.shape)
    tables, rows = (
        reshaped(write, moved(write, reshaped(write, each, sizes), axis, 0), (1, sizes[axis], -1))
        for each, sizes in ((x, shape), (new, whole))
    )
    made = replaced_rows(write, tables, lines, rows, reduction)
    front = reshaped(write, made, (shape[axis], *shape[:axis], *shape[axis + 1 :]))
    return reshaped(write, moved(write, front, 0, axis), x.shape)


def _same_for_all(numbers: Operand) -> Array | None:
    """Row numbers (n,) if `numbers` (batch, n) are known and alike in the batch; else None."""
    if not isinstance(numbers, np.ndarray) or not len(numbers):
        return None
    return numbers[0] if bool(np.all(numbers == numbers[:1])) else None


def _replaced(
    write: Writer, tables: Value, named: Array, updates: Value, kind: str, rounds: Sequence[Array]
) -> Value:
    """Replace known rows of tables, or reduce them, in rounds that each name no row twice."""
    rows = tables.shape[1]
    for part in rounds:
        new = taken(write, updates, 1, part)
        if kind:
            new = write.pointwise(kind, taken(write, tables, 1, named[part]), new)
        source = np.arange(rows)
        source[named[part]] = rows + np.arange(len(part))
        tables = taken(write, joined(write, [tables, new], 1), 1, source)
    return tables


def _rounds(numbers: Array) -> list[Array]:
    """Indices of the first occurrence of each number, of the second, and so on."""
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    turns = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    turn_of = np.empty_like(turns)
    turn_of[order] = turns
    return [np.flatnonzero(turn_of == turn) for turn in range(turns.max(initial=-1) + 1)]


@dataclass(frozen=True)
class _Along:
    """Places along an axis as numbers of rows in tables (batch, rows, width).

    There is one table, or one for each element of the axis `own`. `numbers` (batch, n) name rows; a
    row is all elements of the last `wide` axes.
    """

    own: int | None
    wide: int
    numbers: Operand

    def tables(self, write: Writer, x: Value) -> Value:
        """x (or its updates) as (batch, rows, width)."""
        if self.own is None:
            front = reshaped(write, x, (1, *x.shape))
        else:
            front = moved(write, x, self.own, 0)
        width = prod(front.shape[len(front.shape) - self.wide :])
        return reshaped(write, front, (front.shape[0], -1, width))

    def back(self, write: Writer, tables: Value, shape: Sequence[int]) -> Value:
        """The tensor of that shape which has these tables."""
        if self.own is None:
            return reshaped(write, tables, shape)
        others = [n for axis, n in enumerate(shape) if axis != self.own]
        return moved(write, reshaped(write, tables, (shape[self.own], *others)), 0, self.own)


def _common_row(array: Array, axis: int) -> Array | None:
    """The elements along an axis (n,) if they are alike for all places of the others; else None."""
    rows = np.moveaxis(array, axis, -1)
    if 0 in rows.shape:
        return None
    first = rows[(0,) * (rows.ndim - 1)]
    return np.asarray(first) if np.array_equal(rows, np.broadcast_to(first, rows.shape)) else None


def _check_along(shape: Sequence[int], given: Sequence[int], axis: int) -> None:
    """Raise Unmapped for places of another rank than x, or longer than x on an axis but `axis`."""
    sizes = enumerate(zip(given, shape, strict=False))
    fits = (own <= most for number, (own, most) in sizes if number != axis)
    if len(given) != len(shape) or not all(fits):
        raise Unmapped(f"has places {list(given)} for {list(shape)} along axis {axis}")


def _along(write: Writer, shape: Sequence[int], places: Operand, axis: int) -> _Along:
    """The layout of x, of that `shape`, as tables for places along an axis, with row numbers."""
    given = _shape(places)
    _check_along(shape, given, axis)
    front = 0 if axis else 1
    own = front if len(shape) > 1 and given[front] == shape[front] else None
    wide = _wide_axes(write, shape, places, max(axis, -1 if own is None else own))
    kept = tuple(slice(0, 1) if n >= len(shape) - wide else slice(None) for n in range(len(shape)))
    narrow = _cut(write, places, kept)
    counted = [n for n in range(len(shape) - wide) if n != own]
    steps = {n: prod(shape[m] for m in counted if m > n) for n in counted}
    grids = np.ogrid[tuple(slice(0, n) for n in _shape(narrow))]
    others = sum((grids[n] * steps[n] for n in counted if n != axis), np.zeros((), np.int64))
    count = prod(shape[n] for n in counted)
    numbers = numbered(write, [(narrow, shape[axis], steps[axis])], others, count)
    if own is None:
        return _Along(None, wide, _rearranged(write, numbers, (1, -1)))
    if isinstance(numbers, Value):
        first: Operand = moved(write, numbers, own, 0)
    else:
        first = np.moveaxis(np.asarray(numbers), own, 0)
    return _Along(own, wide, _rearranged(write, first, (shape[own], -1)))


def _wide_axes(write: Writer, shape: Sequence[int], places: Operand, last: int) -> int:
    """Number of last axes, after axis `last`, that are all in a row: no place varies along them."""
    given, rank = _shape(places), len(shape)
    before = given
    if isinstance(places, Value):
        op, operands = write.producer(places) or (None, ())
        if not isinstance(op, Expand):
            return 0
        source = operands[0].shape
        before = (1,) * (rank - len(source)) + tuple(source)
    wide = 0
    for axis in range(rank - 1, last, -1):
        if isinstance(places, np.ndarray):
            varies = bool(np.any(places != places.take([0], axis=axis))) if places.size else True
        else:
            varies = before[axis] != 1
        if varies or given[axis] != shape[axis]:
            break
        wide += 1
    return wide


def _one_line(shape: Sequence[int], places: Operand, axis: int) -> Array | None:
    """Known places (n,) along an axis, if they are alike for all elements of the others; else None.

    The other axes must be as long as the axes of x, whose `shape` is given.
    """
    if not isinstance(places, np.ndarray) or not places.size or places.ndim != len(shape):
        return None
    first = places[tuple(slice(None) if n == axis else slice(0, 1) for n in range(places.ndim))]
    whole = all(n == axis or given == shape[n] for n, given in enumerate(places.shape))
    return first.reshape(-1) if whole and bool(np.all(places == first)) else None


def _shape(places: Operand) -> tuple[int, ...]:
    assert isinstance(places, Value | np.ndarray)
    return tuple(places.shape)


def _rearranged(write: Writer, x: Operand, shape: Sequence[int]) -> Operand:
    """A value or an array in row-major order, reshaped."""
    return reshaped(write, x, shape) if isinstance(x, Value) else np.asarray(x).reshape(shape)


def _cut(write: Writer, x: Operand, kept: Sequence[slice]) -> Operand:
    """A value or an array with each axis cut to its slice in `kept`."""
    if not isinstance(x, Value):
        return np.asarray(x)[tuple(kept)]
    for axis, part in enumerate(kept):
        first, end, _ = part.indices(x.shape[axis])
        x = sliced(write, x, axis, first, end)
    return x


def _check_updates(updates: Value, shape: tuple[int, ...]) -> None:
    """Raise Unmapped unless updates have this shape: their elements would go to other places."""
    if updates.shape != shape:
        raise Unmapped(f"its updates are {updates.shape}, not {shape}")


def _of_tuples(write: Writer, shape: Sequence[int], places: Operand, batch_axes: int) -> Operand:
    """Row numbers of the parts that tuples name, counted from 0 in each batch element."""
    lead = _shape(places)
    depth = batch_axes + lead[-1]
    if depth > len(shape):
        raise Unmapped(f"names {depth} axes of {len(shape)}")
    parts = []
    for n in range(lead[-1]):
        own = _cut(write, places, [*[slice(None)] * (len(lead) - 1), slice(n, n + 1)])
        axis = batch_axes + n
        own = _rearranged(write, own, lead[:-1])
        parts.append((own, shape[axis], prod(shape[axis + 1 : depth])))
    return numbered(write, parts, np.zeros((), np.int64), prod(shape[batch_axes:depth]))


def numbered(
    write: Writer, parts: Sequence[tuple[Operand, int, int]], others: Array, count: int
) -> Operand:
    """Row numbers: the sum of place * step over `parts` (places, length, step), plus `others`.

    A place beyond its axis gives `count`, which no row has. Raises Unmapped if it is known.
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
