"""Python's x[i, :, j] with tensors as indices: elements taken, replaced or added to.

    x (4, 3, 5), indices of axes 0 and 2 that broadcast to (6,)    x as tables (1, 4 * 5, 3)

An index that counts its axis, as torch.arange does, gives each element of that axis a table of its
own, so that a batch there stays a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from sparsejit.frontends.writing.arranging import expanded, moved, permuted, reshaped
from sparsejit.frontends.writing.places import numbered, own_rows, replaced_parts, replaced_rows
from sparsejit.frontends.writing.selection import taken
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.values import Array, Element, Value

Indices = Sequence[Operand]
# An index of one axis, known or not.
Places = Value | Array


def indexed(write: Writer, x: Operand, indices: Indices) -> Value:
    """x[indices], in which None takes all of an axis and known masks count as their places."""
    value = write.value(x)
    named = _by_axis(write, value, indices)
    if not named:
        return value
    if (grid := _of_grid(write, value, named)) is not None:
        return grid
    layout = _layout(write, value, named)
    found = own_rows(write, layout.tables(write, value), layout.numbers)
    return layout.result(write, found)


def index_replaced(
    write: Writer, x: Operand, indices: Indices, updates: Operand, accumulate: bool = False
) -> Value:
    """x with x[indices] replaced by updates, which broadcast, or with updates added to it."""
    value = write.value(x)
    new = write.converted(updates, write.dtype(x))
    mask = _single_mask(write, indices)
    if mask is not None and not write.is_known(mask[1]):
        return _masked(write, value, *mask, new, accumulate)
    named = _by_axis(write, value, indices)
    if not named:
        whole = expanded(write, new, value.shape)
        return write.pointwise("add", value, whole) if accumulate else whole
    if not accumulate and _is_order(write, value, named):
        # All of x is replaced, and x may be memory that no operator wrote.
        value = write.constant(np.zeros(value.shape, value.type.element.value), "replaced")
    layout = _layout(write, value, named)
    kind = "add" if accumulate else "none"
    whole = expanded(write, new, layout.shape)
    if len(named) == 1 and len(layout.index_shape) == 1:
        (axis,) = named
        return replaced_parts(write, value, axis, layout.numbers, whole, kind)
    rows = layout.updates(write, whole)
    tables = layout.tables(write, value)
    return layout.back(write, replaced_rows(write, tables, layout.numbers, rows, kind))


def _is_order(write: Writer, x: Value, named: Mapping[int, Places]) -> bool:
    """Whether the only index is an order of all places of its axis, as a sort makes it."""
    pairs = [(x.shape[axis], index) for axis, index in named.items() if isinstance(index, Value)]
    if len(named) != len(pairs) or len(pairs) != 1:
        return False
    ((size, index),) = pairs
    return index in write.orders and index.shape == (size,)


def _single_mask(write: Writer, indices: Indices) -> tuple[int, Operand] | None:
    """If the only index is a mask of bools, its first axis in x and the mask; else None."""
    given = [(axis, each) for axis, each in enumerate(indices) if each is not None]
    if len(given) != 1 or write.element(given[0][1]) is not Element.BOOL:
        return None
    return given[0]


def _masked(
    write: Writer, x: Value, axis: int, mask: Operand, updates: Value, accumulate: bool
) -> Value:
    """x with updates in place of the elements where a mask is true, or added to these.

    `axis` is the mask's first axis in x; the mask may be known in a call alone. Raises Unmapped for
    updates that vary over the chosen places.
    """
    own, rest = write.shape(mask), x.shape[axis + len(write.shape(mask)) :]
    if len(updates.shape) > len(rest) and any(n != 1 for n in updates.shape[: -len(rest) or None]):
        raise Unmapped("has different updates for the elements that a mask of a call chooses")
    new = reshaped(write, updates, updates.shape[max(len(updates.shape) - len(rest), 0) :])
    chosen = reshaped(write, mask, (*own, *(1,) * len(rest)))
    if accumulate:
        new = write.pointwise("add", x, new)
    return write.pointwise("where", chosen, new, x)


def _by_axis(write: Writer, x: Value, indices: Indices) -> dict[int, Places]:
    """The index of each indexed axis of x; a known mask counts as the places of its true elements.

    These are an index for each of the mask's axes. Raises Unmapped for a mask that a call decides.
    """
    named: dict[int, Places] = {}
    axis = 0
    for each in indices:
        if each is None:
            axis += 1
            continue
        known = write.known(each)
        if write.element(each) is not Element.BOOL:
            named[axis] = write.value(each) if known is None else known
            axis += 1
            continue
        if known is None:
            raise Unmapped("indexes by a mask, which leaves the size open")
        if known.ndim == 0:
            raise Unmapped("indexes by a mask without axes")
        for places in np.nonzero(known):
            named[axis] = places
            axis += 1
    if axis > len(x.shape):
        raise Unmapped(f"indexes {axis} axes of {len(x.shape)}")
    return named


def _of_grid(write: Writer, x: Value, named: Mapping[int, Places]) -> Value | None:
    """x[indices] axis by axis, for known indices that form a grid as numpy.ix_ makes it; else None.

    The indices must be of neighbouring axes, and each must vary along broadcast axes of its own, in
    the order of the axes.
    """
    arrays = [each for each in named.values() if isinstance(each, np.ndarray)]
    axes = list(named)
    varying = [n for a in arrays for n in _varying(a, max(a.ndim for a in arrays))]
    apart = len(arrays) == axes[-1] - axes[0] + 1 and varying == sorted(set(varying))
    if not apart or len(arrays) != len(axes):
        return None
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    result = x
    for axis, array in zip(axes, arrays, strict=True):
        result = taken(write, result, axis, array.reshape(-1))
    return reshaped(write, result, (*x.shape[: axes[0]], *shape, *x.shape[axes[-1] + 1 :]))


def _varying(array: Array, rank: int) -> list[int]:
    """The axes along which an index has several elements, counted among `rank` broadcast axes."""
    return [axis + rank - array.ndim for axis, n in enumerate(array.shape) if n > 1]


@dataclass(frozen=True)
class _IndexedAxes:
    """Layout of x for x[indices]: x as tables (batch, rows, width), and the rows that indices name.

    A row is all elements along the axes without index, and a table has a row for each tuple of
    places on the indexed axes. There is one table, or one for each element of an indexed axis whose
    index is 0, 1, 2 ... to its end, as torch.arange makes it: the axis `own`, often the batch.

    x_shape: the shape of x
    order: the axes of x as the tables have them: `own` if any, the other indexed axes, the rest
    own: the axis of x whose elements have a table each; None for one table
    depth: the number of indexed axes, which come first in `order`
    along: the axis of `index_shape` along which the index of `own` counts
    first: the place in the result's shape where `index_shape` begins
    index_shape: the shape that the indices broadcast to
    numbers: (batch, n), the numbers of the rows in each table that x[indices] has
    """

    x_shape: tuple[int, ...]
    order: tuple[int, ...]
    own: int | None
    depth: int
    along: int
    first: int
    index_shape: tuple[int, ...]
    numbers: Operand

    @property
    def rest(self) -> tuple[int, ...]:
        """The sizes of axes without index."""
        return tuple(self.x_shape[axis] for axis in self.order[self.depth :])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of x[indices]."""
        return (*self.rest[: self.first], *self.index_shape, *self.rest[self.first :])

    def tables(self, write: Writer, x: Value) -> Value:
        """x as tables (batch, rows, width)."""
        batch = 1 if self.own is None else self.x_shape[self.own]
        return reshaped(write, permuted(write, x, self.order), (batch, -1, prod(self.rest)))

    def back(self, write: Writer, tables: Value) -> Value:
        """The tensor in x's shape that has these tables."""
        whole = reshaped(write, tables, [self.x_shape[axis] for axis in self.order])
        return permuted(write, whole, np.argsort(self.order).tolist())

    def _from_result(self) -> list[int]:
        """Axes of x[indices] in the order of rows: the batch, the indices' other axes, the rest."""
        count = len(self.index_shape)
        own = range(self.first, self.first + count)
        rest = [n for n in range(count + len(self.rest)) if n not in own]
        front = list(own)
        if self.own is not None:
            front.insert(0, front.pop(self.along))
        return [*front, *rest]

    def updates(self, write: Writer, new: Value) -> Value:
        """Updates in the shape of the result, as rows (batch, n, width)."""
        batch = 1 if self.own is None else self.x_shape[self.own]
        ordered = permuted(write, new, self._from_result())
        return reshaped(write, ordered, (batch, -1, prod(self.rest)))

    def result(self, write: Writer, rows: Value) -> Value:
        """Rows (batch, n, width) in the shape of the result."""
        order = self._from_result()
        whole = reshaped(write, rows, [self.shape[axis] for axis in order])
        return permuted(write, whole, np.argsort(order).tolist())


