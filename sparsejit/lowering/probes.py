"""Probes: code between the steps of a native function, for measuring their times.

Both probes keep int64 slots in the workspace; neither changes results, except that `PrefixProbe`
can leave steps out. Their code stands before the first step (`number` 0) and after each, and may
clobber rax, rcx and rdx.
"""

from dataclasses import dataclass

from sparsejit.asm_templates.shared.location import WORKSPACE
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import Memory, rax, rcx, rdx

SLOT_BYTES = 8


@dataclass(frozen=True)
class StampProbe:
    """Adds the ticks of step n, counted from 1, to slot 1 + n.

    Slot 0 holds the tick of the last stamp, slot 1 the overhead of an empty probe, in ticks. The
    counter is read without waiting for earlier instructions, so that steps overlap as they do
    without probes.
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
    """A probe that ends the run after the number of steps that slot 0 has."""

    first_slot: int

    def emit(self, asm: Assembler, number: int, end: Label) -> None:
        asm.emit("mov", rax, Memory(WORKSPACE, self.first_slot))
        asm.emit("cmp", rax, number)
        asm.jump("je", end)


Probe = StampProbe | PrefixProbe
