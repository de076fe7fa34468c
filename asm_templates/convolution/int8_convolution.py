"""Sparse int8 convolution by `vpdpbusd`: four inputs of a row at a time, at 64 positions.

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

Weights are data, read in order. All rows are computed for one vector of positions before the next
vector. Packing the sums restores the order of positions. An input is a channel of `int8_planes` at
one tap.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.int8_conversions import fill_gaps
from sparsejit.asm_templates.convolution.int8_planes import (
    LINE,
    BytePlanes,
    ChannelFours,
    load_order,
)
from sparsejit.asm_templates.convolution.int8_results import MASK, ByteEpilogue, ByteResults
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
    zmm,
)
from sparsejit.x86.routines import call_routine, pop, push, slots

QUAD = 4  # inputs
UNROLLED = 8
GROUP = np.dtype([("turns", "<i4"), ("entry", "<i4"), ("rows", "<i4"), ("before", "<i4")])
ROW = np.dtype([("offset", "<i4"), ("scale", "<f4"), ("bias", "<f4"), ("late", "<f4")])

_Integers = npt.NDArray[np.integer]


@dataclass(frozen=True)
class QuadForm:
    """The form of a quad: four inputs, and their weights in one row of W or in several.

    together: rows that share a quad.
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
    """Return the number of quads for a matrix (out, channels * taps), before int8 rounding."""
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
    """Return for each pair of neighbouring rows the number of inputs that any of the two uses."""
    rows, inputs = weights.shape
    units = ceil_div(rows, 2)
    used, _ = distinct(weights.rows // 2 * inputs + weights.columns, units * inputs)
    return np.bincount(used // inputs, minlength=units)


def _quads_at_random(matrix: SparseMatrix) -> int:
    """Estimate the quads if rows with similar numbers of nonzeros form pairs, for random zeros."""
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
    """Return the rows that share quads, (units, together): a unit is one row, or a pair of rows.

    Pairs are neighbours, or rows with similar numbers of nonzeros, whichever takes fewer quads. An
    unpaired last row appears twice.
    """
    rows, together = weights.shape[0], form.together
    orders = [np.arange(rows)]
    if together > 1 and not form.fours:
        orders.append(np.argsort(-np.diff(weights.starts), kind="stable"))
    filled = [np.append(each, each[rows - -rows % together :]) for each in orders]
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
    """Return the loop bounds of each group of rows with equally many quads, then an empty group."""
    numbers, counts = np.unique(-quads_of, return_counts=True)
    groups = np.zeros(len(numbers) + 1, GROUP)
    turns, entries = np.divmod(-numbers, UNROLLED)
    groups["turns"][:-1], groups["entry"][:-1], groups["rows"][:-1] = turns, entries, counts
    groups["before"] = quad_bytes * (UNROLLED - groups["entry"])
    return groups


_ENTRY_BYTES = 16
_PREFETCH_AHEAD = 3072  # bytes of the quads
_SAVED = (rbx, rbp, r12, r13, r14, r15)
_GROUPS, _QUADS, _ROWS = rdi, rsi, rdx
_X, _Y, _ADDED, _MASKS = rbx, r12, r13, r14
_ORDER = zmm(11)  # of fours' positions: fours need no registers for interleaving
# Registers of the sums of the first and the second row, and of weights: `ByteResults.finish` of the
# first row leaves the second's sums alone.
_SUMS, _WEIGHTS = ((0, 1, 2, 3), (17, 18, 19, 30)), (12, 13)
_OFFSETS = (rax, r8, r9, r10)


class QuadFrame(NamedTuple):
    """Slots on the stack: the addresses of tables, and of the jump table; then counters."""

    groups: Memory
    quads: Memory
    rows: Memory
    masks: Memory
    constants: Memory
    entries: Memory
    turns: Memory
    vectors: Memory
    samples: Memory


_FRAME = QuadFrame(*slots(rsp, len(QuadFrame._fields)))
_FRAME_BYTES = 8 * len(_FRAME)


@dataclass(frozen=True, eq=False)
class LoweredQuads:
    """A sparse int8 convolution ready to emit: planes x, planes y, and the stream of weights.

    Quads' offsets count from `before` bytes ahead of x. `is_first`: whether to fill the gap before
    the first channel.
    """

    x: BytePlanes | ChannelFours
    y: BytePlanes
    before: int
    stream: QuadStream
    epilogue: ByteEpilogue
    form: QuadForm
    is_first: bool = True


def emit_quads(asm: Assembler, lowered: LoweredQuads) -> None:
    """Append the sparse int8 convolution: x at rdi, y at rsi, the added image at rdx.

    Layers share its code. x and y point to the first position. Gaps of y become its zero point.
    """
    stream = lowered.stream
    arrays = {
        r8: stream.groups,
        r9: stream.quads,
        r10: stream.rows,
        r11: lowered.y.masks(),
        rcx: lowered.epilogue.constants(),
    }
    for register, array in arrays.items():
        asm.emit("lea", register, Literal(asm.literal(array)))
    code = _QuadCode(asm, lowered)
    call_routine(asm, code.key, lambda asm: code.emit())


class _QuadCode:
    """Appends the code of a sparse int8 convolution."""

    def __init__(self, asm: Assembler, lowered: LoweredQuads) -> None:
        self.asm, self.x, self.y = asm, lowered.x, lowered.y
        self.is_first = lowered.is_first
        self.form, self.before = lowered.form, lowered.before
        self.results = ByteResults(asm, lowered.epilogue)
        self.sums = [[zmm(n) for n in numbers] for numbers in _SUMS[: self.form.together]]
        self.quad_bytes = self.form.dtype.itemsize
        self.quads_a_line = LINE // self.quad_bytes
        self.x_line = LINE * QUAD // self.form.offsets
        self.order = _ORDER if self.form.fours else None
        self.left = [asm.label(f"{count} left") for count in range(UNROLLED + 1)]
        self.entries = asm.label("entries")
        x, y = self.x, self.y
        sizes = x.sample, y.sample, y.channel, y.channels, y.samples, y.vectors, y.before
        self.key: Hashable = (
            *("quads", sizes, self.before, self.is_first),
            *(self.form, lowered.epilogue.code),
        )

    def emit(self) -> None:
        asm = self.asm
        push(asm, _SAVED)
        asm.emit("sub", rsp, _FRAME_BYTES)
        self.results.load_constants(rcx)
        if self.order is not None:
            load_order(asm, self.order)
        asm.emit("lea", _X, Memory(rdi, -self.before))
        asm.emit("mov", _Y, rsi)
        asm.emit("mov", _ADDED, rdx)
        asm.address(rax, self.entries)
        for slot, register in zip(_FRAME, (r8, r9, r10, r11, rcx, rax), strict=False):
            asm.emit("mov", slot, register)
        fill_gaps(asm, self.y, rsi, self.results.gap, self.is_first)
        with counted_down(asm, _FRAME.samples, self.y.samples):
            self._sample()
        asm.emit("add", rsp, _FRAME_BYTES)
        pop(asm, _SAVED)
        behind = asm.label("behind the entries")
        asm.jump("jmp", behind)
        self._entries()
        asm.bind(behind)

    def _sample(self) -> None:
        asm, y = self.asm, self.y
        asm.emit("mov", _MASKS, _FRAME.masks)
        with counted_down(asm, _FRAME.vectors, y.vectors):
            self._vector()
        asm.emit("add", _X, self.x.sample - y.vectors * self.x_line)
        for register in (_Y, _ADDED):
            asm.emit("add", register, y.sample - y.vectors * LINE)

    def _vector(self) -> None:
        """Compute all rows at 64 positions."""
        asm, group, done = self.asm, self.asm.label("group"), self.asm.label("done")
        asm.emit("vmovdqu64", MASK, Memory(_MASKS))
        asm.emit("mov", _GROUPS, _FRAME.groups)
        asm.emit("mov", _QUADS, _FRAME.quads)
        asm.emit("mov", _ROWS, _FRAME.rows)
        asm.bind(group)
        asm.emit("mov", rax, Memory(_GROUPS))
        asm.emit("mov", _FRAME.turns, rax)
        asm.emit("mov", dword(rbp), Memory(_GROUPS, 8))
        asm.emit("mov", dword(r11), Memory(_GROUPS, 4))
        asm.emit("mov", dword(r15), Memory(_GROUPS, 12))
        asm.emit("add", _GROUPS, GROUP.itemsize)
        asm.emit("test", dword(rbp), dword(rbp))
        asm.jump("jz", done)
        asm.emit("shl", r11, _ENTRY_BYTES.bit_length() - 1)
        asm.emit("add", r11, _FRAME.entries)
        asm.align(16)
        with counted_down(asm, dword(rbp)):
            self._row()
        asm.jump("jmp", group)
        asm.bind(done)
        asm.emit("add", _X, self.x_line)
        for register in (_Y, _ADDED, _MASKS):
            asm.emit("add", register, LINE)

    def _row(self) -> None:
        asm, turn = self.asm, self.asm.label("turn")
        for total in (total for sums in self.sums for total in sums):
            zero(asm, total)
        asm.emit("sub", _QUADS, r15)
        asm.emit("mov", dword(rcx), _FRAME.turns)
        asm.emit("jmp", r11)
        asm.bind(turn)
        for number in range(UNROLLED):
            asm.bind(self.left[UNROLLED - number])
            self._quad(number * self.quad_bytes)
            if number % self.quads_a_line == 0:
                asm.emit("prefetcht0", Memory(_QUADS, number * self.quad_bytes + _PREFETCH_AHEAD))
        asm.bind(self.left[0])
        asm.emit("add", _QUADS, UNROLLED * self.quad_bytes)
        asm.emit("sub", dword(rcx), 1)
        asm.jump("jge", turn)
        for sums in self.sums:
            asm.emit("mov", dword(rax), Memory(_ROWS))
            y, added = (Memory(base, 0, rax) for base in (_Y, _ADDED))
            self.results.finish(sums, _ROWS, y, added, _FRAME.constants, self.order)
            asm.emit("add", _ROWS, ROW.itemsize)

    def _quad(self, place: int) -> None:
        asm = self.asm
        inputs = [zmm(number) for number in range(4, 8)]
        for number, offset in enumerate(_OFFSETS[: self.form.offsets]):
            asm.emit("mov", dword(offset), Memory(_QUADS, place + 4 * number))
        for number, register in enumerate(inputs):
            offset, line = (_OFFSETS[0], number) if self.form.fours else (_OFFSETS[number], 0)
            asm.emit("vmovdqu64", register, Memory(_X, LINE * line, offset))
        weights = [zmm(number) for number in _WEIGHTS[: len(self.sums)]]
        for number, register in enumerate(weights):
            first = place + 4 * self.form.offsets
            asm.emit("vpbroadcastd", register, Memory(_QUADS, first + 4 * number))
        pairs = [zmm(number) for number in range(8, 12)]
        fours = enumerate(inputs) if self.form.fours else interleaved(asm, inputs, pairs)
        for number, four in fours:
            for sums, register in zip(self.sums, weights, strict=True):
                asm.emit("vpdpbusd", sums[number], four, register)

    def _entries(self) -> None:
        """Append the jump table, indexed by the number of quads in a row's first turn."""
        self.asm.align(_ENTRY_BYTES)
        self.asm.bind(self.entries)
        for count in range(UNROLLED):
            self.asm.align(_ENTRY_BYTES)
            self.asm.jump("jmp", self.left[count])
        self.asm.align(_ENTRY_BYTES)
