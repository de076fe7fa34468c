"""A layer norm over channels of bytes, or of floats, four vectors of columns at a time.

    v = more + sum of (byte * scale), or of floats         to the scratch, and into column sums
    mean = sum / channels
    square += (v - mean) * (v - mean)
    y = (v - mean) / sqrt(square / channels + epsilon) * weight + bias      floats
    byte = clip(round(y / scale) + zero)                                    ties to even

Columns are lanes, so that neither sums nor means cross them, and AVX2 computes the same bits.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.int8_conversions import ByteQuantisation
from sparsejit.asm_templates.convolution.int8_planes import narrow_order
from sparsejit.asm_templates.convolution.int8_results import pack_results
from sparsejit.asm_templates.shared.int8_inputs import ByteRounding
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.masks import (
    TAIL_MASK,
    load_masked,
    set_tail_mask,
    store_masked,
    tail_mask,
)
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    r8,
    r9,
    r10,
    r11,
    rax,
    rcx,
    rdi,
    rdx,
    rsi,
)

_VECTORS = 4
# Addresses of operands (one or two), results (one or two), scratch, and then parameters.
ADDED, RESULTS, SCRATCH = (rdi, rdx), (rsi, r8), r9
_PARAMETERS, _ROW, _LEFT, _BLOCKS_LEFT = r10, r11, rcx, rax
_PARAMETER_BYTES = 12
_LARGEST = 1024.0  # in steps from the zero point: beyond any byte
# Numbers of registers: a vector of columns each.
_VALUE, _MEAN, _SQUARE = (range(first, first + _VECTORS) for first in (0, 8, 12))
# While operands are summed, there are no squares; when results are stored, no means.
_LOADED, _ADDEND, _STEPS, _SUMMED_MASK = 4, 5, (6, 7), 12
_SHARE, _EPSILON, _ONE = 4, 5, 6
_WEIGHT, _BIAS, _ORDER, _STORED_MASK, _ROUNDING = 4, 5, 6, 7, range(8, 12)


@dataclass(frozen=True)
class NormOperand:
    """An operand or result of a norm: bytes quantised by `steps`, or floats if that is None.

    Channels are `pitch` bytes apart.
    """

    pitch: int
    steps: ByteQuantisation | None


@dataclass(frozen=True, eq=False)
class ByteNorm:
    """A layer norm over the channels of each of `columns` columns, of the sum of its operands.

    `added` are the operands, one or more, bytes or floats. `parameters` (3, channels): addend,
    weight and bias. `results`: floats, bytes, or one of each; byte results lie in planes.
    """

    channels: int
    columns: int
    epsilon: float
    added: tuple[NormOperand, ...]
    results: tuple[NormOperand, ...]
    parameters: npt.NDArray[np.float32]

    def scratch_bytes(self, target: Target) -> int:
        return self.channels * target.vector_bytes * _VECTORS


def emit_byte_norm(asm: Assembler, norm: ByteNorm) -> None:
    """Append the norm of the operands at ADDED, to RESULTS; clobbers the registers named above."""
    code = _NormCode(asm, norm)
    lanes = asm.target.lanes
    whole, rest = divmod(norm.columns, lanes * _VECTORS)
    asm.emit("lea", _PARAMETERS, Literal(asm.literal(code.parameters())))

    def block() -> None:
        code.block([lanes] * _VECTORS)
        code.move_on()

    repeat(asm, whole, _BLOCKS_LEFT, block)
    if rest:
        code.block([min(lanes, rest - first) for first in range(0, rest, lanes)])


class _NormCode:
    """Appends the code of a block of columns."""

    def __init__(self, asm: Assembler, norm: ByteNorm) -> None:
        self.asm, self.norm = asm, norm
        self.lanes, self.vector_bytes = asm.target.lanes, asm.target.vector_bytes
        results = norm.results
        self.floats, self.bytes = (
            [pair for pair in self._pairs(RESULTS, results) if (pair[1].steps is None) is which]
            for which in (True, False)
        )

    def _vector(self, number: int) -> Register:
        return vector(self.asm, number)

    def parameters(self) -> npt.NDArray[np.float32]:
        """Return the addend, the weight and the bias of each channel, (channels, 3)."""
        more = self.norm.parameters[0].astype(np.float64)
        for each in self.norm.added:
            if each.steps is not None:
                more = more - each.steps.zero_point * np.float64(np.float32(each.steps.scale))
        return np.stack([more, *self.norm.parameters[1:]], axis=1).astype(np.float32)

    def block(self, counts: list[int]) -> None:
        """Compute a vector of columns for each of `counts`, which are their columns.

        The last vector may be partial.
        """
        asm, places = self.asm, [*enumerate(counts)]
        means, squares = (
            [self._vector(number) for number in each[: len(counts)]] for each in (_MEAN, _SQUARE)
        )
        if counts[-1] < self.lanes and asm.target.isa == "avx512":
            set_tail_mask(asm, counts[-1])
        for mean in means:
            zero(asm, mean)
        self._constants([each.steps.scale if each.steps else None for each in self.norm.added])
        self._channels([*self._moving(ADDED, self.norm.added)], lambda: self._sum(places))
        share, epsilon, one = map(self._vector, (_SHARE, _EPSILON, _ONE))
        self._broadcast(share, float(np.float32(1 / self.norm.channels)))
        for mean, square in zip(means, squares, strict=True):
            asm.emit("vmulps", mean, mean, share)
            zero(asm, square)
        self._channels([], lambda: self._squares(places))
        self._broadcast(epsilon, self.norm.epsilon)
        self._broadcast(one, 1.0)
        for scale in squares:
            asm.emit("vmulps", scale, scale, share)
            asm.emit("vaddps", scale, scale, epsilon)
            asm.emit("vsqrtps", scale, scale)
            asm.emit("vdivps", scale, one, scale)
        self._ends()
        self._channels([*self._moving(RESULTS, self.norm.results)], lambda: self._store(places))

    def move_on(self) -> None:
        """Advance all pointers to the next block."""
        pairs = [*self._pairs(ADDED, self.norm.added), *self._pairs(RESULTS, self.norm.results)]
        for register, each in pairs:
            size = 4 if each.steps is None else 1
            self.asm.emit("add", register, size * self.lanes * _VECTORS)

    @staticmethod
    def _pairs(
        registers: tuple[Register, ...], operands: tuple[NormOperand, ...]
    ) -> list[tuple[Register, NormOperand]]:
        return [*zip(registers, operands, strict=False)]

    def _moving(
        self, registers: tuple[Register, ...], operands: tuple[NormOperand, ...]
    ) -> list[tuple[Register, int]]:
        return [(r, each.pitch) for r, each in self._pairs(registers, operands)]

    def _broadcast(self, register: Register, value: float) -> None:
        place = self.asm.literal(np.array([value], np.float32))
        self.asm.emit("vbroadcastss", register, Literal(place))

    def _constants(self, scales: list[float | None]) -> None:
        for number, scale in enumerate(scales):
            if scale is not None:
                self._broadcast(self._vector(_STEPS[number]), scale)

    def _channels(self, moving: list[tuple[Register, int]], body: Callable[[], None]) -> None:
        """Run `body` for each channel; `moving` registers advance, and are restored at the end."""
        asm, channels = self.asm, self.norm.channels
        asm.emit("mov", _ROW, SCRATCH)

        def turn() -> None:
            body()
            asm.emit("add", _ROW, self.vector_bytes * _VECTORS)
            asm.emit("add", _PARAMETERS, _PARAMETER_BYTES)
            for register, pitch in moving:
                asm.emit("add", register, pitch)

        repeat(asm, channels, _LEFT, turn)
        asm.emit("sub", _PARAMETERS, _PARAMETER_BYTES * channels)
        for register, pitch in moving:
            asm.emit("sub", register, pitch * channels)

    def _sum(self, places: list[tuple[int, int]]) -> None:
        asm, loaded, addend = self.asm, self._vector(_LOADED), self._vector(_ADDEND)
        asm.emit("vbroadcastss", addend, Memory(_PARAMETERS))
        for number, count in places:
            value, mean = self._vector(number), self._vector(_MEAN[number])
            asm.emit("vmovaps", value, addend)
            for place, (base, each) in enumerate(self._pairs(ADDED, self.norm.added)):
                if each.steps is None:
                    self._load(loaded, Memory(base, self.vector_bytes * number), count)
                    asm.emit("vaddps", value, value, loaded)
                else:
                    asm.emit("vpmovzxbd", loaded, Memory(base, self.lanes * number))
                    asm.emit("vcvtdq2ps", loaded, loaded)
                    asm.emit("vfmadd231ps", value, loaded, self._vector(_STEPS[place]))
            asm.emit("vaddps", mean, mean, value)
            asm.emit("vmovups", Memory(_ROW, self.vector_bytes * number), value)

    def _load(self, register: Register, floats: Memory, count: int) -> None:
        if count == self.lanes:
            self.asm.emit("vmovups", register, floats)
        else:
            load_masked(self.asm, register, self._mask(count, _SUMMED_MASK), floats)

    def _mask(self, count: int, spare: int) -> Register:
        """The mask of a partial vector; AVX2 loads it into register number `spare`."""
        if self.asm.target.isa == "avx512":
            return TAIL_MASK
        return tail_mask(self.asm, count, self._vector(spare))

    def _squares(self, places: list[tuple[int, int]]) -> None:
        asm = self.asm
        for number, _ in places:
            value, square = self._vector(number), self._vector(_SQUARE[number])
            at = Memory(_ROW, self.vector_bytes * number)
            asm.emit("vmovups", value, at)
            asm.emit("vsubps", value, value, self._vector(_MEAN[number]))
            asm.emit("vfmadd231ps", square, value, value)
            asm.emit("vmovups", at, value)

    @property
    def _rounding(self) -> ByteRounding:
        return ByteRounding(*map(self._vector, _ROUNDING))

    def _ends(self) -> None:
        """Load the constants that turn results into bytes."""
        asm, rounding = self.asm, self._rounding
        for _, each in self.bytes:
            assert each.steps is not None
            reciprocal = float(np.float32(1) / np.float32(each.steps.scale))
            self._broadcast(rounding.reciprocal, reciprocal)
            self._broadcast(rounding.largest, _LARGEST)
            place = asm.literal(np.array([each.steps.zero_point], np.int32))
            asm.emit("vpbroadcastd", rounding.zero_point, Literal(place))
            zero(asm, rounding.empty)
            if asm.target.isa == "avx2":
                asm.emit("vmovdqu", self._vector(_ORDER), narrow_order(asm))

    def _store(self, places: list[tuple[int, int]]) -> None:
        asm, weight, bias = self.asm, self._vector(_WEIGHT), self._vector(_BIAS)
        asm.emit("vbroadcastss", weight, Memory(_PARAMETERS, 4))
        asm.emit("vbroadcastss", bias, Memory(_PARAMETERS, 8))
        for number, count in places:
            value, at = self._vector(number), self.vector_bytes * number
            asm.emit("vmulps", value, self._vector(_SQUARE[number]), Memory(_ROW, at))
            asm.emit("vfmadd213ps", value, weight, bias)
            for base, _ in self.floats:
                if count == self.lanes:
                    asm.emit("vmovups", Memory(base, at), value)
                else:
                    store_masked(asm, Memory(base, at), self._mask(count, _STORED_MASK), value)
        for base, _ in self.bytes:
            self._store_bytes(base, places)

    def _store_bytes(self, base: Register, places: list[tuple[int, int]]) -> None:
        """Store the values, rounded to bytes, at `base`. Clobbers them."""
        asm, rounding = self.asm, self._rounding
        values = [self._vector(number) for number in _VALUE]
        if asm.target.isa == "avx2" and sum(count for _, count in places) == 4 * self.lanes:
            for value in values:
                rounding.round(asm, value, value)
            low = pack_results(asm, values, None)
            asm.emit("vpermd", low, self._vector(_ORDER), low)
            asm.emit("vmovdqu", Memory(base), low)
            return
        for number, count in places:
            value, into = values[number], Memory(base, self.lanes * number)
            if asm.target.isa == "avx2":
                rounding.store_narrow(asm, into, value, value, count)
                continue
            is_tail = count < self.lanes
            rounding.store(asm, into.masked(TAIL_MASK) if is_tail else into, value, value)
