"""Elements of the gather kernel that are int8: a step is a byte permute and four products a lane.

Vector registers: 0 to 7 are the sums; then come the picked inputs, a free register, the reciprocal
of x's scale, the scale, further accumulators, and last the window of x. Each piece has a stream of
weights and a stream of indices, because blocks need fewer indices than weights.
"""

import itertools

import numpy as np

from sparsejit.asm_templates.gather.int8_boundary import (
    LANES,
    OFFSET,
    SCALE_SCRATCH,
    emit_integers,
    emit_output,
    emit_scale,
)
from sparsejit.asm_templates.gather.int8_layout import (
    ACCUMULATORS,
    FIRST_FREE,
    REGISTER_INPUTS,
    REGISTERS,
    Int8Layout,
    Int8Reads,
)
from sparsejit.asm_templates.gather.pieces import KeptInputs, Piece
from sparsejit.asm_templates.shared import padding
from sparsejit.asm_templates.shared.activation import apply_activation
from sparsejit.asm_templates.shared.int8_inputs import pack_to_bytes
from sparsejit.asm_templates.shared.loops import fetch_redirects
from sparsejit.asm_templates.shared.padding import (
    ALTERNATE,
    CACHE_LINE_BYTES,
    DENSE,
    PADDED,
    StridePadding,
    stride_padding,
)
from sparsejit.asm_templates.shared.storage import Stream
from sparsejit.ir.spec import MatVec
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler, Line, line
from sparsejit.x86.operands import Literal, Memory, Register, r8, r9, rdx, zmm

_SUMS = [zmm(number) for number in range(ACCUMULATORS)]
_PICKED, _OTHER, _RECIPROCAL, _SCALE = (zmm(number) for number in range(ACCUMULATORS, FIRST_FREE))
_WEIGHTS, _INDICES, _FOLDED_Y = rdx, r8, r9
_KEPT = r8  # before there are indices

_PREFETCHED_BYTES = 1024  # ahead of a step
# In sizes of L1: much of a stream up to this size may still be in L1 at the next call, unless
# prefetches evict it. With weights in even lines only, lines prefetched in vain go to other sets.
_NEAR_L1 = 3
_INDEX_LOADS = {1: "vpbroadcastd", 2: "vpbroadcastq", 16: "vmovups"}

_Piece = Piece[Int8Reads]


def stream_paddings(streamed_bytes: int, target: Target) -> tuple[StridePadding, StridePadding]:
    """Return the paddings of weights and of indices, if a call reads `streamed_bytes` of them."""
    alike = stride_padding(streamed_bytes, target)
    if alike == PADDED and streamed_bytes <= _NEAR_L1 * target.l1d_bytes:
        return ALTERNATE, DENSE
    return alike, alike


