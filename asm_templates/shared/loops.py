"""Loops, and jumps in long straight-line code.

    repeat, counted_down, counted_up   turns that count down to zero, or an index up to its end
    emit_spans                         a few vectors of arrays a turn, the rest under masks
    fetch_redirects                    jumps to the next instruction; code stays decoded

Jumps in straight-line code:

    step 0 .. step 15, jmp next, step 16 .. step 31, jmp next, ...      150 to 500 bytes each

While it decodes, the processor looks up its cache of decoded instructions at taken jumps only:
after one miss it decodes all code that follows in a straight line. With a jump every 16 steps, a
miss spoils only these. If all code is kept decoded, or none, jumps make no difference
(docs/kernels/memory.md); the data of a core say whether it gains.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.shared.rows import load, store
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler, Line, line
from sparsejit.x86.operands import Memory, Register, Relative, dword, rax


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


@dataclass(frozen=True)
class Span:
    """A few consecutive vectors that code handles at a time, at the same place of several arrays.

    `firsts` has the number of each vector's first element. In a loop it counts from the element
    that the register `index` has reached, in bytes; `index` is None outside the loop. Only the last
    vector outside the loop may reach past `length`; its elements beyond are loaded as zero and not
    stored.
    """

    asm: Assembler
    firsts: Sequence[int]
    length: int
    index: Register | None

    def load(
        self, register: Register, base: Register, position: int, scratch: Register, skip: int = 0
    ) -> None:
        """register = vector `position` of the array `skip` floats from base. May use scratch."""
        first = skip + self.firsts[position]
        if self.index is None:
            load(self.asm, register, base, first, skip + self.length, scratch)
        else:
            self.asm.emit("vmovups", register, Memory(base, 4 * first, self.index))

    def store(self, register: Register, base: Register, position: int, scratch: Register) -> None:
        """Vector `position` of the array at base = register. May use scratch."""
        first = self.firsts[position]
        if self.index is None:
            store(self.asm, register, base, first, self.length, scratch)
        else:
            self.asm.emit("vmovups", Memory(base, 4 * first, self.index), register)


def emit_spans(asm: Assembler, length: int, vectors: int, body: Callable[[Span], None]) -> None:
    """Append `body` for spans of at most `vectors` vectors that cover `length` floats.

    Clobbers rax, which counts the loop; the body must leave it alone there.
    """
    lanes = asm.target.lanes
    step = vectors * lanes
    looped = length // step * step
    if looped:
        asm.emit("xor", dword(rax), dword(rax))
        with counted_up(asm, rax, 4 * step, 4 * looped):
            body(Span(asm, range(0, step, lanes), length, rax))
    if looped < length:
        body(Span(asm, range(looped, length, lanes), length, None))


_STEPS = 16


def fetch_redirects(steps: int, target: Target, every: int = _STEPS) -> Line:
    """Return the line of jumps to the next instruction, before every `every`-th of `steps` steps.

    Cores that gain nothing by them get none.
    """
    now = (np.arange(1, steps + 1) % every == 0) & target.core.redirects
    return line("jmp", Relative("next"), when=now)
