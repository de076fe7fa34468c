"""Native counts of codes in texts, and sums over what a text has, as readers of texts emit them.

    emit_begin    no code is seen, in the first text
    emit_count    count[seen[code]] += 1, or a new count
    emit_end      no code is seen, in the next text; if asked, result[text] = sum of
                  value * weights[code] / norm, with value = values[count] * frequencies[code]

A count is packed into one number, text << 48 | code << 17 | count. Codes that nobody counts are
text << 32 | code. Where steps may be negative, BIAS is added to each count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.whole_numbers import round_up
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import (
    Memory,
    Register,
    dword,
    r8,
    r9,
    r10,
    r11,
    r13,
    rax,
    rcx,
    rdi,
    rdx,
    rsi,
    rsp,
    xmm,
    ymm,
)

Array = npt.NDArray[Any]

NORMS = ("", "l1", "l2")
# Bits of a packed count, which a text of less than 2**COUNT_BITS tokens fits, and of a code.
COUNT_BITS, CODE_BITS = 17, 31
BIAS = 1 << COUNT_BITS - 1
KEY_BITS = 32  # bits of a code that nobody counts
MOST_TEXTS = 1 << 15
# The first arguments of a reader, as int64 in an array; its own ones follow.
SEEN, _VALUES, _FREQUENCIES, _WEIGHTS, _PITCH, _NORM, ARGUMENTS = range(7)
# Places on the stack: the first code, the first of a text, the text, and the next row of sums.
FRAME = 40  # bytes of the stack, which is aligned to 16 bytes at calls
LENGTH, FIRST, _OWN, _TEXT, ROW = range(5)
_VECTOR = 4  # doubles


class TokenSums(NamedTuple):
    """The terms of a sum over the tokens of a text, all float64.

    A code that a text has n times has the value values[n] * frequencies[code], which is divided by
    the norm of all of a text, one of NORMS, and multiplied by weights[code] (codes, outputs).
    `values` are (2**COUNT_BITS,), from -BIAS on where steps may be negative.
    """

    values: Array
    frequencies: Array
    weights: Array
    norm: str


class Summing:
    """Arguments of a reader that writes sums, and the arrays that it writes."""

    def __init__(self, arguments: Array, terms: TokenSums) -> None:
        self._outputs = outputs = terms.weights.shape[1]
        self._pitch = outputs if outputs < _VECTOR else round_up(outputs, _VECTOR)
        weights = np.zeros((len(terms.weights), self._pitch))
        weights[:, :outputs] = terms.weights
        values, frequencies = (
            np.ascontiguousarray(each, np.float64) for each in (terms.values, terms.frequencies)
        )
        self._held = values, frequencies, weights
        self.arguments = arguments.copy()
        self.arguments[_VALUES:_PITCH] = [each.ctypes.data for each in self._held]
        self.arguments[_PITCH:ARGUMENTS] = 8 * self._pitch, NORMS.index(terms.norm)

    def new(self, texts: int) -> Array:
        """An array for the sums of some texts."""
        return np.empty((texts, self._pitch))

    def result(self, written: Array) -> Array:
        """The sums in an array that was written, (texts, outputs)."""
        if self._pitch == self._outputs:
            return written
        return np.ascontiguousarray(written[:, : self._outputs])


def emit_begin(asm: Assembler) -> None:
    """Store the first code's address, in r13, and the number of the first text. Clobbers rax."""
    asm.emit("xor", dword(rax), dword(rax))
    for place, register in ((FIRST, r13), (_OWN, r13), (_TEXT, rax)):
        asm.emit("mov", Memory(rsp, 8 * place), register)


