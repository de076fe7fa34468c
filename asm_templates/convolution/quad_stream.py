"""Weights of sparse products of bytes as they are read: quads of a row, or that two share.

    quad    offsets of four inputs, or of four that lie side by side; their weights for each row
    group   rows of equally many quads: turns of the loop, where the first enters it, rows
    row     where its results lie; scale and bias

Rows that share quads are neighbours, or are of nearly as many nonzeros, whichever takes fewer.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.ir.compressed_rows import CompressedRows, count_distinct, distinct
from sparsejit.ir.sparse_matrix import SparseMatrix

QUAD = 4  # inputs
UNROLLED = 8
GROUP = np.dtype([("turns", "<i4"), ("entry", "<i4"), ("rows", "<i4"), ("before", "<i4")])
ROW = np.dtype([("offset", "<i4"), ("scale", "<f4"), ("bias", "<f4"), ("late", "<f4")])

_Integers = npt.NDArray[np.integer]


@dataclass(frozen=True)
class QuadForm:
    """What a quad is.

    together: rows that share it.
    fours: whether its inputs are four channels that lie side by side, at one tap, so that one
        offset says where; else any four.
    """

    together: int
    fours: bool = False

    @property
    def offsets(self) -> int:
        """How many say where a quad's inputs lie."""
        return 1 if self.fours else QUAD

    @property
    def dtype(self) -> np.dtype[np.void]:
        """A quad as it is read."""
        weights = "weight", "i1", (self.together, QUAD)
        return np.dtype([("offset", "<i4", (self.offsets,)), weights])


@dataclass(frozen=True, eq=False)
class QuadStream:
    """A layer's weights as they are read: rows of equally many quads in groups."""

    groups: npt.NDArray[np.void]
    quads: npt.NDArray[np.void]
    rows: npt.NDArray[np.void]

    @property
    def nbytes(self) -> int:
        return self.groups.nbytes + self.quads.nbytes + self.rows.nbytes


def expected_quads(matrix: SparseMatrix, taps: int, form: QuadForm) -> int:
    """Quads of a matrix (out, channels * taps), but for weights that become 0 as integers."""
    weights, together = matrix.nonzeros, form.together
    if not form.fours and together == 1:
        return _quads_of(matrix.row_counts)
    cells, cell, _ = _cells(weights, taps, form)
    units = -(-matrix.out_features // together)
    if form.fours:
        return count_distinct(weights.rows // together * cells + cell, units * cells)
    return min(_quads_of(_shared(weights)), _quads_at_random(matrix))


def _quads_of(counts: npt.NDArray[np.integer]) -> int:
    return int((-(-counts // QUAD)).sum())


def _shared(weights: CompressedRows) -> _Integers:
    """How many inputs each two neighbouring rows have."""
    rows, inputs = weights.shape
    units = -(-rows // 2)
    used, _ = distinct(weights.rows // 2 * inputs + weights.columns, units * inputs)
    return np.bincount(used // inputs, minlength=units)


def _quads_at_random(matrix: SparseMatrix) -> int:
    """The same of two rows with about as many nonzeros each, if zeros lie at random."""
    counts = np.sort(matrix.row_counts)[::-1].astype(np.float64)
    first, second = counts[::2], np.append(counts, counts[-1:])[1::2]
    both = first + second[: len(first)] * (1 - first / matrix.in_features)
    return int(np.ceil(both / QUAD).sum())


def _cells(weights: CompressedRows, taps: int, form: QuadForm) -> tuple[int, _Integers, _Integers]:
    """How many places a row has for offsets, and of each weight which, and which lane of it."""
    if not form.fours:
        return weights.shape[1], weights.columns, np.zeros(len(weights), np.int64)
    channel, tap = np.divmod(weights.columns, taps)
    return -(-weights.shape[1] // taps // QUAD) * taps, channel // QUAD * taps + tap, channel % QUAD


def _members(weights: CompressedRows, form: QuadForm) -> _Integers:
    """The rows of each unit, (units, together); one that is left over stands there twice."""
    rows, together = weights.shape[0], form.together
    orders = [np.arange(rows)]
    if together > 1 and not form.fours:
        orders.append(np.argsort(-np.diff(weights.starts), kind="stable"))
    filled = [np.append(each, each[rows - -rows % together :]) for each in orders]
    units = [each.reshape(-1, together) for each in filled]
    return min(units, key=lambda members: _quads_of(_counts(weights, members)))


def _counts(weights: CompressedRows, members: _Integers) -> _Integers:
    """How many inputs the rows of each unit have."""
    inputs = weights.shape[1]
    unit, _ = _places(weights, members)
    used, _ = distinct(unit * inputs + weights.columns, len(members) * inputs)
    return np.bincount(used // inputs, minlength=len(members))


def _places(weights: CompressedRows, members: _Integers) -> tuple[_Integers, _Integers]:
    """The unit of each weight, and the number of its row there."""
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
    """Int8 weights whose inputs, or fours of them, lie at `places`, from 0 on.

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
    turns = -(-counts[by_length] // form.offsets)
    return QuadStream(_groups(turns, quads.itemsize), quads, records[by_length].ravel())


def _quads(
    cells: _Integers,
    values: npt.NDArray[np.int8],
    counts: _Integers,
    order: _Integers,
    places: _Integers,
    form: QuadForm,
) -> npt.NDArray[np.void]:
    """Cells and values of units, so many each, by quads, in that order of the units."""
    each = form.offsets
    quads_of = -(-counts // each)
    begins = np.empty(len(counts), np.int64)
    begins[order] = np.cumsum(quads_of[order]) - quads_of[order]
    starts = np.cumsum(counts) - counts
    within = np.arange(len(cells)) - np.repeat(starts, counts)
    slots = each * np.repeat(begins, counts) + within
    # What fills up a unit's last quad has weight 0, and reads where the unit's last input lies.
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
    """One for each number of quads, and one of no rows."""
    numbers, counts = np.unique(-quads_of, return_counts=True)
    groups = np.zeros(len(numbers) + 1, GROUP)
    turns, entries = np.divmod(-numbers, UNROLLED)
    groups["turns"][:-1], groups["entry"][:-1], groups["rows"][:-1] = turns, entries, counts
    groups["before"] = quad_bytes * (UNROLLED - groups["entry"])
    return groups
