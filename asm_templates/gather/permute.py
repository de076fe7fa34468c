"""Unstructured sparsity: x in registers, and every lane picks its own input out of them.

Sixteen outputs are the lanes of an accumulator, sixteen inputs those of a register. One step
multiplies one weight of each of the sixteen rows, wherever in two registers of x the input lies:

    index                 19      2     31 ...     five bits a lane: 0-15 in a, 16-31 in b
    registers a, b     x[..] x[..] x[..] ...       which two is part of the instruction
                          |      |      |
    vpermi2ps           b[3]   a[2]  b[15] ...
    vfmadd231ps   sums +=  * weights from the pool, one a lane; 0 in a lane that is idle

In AVX-512 code, for the first of the six steps that share one vector of indices:

    vmovups     zmm4, [rdx+64*7]       six indices a lane, 30 bits; once in six steps
    vpsrld      zmm5, zmm4, 5          the next index comes to the low bits       7 bytes
    vpermi2ps   zmm5, zmm9, zmm22      reads only the low 5 bits of a lane        6 bytes
    vfmadd231ps zmm0, zmm5, [rdx+64*8]                                            7 bytes

Zen 5 does a step in 0.85 cycles where all fits L1. Beyond L1 the bytes rule, code even more than
data: hence the pool pointer rdx, which moves on now and then so that displacements take one
byte, and the pool in the order of reading. AVX2 has only `vpermps`: eight lanes and one register of
eight inputs a step. Short weights share ten packed indices of three bits a lane; a float32 holds
its index in its own lowest bits, which changes it by at most 2**-21 of itself (635 -> 590 ns).

Only the weights and which registers are named differ from matrix to matrix; `schedule` chooses
the steps, `row_order` which rows lie in which lane (uneven ones are grouped: `grouping`),
`permute_layout` what the pool holds. Inputs beyond one window of registers are taken window by
window, with partial sums in y. So x and y must not overlap.

The steps of a batch's vectors take turns, each vector's spread evenly over all; one that has more
than a sixth of the steps has two or more accumulators, or its FMAs would wait for each other:
a power law of row counts, 256x256 at 90 %, takes 145 ns so, 375 ns otherwise.

Short weights halve the pool's larger part and cost an instruction a step to unpack: 1024x1024 at
90 % in 3600 ns against 4200 ns, but 256x256 at 90 % in 134 ns (bfloat16) and 178 ns (float16)
against 104 ns.

Infinite and NaN inputs: an idle lane multiplies zero by an input that its row has no weight for,
as the dense product does, so an output is NaN only where that of the dense product is. (A row
with weights for all inputs of a step's registers has no such input, and gets one of its own.
Where weights hold their index, an idle lane takes the first input of the register.)

Tried and slower: `prefetcht0` ahead of the pool (5-40 %), windows of 16 registers instead of 26
(1.5 % more steps).
"""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.gather.permute_layout import Layout, Piece, layout_of
from sparsejit.asm_templates.gather.permute_machine import FoldingRule, Machine
from sparsejit.asm_templates.gather.row_plan import EXCHANGE_STEPS, RowPlan
from sparsejit.asm_templates.lowered import WEIGHT_BYTES, Counts, Work
from sparsejit.asm_templates.shared import rows
from sparsejit.asm_templates.shared.padding import stride_padding
from sparsejit.asm_templates.shared.redirects import fetch_redirects
from sparsejit.asm_templates.shared.stream import Stream
from sparsejit.asm_templates.shared.unpacking import Unpacking
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler, Line, line
from sparsejit.x86.operands import (
    Memory,
    Register,
    dword,
    r8,
    rcx,
    rdi,
    rdx,
    rsi,
    ymm,
    zmm,
)

_POOL, _FOLDED_Y, _RUNS_LEFT = rdx, r8, rcx