def _layout(write: Writer, x: Value, named: Mapping[int, Places]) -> _IndexedAxes:
    """The layout of x for indices by axis. Raises Unmapped where they do not broadcast."""
    axes = list(named)
    try:
        shape = np.broadcast_shapes(*(each.shape for each in named.values()))
    except ValueError:
        raise Unmapped("has indices that do not broadcast") from None
    own, along = _counted_axis(x, named, len(shape))
    others = [axis for axis in axes if axis != own]
    rest = [axis for axis in range(len(x.shape)) if axis not in named]
    is_together = axes[-1] - axes[0] + 1 == len(axes)
    rows = prod(x.shape[axis] for axis in others)
    steps = [prod(x.shape[axis] for axis in others[n + 1 :]) for n in range(len(others))]
    parts = [(named[axis], x.shape[axis], step) for axis, step in zip(others, steps, strict=True)]
    places = numbered(write, parts, np.zeros((), np.int64), rows) if parts else np.zeros((), int)
    front = (*([own] if own is not None else []), *others)
    return _IndexedAxes(
        x.shape,
        (*front, *rest),
        own,
        len(front),
        along,
        axes[0] if is_together else 0,
        shape,
        _table_numbers(write, places, shape, None if own is None else along),
    )


def _table_numbers(
    write: Writer, places: Operand, shape: tuple[int, ...], along: int | None
) -> Operand:
    """Row numbers broadcast to the indices' `shape`, as (batch, n); axis `along` is the batch."""
    batch = 1 if along is None else shape[along]
    if isinstance(places, Value):
        wide = expanded(write, places, shape)
        return reshaped(write, wide if along is None else moved(write, wide, along, 0), (batch, -1))
    wide_array = np.broadcast_to(np.asarray(places), shape)
    first = wide_array if along is None else np.moveaxis(wide_array, along, 0)
    return first.reshape(batch, -1)


def _counted_axis(x: Value, named: Mapping[int, Places], rank: int) -> tuple[int | None, int]:
    """An indexed axis of x whose known index is 0, 1, 2 ... to its end, and the axis of this count.

    The latter is an axis, among `rank`, of the shape that all indices broadcast to. Returns (None,
    0) without such an index.
    """
    if len(named) > 1:
        for axis, each in named.items():
            if isinstance(each, Value) or each.size != x.shape[axis] or not each.ndim:
                continue
            long = [n for n, size in enumerate(each.shape) if size > 1] or [0]
            if len(long) == 1 and np.array_equal(each.reshape(-1), np.arange(each.size)):
                return axis, rank - each.ndim + long[0]
    return None, 0