def emit_count(asm: Assembler, following: Label, step: Register | int = 1) -> None:
    """Count the code in r10, or pack it there, to be written, where the text has it first.

    rsi: for each code, the number of its count among all, or 0. Clobbers rax, rcx, rdx.
    """
    is_new = asm.label("new")
    asm.emit("test", r10, r10)
    asm.jump("js", following)
    asm.emit("mov", rcx, Memory(rsp, 8 * FIRST))
    asm.emit("mov", dword(rax), Memory(rsi, 0, r10, 4))
    asm.emit("test", dword(rax), dword(rax))
    asm.jump("jz", is_new)
    asm.emit("mov", rdx, Memory(rcx, -8, rax, 8))
    asm.emit("add", rdx, step)
    asm.emit("mov", Memory(rcx, -8, rax, 8), rdx)
    asm.jump("jmp", following)
    asm.bind(is_new)
    asm.emit("mov", rax, r13)
    asm.emit("sub", rax, rcx)
    asm.emit("shr", rax, 3)
    asm.emit("add", rax, 1)
    asm.emit("mov", Memory(rsi, 0, r10, 4), dword(rax))
    asm.emit("shl", r10, COUNT_BITS)
    asm.emit("or", r10, Memory(rsp, 8 * _TEXT))
    asm.emit("add", r10, step)
    if step != 1:
        asm.emit("add", r10, BIAS)


def emit_key(asm: Assembler) -> None:
    """Set r10 to the text and the code in r10, which nobody counts."""
    asm.emit("or", r10, Memory(rsp, 8 * _TEXT))


def emit_end(asm: Assembler) -> None:
    """Append the routine at the end of a text, whose sums are written if asked: no code is seen.

    rsi: as `emit_count`, or 0 where nobody counts. Clobbers rax, rcx, rdx, rdi, r8 to r10, vectors.
    """
    again, end, is_summed, counts = map(asm.label, ("again", "end", "is summed", "counts"))
    asm.emit("mov", rax, 1 << KEY_BITS)
    asm.emit("test", rsi, rsi)
    asm.jump("jnz", counts)
    asm.emit("add", Memory(rsp, 8 * _TEXT + 8), rax)
    asm.emit("ret")
    asm.bind(counts)
    asm.emit("mov", r10, Memory(r11, 8 * _WEIGHTS))
    asm.emit("test", r10, r10)
    asm.jump("jz", is_summed)
    _emit_sums(asm)
    asm.bind(is_summed)
    own, text = (Memory(rsp, 8 * place + 8) for place in (_OWN, _TEXT))
    asm.emit("xor", dword(rdx), dword(rdx))
    asm.emit("mov", rax, own)
    asm.emit("mov", own, r13)
    asm.bind(again)
    asm.emit("cmp", rax, r13)
    asm.jump("jae", end)
    asm.emit("mov", rcx, Memory(rax))
    asm.emit("shr", rcx, COUNT_BITS)
    asm.emit("and", rcx, (1 << CODE_BITS) - 1)
    asm.emit("mov", Memory(rsi, 0, rcx, 4), dword(rdx))
    asm.emit("add", rax, 8)
    asm.jump("jmp", again)
    asm.bind(end)
    asm.emit("mov", rax, 1 << (COUNT_BITS + CODE_BITS))
    asm.emit("add", rax, text)
    asm.emit("mov", text, rax)
    without = asm.label("without sums")
    asm.emit("mov", rax, Memory(r11, 8 * _WEIGHTS))
    asm.emit("test", rax, rax)
    asm.jump("jz", without)
    asm.emit("mov", r13, Memory(rsp, 8 * FIRST + 8))
    asm.emit("mov", own, r13)
    asm.bind(without)
    asm.emit("ret")


