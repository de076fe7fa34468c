"""int8 for any sparsity: x in registers as bytes, and every lane picks four of its inputs.

Sixteen outputs are the 32-bit lanes of an accumulator, and 64 inputs the bytes of a register. One
step multiplies up to four weights of each of the sixteen rows, wherever in two registers of x
their inputs lie:

    vmovups  zmm4, [r8+64*7]           64 indices, seven bits each           7 bytes
    vpermi2b zmm4, zmm9, zmm22         64 inputs, out of these two registers 6 bytes
    vpdpbusd zmm0, zmm4, [rdx+64*8]    lane += its four products             7 bytes

Which two registers is part of the instruction. Blocks of 1x8 and 1x16 need no 64 indices but
eight or four, which `vpbroadcastq` and `vpbroadcastd` repeat as they load them.

`vpdpbusd` takes unsigned inputs, so 128 is added to each, and a sum starts at -128 times the sum
of its row's weights. That start, or an intermediate sum, may wrap around; the final sum cannot
(`int8_weights`), so it is right. At the end a sum becomes a float, is multiplied by the steps of
its row and of x, and goes where its row is in y. Inputs beyond one window of registers are taken
window by window, with int32 sums in y meanwhile. So x and y must not overlap.

Zen 5 takes a cycle a step in L1; from L2 on the 128 bytes of a step bind, 64 a cycle with spare
lines (`padding`). Tried without gain: indices and weights in one stream (within 2 %),
prefetching within L2, 1 to 24 KB ahead (up to 30 % slower).
"""

import itertools
from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.gather.int8_boundary import (
    SCALE_SCRATCH,
    emit_integers,
    emit_output,
    emit_scale,
)
from sparsejit.asm_templates.gather.int8_layout import (
    ACCUMULATORS,
    LANES,
    OFFSET,
    REGISTER_INPUTS,
    RUN_ROWS,
    Layout,
    Piece,
    layout_of,
)
from sparsejit.asm_templates.lowered import Counts, Work
from sparsejit.asm_templates.scheduling.int8_schedule import PRODUCTS
from sparsejit.asm_templates.scheduling.interleaving import accumulators_of
from sparsejit.asm_templates.shared import padding, rows
from sparsejit.asm_templates.shared.activation import apply_activation
from sparsejit.asm_templates.shared.padding import (
    ALTERNATE,
    CACHE_LINE_BYTES,
    DENSE,
    PADDED,
    StridePadding,
    stride_padding,
)
from sparsejit.asm_templates.shared.redirects import fetch_redirects
from sparsejit.asm_templates.shared.stream import Stream
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import LARGEST_INT8, DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler, Line, line
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    r8,
    r9,
    rcx,
    rdx,
    rsi,
    zmm,
)

# Vector registers: 0 to 7 the sums, then these, and x at the end.
_PICKED, _OTHER, _RECIPROCAL, _STEP = (zmm(ACCUMULATORS + number) for number in range(4))
_FIRST_FREE = ACCUMULATORS + 4
_SUMS = [zmm(number) for number in range(ACCUMULATORS)]
_WEIGHTS, _INDICES, _FOLDED_Y, _RUNS_LEFT = rdx, r8, r9, rcx
_VECTOR_BYTES = 64

# Steps between two that add to one accumulator, rounded up by what they share: a vpdpbusd takes
# four cycles. With four C95 takes 852 ns instead of 829.
_APART = 3
_PREFETCHED_BYTES = 1024  # ahead of a step
# In L1s: up to here much may still be in L1 at the next call, unless prefetches evict it. What they
# fetch in vain beyond weights in even lines only goes to other sets: 512x512 at 90 % takes 235 ns
# instead of 303 with every fourth line spare, 1024x1024 at 95 % in 1x16 326 instead of 392. With
# indices in even lines as well 512x512 gains nothing.
_NEAR_L1 = 3
_INDEX_LOADS = {1: "vpbroadcastd", 2: "vpbroadcastq", 16: "vmovups"}

