"""The counter-based random generator: one uniform number in a few integer instructions."""

import numpy as np

from sparsejit.ir.reference import SPLITMIX_INCREMENT, SPLITMIX_MULTIPLIERS, SPLITMIX_SHIFTS
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Memory, Register, rax, rcx, rdi, rdx, rsi, xmm

UNIFORM_BITS = 24  # bits in the significand of a float32
_KEY, _SCRATCH = rcx, rdx


def emit_random_uniform(asm: Assembler) -> None:
    """Append one draw of `reference.random_uniform`, bit for bit.

    rdi: seed; rsi: number of the sample, from 0. The uniform number, float32 in [0, 1), goes to
    lane 0 of xmm0, zeros above. Clobbers rax, rcx and rdx.
    """
    _emit_key(asm)
    _emit_number(asm, 0)


def emit_random_uniforms(asm: Assembler, destination: Register, count: int) -> None:
    """Append the draws of `count` samples from rsi on, stored consecutively at `destination`.

    rdi and rsi as for `emit_random_uniform`. Clobbers rax, rcx, rdx and xmm0.
    """
    _emit_key(asm)
    for number in range(count):
        _emit_number(asm, number)
        asm.emit("vmovss", Memory(destination, 4 * number), xmm(0))


def _emit_key(asm: Assembler) -> None:
    asm.emit("mov", _KEY, rdi)
    _mix(asm, _KEY, _SCRATCH)


def _emit_number(asm: Assembler, after: int) -> None:
    """xmm0 = the uniform number of sample rsi + `after`."""
    word, uniform = rax, xmm(0)
    asm.emit("lea", word, Memory(rsi, after + 1))
    _multiply(asm, word, SPLITMIX_INCREMENT, _SCRATCH)
    asm.emit("add", word, _KEY)
    _mix(asm, word, _SCRATCH)
    asm.emit("shr", word, 64 - UNIFORM_BITS)
    asm.emit("vxorps", uniform, uniform, uniform)
    asm.emit("vcvtsi2ss", uniform, uniform, word)
    scale = asm.literal(np.array(2.0**-UNIFORM_BITS, np.float32), 4)
    asm.emit("vmulss", uniform, uniform, Literal(scale))


def _mix(asm: Assembler, word: Register, scratch: Register) -> None:
    """word = reference.splitmix(word)."""
    for shift, multiplier in zip(SPLITMIX_SHIFTS, (*SPLITMIX_MULTIPLIERS, None), strict=True):
        asm.emit("mov", scratch, word)
        asm.emit("shr", scratch, shift)
        asm.emit("xor", word, scratch)
        if multiplier is not None:
            _multiply(asm, word, multiplier, scratch)


def _multiply(asm: Assembler, word: Register, factor: int, scratch: Register) -> None:
    as_signed = factor - (1 << 64) if factor >> 63 else factor
    asm.emit("mov", scratch, as_signed)
    asm.emit("imul", word, scratch)
