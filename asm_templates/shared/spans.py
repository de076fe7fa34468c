"""Loops over arrays, a few vectors at a time: full vectors in a loop, the rest under masks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparsejit.asm_templates.shared.loops import counted_up
from sparsejit.asm_templates.shared.rows import load, store
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register, dword, rax


@dataclass(frozen=True)
class Span:
    """A few consecutive vectors of every array in the walk.

    `firsts` are the numbers of their first elements, less the count of elements that the loop
    register `index` has passed (in bytes; None outside the loop). Only the last vector outside
    the loop may reach past `length`; its elements beyond are loaded as zero and not stored.
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
