"""What a native function does besides its steps where their times are wanted.

Both keep int64 slots in the workspace; neither changes what the function computes but that steps
may be left out.
"""

from dataclasses import dataclass
from typing import Protocol

from sparsejit.asm_templates.shared.location import WORKSPACE
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import Memory, rax, rcx, rdx

SLOT_BYTES = 8


class Probe(Protocol):
    """Code before the first step (`number` 0) and behind each, which may use rax, rcx and rdx."""

    def emit(self, asm: Assembler, number: int, end: Label) -> None: ...


@dataclass(frozen=True)
class StampProbe:
    """Adds the ticks of step n, counted from 1, to slot 1 + n.

    Slot 0 has the tick of the last stamp, slot 1 the ticks of a stamp behind a stamp. The counter
    is read without waiting for earlier instructions, so that steps overlap as they do otherwise.
    """

    first_slot: int

    def emit(self, asm: Assembler, number: int, end: Label) -> None:
        if number == 0:
            _read_counter(asm)
            asm.emit("mov", Memory(WORKSPACE, self.first_slot), rax)
        _read_counter(asm)
        last = Memory(WORKSPACE, self.first_slot)
        slot = Memory(WORKSPACE, self.first_slot + SLOT_BYTES * (1 + number))
        asm.emit("mov", rcx, rax)
        asm.emit("sub", rcx, last)
        asm.emit("mov", last, rax)
        asm.emit("add", rcx, slot)
        asm.emit("mov", slot, rcx)


def _read_counter(asm: Assembler) -> None:
    """rax = the time stamp counter."""
    asm.emit("rdtsc")
    asm.emit("shl", rdx, 32)
    asm.emit("or", rax, rdx)


@dataclass(frozen=True)
class PrefixProbe:
    """Leaves the steps out behind as many as slot 0 says."""

    first_slot: int

    def emit(self, asm: Assembler, number: int, end: Label) -> None:
        asm.emit("mov", rax, Memory(WORKSPACE, self.first_slot))
        asm.emit("cmp", rax, number)
        asm.jump("je", end)
