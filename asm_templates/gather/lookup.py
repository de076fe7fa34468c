"""Unstructured sparsity in large layers: a loop over data that looks x up in byte tables.

All that differs from matrix to matrix is data: code would arrive more slowly. One `vpermi2b` looks
up 64 bytes among 128, so x is split into four tables, one of each float's first bytes and so on, of
the 128 inputs that a window holds. A chunk of four steps needs four look-ups with the same 64
indices of seven bits, and eight `vpunpck` put the bytes together again:

    vpermi2b    byte b of lane l: byte j of x[index b of lane l], from table j
    vpunpck     bytes, then words of four tables: byte b of lane 4q + s becomes x of lane 4q + b,
                step s, whole; so the index lies there

The window slides over x (`lookup_layout`), while the sums of all rows are on the stack. If float32
weights and indices would not fit L2, the index replaces the lowest seven bits of the weight, which
changes it by at most 2**-17 of itself.

An idle lane takes an input that its row has no weight for, if there is one among 32, as in
`permute`; with the index in the weight it takes any input. Figures: docs/kernels/gather.md.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.gather.lookup_layout import (
    LANES,
    SLIDE,
    STEPS,
    WINDOW,
    Chunks,
    chunk_count,
    chunks_of,
    paired_order,
)
from sparsejit.asm_templates.gather.lookup_storage import LINE, Format, stored
from sparsejit.asm_templates.lowered import WEIGHT_BYTES, Counts, Work
from sparsejit.asm_templates.shared import rows
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.asm_templates.shared.masks import set_mask
from sparsejit.asm_templates.shared.unpacking import Unpacking
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    k,
    r8,
    r9,
    rax,
    rcx,
    rdi,
    rdx,
    rsi,
    rsp,
    zmm,
)

IntArray = npt.NDArray[np.integer]

_CHUNKS, _PLACES, _LEFT, _OLD_STACK = rdx, r8, rcx, r9
_PLACE = rax
_SUM, _PAIR, _UPPER_HALVES, _INDEX_BITS = zmm(0), zmm(13), zmm(14), zmm(15)
_WEIGHTS = [zmm(number) for number in range(9, 13)]
_LOOKED_UP = [zmm(number) for number in range(1, 5)]
_INTERLEAVED = [zmm(number) for number in range(5, 9)]
_TABLES = [(zmm(16 + 2 * byte), zmm(17 + 2 * byte)) for byte in range(4)]
_BYTE_PICKS = [zmm(24 + byte) for byte in range(4)]
_NEW_INPUTS = (zmm(28), zmm(29))
_FREE_AT_END = _WEIGHTS + [zmm(number) for number in range(16, 32)]
_HALVES = (k(1), k(2))

# The sums of a panel take 16 KB of stack, so that they stay in L1.
_PANEL_ROWS = 4096
# Equally fast from 5 to 20 chunks ahead; a quarter slower without: docs/kernels/gather.md.
_PREFETCHED_CHUNKS = 8


@dataclass(frozen=True, eq=False)
class Panel:
    """Rows from `first` on, `order` (the row in every lane), and their chunks."""

    first: int
    order: IntArray
    chunks: Chunks

    @property
    def vectors(self) -> int:
        """Vectors of outputs."""
        return len(self.order) // LANES


@dataclass(frozen=True, eq=False)
class LookedUp:
    """A layer as chunks, panel by panel, and the format in which they are stored."""

    spec: MatVec
    form: Format
    panels: list[Panel]
    counts: Counts


def expect(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Return the counts, from the vectors of weights in the chunks of the look-up loop."""
    return _counts(spec, matrix, target, chunk_count(matrix))


def _counts(spec: MatVec, matrix: SparseMatrix, target: Target, chunks: int) -> Counts:
    """Return the counts; the pool has weights, indices outside weights, and chunks' places of sums.

    An index is a byte, a place four bytes.
    """
    steps = STEPS * chunks
    weights, indices = steps * target.lanes * WEIGHT_BYTES[spec.dtype], steps * target.lanes
    far = weights + indices > target.l2_bytes and spec.dtype is DType.FLOAT32
    pool_bytes = weights + (0 if far else indices) + steps
    return Counts.of(matrix, target, spec.dtype, Work("lookup", steps), pool_bytes)


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> LookedUp:
    """Cut rows into panels whose sums fit the stack, and panels into chunks."""
    order = paired_order(matrix)
    panels = []
    for first in range(0, len(order), _PANEL_ROWS):
        own = order[first : first + _PANEL_ROWS]
        panels.append(Panel(first, own, chunks_of(matrix, own)))
    count = sum(len(panel.chunks.group) for panel in panels)
    form = Format.fitting(spec.dtype, count, target)
    return LookedUp(spec, form, panels, _counts(spec, matrix, target, count))