def _emit_sums(asm: Assembler) -> None:
    """Write the sums of a text. r10: the weights. rsi is kept."""
    word, scalar, on, summed, end = map(asm.label, ("word", "scalar", "on", "summed", "end"))
    row, pitch = Memory(rsp, 8 * ROW + 8), Memory(r11, 8 * _PITCH)
    asm.emit("mov", rcx, row)
    asm.emit("mov", r8, Memory(r11, 8 * _VALUES))
    asm.emit("mov", r9, Memory(r11, 8 * _FREQUENCIES))
    for register in (xmm(1), xmm(2), xmm(3), xmm(5)):
        asm.emit("vxorpd", register, register, register)
    _for_outputs(asm, lambda place: asm.emit("vmovsd", place(rcx), xmm(3)), 1)
    asm.emit("mov", rax, Memory(rsp, 8 * _OWN + 8))
    asm.bind(word)
    asm.emit("cmp", rax, r13)
    asm.jump("jae", summed)
    asm.emit("mov", rdx, Memory(rax))
    asm.emit("mov", rdi, rdx)
    asm.emit("and", rdi, (1 << COUNT_BITS) - 1)
    asm.emit("vmovsd", xmm(0), Memory(r8, 0, rdi, 8))
    asm.emit("shr", rdx, COUNT_BITS)
    asm.emit("and", rdx, (1 << CODE_BITS) - 1)
    asm.emit("vmulsd", xmm(0), xmm(0), Memory(r9, 0, rdx, 8))
    _emit_norms(asm)
    asm.emit("imul", rdx, pitch)
    asm.emit("add", rdx, r10)
    asm.emit("mov", rdi, pitch)
    asm.emit("cmp", rdi, 8 * _VECTOR)
    asm.jump("jb", scalar)
    asm.emit("vbroadcastsd", ymm(0), xmm(0))
    for label, vector, move, lanes in ((None, ymm, "vmovupd", _VECTOR), (scalar, xmm, "vmovsd", 1)):
        if label is not None:
            asm.jump("jmp", on)
            asm.bind(label)

        def add(place: Place, vector: Any = vector, move: str = move) -> None:
            multiply = "vfmadd231pd" if vector is ymm else "vfmadd231sd"
            asm.emit(move, vector(3), place(rcx))
            asm.emit(multiply, vector(3), vector(0), place(rdx))
            asm.emit(move, place(rcx), vector(3))

        _for_outputs(asm, add, lanes)
    asm.bind(on)
    asm.emit("add", rax, 8)
    asm.jump("jmp", word)
    asm.bind(summed)
    _emit_norm(asm, end)
    asm.bind(end)
    asm.emit("add", rcx, pitch)
    asm.emit("mov", row, rcx)
    asm.emit("vzeroupper")


def _emit_norms(asm: Assembler) -> None:
    """Add the absolute value and the square of xmm0 to xmm1 and xmm2. xmm5: 0."""
    asm.emit("vsubsd", xmm(4), xmm(5), xmm(0))
    asm.emit("vmaxsd", xmm(4), xmm(4), xmm(0))
    asm.emit("vaddsd", xmm(1), xmm(1), xmm(4))
    asm.emit("vfmadd231sd", xmm(2), xmm(0), xmm(0))


def _emit_norm(asm: Assembler, end: Label) -> None:
    """Divide the sums at rcx by the norm; jump to the end for none. xmm1, xmm2: sums, of squares"""
    is_first = asm.label("l1")
    asm.emit("mov", rdx, Memory(r11, 8 * _NORM))
    asm.emit("cmp", rdx, NORMS.index("l1"))
    asm.jump("jb", end)
    asm.jump("je", is_first)
    asm.emit("vsqrtsd", xmm(1), xmm(2), xmm(2))
    asm.bind(is_first)
    asm.emit("vxorpd", xmm(3), xmm(3), xmm(3))
    asm.emit("vucomisd", xmm(1), xmm(3))
    asm.jump("je", end)

    def divide(place: Place) -> None:
        asm.emit("vmovsd", xmm(3), place(rcx))
        asm.emit("vdivsd", xmm(3), xmm(3), xmm(1))
        asm.emit("vmovsd", place(rcx), xmm(3))

    _for_outputs(asm, divide, 1)


Place = Callable[[Register], Memory]


def _for_outputs(asm: Assembler, emit: Callable[[Place], object], lanes: int) -> None:
    """A loop over the outputs of a row, some lanes at once, by rdi."""
    again = asm.label("output")
    asm.emit("xor", dword(rdi), dword(rdi))
    asm.bind(again)
    emit(lambda base: Memory(base, 0, rdi, 1))
    asm.emit("add", rdi, 8 * lanes)
    asm.emit("cmp", rdi, Memory(r11, 8 * _PITCH))
    asm.jump("jb", again)


