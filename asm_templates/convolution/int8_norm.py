"""A layer norm over channels of bytes, or of floats, 64 columns at a time.

    v = more + sum of (byte * scale), or of floats         to the scratch, and into column sums
    mean = sum / channels
    square += (v - mean) * (v - mean)
    y = (v - mean) / sqrt(square / channels + epsilon) * weight + bias      floats
    byte = clip(round(y / scale) + zero)                                    ties to even

Columns are lanes, so that neither sums nor means cross them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.int8_conversions import ByteQuantisation
from sparsejit.asm_templates.convolution.int8_planes import LINE
from sparsejit.asm_templates.shared.int8_inputs import ByteRounding
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.masks import TAIL_MASK, set_tail_mask
from sparsejit.asm_templates.shared.rows import zero
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
    rax,
    rcx,
    rdi,
    rdx,
    rsi,
    zmm,
)

_LANES, _VECTORS = 16, 4
# Addresses of operands (one or two), results (one or two), scratch, and then parameters.
ADDED, RESULTS, SCRATCH = (rdi, rdx), (rsi, r8), r9
_PARAMETERS, _ROW, _LEFT, _BLOCKS_LEFT = r10, r11, rcx, rax
_PARAMETER_BYTES = 12
_LARGEST = 1024.0  # in steps from the zero point: beyond any byte
_MEAN, _SCALE, _SQUARE = (range(first, first + _VECTORS) for first in (8, 12, 16))
# Registers of constants: of the statistics, then of rounding; of operands; of a channel.
_SHARE, _EPSILON, _ONE = zmm(20), zmm(21), zmm(22)
_ROUNDING = ByteRounding(*map(zmm, range(20, 24)))
_STEPS = (zmm(24), zmm(25))
_ADDEND, _WEIGHT, _BIAS = zmm(28), zmm(28), zmm(29)


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

    @property
    def scratch_bytes(self) -> int:
        return self.channels * LINE * _VECTORS


def emit_byte_norm(asm: Assembler, norm: ByteNorm) -> None:
    """Append the norm of the operands at ADDED, to RESULTS; clobbers the registers named above."""
    code = _NormCode(asm, norm)
    whole, rest = divmod(norm.columns, _LANES * _VECTORS)
    asm.emit("lea", _PARAMETERS, Literal(asm.literal(code.parameters())))

    def block() -> None:
        code.block([False] * _VECTORS)
        code.move_on()

    repeat(asm, whole, _BLOCKS_LEFT, block)
    if rest:
        set_tail_mask(asm, rest % _LANES or _LANES)
        code.block([False] * (rest // _LANES) + [True] * (rest % _LANES > 0))


class _NormCode:
    """Appends the code of a block of columns."""

    def __init__(self, asm: Assembler, norm: ByteNorm) -> None:
        self.asm, self.norm = asm, norm

    def parameters(self) -> npt.NDArray[np.float32]:
        """Return the addend, the weight and the bias of each channel, (channels, 3)."""
        more = self.norm.parameters[0].astype(np.float64)
        for each in self.norm.added:
            if each.steps is not None:
                more = more - each.steps.zero_point * np.float64(np.float32(each.steps.scale))
        return np.stack([more, *self.norm.parameters[1:]], axis=1).astype(np.float32)

    def block(self, tails: list[bool]) -> None:
        """Compute a vector of columns for each of `tails`; True marks a partial vector."""
        places = list(enumerate(tails))
        for number, _ in places:
            zero(self.asm, zmm(_MEAN[number]))
            zero(self.asm, zmm(_SQUARE[number]))
        self._constants([each.steps.scale if each.steps else None for each in self.norm.added])
        self._channels([*self._moving(ADDED, self.norm.added)], lambda: self._sum(places))
        share = np.float32(1 / self.norm.channels)
        self._broadcast(_SHARE, float(share))
        for number, _ in places:
            self.asm.emit("vmulps", zmm(_MEAN[number]), zmm(_MEAN[number]), _SHARE)
        self._channels([], lambda: self._squares(places))
        self._broadcast(_SHARE, float(share))
        self._broadcast(_EPSILON, self.norm.epsilon)
        self._broadcast(_ONE, 1.0)
        for number, _ in places:
            scale = zmm(_SCALE[number])
            self.asm.emit("vmulps", scale, zmm(_SQUARE[number]), _SHARE)
            self.asm.emit("vaddps", scale, scale, _EPSILON)
            self.asm.emit("vsqrtps", scale, scale)
            self.asm.emit("vdivps", scale, _ONE, scale)
        self._ends()
        self._channels([*self._moving(RESULTS, self.norm.results)], lambda: self._store(places))

    def move_on(self) -> None:
        """Advance all pointers to the next block."""
        pairs = [*self._pairs(ADDED, self.norm.added), *self._pairs(RESULTS, self.norm.results)]
        for register, each in pairs:
            size = 4 if each.steps is None else 1
            self.asm.emit("add", register, size * _LANES * _VECTORS)

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
                self._broadcast(_STEPS[number], scale)

    def _channels(self, moving: list[tuple[Register, int]], body: Callable[[], None]) -> None:
        """Run `body` for each channel; `moving` registers advance, and are restored at the end."""
        asm, channels = self.asm, self.norm.channels
        asm.emit("mov", _ROW, SCRATCH)

        def turn() -> None:
            body()
            asm.emit("add", _ROW, LINE * _VECTORS)
            asm.emit("add", _PARAMETERS, _PARAMETER_BYTES)
            for register, pitch in moving:
                asm.emit("add", register, pitch)

        repeat(asm, channels, _LEFT, turn)
        asm.emit("sub", _PARAMETERS, _PARAMETER_BYTES * channels)
        for register, pitch in moving:
            asm.emit("sub", register, pitch * channels)

    def _sum(self, places: list[tuple[int, bool]]) -> None:
        asm = self.asm
        asm.emit("vbroadcastss", _ADDEND, Memory(_PARAMETERS))
        for number, is_tail in places:
            value = zmm(number)
            asm.emit("vmovaps", value, _ADDEND)
            for place, (base, each) in enumerate(self._pairs(ADDED, self.norm.added)):
                loaded = zmm(4 + number)
                if each.steps is None:
                    into = loaded.masked(TAIL_MASK, zeroing=True) if is_tail else loaded
                    asm.emit("vmovups", into, Memory(base, LINE * number))
                    asm.emit("vaddps", value, value, loaded)
                else:
                    asm.emit("vpmovzxbd", loaded, Memory(base, _LANES * number))
                    asm.emit("vcvtdq2ps", loaded, loaded)
                    asm.emit("vfmadd231ps", value, loaded, _STEPS[place])
            asm.emit("vaddps", zmm(_MEAN[number]), zmm(_MEAN[number]), value)
            asm.emit("vmovups", Memory(_ROW, LINE * number), value)

    def _squares(self, places: list[tuple[int, bool]]) -> None:
        asm = self.asm
        for number, _ in places:
            value, mean = zmm(number), zmm(_MEAN[number])
            asm.emit("vmovups", value, Memory(_ROW, LINE * number))
            asm.emit("vsubps", value, value, mean)
            asm.emit("vfmadd231ps", zmm(_SQUARE[number]), value, value)
            asm.emit("vmovups", Memory(_ROW, LINE * number), value)

    def _ends(self) -> None:
        """Load the constants that turn results into bytes."""
        for each in self.norm.results:
            if each.steps is not None:
                reciprocal = float(np.float32(1) / np.float32(each.steps.scale))
                self._broadcast(_ROUNDING.reciprocal, reciprocal)
                self._broadcast(_ROUNDING.largest, _LARGEST)
                self.asm.emit("mov", dword(_LEFT), each.steps.zero_point)
                self.asm.emit("vpbroadcastd", _ROUNDING.zero_point, dword(_LEFT))
                zero(self.asm, _ROUNDING.empty)

    def _store(self, places: list[tuple[int, bool]]) -> None:
        asm = self.asm
        asm.emit("vbroadcastss", _WEIGHT, Memory(_PARAMETERS, 4))
        asm.emit("vbroadcastss", _BIAS, Memory(_PARAMETERS, 8))
        for number, is_tail in places:
            value = zmm(number)
            asm.emit("vmulps", value, zmm(_SCALE[number]), Memory(_ROW, LINE * number))
            asm.emit("vfmadd213ps", value, _WEIGHT, _BIAS)
            for base, each in self._pairs(RESULTS, self.norm.results):
                if each.steps is None:
                    into = Memory(base, LINE * number)
                    asm.emit("vmovups", into.masked(TAIL_MASK) if is_tail else into, value)
                    continue
                byte, into = zmm(4 + number), Memory(base, _LANES * number)
                _ROUNDING.store(asm, into.masked(TAIL_MASK) if is_tail else into, byte, value)
