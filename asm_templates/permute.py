"""Unstructured sparsity: inputs held in registers, picked lane by lane."""

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates import rows
from sparsejit.asm_templates.permute_layout import (
    ACCUMULATORS,
    Layout,
    Machine,
    Piece,
    layout_of,
)
from sparsejit.assembler import Assembler, Line, line
from sparsejit.matrix import SparseMatrix
from sparsejit.operands import Literal, Memory, Register, dword, r8, rcx, rdi, rdx, rsi, ymm, zmm
from sparsejit.spec import Activation, MatVec

_INDEX = ACCUMULATORS
_PICKED = ACCUMULATORS + 1
_FIRST_INPUT = ACCUMULATORS + 2
_POOL, _OUTPUT, _RUNS_LEFT = rdx, r8, rcx

# Folding measured on Zen 5: 768x256 at 90 % 650 -> 530 ns, 1024x1024 at 80 % 10500 -> 9300 ns
# (AVX2: 29500 -> 24200 ns), while 256x256 at 90 % and 1024x1024 at 95 % lose 4 to 13 %.
AVX512 = Machine(
    lanes=16, sources=2, index_bits=5, inputs=26, reach=128,
    fold=2, folding_nnz=19_000, folding_density=0.06,
)  # fmt: skip
AVX2 = Machine(
    lanes=8, sources=1, index_bits=3, inputs=10, reach=4,
    fold=4, folding_nnz=50_000, folding_density=0.09,
)  # fmt: skip


def emit_avx512(asm: Assembler, spec: MatVec, matrix: SparseMatrix) -> None:
    """Two registers a step, sixteen lanes."""
    _Kernel(asm, spec, layout_of(spec, matrix, AVX512)).emit()


def emit_avx2(asm: Assembler, spec: MatVec, matrix: SparseMatrix) -> None:
    """One register a step, eight lanes."""
    _Kernel(asm, spec, layout_of(spec, matrix, AVX2)).emit()