def emit(asm: Assembler, lowered: LookedUp) -> None:
    """Append the kernel; needs AVX512-VBMI."""
    form, panels = lowered.form, lowered.panels
    asm.emit("mov", _OLD_STACK, rsp)
    asm.emit("sub", rsp, 4 * max(len(panel.order) for panel in panels))
    asm.emit("and", rsp, -LINE)
    start, loop = asm.label("start"), asm.label("loop")
    asm.jump("jmp", start)
    _emit_loop(asm, form, loop)
    asm.bind(start)
    _emit_constants(asm, form)
    for panel in panels:
        _PanelCode(asm, lowered.spec, panel).emit(form, loop)
    asm.emit("mov", rsp, _OLD_STACK)


def _emit_constants(asm: Assembler, form: Format) -> None:
    for mask, lanes in zip(_HALVES, (0x00FF, 0xFF00), strict=True):
        set_mask(asm, mask, lanes)
    Unpacking(asm, form.dtype, _WEIGHTS[0], _UPPER_HALVES).start()
    if form.index_in_weight:
        asm.emit("mov", dword(rax), WINDOW - 1)
        asm.emit("vpbroadcastd", _INDEX_BITS, dword(rax))
    for byte, register in enumerate(_BYTE_PICKS):
        places = np.arange(SLIDE) * 4 + byte
        picks = asm.literal(np.concatenate([places, places]).astype(np.uint8))
        asm.emit("vmovups", register, Literal(picks))


def _emit_loop(asm: Assembler, form: Format, label: Label) -> None:
    """Append a subroutine that adds rcx chunks to the sums."""
    sums = Memory(rsp, 8, index=_PLACE)  # above the return address
    asm.bind(label)
    with counted_down(asm, dword(_LEFT)):
        asm.emit("mov", dword(_PLACE), Memory(_PLACES))
        asm.emit("vmovups", _SUM, sums)
        ahead = _PREFETCHED_CHUNKS * form.chunk_bytes
        for line in range(form.lines):
            asm.emit("prefetcht0", Memory(_CHUNKS, ahead + LINE * line))
        if form.index_in_weight:
            _emit_indices_from_weights(asm)
        else:
            asm.emit("vmovups", _LOOKED_UP[0], Memory(_CHUNKS))
        for step, inputs in enumerate(_look_up(asm)):
            asm.emit("vfmadd231ps", _SUM, inputs, _weights_of(asm, form, step))
        asm.emit("vmovups", sums, _SUM)
        asm.emit("add", _CHUNKS, form.chunk_bytes)
        asm.emit("add", _PLACES, 4)
    asm.emit("ret")


def _emit_indices_from_weights(asm: Assembler) -> None:
    """Pack the weights' lowest bits in the order in which `stored` keeps separate indices."""
    for step, register in enumerate(_INTERLEAVED):
        asm.emit("vmovups", _WEIGHTS[step], Memory(_CHUNKS, LINE * step))
        asm.emit("vpandd", register, _INDEX_BITS, _WEIGHTS[step])
    first, second, third, fourth = _INTERLEAVED
    asm.emit("vpackusdw", first, first, second)
    asm.emit("vpackusdw", third, third, fourth)
    asm.emit("vpackuswb", _LOOKED_UP[0], first, third)


def _look_up(asm: Assembler) -> list[Register]:
    """Return the inputs of each step, by the indices in the first register of `_LOOKED_UP`."""
    for register in _LOOKED_UP[1:]:
        asm.emit("vmovaps", register, _LOOKED_UP[0])
    for register, table in zip(_LOOKED_UP, _TABLES, strict=True):
        asm.emit("vpermi2b", register, *table)
    low = _unpack(asm, "bw", _LOOKED_UP[0], _LOOKED_UP[1], _INTERLEAVED[:2])
    high = _unpack(asm, "bw", _LOOKED_UP[2], _LOOKED_UP[3], _INTERLEAVED[2:])
    for part in (0, 1):
        _unpack(asm, "wd", low[part], high[part], _LOOKED_UP[2 * part : 2 * part + 2])
    return _LOOKED_UP


