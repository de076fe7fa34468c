"""Weight stream of sparse products of bytes: quads of one row, or quads that two rows share.

    quad    offsets of four inputs, or one offset of four side by side; their weights for each row
    group   rows with the same number of quads: turns of the loop, entry of the first turn, rows
    row     offset of its results; scale and bias

Rows that share quads are neighbours, or have similar numbers of nonzeros, whichever takes fewer.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.ir.compressed_rows import CompressedRows, count_distinct, distinct
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.whole_numbers import ceil_div

QUAD = 4  # inputs
UNROLLED = 8
GROUP = np.dtype([("turns", "<i4"), ("entry", "<i4"), ("rows", "<i4"), ("before", "<i4")])
ROW = np.dtype([("offset", "<i4"), ("scale", "<f4"), ("bias", "<f4"), ("late", "<f4")])

_Integers = npt.NDArray[np.integer]


@dataclass(frozen=True)
class QuadForm:
    """The form of a quad.

    together: rows that share it.
    fours: whether its inputs are four channels that lie side by side, at one tap, so that it has
        one offset; else any four inputs.
    """

    together: int
    fours: bool = False

    @property
    def offsets(self) -> int:
        """Offsets in a quad."""
        return 1 if self.fours else QUAD

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The record of a quad, as the code reads it."""
        weights = "weight", "i1", (self.together, QUAD)
        return np.dtype([("offset", "<i4", (self.offsets,)), weights])


@dataclass(frozen=True, eq=False)
class QuadStream:
    """A layer's weights as the code reads them; rows are grouped by their number of quads."""

    groups: npt.NDArray[np.void]
    quads: npt.NDArray[np.void]
    rows: npt.NDArray[np.void]

    @property
    def nbytes(self) -> int:
        return self.groups.nbytes + self.quads.nbytes + self.rows.nbytes


