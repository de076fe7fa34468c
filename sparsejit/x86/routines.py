"""Routines that an image calls at several places, and registers and room on the stack.

    call_routine       a call of code that is appended once
    push, pop          registers saved on the stack
    reserve, make_room room on the stack: of any size by steps that are known, or aligned by a loop
    slots              slots there
    LARGEST_WORKSPACE  the room that a kernel of a batch may take
    flush_denormals    denormal numbers count as zero

A routine:

    call body;  jmp behind
    body:  ...  ret                                   at the first call
    behind:
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import POOL_ALIGNMENT, Assembler, Label
from sparsejit.x86.image import COMMON
from sparsejit.x86.operands import Memory, Register, dword, rax, rsp


def call_routine(asm: Assembler, key: Hashable, emit_body: Callable[[Assembler], None]) -> None:
    """Call the code that `emit_body` appends; for an equal key it is appended once.

    In the body rsp is 8 bytes below the caller's; the body falls through to its return.
    """
    if key in asm.routines:
        asm.jump("call", asm.routines[key])
        return
    body, behind = asm.label("body"), asm.label("behind the body")
    asm.routines[key] = body
    asm.jump("call", body)
    asm.jump("jmp", behind)
    asm.align(POOL_ALIGNMENT)
    asm.bind(body)
    emit_body(asm)
    asm.emit("ret")
    asm.bind(behind)


def far_routine(asm: Assembler, key: Hashable) -> Label | None:
    """Return the routine that another image of the neighbourhood shares under this key, or None."""
    place = None if asm.common is None else asm.common.routine(key)
    return None if place is None else Label("routine in common", COMMON + place)


def share_routine(asm: Assembler, key: Hashable, label: Label) -> None:
    """Share the code at a label, which must end in a return, with later images."""
    asm.for_others[key] = label


PAGE = 4096  # bytes
# Most bytes of the stack that a kernel of a batch may take, beside saved registers and the pages
# that they are rounded up to. Threads have 8 MiB by default, and 1 or 2 MiB if a program or another
# C library sets that.
LARGEST_WORKSPACE = 1 << 20


def push(asm: Assembler, registers: Sequence[Register]) -> None:
    """Save the registers on the stack, in order."""
    for register in registers:
        asm.emit("push", register)


def pop(asm: Assembler, registers: Sequence[Register]) -> None:
    """Restore the registers that `push` saved."""
    for register in reversed(registers):
        asm.emit("pop", register)


def reserve(asm: Assembler, size: int) -> None:
    """rsp -= size; clobbers nothing but flags.

    Each page on the way is touched, for systems that let a stack grow by one page at a time. What
    lies within half a page is touched by the next call or push.
    """
    asm.count_frame(size)
    while size > PAGE // 2:
        step = min(size, PAGE)
        asm.emit("sub", rsp, step)
        asm.emit("mov", Memory(rsp), rax)
        size -= step
    if size:
        asm.emit("sub", rsp, size)


def make_room(asm: Assembler, size: int, alignment: int = 64) -> None:
    """rsp = room for `size` bytes, aligned to `alignment`; clobbers rax.

    rsp moves page by page and each page is touched, since the stack grows on demand only.
    """
    asm.count_frame(size + alignment)
    again = asm.label("again")
    asm.emit("mov", dword(rax), ceil_div(size + alignment, PAGE))
    asm.bind(again)
    asm.emit("sub", rsp, PAGE)
    asm.emit("mov", Memory(rsp), rax)
    asm.emit("sub", dword(rax), 1)
    asm.jump("jnz", again)
    asm.emit("and", rsp, -alignment)


def slots(base: Register, count: int, first: int = 0, step: int = 8) -> list[Memory]:
    """Return `count` places, the fields of a frame: `first` bytes from `base`, `step` apart."""
    return [Memory(base, first + step * number) for number in range(count)]


# MXCSR: denormal results and operands become zero (Intel SDM 1, 10.2.3).
_FLUSH_TO_ZERO = 1 << 15 | 1 << 6


def flush_denormals(asm: Assembler, before: Memory, flushing: Memory) -> None:
    """Let denormal numbers count as zero; `before` = MXCSR, to be restored. Clobbers rax.

    Both are places of 4 bytes.
    """
    asm.emit("stmxcsr", before)
    asm.emit("mov", dword(rax), before)
    asm.emit("or", dword(rax), _FLUSH_TO_ZERO)
    asm.emit("mov", flushing, dword(rax))
    asm.emit("ldmxcsr", flushing)
