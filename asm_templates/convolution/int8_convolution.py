"""Sparse int8 convolution: four inputs of a row at a time, at 64 positions.

    QuadForm      the form of a quad: for one row, or shared by two
    quad_stream   the weights in the order in which the code reads them
    emit_quads    the kernel

The stream of weights:

    quad    offsets of four inputs, or one offset of four side by side; their weights for each row
    group   rows with the same number of quads: turns of the loop, entry of the first turn, rows
    row     offset of its results; scale and bias

Rows that share quads are neighbours, or have similar numbers of nonzeros, whichever takes fewer.
Rows with the same number of quads are consecutive and enter the loop at the same place.

A quad has any four inputs, whose positions are interleaved as they are multiplied:

    a, b, c, d     = 64 positions of four inputs            vmovdqu64 zmm4, [rbx+rax]
    l, h           = vpunpcklbw, vpunpckhbw of a, b
    m, n           = vpunpcklbw, vpunpckhbw of c, d
    e0, e1, e2, e3 = vpunpcklwd, vpunpckhwd of l, m and h, n     four bytes of each position
    w              = four weights of a row                  vpbroadcastd zmm12, [rsi+16]
    sum0 .. sum3  += vpdpbusd e0 .. e3, w

Or it has four channels that already lie side by side (`int8_planes`), from which e0 .. e3 are
loaded.

With AVX2, each half of the positions in turn:

    e0 .. e3      = as above, from 32 positions
    sum0 .. sum3 += vpdpbusd e0 .. e3, w                         with AVX-VNNI; else
    t0 .. t3      = vpmaddubsw e0 .. e3, w                       pairs of products, in 16 bits
    sum0 .. sum3 += vpmaddwd t0 .. t3, ones

`vpmaddubsw` saturates, so weights are put in pairs whose sums of products fit (`in_pairs`).

Weights are data, read in order. All rows are computed for one vector of positions before the next
vector. Packing the sums restores the order of positions. An input is a channel of `int8_planes` at
one tap.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.int8_conversions import fill_gaps
from sparsejit.asm_templates.convolution.int8_planes import (
    LINE,
    BytePlanes,
    ChannelFours,
    load_order,
    narrow_order,
)
from sparsejit.asm_templates.convolution.int8_results import (
    MASK,
    ByteEpilogue,
    ByteResults,
    NarrowByteResults,
    SumEpilogue,
    SumResults,
)
from sparsejit.asm_templates.gather.int8_boundary import quantised_nonzeros
from sparsejit.asm_templates.shared.interleave import interleaved
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.asm_templates.shared.rows import zero
from sparsejit.ir.compressed_rows import CompressedRows, count_distinct, distinct
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    r8,
    r9,
    r10,
    r11,
    r12,
    r13,
    r14,
    r15,
    rax,
    rbp,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
    rsp,
    ymm,
    zmm,
)
from sparsejit.x86.routines import call_routine, pop, push, slots

QUAD = 4  # inputs
UNROLLED = 8
ROWS_IN_LANES = 32
GROUP = np.dtype([("turns", "<i4"), ("entry", "<i4"), ("rows", "<i4"), ("before", "<i4")])
ROW = np.dtype([("offset", "<i4"), ("scale", "<f4"), ("bias", "<f4"), ("late", "<f4")])

_Integers = npt.NDArray[np.integer]


@dataclass(frozen=True)
class QuadForm:
    """The form of a quad: four inputs, and their weights in one row of W or in several.

    together: rows that share a quad.
    fours: whether its inputs are four channels that lie side by side, at one tap, so that it has
        one offset; else any four inputs.
    paired: whether its first two weights, and its last two, are such that the sum of two products
        with bytes fits 16 bits, as `vpmaddubsw` adds them: they have opposite signs, or magnitudes
        that sum to at most 128.
    by_row: whether the code is `int8_row_pairs`, which has pairs in place of quads.
    by_taps: whether any four inputs are copied side by side first, tap by tap (`int8_taps`).
    """

    together: int
    fours: bool = False
    paired: bool = False
    by_row: bool = False
    by_taps: bool = False

    @property
    def offsets(self) -> int:
        """Offsets in a quad."""
        return 1 if self.fours else QUAD

    @property
    def is_tile(self) -> bool:
        """Whether rows share quads in a tile of sums, which fills the registers (`int8_tiles`)."""
        return self.together > 2

    @property
    def is_turned(self) -> bool:
        """Whether rows, not positions, lie in the lanes of a tile."""
        return self.together == ROWS_IN_LANES

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
    """Return the number of quads for a matrix (out, channels * taps), before int8 rounding."""
    weights, together = matrix.nonzeros, form.together
    if not form.fours and together == 1:
        return _quads_of(matrix.row_counts)
    if form.paired:
        return quads_of_rows(quantised_nonzeros(matrix)[0], taps, form)
    cells, cell, _ = _cells(weights, taps, form)
    units = ceil_div(matrix.out_features, together)
    if form.fours:
        return count_distinct(weights.rows // together * cells + cell, units * cells)
    return min(_quads_of(_shared(weights, together)), _quads_at_random(matrix, together))


def quads_of_rows(weights: CompressedRows, taps: int, form: QuadForm) -> int:
    """Return the number of quads of int8 weights (out, channels * taps), each of one row."""
    found = _by_cell(weights, np.arange(weights.shape[0])[:, None], taps, form)
    return len((in_two(*found) if form.paired else found)[0])


def _quads_of(counts: npt.NDArray[np.integer]) -> int:
    return int(ceil_div(counts, QUAD).sum())


def _shared(weights: CompressedRows, together: int) -> _Integers:
    """Return for each unit of neighbouring rows the number of inputs that any of them uses."""
    rows, inputs = weights.shape
    units = ceil_div(rows, together)
    used, _ = distinct(weights.rows // together * inputs + weights.columns, units * inputs)
    return np.bincount(used // inputs, minlength=units)


def _quads_at_random(matrix: SparseMatrix, together: int) -> int:
    """Estimate the quads if rows with similar numbers of nonzeros form units, for random zeros."""
    kept = np.sort(matrix.row_counts)[::-1] / matrix.in_features
    units = np.append(kept, np.zeros(-len(kept) % together)).reshape(-1, together)
    used = matrix.in_features * (1 - np.prod(1 - units, axis=1))
    return int(np.ceil(used / QUAD).sum())


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
    """Return the rows that share quads, (units, together).

    Units are neighbours, or rows with similar numbers of nonzeros, whichever takes fewer quads. The
    last row appears again until its unit is complete.
    """
    rows, together = weights.shape[0], form.together
    orders = [np.arange(rows)]
    if together > 1 and not form.fours:
        orders.append(np.argsort(-np.diff(weights.starts), kind="stable"))
    filled = [np.append(each, np.repeat(each[-1], -rows % together)) for each in orders]
    units = [each.reshape(-1, together) for each in filled]
    return min(units, key=lambda members: _quads_of(_counts(weights, members)))


def _counts(weights: CompressedRows, members: _Integers) -> _Integers:
    """Return for each unit of rows the number of inputs that any of them uses."""
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


def _by_cell(
    weights: CompressedRows, members: _Integers, taps: int, form: QuadForm
) -> tuple[_Integers, _Integers, npt.NDArray[np.int8]]:
    """Return the unit, the cell and the weights of each cell that a unit of rows uses."""
    unit, slot = _places(weights, members)
    cells, cell, lane = _cells(weights, taps, form)
    used, found = distinct(unit * cells + cell, len(members) * cells)
    values = np.zeros((len(used), form.together, QUAD // form.offsets), np.int8)
    values[found, slot, lane] = weights.values
    return *np.divmod(used, cells), values


def quad_stream(
    weights: CompressedRows,
    places: _Integers,
    y_channel: int,
    ends: npt.NDArray[np.floating],
    form: QuadForm,
    taps: int = 1,
) -> QuadStream:
    """Return int8 weights (out, channels * taps) as the stream that the code reads.

    places: byte offset of each input, or of each four inputs, all at least 0.
    ends: scale and biases of each row.
    """
    members = _members(weights, form)
    unit, cell, values = _by_cell(weights, members, taps, form)
    if rest := weights.shape[0] % form.together:
        last = unit == len(members) - 1
        values[last, rest:] = values[last, rest - 1 : rest]
    if form.paired:
        split = in_two if form.fours else in_pairs
        unit, cell, values = split(unit, cell, values)
    counts = np.bincount(unit, minlength=len(members))
    by_length = np.argsort(-counts, kind="stable")
    quads = _quads(cell, values, counts, by_length, places, form)
    records = np.zeros(members.shape, ROW)
    records["offset"] = members * y_channel
    for number, name in enumerate(("scale", "bias", "late")):
        records[name] = ends[members, number]
    turns = ceil_div(counts[by_length], form.offsets)
    return QuadStream(_groups(turns, quads.itemsize), quads, records[by_length].ravel())


LARGEST_PAIR = 128  # sum of magnitudes: 255 * 128 is below 2 ** 15


def in_pairs(
    unit: _Integers, cell: _Integers, values: npt.NDArray[np.int8]
) -> tuple[_Integers, _Integers, npt.NDArray[np.int8]]:
    """Return the weights of all units in pairs, as `QuadForm.paired` has them, and their cells.

    The largest weights of one sign go with the largest of the other. Weights of the same sign are
    left over: the smallest go in pairs, as many as possible; of the others three go in two pairs,
    one of them in two parts; what is left has a weight of 0 beside it.
    """
    flat: _Integers = values.reshape(-1).astype(np.int64)
    if not len(unit):
        return unit, cell, values
    negative: _Integers = (flat < 0).astype(np.int64)
    order = np.lexsort((-np.abs(flat), negative, unit))
    unit, cell, flat, negative = (each[order] for each in (unit, cell, flat, negative))
    units = int(unit[-1]) + 1
    counts = np.bincount(2 * unit + negative, minlength=2 * units)
    starts = np.cumsum(counts) - counts
    slot = np.arange(len(unit)) - starts[2 * unit + negative]
    which = negative.copy()
    both = counts.reshape(-1, 2).min(axis=1)
    left = counts.reshape(-1, 2).max(axis=1) - both
    rest = np.flatnonzero(slot >= both[unit])
    more, which[rest], halves, pairs = _left_over(unit[rest], np.abs(flat[rest]), left)
    slot[rest] = both[unit[rest]] + more
    split = rest[halves.places]
    sign = np.sign(flat[split])
    flat[split] -= sign * halves.parts
    flat, cell = np.append(flat, sign * halves.parts), np.append(cell, cell[split])
    pairs += both
    before, of_unit = np.cumsum(pairs) - pairs, np.append(unit, unit[split])
    first = before[of_unit] + np.append(slot, slot[split] + 1)
    which = np.append(which, np.zeros_like(split))
    cells, weights = np.zeros(2 * pairs.sum(), cell.dtype), np.zeros(2 * pairs.sum(), np.int8)
    begins = which == 0
    cells.reshape(-1, 2)[first[begins]] = cell[begins][:, None]
    cells[2 * first + which], weights[2 * first + which] = cell, flat
    return np.repeat(np.arange(units), 2 * pairs), cells, weights.reshape(-1, 1, 1)


class _Halves(NamedTuple):
    """Weights in two parts: their places, and the parts that go to the pair behind."""

    places: _Integers
    parts: _Integers


def _left_over(
    unit: _Integers, size: _Integers, left: _Integers
) -> tuple[_Integers, _Integers, _Halves, _Integers]:
    """Return the pair of each weight of one sign, its place there, its parts, and pairs by unit.

    `size` are magnitudes, falling within a unit, which has `left` of them. The first pairs have one
    weight each, the next are of groups of three, the last have two.
    """
    paired = _groups_left(unit, size, left, 2)
    alone = left - 2 * paired
    within = np.arange(len(unit)) - (np.cumsum(left) - left)[unit]
    large = within < alone[unit]
    threes = _groups_left(unit[large], size[large], alone, 3)
    single = alone - 3 * threes
    slot, which = np.where(large, within, within - threes[unit]), np.zeros_like(within)
    partner = (2 * left - 2 * paired - 1)[unit] - within
    is_second = ~large & (partner < within)
    slot[is_second], which[is_second] = (partner - threes[unit])[is_second], 1
    in_three = np.flatnonzero(large & (within >= single[unit]))
    of_unit = unit[in_three]
    first, end = single[of_unit], alone[of_unit] - 1 - within[in_three]
    group = np.where(within[in_three] < first + threes[of_unit], within[in_three] - first, end // 2)
    is_first = within[in_three] < first + threes[of_unit]
    is_last, is_middle = ~is_first & (end % 2 == 0), ~is_first & (end % 2 == 1)
    slot[in_three] = first + 2 * group + is_last
    which[in_three] = ~is_first
    middle = in_three[is_middle]
    largest = size[middle - within[middle] + (first + group)[is_middle]]
    behind = np.maximum(size[middle] - (LARGEST_PAIR - largest), 0)
    return slot, which, _Halves(middle, behind), left - paired - threes


def in_two(
    unit: _Integers, cell: _Integers, values: npt.NDArray[np.int8]
) -> tuple[_Integers, _Integers, npt.NDArray[np.int8]]:
    """Return the weights of channels by four as `QuadForm.paired` has them, and their cells.

    Cells with a pair that is too large appear twice, the second time with its second weight alone.
    """
    pairs = values.astype(np.int64).reshape(len(values), QUAD // 2, 2)
    beyond = (np.abs(pairs.sum(axis=2)) > LARGEST_PAIR) & (pairs.prod(axis=2) > 0)
    again = np.flatnonzero(beyond.any(axis=1))
    second = np.zeros_like(pairs[again])
    second[..., 1] = np.where(beyond[again], pairs[again, :, 1], 0)
    pairs[again] -= second
    both = np.concatenate([pairs, second]).astype(np.int8).reshape(-1, *values.shape[1:])
    units, cells = (np.append(each, each[again]) for each in (unit, cell))
    order = np.argsort(units, kind="stable")
    return units[order], cells[order], both[order]


def _groups_left(
    unit: _Integers, size: _Integers, left: _Integers, weights: int
) -> _Integers:
    """Return for each unit how many groups of `weights` its weights of one sign form at most.

    A group of two fills a pair, one of three two pairs. `size` are the magnitudes, falling within a
    unit, which has `left` of them. If there are n groups, these are of the smallest, the largest of
    them with the smallest: n is found by bisection.
    """
    starts = np.cumsum(left) - left
    least, most = np.zeros_like(left), left // weights
    within = np.arange(len(unit)) - starts[unit]
    while (least < most).any():
        middle = (least + most + 1) // 2
        offset = within - (left - weights * middle)[unit]
        tested = np.flatnonzero((offset >= 0) & (offset < middle[unit]))
        total, others = size[tested].copy(), weights - 1
        for number in range(others):
            total += size[(starts + left - 1)[unit[tested]] - others * offset[tested] - number]
        beyond = total > others * LARGEST_PAIR
        fails = np.bincount(unit[tested][beyond], minlength=len(left)) > 0
        least, most = np.where(fails, least, middle), np.where(fails, middle - 1, most)
    return least


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
    """Return the loop bounds of each group of rows with equally many quads, then an empty group."""
    numbers, counts = np.unique(-quads_of, return_counts=True)
    groups = np.zeros(len(numbers) + 1, GROUP)
    turns, entries = np.divmod(-numbers, UNROLLED)
    groups["turns"][:-1], groups["entry"][:-1], groups["rows"][:-1] = turns, entries, counts
    groups["before"] = quad_bytes * (UNROLLED - groups["entry"])
    return groups


_ENTRY_BYTES = 16
ENTRIES_BYTES = UNROLLED * _ENTRY_BYTES  # of a jump table
_PREFETCH_AHEAD = 3072  # bytes of the quads
_QUADS_AHEAD = 4  # quads whose inputs AVX2 prefetches
_SAVED = (rbx, rbp, r12, r13, r14, r15)
ORDER = zmm(11)  # of fours' positions: fours need no registers for interleaving
# Registers of the sums of the first and the second row, and of weights: `ByteResults.finish` of the
# first row leaves the second's sums alone.
_SUMS, _WEIGHTS = ((0, 1, 2, 3), (17, 18, 19, 30)), (12, 13)
_OFFSETS = (rax, r8, r9, r10)


class QuadRegisters(NamedTuple):
    """Addresses in tables, and of the positions that are computed."""

    groups: Register
    quads: Register
    rows: Register
    x: Register
    y: Register
    added: Register
    masks: Register


AT = QuadRegisters(rdi, rsi, rdx, rbx, r12, r13, r14)


class QuadFrame(NamedTuple):
    """Slots on the stack: the addresses of tables, and of the jump table; counters; rsp before.

    unit: the first quad of rows that share them; entry and before: registers meanwhile.
    zero_point: of x, if it is of the call.
    """

    groups: Memory
    quads: Memory
    rows: Memory
    masks: Memory
    constants: Memory
    entries: Memory
    turns: Memory
    vectors: Memory
    samples: Memory
    stack: Memory
    unit: Memory
    entry: Memory
    before: Memory
    zero_point: Memory


FRAME = QuadFrame(*slots(rsp, len(QuadFrame._fields)))
FRAME_BYTES = 8 * len(FRAME)


@dataclass(frozen=True, eq=False)
class LoweredQuads:
    """A sparse int8 convolution ready to emit: planes x, planes y, and the stream of weights.

    Quads' offsets count from `before` bytes ahead of x.

    met_bytes: bytes of x under the windows of one vector of positions.
    is_first: whether to fill the gap before the first channel.
    """

    x: BytePlanes | ChannelFours
    y: BytePlanes
    before: int
    stream: QuadStream
    epilogue: ByteEpilogue | SumEpilogue
    form: QuadForm
    met_bytes: int
    is_first: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes of the stream."""
        return self.stream.nbytes


