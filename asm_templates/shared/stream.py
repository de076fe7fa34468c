"""Operands in the pool that are read through a base register and a one-byte displacement.

A base register points into the middle of what one byte of displacement reaches:

    base - reach ... base ... base + reach - 1      in units of the operand (EVEX), bytes (VEX)

What is read in order moves the base on (`Stream`); what is read in any order loads it anew
(`addresses`).
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

    `reach` operands lie to either side of the base; `padding` is that of the operands.
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
        """Operands, once they are in reach."""
        place = self.padding.place(number)
        return Memory(self.base, (place % self.span - self.reach) * self.unit)

    def move(self, number: _Numbers, when: _Flags | bool = True) -> Line:
        """The line before each operand that moves the base on where it is out of reach."""
        moves = self._is_out_of_reach(number) & when
        return line("add", self.base, self.span * self.unit, when=moves)

    def next_at(self, number: int) -> Memory:
        """One operand of the run, brought in reach; call in order."""
        if self._is_out_of_reach(np.array(number)):
            self.asm.emit("add", self.base, self.span * self.unit)
        return self.at(np.array(number))

    def leave(self, count: int) -> None:
        """After `count` operands, point at those of the next run."""
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
    """Cut byte addresses into spans of what a displacement in units of so many bytes reaches."""
    span = 2 * REACH * unit
    window = address // span
    return Addresses(
        window * span + span // 2,
        address % span - span // 2,
        np.diff(window, prepend=-1) != 0,
    )
