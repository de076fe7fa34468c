"""Loops whose number of turns is known when the code is written."""

from collections.abc import Callable

from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register, dword, rax


def repeat(
    asm: Assembler, times: int, counter: Register | Memory, body: Callable[[], None]
) -> None:
    """Append `body` to run `times` times; it must keep `counter`, which a single turn does not use.

    Counting in memory clobbers rax.
    """
    if times == 0:
        return
    again = asm.label("again")
    register = rax if isinstance(counter, Memory) else counter
    if times > 1:
        asm.emit("mov", dword(register), times)
        if register != counter:
            asm.emit("mov", counter, register)
        asm.bind(again)
    body()
    if times > 1:
        if register != counter:
            asm.emit("mov", register, counter)
        asm.emit("sub", dword(register), 1)
        if register != counter:
            asm.emit("mov", counter, register)
        asm.jump("jnz", again)
