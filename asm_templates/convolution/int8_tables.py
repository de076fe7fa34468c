"""Functions of bytes with AVX2, as tables of 256 bytes: sixteen parts of sixteen.

    TableParts     a table as the code reads it
    look_up        the code, for 32 bytes

The low four bits of a byte choose from a part, which is `vpshufb`; the others choose the part:

    a    = vpshufb part 0, t                        0 where bit 7 of t is set
    b    = vpshufb part 8, t ^ 128                  0 where it is not
    e0   = a | b                                    e1 .. e7 alike
    y    = e0 .. e7 by bits 4, 5 and 6 of t         seven blends

The table is stored XOR the zero point of its results, and so are the bytes that are found: a part
that has the zero point alone is zeros, and needs no code, nor do gaps between rows.
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


ANY_PARTS = (False,) * _PARTS  # of any table: none is known to be zero


@dataclass(frozen=True)
class TableParts:
    """A table of 256 bytes in parts.

    entries: the table XOR the zero point of its results.
    is_zero: of each part, whether all its entries are 0.
    """

    entries: bytes
    is_zero: tuple[bool, ...]

    @classmethod
    def of(cls, table: npt.NDArray[np.uint8], zero_point: int) -> "TableParts":
        """Return a table as the code reads it."""
        parts = table.reshape(_PARTS, _PART) ^ np.uint8(zero_point)
        return cls(parts.tobytes(), tuple((parts == 0).all(axis=1).tolist()))

    @property
    def looked_up(self) -> float:
        """The share of parts that have code."""
        return 1 - sum(self.is_zero) / _PARTS


def look_up(
    asm: Assembler,
    is_zero: Sequence[bool],
    data: Memory,
    values: Register,
    free: Sequence[Register],
) -> None:
    """Append code that replaces each byte of `values` by its entry in the parts at `data`.

    is_zero: as in `TableParts`. Clobbers nine registers, `free`.
    """
    other, bit4, bit5, bit6, *others = free
    high = np.full(_VECTOR, _HIGH, np.uint8)
    asm.emit("vpxor", other, values, Literal(asm.literal(high)))
    for made, bit in ((bit6, values), (bit5, bit6), (bit4, bit5)):
        asm.emit("vpaddb", made, bit, bit)
    bits = bit4, bit5, bit6

    def at(place: int) -> Memory:
        return data._replace(displacement=data.displacement + place)

    def entries(part: int, registers: Sequence[Register]) -> None:
        """Set the first register to the entries in two parts, each 0 for bytes of the other."""
        both = [(part, values), (part + _HALF, other)]
        read = [(number, index) for number, index in both if not is_zero[number]]
        for register, (number, index) in zip(registers, read, strict=False):
            asm.emit("vbroadcasti128", register, at(_PART * number))
            asm.emit("vpshufb", register, register, index)
        into, more, *_ = registers
        if not read:
            asm.emit("vpxor", into, into, into)
        elif len(read) > 1:
            asm.emit("vpor", into, into, more)

    def chosen(part: int, level: int, registers: Sequence[Register]) -> Register:
        """Return the register of the entries in 2**level pairs of parts from `part` on."""
        into, *rest = registers
        if not level:
            entries(part, registers)
            return into
        chosen(part, level - 1, registers)
        upper = chosen(part + 2 ** (level - 1), level - 1, rest)
        asm.emit("vpblendvb", into, into, upper, bits[level - 1])
        return into

    asm.emit("vmovdqa", values, chosen(0, len(bits), others))