def expected_quads(matrix: SparseMatrix, taps: int, form: QuadForm) -> int:
    """Return the quads of a matrix (out, channels * taps), before weights round to zero."""
    weights, together = matrix.nonzeros, form.together
    if not form.fours and together == 1:
        return _quads_of(matrix.row_counts)
    cells, cell, _ = _cells(weights, taps, form)
    units = ceil_div(matrix.out_features, together)
    if form.fours:
        return count_distinct(weights.rows // together * cells + cell, units * cells)
    return min(_quads_of(_shared(weights)), _quads_at_random(matrix))


def _quads_of(counts: npt.NDArray[np.integer]) -> int:
    return int(ceil_div(counts, QUAD).sum())


def _shared(weights: CompressedRows) -> _Integers:
    """Return the number of inputs of each pair of neighbouring rows."""
    rows, inputs = weights.shape
    units = ceil_div(rows, 2)
    used, _ = distinct(weights.rows // 2 * inputs + weights.columns, units * inputs)
    return np.bincount(used // inputs, minlength=units)


def _quads_at_random(matrix: SparseMatrix) -> int:
    """Return the quads of pairs of rows with similar numbers of nonzeros, if zeros are random."""
    counts = np.sort(matrix.row_counts)[::-1].astype(np.float64)
    first, second = counts[::2], np.append(counts, counts[-1:])[1::2]
    both = first + second[: len(first)] * (1 - first / matrix.in_features)
    return int(np.ceil(both / QUAD).sum())


def _cells(weights: CompressedRows, taps: int, form: QuadForm) -> tuple[int, _Integers, _Integers]:
    """Return the number of cells of a row, and for each weight its cell and its lane there.

    A cell has one offset: it is an input, or four channels side by side at one tap.
    """
    if not form.fours:
        return weights.shape[1], weights.columns, np.zeros(len(weights), np.int64)
    channel, tap = np.divmod(weights.columns, taps)
    columns = ceil_div(ceil_div(weights.shape[1], taps), QUAD) * taps
    return columns, channel // QUAD * taps + tap, channel % QUAD


def _members(weights: CompressedRows, form: QuadForm) -> _Integers:
    """Return the rows of each unit, (units, together); an unpaired last row appears twice."""
    rows, together = weights.shape[0], form.together
    orders = [np.arange(rows)]
    if together > 1 and not form.fours:
        orders.append(np.argsort(-np.diff(weights.starts), kind="stable"))
    filled = [np.append(each, each[rows - -rows % together :]) for each in orders]
    units = [each.reshape(-1, together) for each in filled]
    return min(units, key=lambda members: _quads_of(_counts(weights, members)))


def _counts(weights: CompressedRows, members: _Integers) -> _Integers:
    """Return the number of inputs of each unit's rows."""
    inputs = weights.shape[1]
    unit, _ = _places(weights, members)
    used, _ = distinct(unit * inputs + weights.columns, len(members) * inputs)
    return np.bincount(used // inputs, minlength=len(members))


def _places(weights: CompressedRows, members: _Integers) -> tuple[_Integers, _Integers]:
    """Return the unit of each weight, and the index of its row in the unit."""
    together = members.shape[1]
    place_of = np.empty(weights.shape[0], np.int64)
    place_of[members.reshape(-1)[: weights.shape[0]]] = np.arange(weights.shape[0])
    unit, slot = np.divmod(place_of[weights.rows], together)
    return unit, slot


def quad_stream(
    weights: CompressedRows,
    places: _Integers,
    y_channel: int,
    ends: npt.NDArray[np.floating],
    form: QuadForm,
    taps: int = 1,
) -> QuadStream:
    """Return the stream of int8 weights.

    places: byte offset of each input, or of each four inputs, all at least 0.
    ends: scale and biases of each row.
    """
    members = _members(weights, form)
    unit, slot = _places(weights, members)
    cells, cell, lane = _cells(weights, taps, form)
    used, found = distinct(unit * cells + cell, len(members) * cells)
    values = np.zeros((len(used), form.together, QUAD // form.offsets), np.int8)
    values[found, slot, lane] = weights.values
    if weights.shape[0] % form.together:
        last = used // cells == len(members) - 1
        values[last] = values[last][:, :1]
    counts = np.bincount(used // cells, minlength=len(members))
    by_length = np.argsort(-counts, kind="stable")
    quads = _quads(used % cells, values, counts, by_length, places, form)
    records = np.zeros(members.shape, ROW)
    records["offset"] = members * y_channel
    for number, name in enumerate(("scale", "bias", "late")):
        records[name] = ends[members, number]
    turns = ceil_div(counts[by_length], form.offsets)
    return QuadStream(_groups(turns, quads.itemsize), quads, records[by_length].ravel())


def _quads(
    cells: _Integers,
    values: npt.NDArray[np.int8],
    counts: _Integers,
    order: _Integers,
    places: _Integers,
    form: QuadForm,
) -> npt.NDArray[np.void]:
    """Return the quads of all units, in `order`; unit u has `counts[u]` cells and values."""
    each = form.offsets
    quads_of = ceil_div(counts, each)
    begins = np.empty(len(counts), np.int64)
    begins[order] = np.cumsum(quads_of[order]) - quads_of[order]
    starts = np.cumsum(counts) - counts
    within = np.arange(len(cells)) - np.repeat(starts, counts)
    slots = each * np.repeat(begins, counts) + within
    # Padding of a unit's last quad has weight 0 and the offset of the unit's last input.
    last = np.zeros(len(counts), np.int64)
    filled = counts > 0
    last[filled] = places[cells[(starts + counts)[filled] - 1]]
    offsets = np.repeat(np.repeat(last[order], quads_of[order]), each)
    offsets[slots] = places[cells]
    weights = np.zeros((len(offsets), *values.shape[1:]), np.int8)
    weights[slots] = values
    quads = np.zeros(len(offsets) // each, form.dtype)
    quads["offset"] = offsets.reshape(-1, each)
    by_quad = weights.reshape(-1, each, *values.shape[1:]).swapaxes(1, 2)
    quads["weight"] = by_quad.reshape(-1, form.together, QUAD)
    return quads


def _groups(quads_of: _Integers, quad_bytes: int) -> npt.NDArray[np.void]:
    """Return a group for each number of quads, and an empty group at the end."""
    numbers, counts = np.unique(-quads_of, return_counts=True)
    groups = np.zeros(len(numbers) + 1, GROUP)
    turns, entries = np.divmod(-numbers, UNROLLED)
    groups["turns"][:-1], groups["entry"][:-1], groups["rows"][:-1] = turns, entries, counts
    groups["before"] = quad_bytes * (UNROLLED - groups["entry"])
    return groups
