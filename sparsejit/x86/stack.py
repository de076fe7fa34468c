"""What functions put on the stack and take back."""

from collections.abc import Sequence

from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register, dword, rax, rsp

_PAGE = 4096


def push(asm: Assembler, registers: Sequence[Register]) -> None:
    """Save them, the first one first."""
    for register in registers:
        asm.emit("push", register)


def pop(asm: Assembler, registers: Sequence[Register]) -> None:
    """Restore what `push` of the same registers saved."""
    for register in reversed(registers):
        asm.emit("pop", register)


def make_room(asm: Assembler, size: int, alignment: int = 64) -> None:
    """rsp = room for `size` bytes at such an address; clobbers rax.

    Page by page, touching each: the stack grows on demand only.
    """
    again = asm.label("again")
    asm.emit("mov", dword(rax), -(-(size + alignment) // _PAGE))
    asm.bind(again)
    asm.emit("sub", rsp, _PAGE)
    asm.emit("mov", Memory(rsp), rax)
    asm.emit("sub", dword(rax), 1)
    asm.jump("jnz", again)
    asm.emit("and", rsp, -alignment)
