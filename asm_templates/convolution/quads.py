"""Sparse products of bytes: any four inputs of a row at a time, at 64 positions.

    a, b, c, d     = 64 positions of four inputs            vmovdqu64 zmm4, [rbx+rax]
    l, h           = vpunpcklbw, vpunpckhbw of a, b
    m, n           = vpunpcklbw, vpunpckhbw of c, d
    e0, e1, e2, e3 = vpunpcklwd, vpunpckhwd of l, m and h, n     four bytes of each position
    w              = four weights of a row                  vpbroadcastd zmm12, [rsi+16]
    sum0 .. sum3  += vpdpbusd e0 .. e3, w

Weights are data, read in order; the positions of a vector pass all rows before the next. Packing
the sums brings positions back into their order. An input is a channel of `byte_planes` seen from a
tap. Rows with equally many quads follow each other and enter the code at the same place.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.byte_planes import LINE, BytePlanes
from sparsejit.asm_templates.convolution.byte_results import MASK, ByteEpilogue, ByteResults
from sparsejit.asm_templates.convolution.byte_rows import fill_gaps
from sparsejit.asm_templates.shared.interleave import interleaved
from sparsejit.asm_templates.shared.rows import zero
from sparsejit.ir.compressed_rows import CompressedRows
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
from sparsejit.x86.routines import call_routine
from sparsejit.x86.stack import pop, push

_GROUP = np.dtype([("turns", "<i4"), ("entry", "<i4"), ("rows", "<i4"), ("before", "<i4")])
ROW = np.dtype([("offset", "<i4"), ("scale", "<f4"), ("bias", "<f4"), ("late", "<f4")])
_UNROLLED = 8
_ENTRY_BYTES = 16
_PREFETCH_AHEAD = 3072  # bytes of the quads
_SAVED = (rbx, rbp, r12, r13, r14, r15)
_GROUPS, _QUADS, _ROWS = rdi, rsi, rdx
_X, _Y, _ADDED, _MASKS = rbx, r12, r13, r14
# Registers for sums of the first row and the second, which ends of rows leave alone; for weights.
_SUMS, _WEIGHTS = ((0, 1, 2, 3), (17, 18, 19, 30)), (12, 13)
_QUADS_A_LINE = 3  # at most: lines are asked for so often
_OFFSETS = (rax, r8, r9, r10)
_KEPT = ("groups", "quads", "rows", "masks", "constants", "entries")
_SLOTS = {name: 8 * n for n, name in enumerate((*_KEPT, "turns", "vectors", "samples"))}
_SLOT_BYTES = 72


@dataclass(frozen=True, eq=False)
class QuadStream:
    """A layer's weights as they are read: rows of equally many quads in groups."""

    groups: npt.NDArray[np.void]
    quads: npt.NDArray[np.void]
    rows: npt.NDArray[np.void]

    @property
    def nbytes(self) -> int:
        return self.groups.nbytes + self.quads.nbytes + self.rows.nbytes


@dataclass(frozen=True, eq=False)
class LoweredQuads:
    """The products of planes `x`, whose quads reach `before` bytes back, to planes `y`.

    is_first: whether the gap before the first channel is theirs to fill.
    together: rows that share their quads: more of them share what interleaves the inputs.
    """

    x: BytePlanes
    y: BytePlanes
    before: int
    stream: QuadStream
    epilogue: ByteEpilogue
    is_first: bool = True
    together: int = 1


def quad_dtype(together: int) -> np.dtype[np.void]:
    """Four inputs, and their weights for so many rows."""
    return np.dtype([("offset", "<i4", 4), ("weight", "i1", (together, 4))])


def expected_quads(row_counts: npt.NDArray[np.integer], inputs: int, together: int) -> int:
    """Quads of so many rows at a time that have so many nonzeros, if zeros lie at random."""
    counts = np.sort(row_counts)[::-1].astype(np.float64)
    if together == 2:
        first, second = counts[::2], np.append(counts, counts[-1:])[1::2]
        counts = first + second[: len(first)] * (1 - first / inputs)
    return int(np.ceil(counts / 4).sum())


