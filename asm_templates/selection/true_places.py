"""The places of the true elements of a mask, one after another.

    places[count] = place; count += mask[place]     for each place, without a branch
    places[count ...] = 0
"""

from sparsejit.asm_templates.shared.loops import counted_up
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, dword, r8, rax, rcx, rdi, rdx, rsi

_INDEX = 8


def emit_true_places(asm: Assembler, length: int) -> None:
    """Append the search through a mask of `length` elements, 1 or more.

    rdi: mask, a byte of 0 or 1 each; rsi: places, int64 (length,); rdx: their number, int64. The
    places behind the last become 0. Clobbers rax, rcx and r8.
    """
    for register in (rax, r8):
        asm.emit("xor", dword(register), dword(register))
    filled, fill = asm.label("all places"), asm.label("next zero")
    with counted_up(asm, rax, 1, length):
        asm.emit("mov", Memory(rsi, 0, r8, _INDEX), rax)
        asm.emit("movzx", dword(rcx), Memory(rdi, 0, rax))
        asm.emit("add", r8, rcx)
    asm.emit("mov", Memory(rdx), r8)
    asm.emit("xor", dword(rax), dword(rax))
    asm.bind(fill)
    asm.emit("cmp", r8, length)
    asm.jump("jae", filled)
    asm.emit("mov", Memory(rsi, 0, r8, _INDEX), rax)
    asm.emit("add", r8, 1)
    asm.jump("jmp", fill)
    asm.bind(filled)