# Folding measured on Zen 5. AVX-512: float32 pays from 42 KB of code on (768x256 at 12 % 724 -> 650
# ns, 512x1024 at 6 % 1191 -> 1062; 768x256 at 10 % loses 8 %), four times where twice leaves 44 KB
# (1024x512 at 10 % 1745, 1621, 1568); bfloat16, whose steps take 30 bytes, sooner (768x256 at 10 %
# 655 -> 471 ns, 1024x512 at 10 % 1846, 1570, 1373), float16 neither gains nor loses much. AVX2:
# 256x256 at 10 % 620 -> 530 ns, 1024x1024 at 10 % 14900 -> 13600, while 256x256 at 5 % loses 45 %.
AVX512 = Machine(
    lanes=16, sources=2, index_bits=5, inputs=22, accumulators=8, reach=128, most_stages=3,
    folding=(FoldingRule(21_000, 0.045, 2), FoldingRule(50_000, 0.045, 4)),
)  # fmt: skip
AVX512_SHORT = replace(
    AVX512, folding=(FoldingRule(17_000, 0.025, 2), FoldingRule(50_000, 0.025, 4))
)
AVX2 = Machine(
    lanes=8, sources=1, index_bits=3, inputs=6, accumulators=8, reach=4,
    folding=(FoldingRule(6_000, 0.09, 4), FoldingRule(50_000, 0.04, 2)), index_in_weight=True,
)  # fmt: skip
AVX2_SHORT = replace(
    AVX2, inputs=10, accumulators=4, folding=(FoldingRule(50_000, 0.09, 4),), index_in_weight=False
)


# What a float32 weight takes in the pool, idle lanes and indices included, at 90 % zero.
_POOL_BYTES_A_WEIGHT = 6.4


def machine_for(spec: MatVec, matrix: SparseMatrix, target: Target) -> Machine:
    """The form of the kernel for a layer.

    Within L1 there are no bytes to save: short weights lie there as float32.
    """
    if target.isa == "avx2":
        return AVX2 if spec.dtype is DType.FLOAT32 else AVX2_SHORT.storing(spec.dtype)
    near = _POOL_BYTES_A_WEIGHT * matrix.nnz <= target.l1d_bytes
    if near or spec.dtype is DType.FLOAT32:
        return AVX512
    return AVX512_SHORT.storing(spec.dtype)


@dataclass(frozen=True, eq=False)
class Permuted:
    """A layer laid out for this family."""

    spec: MatVec
    layout: Layout
    counts: Counts