# Blocks count as sharing_groups while the zeros in them are fewer than what their indices would be.
_INDEX_SHARING = {16: 1.25, 8: 1.25}
# Code is folded as far as it takes to fit the first cache level: 1024x1024 at 90 % takes 1555 ns
# unfolded, 1360 folded twice, 1400 four times; at 95 %, where it fits, 858, 908 and 965.
MOST_FOLD = 4
_STEP_CODE_BYTES = 20
_LANE_USE = 0.6  # at 95 % zero and with the ends of runs, to tell how much code there will be
_POOL_BYTES_A_WEIGHT = 2.8  # at 90 % zero
_SAMPLED_RUNS = 4  # for an estimate of the steps
# A try takes about 0.5 us a nonzero, so schedules take 0.15 s, or as long as one try takes.
_TRIED_NNZ, _MOST_TRIES = 300_000, 4


def index_sharing_rows(matrix: SparseMatrix) -> int:
    """Rows that share their indices: 16, 8 or 1."""
    for rows_of_block, most_zeros in _INDEX_SHARING.items():
        if int(matrix.block_mask(rows_of_block).sum()) * rows_of_block <= most_zeros * matrix.nnz:
            return rows_of_block
    return 1


def fold_of(matrix: SparseMatrix, target: Target) -> int:
    """How often the code of a batch runs."""
    code_bytes = matrix.nnz / (LANES * PRODUCTS * _LANE_USE) * _STEP_CODE_BYTES
    fold = 1
    while fold < MOST_FOLD and code_bytes > fold * target.l1i_bytes:
        fold *= 2
    return fold


def exchange_steps(matrix: SparseMatrix, target: Target) -> float:
    """What an exchange costs, in steps: 1.5 cycles within L1, beyond it a third of the bytes.

    There larger blocks save more than the bound of the steps can tell, about so much more.
    """
    near = _POOL_BYTES_A_WEIGHT * matrix.nnz <= target.l1d_bytes
    return 1.5 if near else 0.0


def stream_paddings(streamed_bytes: int, target: Target) -> tuple[StridePadding, StridePadding]:
    """Of weights and of indices, if a call reads so many bytes of them."""
    alike = stride_padding(streamed_bytes, target)
    if alike == PADDED and streamed_bytes <= _NEAR_L1 * target.l1d_bytes:
        return ALTERNATE, DENSE
    return alike, alike