def _unpack(
    asm: Assembler, kind: str, even: Register, odd: Register, results: list[Register]
) -> list[Register]:
    """Interleave the lower and the upper halves of each 16 bytes."""
    for half, register in zip("lh", results, strict=True):
        asm.emit(f"vpunpck{half}{kind}", register, even, odd)
    return results


def _weights_of(asm: Assembler, form: Format, step: int) -> Register | Memory:
    """Return the operand that holds a step's weights, unpacked if they are short."""
    weights = _WEIGHTS[step]
    if form.dtype is DType.FLOAT32:
        return weights if form.index_in_weight else Memory(_CHUNKS, LINE * (1 + step))
    first = step if form.dtype is DType.FLOAT16 else step // 2 * 2
    place, odd = Memory(_CHUNKS, LINE + first * LINE // 2), np.array([step % 2 != 0])
    lines, register = Unpacking(asm, form.dtype, weights, _UPPER_HALVES).register(place, odd, _PAIR)
    asm.stamp(1, lines)
    return register


class _PanelCode:
    """Appends the code of a panel."""

    def __init__(self, asm: Assembler, spec: MatVec, panel: Panel) -> None:
        self.asm = asm
        self.spec = spec
        self.first, self.order, self.chunks = panel.first, panel.order, panel.chunks
        self.vectors = panel.vectors

    def emit(self, form: Format, loop: Label) -> None:
        asm = self.asm
        sums = (self.chunks.group * LINE).astype(np.uint32)
        asm.count(padding_bytes=form.padded * LINE * len(sums))
        self._start_sums()
        asm.emit("lea", _CHUNKS, Literal(asm.literal(stored(self.chunks, form))))
        asm.emit("lea", _PLACES, Literal(asm.literal(sums)))
        positions = ceil_div(self.spec.in_features, SLIDE)
        counts = np.bincount(self.chunks.position, minlength=positions)
        for position in range(positions):
            self._slide(position)
            if counts[position]:
                asm.emit("mov", dword(_LEFT), int(counts[position]))
                asm.jump("call", loop)
        self._finish()

    def _slide(self, position: int) -> None:
        """Put the next inputs into the tables in place of the oldest."""
        asm, scratch = self.asm, zmm(1)
        for part, register in enumerate(_NEW_INPUTS):
            first = position * SLIDE + part * LANES
            if first < self.spec.in_features:
                rows.load(asm, register, rdi, first, self.spec.in_features, scratch)
            else:
                rows.zero(asm, register)
        table, half = divmod(position % (WINDOW // SLIDE), 2)
        for byte in range(4):
            asm.emit("vmovaps", scratch, _BYTE_PICKS[byte])
            asm.emit("vpermi2b", scratch, *_NEW_INPUTS)
            asm.emit("vmovaps", _TABLES[byte][table].masked(_HALVES[half]), scratch)

    def _start_sums(self) -> None:
        """Set the sums to the bias, in the order of the lanes, or to zero."""
        bias = np.zeros(self.first + len(self.order), np.float32)
        if self.spec.bias is not None:
            bias[: self.spec.out_features] = self.spec.bias[: len(bias)]
            literal = self.asm.literal(bias[self.order])
        rows.zero(self.asm, _SUM)
        for vector in range(self.vectors):
            if self.spec.bias is not None:
                self.asm.emit("vmovups", _SUM, Literal(literal + vector * LINE))
            self.asm.emit("vmovups", Memory(rsp, vector * LINE), _SUM)

    def _finish(self) -> None:
        """Put the outputs in order, apply the activation and store them."""
        pairs = self.order[: self.vectors // 2 * 2 * LANES].reshape(-1, 2 * LANES)
        if len(pairs):
            places = np.argsort(pairs, axis=1).astype(np.uint32)
            self.asm.emit("lea", _CHUNKS, Literal(self.asm.literal(places)))
        for vector in range(0, self.vectors, 2):
            count = min(2, self.vectors - vector)
            registers = _INTERLEAVED[:count]
            for part, register in enumerate(registers):
                self.asm.emit("vmovups", _LOOKED_UP[part], Memory(rsp, (vector + part) * LINE))
                if count == 2:
                    place = Memory(_CHUNKS, (vector + part) * LINE)
                    self.asm.emit("vmovups", register, place)
            if count == 2:
                for register in registers:
                    self.asm.emit("vpermi2ps", register, *_LOOKED_UP[:2])
            else:
                registers = _LOOKED_UP[:1]
            first = self.first + vector * LANES
            rows.finish_rows(self.asm, self.spec, registers, first, rsi, _FREE_AT_END)