def expect(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Steps and exchanges of rows grouped but not yet swapped, and what swaps save."""
    machine = machine_for(spec, matrix, target)
    plan = RowPlan(matrix, machine)
    steps = plan.expected_steps
    # A vector of weights a step, and a vector of indices every six (ten) steps.
    pool_bytes = steps * target.lanes * WEIGHT_BYTES[machine.dtype]
    pool_bytes += steps * target.vector_bytes // 6
    work = Work("permute", steps, plan.runs_of_code)
    return Counts.of(matrix, target, machine.dtype, work, pool_bytes, padded=True)


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> Permuted:
    """AVX-512: two registers a step; AVX2: one of half the size."""
    return lower_for("permute", machine_for(spec, matrix, target), spec, matrix, target)


def lower_for(
    kind: str, machine: Machine, spec: MatVec, matrix: SparseMatrix, target: Target
) -> Permuted:
    """For a machine; `kind` is the family whose prices hold."""
    layout = layout_of(spec, matrix, machine)
    steps = layout.steps + int(EXCHANGE_STEPS * layout.order.exchanges)
    work = Work(kind, steps, layout.runs_of_code)
    counts = Counts.of(matrix, target, machine.dtype, work, layout.pool_bytes, padded=True)
    return Permuted(spec, layout, counts)


def emit(asm: Assembler, lowered: Permuted) -> None:
    """x and y must not overlap; see `table` for the contract."""
    _Kernel(asm, lowered.spec, lowered.layout).emit()


class _Kernel:
    """Appends the code of a layout."""

    def __init__(self, asm: Assembler, spec: MatVec, layout: Layout) -> None:
        self.asm = asm
        self.spec = spec
        self.layout = layout
        self.machine = layout.machine
        self.vector = zmm if layout.machine.lanes == 16 else ymm
        self.vector_bytes = 4 * layout.machine.lanes
        padding = stride_padding(layout.pool_bytes, asm.target)
        self.stream = Stream(asm, _POOL, self.vector_bytes, layout.machine.reach, padding)
        # The sums, a vector of packed indices, what was picked; where weights are short, those of
        # a step, and in bfloat16 0xFFFF0000 in every lane; last the window of x.
        self.registers = 32 if self.vector is zmm else 16
        self.first_input = self.registers - layout.windows.width
        sums = layout.machine.accumulators_beside(layout.windows)
        self.index, self.picked, weights, upper_halves = (
            self.vector(sums + number) for number in range(4)
        )
        self.unpacking = Unpacking(asm, layout.machine.dtype, weights, upper_halves)

    def emit(self) -> None:
        order = self.layout.order
        self.asm.count(steps=self.layout.steps, least_steps_ungrouped=order.steps_as_they_come)
        vectors = self.layout.pool(self.stream.padding)
        self.stream.point(self.asm.literal(vectors))
        self.asm.count(padding_bytes=vectors.nbytes - self.layout.pool_bytes)
        self.unpacking.start()
        for window in range(self.layout.windows.number):
            self._load_inputs(window)
            for piece in self.layout.pieces_of(window):
                self._piece(piece)
        if self.spec.activation is not Activation.NONE:
            self._activate()

    def _load_inputs(self, window: int) -> None:
        for position, register in enumerate(self.layout.windows.registers_of(window)):
            target = self.vector(self.first_input + position)
            self._load(target, rdi, register * self.machine.lanes, self.spec.in_features)

    def _piece(self, piece: Piece) -> None:
        """Run a piece's code once, or `fold` times with y and the pool moving on."""
        asm, fold = self.asm, piece.panel.fold
        first = piece.panel.first_of(piece.batch)
        if fold == 1:
            self._run(piece, rsi, first, self.spec.out_features)
            return
        again = asm.label("again")
        asm.emit("lea", _FOLDED_Y, Memory(rsi, first * self.vector_bytes))
        asm.emit("mov", dword(_RUNS_LEFT), fold)
        asm.bind(again)
        self._run(piece, _FOLDED_Y, 0, self.machine.accumulators * self.machine.lanes)
        asm.emit("add", _FOLDED_Y, self.machine.accumulators * self.vector_bytes)
        asm.emit("sub", dword(_RUNS_LEFT), 1)
        asm.jump("jnz", again)

    def _run(self, piece: Piece, y: Register, first: int, length: int) -> None:
        """Add a piece to vectors `first` and following of y, which has `length` elements."""
        sums = [self.vector(number) for number in piece.firsts]
        places = [(first + position) * self.machine.lanes for position in range(len(sums))]
        waiting = [
            rows.waiting_place(register, y, place, length)
            for register, place in zip(sums, places, strict=True)
        ]
        if piece.window > 0:
            for register, memory in zip(sums, waiting, strict=True):
                self.asm.emit("vmovups", register, memory)
        else:
            self._start(piece, sums)
        others = [
            (register, self.vector(int(register.number) + way))
            for register, ways in zip(sums, piece.ways, strict=True)
            for way in range(1, ways)
        ]
        for _, other in others:
            rows.zero(self.asm, other)
        self.asm.stamp(piece.count, self._steps(piece))
        for register, other in others:
            self.asm.emit("vaddps", register, register, other)
        if piece.window < self.layout.windows.number - 1:
            for register, memory in zip(sums, waiting, strict=True):
                self.asm.emit("vmovups", memory, register)
        else:
            for register, place in zip(self._in_order(piece, sums), places, strict=True):
                rows.store(self.asm, register, y, place, length, self.picked)
        self.stream.leave(piece.vectors)

    def _start(self, piece: Piece, sums: list[Register]) -> None:
        """Sums begin at the bias, which is the head of the piece's pool, or at zero."""
        for position, register in enumerate(sums):
            if piece.head.shape[1]:
                self._read(register, position)
            else:
                rows.zero(self.asm, register)

    def _steps(self, piece: Piece) -> list[Line]:
        """The stamped body: one step a row."""
        if self.machine.index_in_weight:
            return self._steps_with_index_in_weight(piece)
        machine, steps = self.machine, piece.steps
        block, field = np.divmod(np.arange(piece.count), machine.fields)
        last = field == machine.fields - 1
        indices, weights = piece.index_places[block], piece.weight_places
        index, shifted = self.index, self.picked
        picked = self.vector(np.where(last, self.index.number, self.picked.number))
        pair = (steps.first, steps.second)
        first, second = (self.vector(self.first_input + part) for part in pair)
        pick = (
            line("vpermi2ps", picked, first, second)
            if machine.sources == 2
            else line("vpermps", picked, picked, first)
        )
        begun = np.arange(piece.count) % machine.steps_a_vector != 0
        unpack, weight = self._unpacked(weights, begun)
        return [
            fetch_redirects(piece.count),
            self.stream.move(indices, field == 0),
            line("vmovups", index, self.stream.at(indices), when=field == 0),
            line("vpsrld", shifted, index, machine.shifts[field], when=~last),
            pick,
            self.stream.move(weights, ~begun),
            *unpack,
            line("vfmadd231ps", self.vector(piece.accumulators), picked, weight),
        ]

    def _steps_with_index_in_weight(self, piece: Piece) -> list[Line]:
        places, source = piece.weight_places, self.vector(self.first_input + piece.steps.first)
        return [
            fetch_redirects(piece.count),
            self.stream.move(places),
            line("vmovups", self.index, self.stream.at(places)),
            line("vpermps", self.picked, self.index, source),
            line("vfmadd231ps", self.vector(piece.accumulators), self.picked, self.index),
        ]

    def _unpacked(
        self, places: npt.NDArray[np.integer], odd: npt.NDArray[np.bool_]
    ) -> tuple[list[Line], Register | Memory]:
        """What makes a step's weights float32, and the operand that then holds them.

        `odd`: the step shares its vector with the one before.
        """
        place = self.stream.at(places)
        if self.machine.dtype is DType.FLOAT16:
            place = Memory(_POOL, place.displacement + odd * (self.vector_bytes // 2))
        return self.unpacking.operand(place, odd)

    def _in_order(self, piece: Piece, sums: list[Register]) -> list[Register]:
        """Undo the layout's order of rows by exchanges between vectors, where sums are whole."""
        if not piece.tail.shape[1]:
            return sums
        vectors = itertools.count(piece.tail_start)
        free, stages = (self.index, self.picked), self.layout.order.stages
        return rows.exchange(
            self.asm, sums, stages, free, lambda register: self._read(register, next(vectors))
        )

    def _read(self, register: Register, vector: int) -> None:
        self.asm.emit("vmovups", register, self.stream.next_at(vector))

    def _load(self, register: Register, base: Register, first: int, length: int) -> None:
        rows.load(self.asm, register, base, first, length, self.picked)

    def _activate(self) -> None:
        """The activation over y, by when x may leave its registers."""
        lanes, length = self.machine.lanes, self.spec.out_features
        accumulators = self.machine.accumulators
        scratch = [self.vector(number) for number in range(accumulators, self.registers)]
        for begin in range(0, length, accumulators * lanes):
            places = range(begin, min(begin + accumulators * lanes, length), lanes)
            registers = [self.vector(number) for number in range(len(places))]
            for register, place in zip(registers, places, strict=True):
                self._load(register, rsi, place, length)
            rows.finish_rows(self.asm, self.spec, registers, begin, rsi, scratch)