def quad_stream(
    weights: CompressedRows,
    places: npt.NDArray[np.integer],
    y_channel: int,
    ends: npt.NDArray[np.floating],
    together: int,
) -> QuadStream:
    """Int8 weights whose inputs lie at `places`, from 0 on; scale and biases of rows in `ends`.

    So many rows share their quads, those of any nonzeros alike.
    """
    rows, inputs = weights.shape
    order = np.argsort(-np.diff(weights.starts), kind="stable")
    # A row that is left over shares its quads with itself.
    members = np.append(order, order[len(order) - -len(order) % together :]).reshape(-1, together)
    place_of = np.empty(rows, np.int64)
    place_of[order] = np.arange(rows)
    units, slots = np.divmod(place_of[weights.rows], together)
    used, found = np.unique(units * inputs + weights.columns, return_inverse=True)
    values = np.zeros((len(used), together), np.int8)
    values[found, slots] = weights.values
    if rows % together:
        last = used // inputs == len(members) - 1
        values[last] = values[last][:, :1]
    counts = np.bincount(used // inputs, minlength=len(members))
    by_length = np.argsort(-counts, kind="stable")
    quads = _quads(used % inputs, values, counts, by_length, places)
    records = np.zeros(members.shape, ROW)
    records["offset"] = members * y_channel
    for number, name in enumerate(("scale", "bias", "late")):
        records[name] = ends[members, number]
    return QuadStream(
        _groups(-(-counts[by_length] // 4), quads.itemsize), quads, records[by_length].ravel()
    )


def _quads(
    columns: npt.NDArray[np.integer],
    values: npt.NDArray[np.int8],
    counts: npt.NDArray[np.integer],
    order: npt.NDArray[np.integer],
    places: npt.NDArray[np.integer],
) -> npt.NDArray[np.void]:
    """Columns and values of units, so many each, by fours, in that order of the units."""
    quads_of = -(-counts // 4)
    begins = np.empty(len(counts), np.int64)
    begins[order] = np.cumsum(quads_of[order]) - quads_of[order]
    starts = np.cumsum(counts) - counts
    within = np.arange(len(columns)) - np.repeat(starts, counts)
    slots = 4 * np.repeat(begins, counts) + within
    # What fills up a unit's last quad has weight 0, and reads where the unit's last input lies.
    last = np.zeros(len(counts), np.int64)
    filled = counts > 0
    last[filled] = places[columns[(starts + counts)[filled] - 1]]
    offsets = np.repeat(np.repeat(last[order], quads_of[order]), 4)
    offsets[slots] = places[columns]
    together = values.shape[1]
    weights = np.zeros((len(offsets), together), np.int8)
    weights[slots] = values
    quads = np.zeros(len(offsets) // 4, quad_dtype(together))
    quads["offset"] = offsets.reshape(-1, 4)
    quads["weight"] = weights.reshape(-1, 4, together).swapaxes(1, 2)
    return quads


def _groups(quads_of: npt.NDArray[np.integer], quad_bytes: int) -> npt.NDArray[np.void]:
    """One for each number of quads, and one of no rows."""
    numbers, counts = np.unique(-quads_of, return_counts=True)
    groups = np.zeros(len(numbers) + 1, _GROUP)
    turns, entries = np.divmod(-numbers, _UNROLLED)
    groups["turns"][:-1], groups["entry"][:-1], groups["rows"][:-1] = turns, entries, counts
    groups["before"] = quad_bytes * (_UNROLLED - groups["entry"])
    return groups


def emit_quads(asm: Assembler, lowered: LoweredQuads) -> None:
    """Append the kernel of x in rdi to y in rsi, and what is added in rdx; layers share its code.

    x and y point to the first position. Gaps of y become its zero point.
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
    """Appends the code."""

    def __init__(self, asm: Assembler, lowered: LoweredQuads) -> None:
        self.asm, self.x, self.y = asm, lowered.x, lowered.y
        self.is_first = lowered.is_first
        self.before, self.results = lowered.before, ByteResults(asm, lowered.epilogue)
        self.sums = [[zmm(n) for n in numbers] for numbers in _SUMS[: lowered.together]]
        self.quad_bytes = quad_dtype(lowered.together).itemsize
        self.left = [asm.label(f"{count} left") for count in range(_UNROLLED + 1)]
        self.entries = asm.label("entries")
        x, y = self.x, self.y
        sizes = x.sample, y.sample, y.channel, y.channels, y.samples, y.vectors, y.before
        self.key: Hashable = (
            *("quads", sizes, self.before, self.is_first),
            *(lowered.together, lowered.epilogue.code),
        )

    def emit(self) -> None:
        asm = self.asm
        push(asm, _SAVED)
        asm.emit("sub", rsp, _SLOT_BYTES)
        self.results.load_constants(rcx)
        asm.emit("lea", _X, Memory(rdi, -self.before))
        asm.emit("mov", _Y, rsi)
        asm.emit("mov", _ADDED, rdx)
        asm.address(rax, self.entries)
        for name, register in zip(_KEPT, (r8, r9, r10, r11, rcx, rax), strict=True):
            asm.emit("mov", self._slot(name), register)
        fill_gaps(asm, self.y, rsi, self.results.gap, self.is_first)
        self._loop("samples", self.y.samples, self._sample)
        asm.emit("add", rsp, _SLOT_BYTES)
        pop(asm, _SAVED)
        behind = asm.label("behind the entries")
        asm.jump("jmp", behind)
        self._entries()
        asm.bind(behind)

    def _slot(self, name: str) -> Memory:
        return Memory(rsp, _SLOTS[name])

    def _loop(self, name: str, times: int, body: Callable[[], None]) -> None:
        """So many turns of what leaves the slots alone."""
        asm, again = self.asm, self.asm.label(name)
        asm.emit("mov", dword(rax), times)
        asm.emit("mov", self._slot(name), rax)
        asm.bind(again)
        body()
        asm.emit("mov", rax, self._slot(name))
        asm.emit("sub", dword(rax), 1)
        asm.emit("mov", self._slot(name), rax)
        asm.jump("jnz", again)

    def _sample(self) -> None:
        asm, y = self.asm, self.y
        asm.emit("mov", _MASKS, self._slot("masks"))
        self._loop("vectors", y.vectors, self._vector)
        passed = y.vectors * LINE
        for register, sample in ((_X, self.x.sample), (_Y, y.sample), (_ADDED, y.sample)):
            asm.emit("add", register, sample - passed)

    def _vector(self) -> None:
        """All rows, at 64 positions."""
        asm, group, row, done = self.asm, *map(self.asm.label, ("group", "row", "done"))
        asm.emit("vmovdqu64", MASK, Memory(_MASKS))
        for name, register in (("groups", _GROUPS), ("quads", _QUADS), ("rows", _ROWS)):
            asm.emit("mov", register, self._slot(name))
        asm.bind(group)
        asm.emit("mov", rax, Memory(_GROUPS))
        asm.emit("mov", self._slot("turns"), rax)
        asm.emit("mov", dword(rbp), Memory(_GROUPS, 8))
        asm.emit("mov", dword(r11), Memory(_GROUPS, 4))
        asm.emit("mov", dword(r15), Memory(_GROUPS, 12))
        asm.emit("add", _GROUPS, _GROUP.itemsize)
        asm.emit("test", dword(rbp), dword(rbp))
        asm.jump("jz", done)
        asm.emit("shl", r11, _ENTRY_BYTES.bit_length() - 1)
        asm.emit("add", r11, self._slot("entries"))
        asm.align(16)
        asm.bind(row)
        self._row()
        asm.emit("sub", dword(rbp), 1)
        asm.jump("jnz", row)
        asm.jump("jmp", group)
        asm.bind(done)
        for register in (_X, _Y, _ADDED, _MASKS):
            asm.emit("add", register, LINE)

    def _row(self) -> None:
        asm, turn = self.asm, self.asm.label("turn")
        for total in (total for sums in self.sums for total in sums):
            zero(asm, total)
        asm.emit("sub", _QUADS, r15)
        asm.emit("mov", dword(rcx), self._slot("turns"))
        asm.emit("jmp", r11)
        asm.bind(turn)
        for number in range(_UNROLLED):
            asm.bind(self.left[_UNROLLED - number])
            self._quad(number * self.quad_bytes)
            if number % _QUADS_A_LINE == 0:
                asm.emit("prefetcht0", Memory(_QUADS, number * self.quad_bytes + _PREFETCH_AHEAD))
        asm.bind(self.left[0])
        asm.emit("add", _QUADS, _UNROLLED * self.quad_bytes)
        asm.emit("sub", dword(rcx), 1)
        asm.jump("jge", turn)
        for sums in self.sums:
            asm.emit("mov", dword(rax), Memory(_ROWS))
            y, added = (Memory(base, 0, rax) for base in (_Y, _ADDED))
            self.results.finish(sums, _ROWS, y, added, self._slot("constants"))
            asm.emit("add", _ROWS, ROW.itemsize)

    def _quad(self, place: int) -> None:
        asm = self.asm
        inputs = [zmm(number) for number in range(4, 8)]
        pairs = [zmm(number) for number in range(8, 12)]
        for number, (register, offset) in enumerate(zip(inputs, _OFFSETS, strict=True)):
            asm.emit("mov", dword(offset), Memory(_QUADS, place + 4 * number))
            asm.emit("vmovdqu64", register, Memory(_X, 0, offset))
        weights = [zmm(number) for number in _WEIGHTS[: len(self.sums)]]
        for number, register in enumerate(weights):
            asm.emit("vpbroadcastd", register, Memory(_QUADS, place + 16 + 4 * number))
        for number, four in interleaved(asm, inputs, pairs):
            for sums, register in zip(self.sums, weights, strict=True):
                asm.emit("vpdpbusd", sums[number], four, register)

    def _entries(self) -> None:
        """By how many quads are left in a row's first turn."""
        self.asm.align(_ENTRY_BYTES)
        self.asm.bind(self.entries)
        for count in range(_UNROLLED):
            self.asm.align(_ENTRY_BYTES)
            self.asm.jump("jmp", self.left[count])
        self.asm.align(_ENTRY_BYTES)