def emit_quads(asm: Assembler, lowered: LoweredQuads) -> None:
    """Append the sparse int8 convolution: x at rdi, y at rsi, the added image at rdx.

    Layers share its code. x and y point to the first position. Gaps of y become its zero point. If
    y is sums in float32, its gaps are undefined, and rdx points at the zero point of x, as float32.
    """
    is_narrow = asm.target.isa == "avx2"
    emit_code(asm, lowered, (_NarrowQuadCode if is_narrow else QuadCode)(asm, lowered))


def emit_code(asm: Assembler, lowered: LoweredQuads, code: "QuadCode") -> None:
    """Append the addresses of a convolution's tables, and the code, which layers share."""
    stream, is_narrow = lowered.stream, asm.target.isa == "avx2"
    behind = np.zeros(_QUADS_AHEAD, stream.quads.dtype)
    arrays = {
        r8: stream.groups,
        r9: np.concatenate([stream.quads, behind]) if is_narrow else stream.quads,
        r10: stream.rows,
        r11: lowered.y.masks(),
        rcx: code.constants(),
    }
    for register, array in arrays.items():
        asm.emit("lea", register, Literal(asm.literal(array)))
    call_routine(asm, code.key, lambda asm: code.emit())


class QuadCode:
    """Appends the code of a sparse int8 convolution."""

    def __init__(self, asm: Assembler, lowered: LoweredQuads) -> None:
        self.asm, self.x, self.y = asm, lowered.x, lowered.y
        self.is_first = lowered.is_first
        self.form, self.before = lowered.form, lowered.before
        self.epilogue = lowered.epilogue
        self.quad_bytes = self.form.dtype.itemsize
        self.quads_a_line = max(1, LINE // self.quad_bytes)
        self.x_line = LINE * QUAD // self.form.offsets
        self.left = [asm.label(f"{count} left") for count in range(UNROLLED + 1)]
        self.entries = asm.label("entries")
        self.last: QuadCode | None = None
        self.whole_vectors = self.y.vectors
        x, y = self.x, self.y
        sizes = x.sample, y.sample, y.channel, y.channels, y.samples, y.used, y.before
        self.key: Hashable = (
            *("quads", sizes, self.before, self.is_first),
            *(self.form, lowered.epilogue.code),
        )

    @cached_property
    def results(self) -> ByteResults:
        assert isinstance(self.epilogue, ByteEpilogue)
        return ByteResults(self.asm, self.epilogue)

    def constants(self) -> npt.NDArray[np.uint8]:
        """Return the constants of the ends of rows."""
        return self.epilogue.constants()

    @cached_property
    def sum_results(self) -> SumResults | None:
        """The code of sums in float32; None if y is bytes."""
        is_sums = isinstance(self.epilogue, SumEpilogue)
        return SumResults(self.asm, FRAME.zero_point) if is_sums else None

    @property
    def sums(self) -> list[list[Register]]:
        """The registers of the sums of each row that shares quads."""
        return [[zmm(n) for n in numbers] for numbers in _SUMS[: self.form.together]]

    def emit(self) -> None:
        asm = self.asm
        push(asm, _SAVED)
        self._make_room()
        self._load_constants()
        asm.emit("lea", AT.x, Memory(rdi, -self.before))
        asm.emit("mov", AT.y, rsi)
        asm.emit("mov", AT.added, rdx)
        for slot, register in zip(FRAME, (r8, r9, r10, r11, rcx), strict=False):
            asm.emit("mov", slot, register)
        if self.sum_results is None:
            fill_gaps(asm, self.y, rsi, self._load_gap(), self.is_first)
        else:
            asm.emit("vcvttss2si", dword(rax), Memory(rdx))
            asm.emit("mov", FRAME.zero_point, rax)
        with counted_down(asm, FRAME.samples, self.y.samples):
            self._sample()
        asm.emit("mov", rsp, FRAME.stack)
        pop(asm, _SAVED)
        behind = asm.label("behind the entries")
        asm.jump("jmp", behind)
        self._entries()
        asm.bind(behind)

    def _make_room(self) -> None:
        asm = self.asm
        asm.emit("mov", rax, rsp)
        asm.emit("sub", rsp, FRAME_BYTES)
        asm.emit("mov", FRAME.stack, rax)

    def _load_constants(self) -> None:
        """Load what the code keeps in registers."""
        if self.sum_results is None:
            self.results.load_constants(rcx)
        if self.form.fours:
            load_order(self.asm, ORDER)

    def _load_gap(self) -> Register:
        """Return the register of the zero point of y in all bytes."""
        return self.results.gap

    def _sample(self) -> None:
        asm, y = self.asm, self.y
        asm.emit("mov", AT.masks, FRAME.masks)
        self._vectors()
        asm.emit("add", AT.x, self.x.sample - y.vectors * self.x_line)
        self._move_y(y.sample - y.vectors * LINE)

    def _vectors(self) -> None:
        if self.whole_vectors:
            with counted_down(self.asm, FRAME.vectors, self.whole_vectors):
                self._vector()
        if self.last is not None:
            self.last._vector()

    def _vector(self) -> None:
        """Compute all rows at 64 positions."""
        self._load_mask()
        self._rows()
        self.asm.emit("add", AT.x, self.x_line)
        self._move_y(LINE)
        self.asm.emit("add", AT.masks, LINE)

    def _move_y(self, positions: int) -> None:
        """Move to other positions of y and of the added image."""
        self.asm.emit("add", AT.y, positions * self.epilogue.element_bytes)
        self.asm.emit("add", AT.added, positions)

    def _rows(self) -> None:
        asm, group, done = self.asm, self.asm.label("group"), self.asm.label("done")
        asm.address(rax, self.entries)
        asm.emit("mov", FRAME.entries, rax)
        asm.emit("mov", AT.groups, FRAME.groups)
        asm.emit("mov", AT.quads, FRAME.quads)
        asm.emit("mov", AT.rows, FRAME.rows)
        asm.bind(group)
        asm.emit("mov", rax, Memory(AT.groups))
        asm.emit("mov", FRAME.turns, rax)
        asm.emit("mov", dword(rbp), Memory(AT.groups, 8))
        asm.emit("mov", dword(r11), Memory(AT.groups, 4))
        asm.emit("mov", dword(r15), Memory(AT.groups, 12))
        asm.emit("add", AT.groups, GROUP.itemsize)
        asm.emit("test", dword(rbp), dword(rbp))
        asm.jump("jz", done)
        asm.emit("shl", r11, _ENTRY_BYTES.bit_length() - 1)
        asm.emit("add", r11, FRAME.entries)
        asm.align(16)
        with counted_down(asm, dword(rbp)):
            self._row()
        asm.jump("jmp", group)
        asm.bind(done)

    def _load_mask(self) -> None:
        self.asm.emit("vmovdqu64", MASK, Memory(AT.masks))

    def _row(self) -> None:
        asm, turn = self.asm, self.asm.label("turn")
        for total in (total for sums in self.sums for total in sums):
            zero(asm, total)
        asm.emit("sub", AT.quads, r15)
        asm.emit("mov", dword(rcx), FRAME.turns)
        asm.emit("jmp", r11)
        asm.bind(turn)
        for number in range(UNROLLED):
            asm.bind(self.left[UNROLLED - number])
            self._quad(number * self.quad_bytes)
            if number % self.quads_a_line == 0:
                self._prefetch(number * self.quad_bytes + _PREFETCH_AHEAD)
        asm.bind(self.left[0])
        asm.emit("add", AT.quads, UNROLLED * self.quad_bytes)
        asm.emit("sub", dword(rcx), 1)
        asm.jump("jge", turn)
        self._finish()

    def _prefetch(self, place: int) -> None:
        """Ask for the lines of a quad."""
        for first in range(0, max(LINE, self.quad_bytes - LINE // 2), LINE):
            self.asm.emit("prefetcht0", Memory(AT.quads, place + first))

    def _finish(self) -> None:
        """Turn the sums of the rows that share quads into bytes."""
        for sums in self.sums:
            self._finish_row(sums, ORDER if self.form.fours else None)

    def _finish_row(self, sums: list[Register], order: Register | None) -> None:
        """Turn the sums of the next row into bytes."""
        asm = self.asm
        asm.emit("mov", dword(rax), Memory(AT.rows))
        y, added = (Memory(base, 0, rax) for base in (AT.y, AT.added))
        if self.sum_results is not None:
            self.sum_results.finish(sums, AT.rows, y, order is not None)
        else:
            self.results.finish(sums, AT.rows, y, added, FRAME.constants, order)
        asm.emit("add", AT.rows, ROW.itemsize)

    def _load_offsets(self, place: int) -> None:
        for number, offset in enumerate(_OFFSETS[: self.form.offsets]):
            self.asm.emit("mov", dword(offset), Memory(AT.quads, place + 4 * number))

    def _load_inputs(self, place: int, inputs: Sequence[Register]) -> None:
        """Load four inputs, or vectors of four channels side by side, of the quad at `place`."""
        self._load_offsets(place)
        for number, register in enumerate(inputs):
            offset, line = (_OFFSETS[0], number) if self.form.fours else (_OFFSETS[number], 0)
            self.asm.emit("vmovdqu64", register, Memory(AT.x, LINE * line, offset))

    def _quad(self, place: int) -> None:
        asm = self.asm
        inputs = [zmm(number) for number in range(4, 8)]
        self._load_inputs(place, inputs)
        weights = [zmm(number) for number in _WEIGHTS[: len(self.sums)]]
        for number, register in enumerate(weights):
            first = place + 4 * self.form.offsets
            asm.emit("vpbroadcastd", register, Memory(AT.quads, first + 4 * number))
        pairs = [zmm(number) for number in range(8, 12)]
        fours = enumerate(inputs) if self.form.fours else interleaved(asm, inputs, pairs)
        for number, four in fours:
            for sums, register in zip(self.sums, weights, strict=True):
                asm.emit("vpdpbusd", sums[number], four, register)

    def _entries(self) -> None:
        """Append the jump tables of all positions and of the last ones."""
        if self.whole_vectors:
            self.append_entries()
        if self.last is not None:
            self.last.append_entries()

    def append_entries(self) -> None:
        """Append the jump table, indexed by the number of quads in a row's first turn."""
        self.asm.align(_ENTRY_BYTES)
        self.asm.bind(self.entries)
        for count in range(UNROLLED):
            self.asm.align(_ENTRY_BYTES)
            self.asm.jump("jmp", self.left[count])
        self.asm.align(_ENTRY_BYTES)


NARROW_PRODUCT = "{vex} vpdpbusd"  # of AVX-VNNI


class _NarrowQuadCode(QuadCode):
    """Appends the code of AVX2: 64 positions in two halves, pairs by `vpmaddubsw`.

    With AVX-VNNI weights need not be in pairs.
    """

    _HALF = LINE // 2
    _PARTS = tuple(ymm(number) for number in (8, 9, 10, 11, 12, 15))
    _WEIGHT, _ONES = ymm(13), ymm(14)

    def __init__(self, asm: Assembler, lowered: LoweredQuads, halves: int = 2) -> None:
        super().__init__(asm, lowered)
        self.halves = halves
        self.asks_ahead = lowered.met_bytes > asm.target.l1d_bytes and not self.form.fours
        ends = None if self.sum_results else self.narrow_results.code
        self.key = self.key, self.asks_ahead, ends
        # Positions of the last vector may end in its first half.
        ends_early = halves == 2 and 0 < self.y.used % LINE <= self._HALF
        self.last = _NarrowQuadCode(asm, lowered, 1) if ends_early else None
        self.whole_vectors = self.y.vectors - ends_early

    def constants(self) -> npt.NDArray[np.uint8]:
        return self.epilogue.constants() if self.sum_results else self.narrow_results.constants()

    @property
    def sums(self) -> list[list[Register]]:
        """The registers of the sums of each half."""
        return [[ymm(4 * half + number) for number in range(4)] for half in range(self.halves)]

    @cached_property
    def narrow_results(self) -> NarrowByteResults:
        assert isinstance(self.epilogue, ByteEpilogue)
        return NarrowByteResults(self.asm, self.epilogue)

    def _load_constants(self) -> None:
        asm = self.asm
        asm.emit("vpbroadcastd", self._ONES, Literal(asm.literal(np.ones(2, np.int16))))

    def _load_gap(self) -> Register:
        gap = self._PARTS[0]
        self.narrow_results.load_gap(gap, rcx)
        return gap

    def _load_mask(self) -> None:
        """Nothing: `NarrowByteResults.finish` reads masks from memory."""

    def _finish(self) -> None:
        if self.sum_results is not None:
            self._finish_sums(self.sum_results)
            return
        asm, results = self.asm, self.narrow_results
        order = narrow_order(asm) if self.form.fours else None
        asm.emit("mov", dword(rax), Memory(AT.rows))
        places = [half * self._HALF for half in range(self.halves)]
        asm.emit("mov", rcx, FRAME.constants)
        for place, sums in zip(places, self.sums, strict=True):
            if not (place and results.keeps_scale):
                results.load_row(Memory(AT.rows))
            added = Memory(AT.added, place, rax)
            results.pack(sums, Memory(AT.rows), added, order is not None)
        for place, sums in zip(places, self.sums, strict=True):
            results.store(sums, Memory(AT.y, place, rax), Memory(AT.masks, place), order)
        if self.halves == 1:
            results.load_gap(self._PARTS[0], rcx)
            asm.emit("vmovdqu", Memory(AT.y, self._HALF, rax), self._PARTS[0])
        asm.emit("add", AT.rows, ROW.itemsize)

    def _finish_sums(self, results: SumResults) -> None:
        """Store the sums of all halves as floats."""
        self.asm.emit("mov", dword(rax), Memory(AT.rows))
        for half, sums in enumerate(self.sums):
            y = Memory(AT.y, half * self._HALF * self.epilogue.element_bytes, rax)
            results.finish(sums, AT.rows, y, self.form.fours)
        self.asm.emit("add", AT.rows, ROW.itemsize)

    def _quad(self, place: int) -> None:
        asm = self.asm
        if self.asks_ahead:
            self._load_offsets(place + _QUADS_AHEAD * self.quad_bytes)
            for offset in _OFFSETS:
                asm.emit("prefetcht0", Memory(AT.x, 0, offset))
        self._load_offsets(place)
        asm.emit("vpbroadcastd", self._WEIGHT, Memory(AT.quads, place + 4 * self.form.offsets))
        for half, sums in enumerate(self.sums):
            fours = self._PARTS[:4] if self.form.fours else self._interleave(half)
            for number, four in enumerate(fours if self.form.fours else ()):
                place = self._HALF * (4 * half + number)
                asm.emit("vmovdqu", four, Memory(AT.x, place, _OFFSETS[0]))
            self._multiply(sums, fours)

    def _multiply(self, sums: Sequence[Register], fours: Sequence[Register]) -> None:
        """Add to each of the sums the products of four bytes of each position and the weights."""
        asm = self.asm
        if not self.form.paired:
            for total, four in zip(sums, fours, strict=True):
                asm.emit(NARROW_PRODUCT, total, four, self._WEIGHT)
            return
        for four in fours:
            asm.emit("vpmaddubsw", four, four, self._WEIGHT)
        for four in fours:
            asm.emit("vpmaddwd", four, four, self._ONES)
        for total, four in zip(sums, fours, strict=True):
            asm.emit("vpaddd", total, total, four)

    def _interleave(self, half: int) -> Sequence[Register]:
        """Load 32 positions of four inputs, and return their bytes side by side, as `interleaved`.

        The last input is read twice from memory: there are no more registers.
        """
        asm, (a, b, c, low, high, last) = self.asm, self._PARTS
        inputs = [Memory(AT.x, half * self._HALF, offset) for offset in _OFFSETS]
        for register, place in zip((a, b, c), inputs, strict=False):
            asm.emit("vmovdqu", register, place)
        asm.emit("vpunpcklbw", low, a, b)
        asm.emit("vpunpckhbw", a, a, b)
        asm.emit("vpunpcklbw", high, c, inputs[3])
        asm.emit("vpunpckhbw", c, c, inputs[3])
        fours = b, low, last, a
        for four, pair in zip(fours, ((low, high), (low, high), (a, c), (a, c)), strict=True):
            asm.emit("vpunpckhwd" if four in (low, a) else "vpunpcklwd", four, *pair)
        return fours