class _Kernel:
    """Appends the code of a layout."""

    def __init__(self, asm: Assembler, spec: MatVec, layout: Layout) -> None:
        self.asm = asm
        self.spec = spec
        self.layout = layout
        self.machine = layout.machine
        self.vector = zmm if layout.machine.lanes == 16 else ymm
        self.vector_bytes = 4 * layout.machine.lanes

    def emit(self) -> None:
        pool = self.asm.literal(self.layout.pool())
        self.asm.emit("lea", _POOL, Literal(pool + self.machine.reach * self.vector_bytes))
        loaded = -1
        for piece in self.layout.pieces:
            if piece.window > loaded:
                loaded = piece.window
                self._load_inputs(loaded)
            if piece.count or piece.window in (0, self.layout.windows.number - 1):
                self._piece(piece)
        if self.spec.activation is not Activation.NONE:
            self._activate()

    def _load_inputs(self, window: int) -> None:
        windows = self.layout.windows
        begin = window * windows.width
        for position in range(min(windows.width, windows.registers - begin)):
            first = (begin + position) * self.machine.lanes
            target = self.vector(_FIRST_INPUT + position)
            self._load(target, rdi, first, self.spec.in_features)

    def _piece(self, piece: Piece) -> None:
        """Run a piece's code once, or `fold` times with y and the pool moving along."""
        asm, fold = self.asm, piece.strip.fold
        first = piece.strip.first_of(piece.batch)
        if fold == 1:
            self._run(piece, rsi, first)
            self._move_pool(piece)
            return
        again = asm.label("again")
        asm.emit("lea", _OUTPUT, Memory(rsi, first * self.vector_bytes))
        asm.emit("mov", dword(_RUNS_LEFT), fold)
        asm.bind(again)
        self._run(piece, _OUTPUT, 0)
        self._move_pool(piece)
        asm.emit("add", _OUTPUT, ACCUMULATORS * self.vector_bytes)
        asm.emit("sub", dword(_RUNS_LEFT), 1)
        asm.jump("jnz", again)

    def _run(self, piece: Piece, output: Register, first: int) -> None:
        abreast, ways = piece.strip.abreast(piece.batch), piece.strip.ways(piece.batch)
        length = self.spec.out_features if output is rsi else abreast * self.machine.lanes
        sums = [self.vector(position * ways) for position in range(abreast)]
        for position, register in enumerate(sums):
            place = (first + position) * self.machine.lanes
            if piece.window > 0:
                self._load(register, output, place, length)
            elif piece.head.shape[1]:
                self._advance_to(position)
                self.asm.emit("vmovups", register, self._pool_at(position))
            else:
                rows.zero(self.asm, register)
            for way in range(1, ways):
                rows.zero(self.asm, self.vector(position * ways + way))
        self.asm.stamp(piece.count, self._steps(piece))
        for position, register in enumerate(sums):
            for way in range(1, ways):
                self.asm.emit("vaddps", register, register, self.vector(position * ways + way))
        sums = self._in_order(piece, sums)
        for position, register in enumerate(sums):
            place = (first + position) * self.machine.lanes
            rows.store(self.asm, register, output, place, length, self.vector(_PICKED))

    def _steps(self, piece: Piece) -> list[Line]:
        """The stamped body: one step a row."""
        machine, steps = self.machine, piece.steps
        block, field = np.divmod(np.arange(piece.count), machine.fields)
        last = field == machine.fields - 1
        indices, weights = piece.index_places[block], piece.weight_places
        picked = self.vector(np.where(last, _INDEX, _PICKED))
        first, second = (self.vector(_FIRST_INPUT + part) for part in (steps.first, steps.second))
        pick = (
            line("vpermi2ps", picked, first, second)
            if machine.sources == 2
            else line("vpermps", picked, picked, first)
        )
        step = 2 * machine.reach * self.vector_bytes
        return [
            line("add", _POOL, step, when=(field == 0) & self._advances(indices)),
            line("vmovups", self.vector(_INDEX), self._pool_at(indices), when=field == 0),
            line("vpsrld", self.vector(_PICKED), self.vector(_INDEX), machine.shifts[field], when=~last),
            pick,
            line("add", _POOL, step, when=self._advances(weights)),
            line("vfmadd231ps", self.vector(steps.accumulator), picked, self._pool_at(weights)),
        ]

    def _in_order(self, piece: Piece, sums: list[Register]) -> list[Register]:
        """Undo the layout's row order between each two neighbouring vectors."""
        asm, result = self.asm, list(sums)
        spare = [self.vector(_INDEX), self.vector(_PICKED)]
        for position in range(0, piece.tail.shape[1], 2):
            pair = result[position : position + 2]
            for part, index in enumerate(spare):
                self._advance_to(piece.tail_start + position + part)
                asm.emit("vmovups", index, self._pool_at(piece.tail_start + position + part))
                asm.emit("vpermi2ps", index, *pair)
            result[position : position + 2], spare = spare, pair
        return result

    def _pool_at(self, vector: npt.NDArray[np.int64] | int) -> Memory:
        """A vector of the pool, counted from the start of the run."""
        reach = self.machine.reach
        return Memory(_POOL, (vector % (2 * reach) - reach) * self.vector_bytes)

    def _advances(self, vector: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether the pool pointer moves on before this vector is read."""
        return (vector > 0) & (vector % (2 * self.machine.reach) == 0)

    def _advance_to(self, vector: int) -> None:
        if self._advances(np.array(vector)):
            self.asm.emit("add", _POOL, 2 * self.machine.reach * self.vector_bytes)

    def _move_pool(self, piece: Piece) -> None:
        """Point at the vectors of the next run."""
        span = 2 * self.machine.reach
        moved = max(piece.vectors - 1, 0) // span * span
        if piece.vectors > moved:
            self.asm.emit("add", _POOL, (piece.vectors - moved) * self.vector_bytes)

    def _load(self, register: Register, base: Register, first: int, length: int) -> None:
        rows.load(self.asm, register, base, first, length, self.vector(_PICKED))

    def _activate(self) -> None:
        """The activation over y, where it has been left."""
        lanes = self.machine.lanes
        scratch = [self.vector(number) for number in range(ACCUMULATORS, 16)]
        for begin in range(0, self.spec.out_features, ACCUMULATORS * lanes):
            count = min(ACCUMULATORS, -(-(self.spec.out_features - begin) // lanes))
            registers = [self.vector(number) for number in range(count)]
            for position, register in enumerate(registers):
                self._load(register, rsi, begin + position * lanes, self.spec.out_features)
            rows.finish_rows(self.asm, self.spec, registers, begin, rsi, scratch)
