"""Counted loops: turns that count down to zero, or an index that runs up to its end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register, dword, rax


def repeat(
    asm: Assembler, times: int, counter: Register | Memory, body: Callable[[], None]
) -> None:
    """Append `body` to run `times` times; it must keep `counter`, which a single turn does not use.

    Counting in memory clobbers rax.
    """
    if times == 1:
        body()
    elif times:
        with counted_down(asm, counter if isinstance(counter, Memory) else dword(counter), times):
            body()


@contextmanager
def counted_down(
    asm: Assembler, counter: Register | Memory, times: int | Memory | None = None
) -> Iterator[None]:
    """Append the code of the block as a loop of at least one turn, until `counter` is zero.

    The counter, a register of either width or a place in memory, starts at `times`; without it, at
    its value, which is not zero. The block must keep it. Counting in memory clobbers rax.
    """
    register = dword(rax) if isinstance(counter, Memory) else counter
    if times is not None:
        asm.emit("mov", register, times)
        if register != counter:
            asm.emit("mov", counter, rax)
    again = asm.label("again")
    asm.bind(again)
    yield
    if register != counter:
        asm.emit("mov", rax, counter)
    asm.emit("sub", register, 1)
    if register != counter:
        asm.emit("mov", counter, rax)
    asm.jump("jnz", again)


@contextmanager
def counted_up(
    asm: Assembler, index: Register | Memory, step: int, end: int | Register
) -> Iterator[None]:
    """Append the code of the block as a loop of at least one turn, while `index` is below `end`.

    The index advances by `step` behind the block, which must keep it. An index in memory clobbers
    rax.
    """
    register = rax if isinstance(index, Memory) else index
    again = asm.label("again")
    asm.bind(again)
    yield
    if register != index:
        asm.emit("mov", register, index)
    asm.emit("add", register, step)
    if register != index:
        asm.emit("mov", index, register)
    asm.emit("cmp", register, end)
    asm.jump("jb", again)
