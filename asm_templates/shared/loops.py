"""Loops of a number of turns that is known when the code is written."""

from collections.abc import Callable

from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Register, dword


def repeat(asm: Assembler, times: int, counter: Register, body: Callable[[], None]) -> None:
    """Append `body` to run so many times; it keeps `counter`, which one turn alone leaves alone."""
    if times == 0:
        return
    again = asm.label("again")
    if times > 1:
        asm.emit("mov", dword(counter), times)
        asm.bind(again)
    body()
    if times > 1:
        asm.emit("sub", dword(counter), 1)
        asm.jump("jnz", again)
