"""From int32 sums of bytes to bytes: scale, bias, what is added, rounding, gaps.

    y = clip(round(sum * scale + bias) + zero, least, most)             ties to even
    or, where bytes of another image are added to those that the sums become,
    t = clip(round(sum * scale + bias), ...);  y = clip(round(t * s1 + (a - za) * s2) + zero, ...)
    or, where the bias comes behind the first rounding,
    t = clip(round(sum * scale), ...);         y = clip(round(t * s1 + bias) + zero, ...)
    or, behind a function of one byte,
    t = clip(round(sum * scale + bias) + zt, ...);  y = table[t]

Four registers of sums hold, in each 16 bytes, positions 0 to 3, 4 to 7, 8 to 11 and 12 to 15:
what packing with saturation brings back into their order. Or they hold 16 positions each.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.shared.rows import zero
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register, k, rcx, zmm

# By the word at which it lies in what `constants` returns; each is read into all lanes.
_LARGEST, _GAP, _ZERO, _LEAST, _MOST, _FLOOR, _CEILING, _OWN, _ADDED, _BASE = range(10)
_FIRST = 20  # register of the first of them
_SCALE, _BIAS, _EMPTY, _OTHERS = zmm(13), zmm(14), zmm(15), zmm(16)
MASK = zmm(31)
_UPPER = k(1)
_TABLE_BASE = rcx
_BLEND = 0xCA  # vpternlogd: the second operand where the first has ones, else the third
_NEAREST = 0  # vrndscaleps: to integers, ties to even
_TOO_LARGE = 65536.0  # beyond any byte; what 32 bits do not hold becomes their least number
_TABLE = 64  # bytes from the constants to the table


@dataclass(frozen=True)
class ByteEpilogue:
    """What becomes of sums; numbers of zero points are among 0 .. 255.

    zero: of y; gaps hold it too.
    least, most: of y, as an activation has them.
    cuts: whether values may be more than an int32 holds.
    own: (scale over y's, zero point) of what the sums become before more is done to it.
    added: the same of bytes that are added; None where there are none.
    late: whether a bias comes behind that.
    table: what becomes of each byte then, and their zero point; None if there is no such function.
    """

    zero: int
    least: int = 0
    most: int = 255
    cuts: bool = False
    own: tuple[float, int] | None = None
    added: tuple[float, int] | None = None
    late: bool = False
    table: tuple[npt.NDArray[np.uint8], int] | None = None

    @property
    def packed_zero(self) -> int:
        """The zero point of the bytes that are packed: those that a table reads if there is one."""
        return self.zero if self.table is None else self.table[1]

    @property
    def code(self) -> tuple[bool, ...]:
        """All that the code depends on."""
        return (
            self.added is not None,
            self.late,
            self.table is not None,
            self.cuts,
            self.packed_zero > 0,
            self.least > 0,
            self.most < 255,
        )

    def constants(self) -> npt.NDArray[np.uint8]:
        """The bytes that the code reads."""
        own_scale, own_zero = self.own or (1.0, 0)
        scale, added_zero = self.added or (0.0, 0)
        floats = [-own_zero, 255 - own_zero, own_scale, scale, -added_zero * np.float32(scale)]
        words = [
            np.float32(_TOO_LARGE).tobytes(),
            bytes([self.zero] * 4),
            np.array([self.packed_zero] * 2, np.int16).tobytes(),
            bytes([self.least] * 4),
            bytes([self.most] * 4),
            np.array(floats, np.float32).tobytes(),
        ]
        if self.table is not None:
            words.append(bytes(_TABLE - len(b"".join(words))) + self.table[0].tobytes())
        return np.frombuffer(b"".join(words), np.uint8)


class ByteResults:
    """Appends the code; keeps the registers from `_FIRST` on."""

    def __init__(self, asm: Assembler, epilogue: ByteEpilogue) -> None:
        self.asm, self.epilogue = asm, epilogue
        names = (_LARGEST, _GAP, _ZERO, _LEAST, _MOST, _FLOOR, _CEILING, _OWN, _ADDED, _BASE)
        self.kept = {name: zmm(_FIRST + name) for name in names}

    def load_constants(self, base: Register) -> None:
        """From what lies at `base`."""
        for name, register in self.kept.items():
            self.asm.emit("vpbroadcastd", register, Memory(base, 4 * name))
        zero(self.asm, _EMPTY)

    @property
    def gap(self) -> Register:
        """The register of the zero point in all bytes."""
        return self.kept[_GAP]

    def finish(
        self,
        sums: list[Register],
        row: Register,
        y: Memory,
        added: Memory,
        constants: Memory,
        order: Register | None = None,
    ) -> None:
        """y = the bytes of one, two or four registers of sums, whose scale and biases lie at `row`.

        `order`: what brings dwords into order where sums are of positions in their order.

        `constants`: where the address that `load_constants` was given is kept. Clobbers rcx where
        there is a table.
        """
        asm, kept, epilogue = self.asm, self.kept, self.epilogue
        asm.emit("vbroadcastss", _SCALE, Memory(row, 4))
        asm.emit("vbroadcastss", _BIAS, Memory(row, 8))
        for total in sums:
            asm.emit("vcvtdq2ps", total, total)
            asm.emit("vfmadd213ps", total, _SCALE, _BIAS)
        if epilogue.added is not None:
            self._add(sums, added, order)
        elif epilogue.late:
            self._add_late(sums, row)
        elif epilogue.cuts:
            for total in sums:
                asm.emit("vminps", total, total, kept[_LARGEST])
        for total in sums:
            asm.emit("vcvtps2dq", total, total)
        for first, next_one in zip(sums[::2], sums[1::2] or sums, strict=True):
            asm.emit("vpackssdw", first, first, next_one)
            if epilogue.packed_zero:
                asm.emit("vpaddsw", first, first, kept[_ZERO])
        low, high = sums[0], sums[len(sums) // 4 * 2]
        asm.emit("vpackuswb", low, low, high)
        if order is not None:
            asm.emit("vpermd", low, order, low)
        if epilogue.least:
            asm.emit("vpmaxub", low, low, kept[_LEAST])
        if epilogue.most < 255:
            asm.emit("vpminub", low, low, kept[_MOST])
        if epilogue.table is not None:
            self._look_up(low, constants)
        self.store(low, y)

    def store(self, values: Register, y: Memory) -> None:
        """The bytes of a vector where the mask has positions, the zero point in gaps.

        All of those that y's own mask has, if it has one.
        """
        if y.mask:
            self.asm.emit("vmovdqu8", y, values)
            return
        self.asm.emit("vmovdqa64", _OTHERS, MASK)
        self.asm.emit("vpternlogd", _OTHERS, values, self.gap, _BLEND)
        self.asm.emit("vmovdqu64", y, _OTHERS)

    def _look_up(self, values: Register, constants: Memory) -> None:
        """Each byte = that of the table: of its first half, or of its second."""
        asm, parts, other = self.asm, [zmm(number) for number in range(4, 8)], zmm(8)
        asm.emit("mov", _TABLE_BASE, constants)
        for number, part in enumerate(parts):
            asm.emit("vmovdqu64", part, Memory(_TABLE_BASE, _TABLE + 64 * number))
        asm.emit("vpmovb2m", _UPPER, values)
        asm.emit("vmovdqa64", other, values)
        asm.emit("vpermi2b", values, *parts[:2])
        asm.emit("vpermi2b", other, *parts[2:])
        asm.emit("vmovdqu8", values.masked(_UPPER), other)

    def _add_late(self, sums: list[Register], row: Register) -> None:
        asm, kept = self.asm, self.kept
        asm.emit("vbroadcastss", _BIAS, Memory(row, 12))
        for total in sums:
            self._cut_to_own(total)
            asm.emit("vfmadd213ps", total, kept[_OWN], _BIAS)

    def _cut_to_own(self, total: Register) -> None:
        asm, kept = self.asm, self.kept
        asm.emit("vrndscaleps", total, total, _NEAREST)
        asm.emit("vmaxps", total, total, kept[_FLOOR])
        asm.emit("vminps", total, total, kept[_CEILING])

    def _add(self, sums: list[Register], added: Memory, order: Register | None) -> None:
        asm, kept, parts = self.asm, self.kept, [zmm(number) for number in range(4, 8)]
        asm.emit("vmovdqu64", _OTHERS, added)
        if order is not None:
            asm.emit("vpermd", _OTHERS, order, _OTHERS)
        halves = zmm(8), zmm(9)
        asm.emit("vpunpcklbw", halves[0], _OTHERS, _EMPTY)
        asm.emit("vpunpckhbw", halves[1], _OTHERS, _EMPTY)
        for number, part in enumerate(parts):
            which = "vpunpckhwd" if number % 2 else "vpunpcklwd"
            asm.emit(which, part, halves[number // 2], _EMPTY)
        for total, part in zip(sums, parts, strict=True):
            asm.emit("vcvtdq2ps", part, part)
            asm.emit("vfmadd213ps", part, kept[_ADDED], kept[_BASE])
            self._cut_to_own(total)
            asm.emit("vfmadd213ps", total, kept[_OWN], part)
