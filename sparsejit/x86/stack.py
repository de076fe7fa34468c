"""Registers saved on the stack, room on it, and slots there."""

from collections.abc import Sequence

from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register, dword, rax, rsp

_PAGE = 4096


def push(asm: Assembler, registers: Sequence[Register]) -> None:
    """Save the registers on the stack, in order."""
    for register in registers:
        asm.emit("push", register)


def pop(asm: Assembler, registers: Sequence[Register]) -> None:
    """Restore the registers that `push` saved."""
    for register in reversed(registers):
        asm.emit("pop", register)


def make_room(asm: Assembler, size: int, alignment: int = 64) -> None:
    """rsp = room for `size` bytes, aligned to `alignment`; clobbers rax.

    It goes page by page and touches each, since the stack grows on demand only.
    """
    again = asm.label("again")
    asm.emit("mov", dword(rax), ceil_div(size + alignment, _PAGE))
    asm.bind(again)
    asm.emit("sub", rsp, _PAGE)
    asm.emit("mov", Memory(rsp), rax)
    asm.emit("sub", dword(rax), 1)
    asm.jump("jnz", again)
    asm.emit("and", rsp, -alignment)


def slots(base: Register, count: int, first: int = 0, step: int = 8) -> list[Memory]:
    """Return `count` places, the fields of a frame: `first` bytes from `base`, `step` apart."""
    return [Memory(base, first + step * number) for number in range(count)]
