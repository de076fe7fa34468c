"""Functions of bytes with AVX2, as tables of 256 bytes.

    TableParts     a table as the code reads it
    look_up        the code, for 32 bytes

A table is sixteen parts of sixteen bytes. The low four bits of a byte t choose from a part, by
`vpshufb`; the others choose the part:

    a    = vpshufb part 0, t                        0 where bit 7 of t is set
    b    = vpshufb part 8, t ^ 128                  0 where it is not
    e0   = a | b                                    e1 .. e7 alike
    y    = e0 .. e7 by bits 4, 5 and 6 of t         seven blends

Entries lie less the zero point of the results, which is added to the bytes that are found: a part
that has the zero point alone is zeros, and needs no code, nor do gaps between rows.

Where a table is smooth, an entry is the sum of three bytes, the last of which is half as wide:

    y    = base of its part + slope[t & 15], if t > 127, + difference, from 0 to 15

Parts p and p + 4 lie in the halves of bytes: eight `vpshufb`, four ORs, three blends by bits 4 and
5, and one by bit 6.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Memory, Register

BYTES = 256
_PARTS, _PART, _VECTOR = 16, 16, 32
_HIGH = 128  # bit 7
_HALF = _PARTS // 2
_SMOOTH = 0.7  # of the cycles of sixteen parts


ANY_PARTS = (False,) * _PARTS  # of any table: none is known to be zero
_STEEPEST = 4  # of the slopes that are tried
_MOST_ZERO = 3  # parts; with more, sixteen parts have less code than differences


@dataclass(frozen=True)
class TableParts:
    """A table of 256 bytes in parts.

    entries: the table less the zero point of its results; or parts of differences, two in a byte,
        the base of each part, and the slope.
    is_zero: of each part, whether all its entries are 0; None for differences.
    """

    entries: bytes
    is_zero: tuple[bool, ...] | None

    @classmethod
    def of(cls, table: npt.NDArray[np.uint8], zero_point: int) -> "TableParts":
        """Return a table as the code reads it."""
        parts = table.reshape(_PARTS, _PART) - np.uint8(zero_point)
        is_zero = tuple((parts == 0).all(axis=1).tolist())
        smooth = _differences(parts) if sum(is_zero) <= _MOST_ZERO else None
        return cls(parts.tobytes(), is_zero) if smooth is None else cls(smooth, None)

    @property
    def looked_up(self) -> float:
        """The instructions, as a share of a table of which no part is zero."""
        return _SMOOTH if self.is_zero is None else 1 - sum(self.is_zero) / _PARTS


def _differences(parts: npt.NDArray[np.uint8]) -> bytes | None:
    """Return a table in parts as differences, bases and a slope; None if it is not smooth."""
    relative = (parts - parts[:, :1]).view(np.int8).astype(np.int64)
    place = np.arange(_PART)
    for slope in np.rint(np.linspace(0, _STEEPEST, 8 * _STEEPEST + 1)[:, None] * place):
        above = relative - np.repeat([0 * slope, slope], _HALF, axis=0).astype(np.int64)
        least = above.min(axis=1, keepdims=True)
        if (above - least).max() < _PART:
            halves = (above - least).reshape(2, 2, _HALF // 2, _PART)
            both = (halves[:, 0] | halves[:, 1] << 4).astype(np.uint8)
            base = parts[:, 0] + least[:, 0].astype(np.uint8)
            return b"".join((both.tobytes(), base.tobytes(), slope.astype(np.uint8).tobytes()))
    return None


def look_up(
    asm: Assembler,
    is_zero: Sequence[bool] | None,
    data: Memory,
    values: Register,
    free: Sequence[Register],
) -> None:
    """Append code that replaces each byte of `values` by its entry less the zero point.

    data: the place of the entries. is_zero: as in `TableParts`. Clobbers nine registers, `free`.
    """
    (_Parts if is_zero is not None else _Differences)(asm, is_zero or (), data, values, free).emit()


class _Parts:
    """Appends the code of a table in sixteen parts."""

    pairs = 8  # of parts that an OR chooses from
    bits: tuple[int, ...] = (4, 5, 6)  # that choose a pair, bit by bit

    def __init__(
        self,
        asm: Assembler,
        is_zero: Sequence[bool],
        data: Memory,
        values: Register,
        free: Sequence[Register],
    ) -> None:
        self.asm, self.is_zero, self.data, self.values = asm, is_zero, data, values
        self.other, bit4, bit5, bit6, *self.others = free
        self.at_top = {4: bit4, 5: bit5, 6: bit6}  # each bit moved to bit 7

    def emit(self) -> None:
        asm, values = self.asm, self.values
        asm.emit("vpxor", self.other, values, self._spread(_HIGH))
        for bit in (6, 5, 4):
            above = self.at_top.get(bit + 1, values)
            asm.emit("vpaddb", self.at_top[bit], above, above)
        self._finish(self._chosen(0, len(self.bits), self.others))

    def _finish(self, found: Register) -> None:
        self.asm.emit("vmovdqa", self.values, found)

    def _spread(self, byte: int) -> Literal:
        return Literal(self.asm.literal(np.full(_VECTOR, byte, np.uint8)))

    def _part(self, into: Register, number: int, index: Register) -> None:
        """into = the entries in a part, at the low four bits of `index`; 0 where bit 7 is set."""
        place = self.data._replace(displacement=self.data.displacement + _PART * number)
        self.asm.emit("vbroadcasti128", into, place)
        self.asm.emit("vpshufb", into, into, index)

    def _pair(self, number: int, registers: Sequence[Register]) -> None:
        """Set the first register to the entries in two parts, each 0 for bytes of the other."""
        both = [(number, self.values), (number + self.pairs, self.other)]
        read = [each for each in both if not (self.is_zero and self.is_zero[each[0]])]
        for register, (part, index) in zip(registers, read, strict=False):
            self._part(register, part, index)
        into, more, *_ = registers
        if not read:
            self.asm.emit("vpxor", into, into, into)
        elif len(read) > 1:
            self.asm.emit("vpor", into, into, more)

    def _chosen(self, number: int, level: int, registers: Sequence[Register]) -> Register:
        """Return the register of the entries in 2**level pairs of parts from `number` on."""
        into, *rest = registers
        if not level:
            self._pair(number, registers)
            return into
        self._chosen(number, level - 1, registers)
        upper = self._chosen(number + 2 ** (level - 1), level - 1, rest)
        bit = self.at_top[self.bits[level - 1]]
        self.asm.emit("vpblendvb", into, into, upper, bit)
        return into


class _Differences(_Parts):
    """Appends the code of a smooth table."""

    pairs = 4
    bits = (4, 5)

    def _finish(self, found: Register) -> None:
        asm, values, (upper, base) = self.asm, self.values, self.others[1:3]
        low = self._spread(_PART - 1)
        asm.emit("vpsrlw", upper, found, 4)
        asm.emit("vpblendvb", found, found, upper, self.at_top[6])
        asm.emit("vpand", found, found, low)
        self._part(upper, 2 * self.pairs + 1, self.other)
        asm.emit("vpaddb", found, found, upper)
        asm.emit("vpsrlw", values, values, 4)
        asm.emit("vpand", values, values, low)
        self._part(base, 2 * self.pairs, values)
        asm.emit("vpaddb", values, found, base)
