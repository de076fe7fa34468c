"""Elements of the gather kernel that are floats: a step is a permute and an FMA.

Registers, in order: the sums, a vector of packed indices, the picked inputs; for short weights, the
weights of a step and, in bfloat16, 0xFFFF0000 in every lane; last the window of x. All data lies in
one stream, whose pointer advances from the first piece to the last.
"""

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.gather.permute_layout import PackedFloats, PermuteLayout
from sparsejit.asm_templates.gather.pieces import Piece
from sparsejit.asm_templates.shared import rows
from sparsejit.asm_templates.shared.loops import fetch_redirects
from sparsejit.asm_templates.shared.padding import stride_padding
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.asm_templates.shared.storage import Stream, Unpacking
from sparsejit.ir.spec import Activation, DType, MatVec
from sparsejit.x86.assembler import Assembler, Line, line
from sparsejit.x86.operands import Memory, Register, r8, rdi, rdx, rsi

_POOL, _FOLDED_Y = rdx, r8

_Piece = Piece[PackedFloats]


class FloatElements:
    """`window_gather.Elements` for weights of float32, bfloat16, float16, and sums of float32."""

    add = "vaddps"
    folded_y = _FOLDED_Y

    def __init__(self, asm: Assembler, spec: MatVec, layout: PermuteLayout) -> None:
        self.asm = asm
        self.spec = spec
        self.layout = layout
        machine = self.machine = layout.machine
        self.vector_bytes = asm.target.vector_bytes
        padding = stride_padding(layout.streamed_bytes, asm.target)
        self.stream = Stream(asm, _POOL, self.vector_bytes, machine.reach, padding)
        self.first_input = asm.target.vector_registers - layout.windows.width
        sums = machine.accumulators_beside(layout.windows)
        self.index, self.picked, weights, upper_halves = (
            vector(asm, sums + number) for number in range(4)
        )
        self.unpacking = Unpacking(asm, machine.dtype, weights, upper_halves)

    @property
    def free(self) -> tuple[Register, Register]:
        return self.index, self.picked

    def begin(self) -> None:
        self.asm.count(least_steps_ungrouped=self.layout.order.steps_as_they_come)
        vectors = self.layout.pool(self.stream.padding)
        self.stream.point(self.asm.literal(vectors))
        self.asm.count(padding_bytes=vectors.nbytes - self.layout.streamed_bytes)
        self.unpacking.start()

    def load_inputs(self, window: int) -> None:
        for position, register in enumerate(self.layout.windows.registers_of(window)):
            target = vector(self.asm, self.first_input + position)
            self._load(target, rdi, register * self.machine.lanes, self.spec.in_features)

    def enter(self, piece: _Piece) -> None:
        """Append nothing: the pool has the order of the pieces."""

    def start_sums(self, piece: _Piece, sums: list[Register]) -> None:
        """Set the sums to the bias, which is the head of the piece's data, or to zero."""
        for position, register in enumerate(sums):
            if piece.reads.head.shape[1]:
                self._read(register, position)
            else:
                rows.zero(self.asm, register)

    def steps(self, piece: _Piece) -> list[Line]:
        if self.machine.index_in_weight:
            return self._steps_with_index_in_weight(piece)
        machine, steps, reads = self.machine, piece.steps, piece.reads
        block, field = np.divmod(np.arange(piece.count), machine.fields)
        last = field == machine.fields - 1
        indices, weights = reads.index_places[block], reads.weight_places
        index, shifted = self.index, self.picked
        picked = vector(self.asm, np.where(last, self.index.number, self.picked.number))
        first, second = self._input(steps.first), self._input(steps.second)
        pick = (
            line("vpermi2ps", picked, first, second)
            if machine.sources == 2
            else line("vpermps", picked, picked, first)
        )
        begun = np.arange(piece.count) % machine.steps_a_vector != 0
        unpack, weight = self._unpacked(weights, begun)
        return [
            fetch_redirects(piece.count, self.asm.target),
            self.stream.move(indices, field == 0),
            line("vmovups", index, self.stream.at(indices), when=field == 0),
            line("vpsrld", shifted, index, machine.shifts[field], when=~last),
            pick,
            self.stream.move(weights, ~begun),
            *unpack,
            line("vfmadd231ps", self._sums(piece), picked, weight),
        ]

    def _steps_with_index_in_weight(self, piece: _Piece) -> list[Line]:
        places = piece.reads.weight_places
        first, second = self._input(piece.steps.first), self._input(piece.steps.second)
        # A renamed copy, for the permute to overwrite, takes no port; a second load would.
        pick = (
            [
                line("vmovaps", self.picked, self.index),
                line("vpermi2ps", self.picked, first, second),
            ]
            if self.machine.sources == 2
            else [line("vpermps", self.picked, self.index, first)]
        )
        return [
            fetch_redirects(piece.count, self.asm.target),
            self.stream.move(places),
            line("vmovups", self.index, self.stream.at(places)),
            *pick,
            line("vfmadd231ps", self._sums(piece), self.picked, self.index),
        ]

    def _sums(self, piece: _Piece) -> Register:
        return vector(self.asm, piece.accumulator_of_step)

    def _unpacked(
        self, places: npt.NDArray[np.integer], odd: npt.NDArray[np.bool_]
    ) -> tuple[list[Line], Register | Memory]:
        """Return the lines that make a step's weights float32, and the operand with the result.

        `odd`: the step shares its vector with the one before.
        """
        place = self.stream.at(places)
        if self.machine.dtype is DType.FLOAT16:
            place = Memory(_POOL, place.displacement + odd * (self.vector_bytes // 2))
        return self.unpacking.operand(place, odd)

    def finish(self, piece: _Piece, sums: list[Register]) -> None:
        """Append nothing: only the activation is missing, which takes more registers."""

    def load_exchange(self, piece: _Piece, number: int, register: Register) -> None:
        self._read(register, piece.reads.tail_start + number)

    def leave(self, piece: _Piece) -> None:
        self.stream.leave(piece.reads.vectors)

    def end(self) -> None:
        """Apply the activation to y, now that x may leave its registers."""
        if self.spec.activation is Activation.NONE:
            return
        lanes, length = self.machine.lanes, self.spec.out_features
        sums = [vector(self.asm, number) for number in range(self.asm.target.vector_registers)]
        scratch = sums[self.machine.accumulators :]
        for begin in range(0, length, self.machine.accumulators * lanes):
            places = range(begin, length, lanes)[: self.machine.accumulators]
            for register, place in zip(sums, places, strict=False):
                self._load(register, rsi, place, length)
            rows.finish_rows(self.asm, self.spec, sums[: len(places)], begin, rsi, scratch)

    def _input(self, number: npt.NDArray[np.integer]) -> Register:
        return vector(self.asm, self.first_input + number)

    def _read(self, register: Register, number: int) -> None:
        self.asm.emit("vmovups", register, self.stream.next_at(number))

    def _load(self, register: Register, base: Register, first: int, length: int) -> None:
        rows.load(self.asm, register, base, first, length, self.picked)
