"""Operands in the pool that are read through a base register and a one-byte displacement.

A base register points to the middle of the range of a one-byte displacement:

    base - reach ... base ... base + reach - 1      in units of the operand (EVEX), bytes (VEX)

For operands that are read in order the base advances (`Stream`); for operands in any order it is
loaded again (`addresses`).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.shared.padding import DENSE, StridePadding
from sparsejit.x86.assembler import Assembler, Line, line
from sparsejit.x86.operands import Literal, Memory, Register

REACH = 128  # units to either side that a one-byte displacement reaches

_Numbers = npt.NDArray[np.integer]
_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Stream:
    """Operands of `unit` bytes that a run reads in order, numbered from its start.

    `reach` operands lie to either side of the base; `padding` is their stride padding.
    """

    asm: Assembler
    base: Register
    unit: int
    reach: int = REACH
    padding: StridePadding = DENSE

    @property
    def span(self) -> int:
        """Operands that one value of the base reaches."""
        return 2 * self.reach

    def point(self, offset: int) -> None:
        """Point at the operands that begin at `offset` in the pool."""
        self.asm.emit("lea", self.base, Literal(offset + self.reach * self.unit))

    def at(self, number: _Numbers) -> Memory:
        """Return the memory operands of these numbers, which must be in reach."""
        place = self.padding.place(number)
        return Memory(self.base, (place % self.span - self.reach) * self.unit)

    def move(self, number: _Numbers, when: _Flags | bool = True) -> Line:
        """Return the line that advances the base before operands that are out of reach."""
        moves = self._is_out_of_reach(number) & when
        return line("add", self.base, self.span * self.unit, when=moves)

    def next_at(self, number: int) -> Memory:
        """Return one operand of the run, advancing the base if needed; call in order."""
        if self._is_out_of_reach(np.array(number)):
            self.asm.emit("add", self.base, self.span * self.unit)
        return self.at(np.array(number))

    def leave(self, count: int) -> None:
        """Point at the operands of the next run, after `count` operands."""
        moved = self.padding.place(max(count - 1, 0)) // self.span * self.span
        room = self.padding.room(count)
        if room > moved:
            self.asm.emit("add", self.base, (room - moved) * self.unit)

    def _is_out_of_reach(self, number: _Numbers) -> _Flags:
        place = self.padding.place(number)
        out: _Flags = (place > 0) & (place % self.span == 0)
        return out


@dataclass(frozen=True, eq=False)
class Addresses:
    """Byte addresses in any order: a base, loaded where it `moves`, and a displacement."""

    base: _Numbers
    displacement: _Numbers
    moves: _Flags


def addresses(address: _Numbers, unit: int) -> Addresses:
    """Cut byte addresses into the spans that a displacement in units of `unit` bytes reaches."""
    span = 2 * REACH * unit
    window = address // span
    return Addresses(
        window * span + span // 2,
        address % span - span // 2,
        np.diff(window, prepend=-1) != 0,
    )