class Int8Elements:
    """`window_gather.Elements` for int8 weights, x quantised to bytes, and sums of int32."""

    add = "vpaddd"
    free = (_PICKED, _OTHER)
    folded_y = _FOLDED_Y

    def __init__(
        self,
        asm: Assembler,
        spec: MatVec,
        layout: Int8Layout,
        kept: KeptInputs | None = None,
    ) -> None:
        """`kept`: memory that keeps quantised inputs for other kernels, if x has a fixed scale."""
        self.asm = asm
        self.spec = spec
        self.layout = layout
        self.kept = kept
        self.first_input = REGISTERS - layout.windows.width
        self.prefetch = layout.streamed_bytes > asm.target.l2_bytes
        weights, indices = stream_paddings(layout.streamed_bytes, asm.target)
        self.weights = Stream(asm, _WEIGHTS, CACHE_LINE_BYTES, padding=weights)
        self.indices_padding = indices

    def begin(self) -> None:
        scratch = [*_SUMS, _PICKED, _OTHER, zmm(FIRST_FREE)]
        emit_scale(self.asm, self.spec, _RECIPROCAL, _SCALE, scratch[:SCALE_SCRATCH])

    def load_inputs(self, window: int) -> None:
        """Load x of a window as unsigned bytes, 64 a register, in the order of `byte_of_input`."""
        if self.kept is None or self.kept.is_first:
            self._quantise(window)
        if self.kept is None:
            return
        self.kept.place.point(self.asm, _KEPT)
        for position in range(self.layout.windows.width):
            register = zmm(self.first_input + position)
            place = Memory(_KEPT, REGISTER_INPUTS * position)
            operands = (place, register) if self.kept.is_first else (register, place)
            self.asm.emit("vmovups", *operands)

    def _quantise(self, window: int) -> None:
        asm = self.asm
        sign = asm.constant(int.from_bytes([OFFSET] * 4, "little", signed=True))
        lowest = asm.literal(np.full(REGISTER_INPUTS, OFFSET + self.spec.least_integer, np.uint8))
        for position, number in enumerate(self.layout.windows.registers_of(window)):
            target = zmm(self.first_input + position)
            parts = [target, *_SUMS[:3]]
            for part, register in enumerate(parts):
                first = number * REGISTER_INPUTS + part * LANES
                emit_integers(asm, self.spec, register, first, _RECIPROCAL)
            pack_to_bytes(asm, parts)
            asm.emit("vpxord", target, target, sign)
            if self.spec.x_steps is not None:
                asm.emit("vpmaxub", target, target, Literal(lowest))

    def enter(self, piece: _Piece) -> None:
        """Point at the piece's weights and indices."""
        weights, indices = self.weights, self._indices(piece)
        weights.point(padding.literal(self.asm, piece.reads.pool(), weights.padding))
        indices.point(padding.literal(self.asm, piece.reads.indices(), indices.padding))

    def start_sums(self, piece: _Piece, sums: list[Register]) -> None:
        """Load the start values of sums, which cancel the offset of x."""
        for position, register in enumerate(sums):
            self.asm.emit("vmovups", register, self.weights.next_at(position))

    def steps(self, piece: _Piece) -> list[Line]:
        steps, step, indices = piece.steps, np.arange(piece.count), self._indices(piece)
        vector = step + piece.reads.head.shape[1]
        index, weight = indices.at(step), self.weights.at(vector)
        first, second = (zmm(self.first_input + part) for part in (steps.first, steps.second))
        return [
            fetch_redirects(piece.count, self.asm.target),
            indices.move(step),
            line(_INDEX_LOADS[piece.reads.indices_a_step], _PICKED, index),
            self._pick(first, second),
            self.weights.move(vector),
            line("vpdpbusd", zmm(piece.accumulator_of_step), _PICKED, weight),
            *self._prefetches(piece, index, weight),
        ]

    def _pick(self, first: Register, second: Register) -> Line:
        if self.layout.sources == 1:
            return line("vpermb", _PICKED, _PICKED, first)
        return line("vpermi2b", _PICKED, first, second)

    def _prefetches(self, piece: _Piece, *places: Memory) -> list[Line]:
        """Return prefetches of both streams from beyond L2; within L2 prefetches lose time."""
        if not self.prefetch or piece.reads.indices_a_step < LANES:
            return []
        return [
            line("prefetcht0", Memory(place.base, place.displacement + _PREFETCHED_BYTES))
            for place in places
        ]

    def finish(self, piece: _Piece, sums: list[Register]) -> None:
        """Convert sums to floats, and apply the activation."""
        numbers = itertools.count(piece.reads.scales_start)
        vectors = (self.weights.next_at(number) for number in numbers)
        for register in sums:
            emit_output(self.asm, self.spec, register, vectors, _SCALE, _PICKED)
        free = [zmm(number) for number in range(FIRST_FREE, self.first_input)]
        scratch = [_PICKED, _OTHER, _RECIPROCAL, *free]
        apply_activation(self.asm, self.spec.activation, sums, scratch)

    def load_exchange(self, piece: _Piece, number: int, register: Register) -> None:
        """Load a vector of indices; they are stored as bytes, four vectors in one."""
        quarter, vector = number % 4, piece.reads.tail_start + number // 4
        place = self.weights.at(np.array(vector)) if quarter else self.weights.next_at(vector)
        quarter_place = Memory(place.base, place.displacement + quarter * LANES)
        self.asm.emit("vpmovsxbd", register, quarter_place)

    def leave(self, piece: _Piece) -> None:
        """Advance the streams if the piece has several runs; each piece has its own streams."""
        if piece.panel.fold > 1:
            self.weights.leave(piece.reads.vectors)
            self._indices(piece).leave(piece.count)

    def end(self) -> None:
        """Append nothing: outputs were finished in registers."""

    def _indices(self, piece: _Piece) -> Stream:
        index_bytes = 4 * piece.reads.indices_a_step
        apart = self.indices_padding if index_bytes == CACHE_LINE_BYTES else DENSE
        return Stream(self.asm, _INDICES, index_bytes, padding=apart)
