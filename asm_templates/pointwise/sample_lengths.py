"""Steps of a loop over time for samples of several lengths, some of which have ended.

    t < length    h[t], state = cell(...)
    else          h[t] = 0, the state stays

rbx counts the steps that are left, from the number of all steps down to 1.
"""

from collections.abc import Callable

from sparsejit.asm_templates.shared.loops import Span, counted_down, emit_spans
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, dword, r8, r10, r11, rax, rbx, rcx, rdi, rsi

_VECTORS_IN_STEP = 8
_INDEX = 8


def emit_length_check(asm: Assembler, batch: int, time: int) -> None:
    """Append code: r10 = 1 if any of `batch` lengths, int64 at r11, is not in 0 .. time, else 0.

    Clobbers rcx and r11.
    """
    fits = asm.label("length fits")
    asm.emit("xor", dword(r10), dword(r10))
    with counted_down(asm, rcx, batch):
        asm.emit("mov", rax, Memory(r11))
        asm.emit("cmp", rax, time)
        asm.jump("jbe", fits)
        asm.emit("mov", dword(r10), 1)
        asm.bind(fits)
        asm.emit("add", r11, _INDEX)


def emit_within_length(
    asm: Assembler, time: int | None, hidden: int, update: Callable[[], None]
) -> None:
    """Append `update` under a condition: this step of time lies within the sample's length, at r11.

    With `time` the steps count up from 0, without it down to 0. A sample that has ended gets zeros
    in the `hidden` floats at r8. Clobbers rax, the vector registers and k7.
    """
    ended, done = asm.label("sample has ended"), asm.label("sample is done")
    if time is None:
        asm.emit("mov", rax, rbx)
        asm.emit("sub", rax, 1)
    else:
        asm.emit("mov", rax, time)
        asm.emit("sub", rax, rbx)
    asm.emit("cmp", rax, Memory(r11))
    asm.jump("jge", ended)
    update()
    asm.jump("jmp", done)
    asm.bind(ended)
    _emit_zeros(asm, hidden)
    asm.bind(done)


def _emit_zeros(asm: Assembler, length: int) -> None:
    zero, spare = vector(asm, 0), vector(asm, 1)
    asm.emit("vxorps", zero, zero, zero)

    def body(span: Span) -> None:
        for position in range(len(span.firsts)):
            span.store(zero, r8, position, spare)

    emit_spans(asm, length, _VECTORS_IN_STEP, body)


def emit_copy(asm: Assembler, length: int) -> None:
    """Append a copy of `length` floats from rdi to rsi. Clobbers rax, vector registers and k7."""

    def body(span: Span) -> None:
        spare, *held = (vector(asm, number) for number in range(_VECTORS_IN_STEP + 1))
        for position in range(len(span.firsts)):
            span.load(held[position], rdi, position, spare)
        for position in range(len(span.firsts)):
            span.store(held[position], rsi, position, spare)

    emit_spans(asm, length, _VECTORS_IN_STEP, body)