def sampled_steps(matrix: SparseMatrix, target: Target) -> int:
    """About how many steps the kernel has: those of every n-th run, times n."""
    runs = matrix.out_features // RUN_ROWS
    every = max(1, runs // _SAMPLED_RUNS)
    rows_of_runs = np.arange(runs * RUN_ROWS).reshape(runs, RUN_ROWS)[::every].ravel()
    sample = SparseMatrix(matrix.dense[rows_of_runs]) if every > 1 else matrix
    spec = MatVec(sample.out_features, sample.in_features, dtype=DType.INT8)
    fold, sharing_rows = fold_of(matrix, target), index_sharing_rows(matrix)
    exchange = exchange_steps(matrix, target)
    return every * layout_of(spec, sample, fold, sharing_rows, exchange, tries=1).steps


@dataclass(frozen=True, eq=False)
class Quantised:
    """A layer laid out for this family."""

    spec: MatVec
    layout: Layout
    counts: Counts


def expect(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """From the steps of some of the runs."""
    return _counts(matrix, target, sampled_steps(matrix, target))


def _counts(matrix: SparseMatrix, target: Target, steps: int) -> Counts:
    """Steps, and what quantising x and finishing y cost in them.

    20 for the scale of x, one for sixteen inputs, four for as many outputs: 64x64 in 12 ns. A step
    reads a vector of weights and its indices; sixteen outputs three vectors.
    """
    ends = 20 + (matrix.in_features + 4 * matrix.out_features) // target.lanes
    step_bytes = _VECTOR_BYTES + _VECTOR_BYTES // index_sharing_rows(matrix)
    pool_bytes = steps * step_bytes + 12 * matrix.out_features
    work = Work("int8-permute", steps + ends)
    return Counts.of(matrix, target, DType.INT8, work, pool_bytes, padded=True)


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> Quantised:
    """Quantise, order and schedule."""
    fold, sharing_rows = fold_of(matrix, target), index_sharing_rows(matrix)
    tries = min(max(_TRIED_NNZ // max(matrix.nnz, 1), 1), _MOST_TRIES)
    layout = layout_of(spec, matrix, fold, sharing_rows, exchange_steps(matrix, target), tries)
    return Quantised(spec, layout, _counts(matrix, target, layout.steps))


def emit(asm: Assembler, lowered: Quantised) -> None:
    """Append the kernel; needs VBMI and VNNI. x and y must not overlap; see `table`."""
    _Kernel(asm, lowered.spec, lowered.layout).emit()


class _Kernel:
    """Appends the code of a layout."""

    def __init__(self, asm: Assembler, spec: MatVec, layout: Layout) -> None:
        self.asm = asm
        self.spec = spec
        self.layout = layout
        self.first_input = 32 - layout.windows.width
        self.prefetch = layout.streamed_bytes > asm.target.l2_bytes
        streamed = layout.streamed_bytes
        self.weights_padding, self.indices_padding = stream_paddings(streamed, asm.target)

    def emit(self) -> None:
        self.asm.count(steps=self.layout.steps)
        scratch = [*_SUMS, _PICKED, _OTHER, zmm(_FIRST_FREE)]
        emit_scale(self.asm, self.spec, _RECIPROCAL, _STEP, scratch[:SCALE_SCRATCH])
        for window in range(self.layout.windows.number):
            self._load_inputs(window)
            for piece in self.layout.pieces_of(window):
                self._piece(piece)

    def _load_inputs(self, window: int) -> None:
        """x of a window as unsigned bytes, 64 a register, in the order of `byte_of_input`."""
        asm = self.asm
        sign = asm.constant(int.from_bytes([OFFSET] * 4, "little", signed=True))
        lowest = asm.literal(np.full(REGISTER_INPUTS, OFFSET - LARGEST_INT8, np.uint8))
        for position, number in enumerate(self.layout.windows.registers_of(window)):
            target = zmm(self.first_input + position)
            parts = [target, *_SUMS[:3]]
            for part, register in enumerate(parts):
                first = number * REGISTER_INPUTS + part * LANES
                emit_integers(asm, self.spec, register, first, _RECIPROCAL)
            asm.emit("vpackssdw", parts[0], parts[0], parts[1])
            asm.emit("vpackssdw", parts[2], parts[2], parts[3])
            asm.emit("vpacksswb", target, parts[0], parts[2])
            asm.emit("vpxord", target, target, sign)
            if self.spec.input_scale is not None:
                asm.emit("vpmaxub", target, target, Literal(lowest))

    def _piece(self, piece: Piece) -> None:
        """Run a piece's code once, or `fold` times with y and the streams moving on."""
        asm, panel = self.asm, piece.panel
        first = panel.first_of(piece.batch) * LANES
        weights = Stream(asm, _WEIGHTS, _VECTOR_BYTES, padding=self.weights_padding)
        weights.point(padding.literal(asm, piece.pool(), weights.padding))
        index_bytes = 4 * piece.held.indices
        apart = self.indices_padding if index_bytes == CACHE_LINE_BYTES else DENSE
        indices = Stream(asm, _INDICES, index_bytes, padding=apart)
        indices.point(padding.literal(asm, piece.indices(), apart))
        if panel.fold == 1:
            _Run(self, piece, weights, indices, rsi, first, self.spec.out_features).emit()
            return
        again = asm.label("again")
        asm.emit("lea", _FOLDED_Y, Memory(rsi, 4 * first))
        asm.emit("mov", dword(_RUNS_LEFT), panel.fold)
        asm.bind(again)
        _Run(self, piece, weights, indices, _FOLDED_Y, 0, RUN_ROWS).emit()
        weights.leave(piece.vectors)
        indices.leave(piece.count)
        asm.emit("add", _FOLDED_Y, 4 * RUN_ROWS)
        asm.emit("sub", dword(_RUNS_LEFT), 1)
        asm.jump("jnz", again)


class _Run:
    """Appends the code of one run: the sums of a piece, to `length` outputs of y from `first`."""

    def __init__(
        self,
        kernel: _Kernel,
        piece: Piece,
        weights: Stream,
        indices: Stream,
        y: Register,
        first: int,
        length: int,
    ) -> None:
        self.kernel, self.asm, self.spec = kernel, kernel.asm, kernel.spec
        self.piece, self.weights, self.indices = piece, weights, indices
        self.y, self.length = y, length
        self.sums = [zmm(position) for position in range(piece.panel.accumulators)]
        self.others = self._other_accumulators()
        self.places = [first + position * LANES for position in range(piece.panel.accumulators)]

    def emit(self) -> None:
        self._start()
        self.asm.stamp(self.piece.count, self._steps())
        for register, others in zip(self.sums, self.others, strict=True):
            for other in others:
                self.asm.emit("vpaddd", register, register, other)
        if self.piece.scales.shape[1]:
            self._finish()
        else:
            for register, place in zip(self.sums, self.places, strict=True):
                self.asm.emit("vmovups", self._waiting_place(register, place), register)

    def _waiting_place(self, register: Register, place: int) -> Memory:
        return rows.waiting_place(register, self.y, place, self.length)

    def _other_accumulators(self) -> list[list[Register]]:
        """What adds up besides each sum where a sum has so many steps that they would wait."""
        free = [zmm(number) for number in range(_FIRST_FREE, self.kernel.first_input)]
        counts = np.bincount(self.piece.steps.vector, minlength=len(self.sums))
        ways = accumulators_of(counts, len(self.sums) + len(free), _APART)
        ends = np.cumsum(ways - 1)
        return [free[end - more : end] for end, more in zip(ends, ways - 1, strict=True)]

    def _accumulators(self) -> Register:
        """That of each step."""
        sets = [[s, *others] for s, others in zip(self.sums, self.others, strict=True)]
        numbers = np.zeros((len(sets), max(map(len, sets))), np.int64)
        for row, registers in zip(numbers, sets, strict=True):
            row[: len(registers)] = [int(register.number) for register in registers]
        steps, ways = self.piece.steps, np.array([len(registers) for registers in sets])
        return zmm(numbers[steps.vector, steps.turn % ways[steps.vector]])

    def _start(self) -> None:
        for position, (register, place) in enumerate(zip(self.sums, self.places, strict=True)):
            if self.piece.window == 0:
                self.asm.emit("vmovups", register, self.weights.next_at(position))
            else:
                self.asm.emit("vmovups", register, self._waiting_place(register, place))
        for other in itertools.chain.from_iterable(self.others):
            rows.zero(self.asm, other)

    def _steps(self) -> list[Line]:
        """The stamped body: one step a row."""
        piece, steps, x = self.piece, self.piece.steps, self.kernel.first_input
        step = np.arange(piece.count)
        index, weight = self.indices.at(step), self.weights.at(step + piece.head.shape[1])
        return [
            fetch_redirects(piece.count),
            self.indices.move(step),
            line(_INDEX_LOADS[piece.held.indices], _PICKED, index),
            line("vpermi2b", _PICKED, zmm(x + steps.first), zmm(x + steps.second)),
            self.weights.move(step + piece.head.shape[1]),
            line("vpdpbusd", self._accumulators(), _PICKED, weight),
            *self._prefetches(index, weight),
        ]

    def _prefetches(self, *places: Memory) -> list[Line]:
        """Where both streams come from beyond L2: 4096x4096 in 40.2 us at the median of places and
        42.6 at the worst, instead of 40.7 and 47.8. Within L2 it loses up to 30 %.
        """
        if not self.kernel.prefetch or self.piece.held.indices < LANES:
            return []
        return [
            line("prefetcht0", Memory(place.base, place.displacement + _PREFETCHED_BYTES))
            for place in places
        ]

    def _finish(self) -> None:
        """Sums to outputs: floats, activation, order of y."""
        piece, at = self.piece, self.piece.head.shape[1] + self.piece.count
        vectors = (self.weights.next_at(number) for number in itertools.count(at))
        for register in self.sums:
            emit_output(self.asm, self.spec, register, vectors, _STEP, _PICKED)
        free = [zmm(number) for number in range(_FIRST_FREE, self.kernel.first_input)]
        scratch = [_PICKED, _OTHER, _RECIPROCAL, *free]
        apply_activation(self.asm, self.spec.activation, self.sums, scratch)
        quarters = (
            Memory(vector.base, vector.displacement + quarter * LANES)
            for vector in vectors
            for quarter in range(4)
        )
        sums = rows.exchange(
            self.asm,
            self.sums,
            piece.held.stages,
            (_PICKED, _OTHER),
            lambda register: self.asm.emit("vpmovsxbd", register, next(quarters)),
        )
        for register, place in zip(sums, self.places, strict=True):
            rows.store(self.asm, register, self.y, place, self.length, _OTHER)
