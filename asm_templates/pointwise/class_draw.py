"""Random draws: a class from softmax probabilities, and the generator of uniform numbers.

    emit_categorical_draw   a class, by inverting the cumulative sum of the probabilities
    emit_random_uniform     a counter-based generator: one number in a few integer instructions
    emit_random_uniforms    the numbers of consecutive samples

The draw's float32 order of operations, for a vector of `lanes` consecutive classes:
  1. weights = 2^((logits - max) * k), with k = float32(inverse_temperature * log2 e);
  2. partial sums inside a vector by doubling (Hillis and Steele, Data parallel algorithms, 1986):
     add the lane 1 before, then 2, 4, 8 before; the last lane is the vector's sum;
  3. to each partial sum add the carry, which is the sums of the vectors before, added in order;
  4. the class is the count of partial sums <= uniform * total, total being the last carry.
"""

import math
from collections.abc import Sequence

import numpy as np

from sparsejit.asm_templates.pointwise.power_of_two import emit_exp2
from sparsejit.asm_templates.shared.constants import load_constant
from sparsejit.asm_templates.shared.loops import Span, emit_spans
from sparsejit.asm_templates.shared.rows import load, vector, zero
from sparsejit.ir.reference import SPLITMIX_INCREMENT, SPLITMIX_MULTIPLIERS, SPLITMIX_SHIFTS
from sparsejit.ir.spec import CategoricalDraw
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div, round_up
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    k,
    r8,
    rax,
    rcx,
    rdi,
    rdx,
    rsi,
    xmm,
)

_VECTORS_IN_STEP = {"avx512": 8, "avx2": 3}
_ACCUMULATORS = 4
_GREATER_OR_EQUAL = 0x1D  # vcmpps predicate GE_OQ: false for NaN

# Vector registers by number; from _FREE on they hold weights and the exponential's scratch.
_UNIFORM, _LARGEST, _CARRY, _ZERO, _LAST_LANE, _FREE = range(6)

# Exchanges of halves, quarters, ...: after each, the maximum with the exchanged copy.
_EXCHANGES: dict[str, tuple[tuple[str, int, int], ...]] = {
    "avx512": (
        ("vshuff32x4", 2, 0x4E),
        ("vshuff32x4", 2, 0xB1),
        ("vpermilps", 1, 0x4E),
        ("vpermilps", 1, 0xB1),
    ),
    "avx2": (("vperm2f128", 2, 0x01), ("vpermilps", 1, 0x4E), ("vpermilps", 1, 0xB1)),
}


def emit_categorical_draw(asm: Assembler, spec: CategoricalDraw) -> None:
    """Append the draw of a class with softmax probabilities, as `spec.CategoricalDraw`.

    rdi: logits, float32 (classes,), any number; rsi: where the class goes, int64; rdx: scratch for
    `scratch_floats(target, spec)` float32; xmm0: the uniform number in [0, 1), float32 in lane 0.
    The class is in 0 .. classes - 1 whatever the logits, NaN included. Clobbers rax, r8, the vector
    registers, k1 and k7.
    """
    asm.emit("vbroadcastss", vector(asm, _UNIFORM), xmm(0))
    _emit_largest(asm, spec)
    _emit_partial_sums(asm, spec)
    _emit_count(asm, spec)


def scratch_floats(target: Target, spec: CategoricalDraw) -> int:
    """Return the size of a draw's scratch, in float32: classes rounded up to whole vectors."""
    return round_up(spec.classes, target.lanes)


def _free(asm: Assembler) -> list[Register]:
    return [vector(asm, number) for number in range(_FREE, asm.target.vector_registers)]


def _emit_largest(asm: Assembler, spec: CategoricalDraw) -> None:
    """_LARGEST = max(logits) in every lane."""
    lanes = asm.target.lanes
    vectors = ceil_div(spec.classes, lanes)
    accumulators, (other, scratch, *_) = _free(asm)[:_ACCUMULATORS], _free(asm)[_ACCUMULATORS:]
    for position in range(vectors):
        fresh = position < _ACCUMULATORS
        accumulator = accumulators[position % _ACCUMULATORS]
        register = accumulator if fresh else other
        load(asm, register, rdi, lanes * position, spec.classes, scratch)
        if position == vectors - 1:
            _pad_last(asm, spec, register)
        if not fresh:
            asm.emit("vmaxps", accumulator, accumulator, other)
    largest = vector(asm, _LARGEST)
    asm.emit("vmovaps", largest, accumulators[0])
    for accumulator in accumulators[1:vectors]:
        asm.emit("vmaxps", largest, largest, accumulator)
    for mnemonic, sources, pattern in _EXCHANGES[asm.target.isa]:
        asm.emit(mnemonic, scratch, *[largest] * sources, pattern)
        asm.emit("vmaxps", largest, largest, scratch)


def _pad_last(asm: Assembler, spec: CategoricalDraw, register: Register) -> None:
    """Minus infinity past the last class, where `register` holds the last vector of logits."""
    present = spec.classes % asm.target.lanes
    if present:
        padding = np.where(np.arange(asm.target.lanes) < present, 0.0, -np.inf)
        asm.emit("vorps", register, register, Literal(asm.literal(padding.astype(np.float32))))


def _emit_partial_sums(asm: Assembler, spec: CategoricalDraw) -> None:
    """Partial sums of the weights to [rdx]; _CARRY = their total in every lane."""
    step = _VECTORS_IN_STEP[asm.target.isa]
    zero(asm, vector(asm, _CARRY))
    zero(asm, vector(asm, _ZERO))
    load_constant(asm, vector(asm, _LAST_LANE), asm.target.lanes - 1)
    free = _free(asm)

    def body(span: Span) -> None:
        weights, scratch = free[: len(span.firsts)], free[step:]
        for position, register in enumerate(weights):
            span.load(register, rdi, position, scratch[0])
        if span.index is None:
            _pad_last(asm, spec, weights[-1])
        _emit_weights(asm, spec, weights, scratch)
        _emit_scan(asm, span, weights, scratch)

    emit_spans(asm, spec.classes, step, body)


def _emit_weights(
    asm: Assembler, spec: CategoricalDraw, registers: Sequence[Register], scratch: list[Register]
) -> None:
    """Append code that replaces logits in registers by weights, 2^((logit - max) * k)."""
    factor = asm.constant(spec.inverse_temperature * math.log2(math.e))
    for register in registers:
        asm.emit("vsubps", register, register, vector(asm, _LARGEST))
        asm.emit("vmulps", register, register, factor)
    emit_exp2(asm, registers, scratch)


def _emit_scan(
    asm: Assembler, span: Span, weights: Sequence[Register], scratch: list[Register]
) -> None:
    """Append code that adds up `weights` class by class and writes the running sums to [rdx].

    They begin at the carry, the sum of all classes before, which advances.
    """
    carry, index = vector(asm, _CARRY), span.index
    for distance in (1, 2, 4, 8)[: asm.target.lanes.bit_length() - 1]:
        for weight, moved in zip(weights, scratch, strict=False):
            _shift_lanes(asm, moved, weight, distance)
            asm.emit("vaddps", weight, weight, moved)
    for first, weight, last in zip(span.firsts, weights, scratch, strict=False):
        asm.emit("vpermps", last, vector(asm, _LAST_LANE), weight)
        asm.emit("vaddps", weight, weight, carry)
        asm.emit("vmovups", Memory(rdx, 4 * first, index), weight)
        asm.emit("vaddps", carry, carry, last)


def _shift_lanes(asm: Assembler, register: Register, source: Register, distance: int) -> None:
    """register[lane] = source[lane - distance], zero in the first `distance` lanes."""
    lanes = asm.target.lanes
    if asm.target.isa == "avx512":
        asm.emit("valignd", register, source, vector(asm, _ZERO), lanes - distance)
        return
    low_half_above = 0x08  # vperm2f128: low half moves up, zeros come in below
    asm.emit("vperm2f128", register, source, source, low_half_above)
    if distance < lanes // 2:
        asm.emit("vpalignr", register, source, register, 16 - 4 * distance)


def _emit_count(asm: Assembler, spec: CategoricalDraw) -> None:
    """[rsi] = the number of partial sums <= uniform * total, at most classes - 1."""
    lanes = asm.target.lanes
    threshold, count, bits = vector(asm, _UNIFORM), dword(r8), dword(rax)
    asm.emit("vmulps", threshold, threshold, vector(asm, _CARRY))
    asm.emit("xor", count, count)
    for position in range(ceil_div(spec.classes, lanes)):
        mask: Register = k(1) if asm.target.isa == "avx512" else vector(asm, _FREE)
        sums = Memory(rdx, 4 * lanes * position)
        asm.emit("vcmpps", mask, threshold, sums, _GREATER_OR_EQUAL)
        asm.emit("kmovw" if mask.kind == "k" else "vmovmskps", bits, mask)
        asm.emit("popcnt", bits, bits)
        asm.emit("add", count, bits)
    largest_class = bits
    asm.emit("mov", largest_class, spec.classes - 1)
    asm.emit("cmp", count, largest_class)
    asm.emit("cmova", count, largest_class)
    asm.emit("mov", Memory(rsi), r8)


UNIFORM_BITS = 24  # bits in the significand of a float32
_KEY, _SCRATCH = rcx, rdx


def emit_random_uniform(asm: Assembler) -> None:
    """Append a draw of a uniform number in [0, 1), with the bits of `reference.random_uniform`.

    rdi: seed; rsi: number of the sample, from 0. The uniform number, float32 in [0, 1), goes to
    lane 0 of xmm0, zeros above. Clobbers rax, rcx and rdx.
    """
    _emit_key(asm)
    _emit_number(asm, 0)


def emit_random_uniforms(asm: Assembler, destination: Register, count: int) -> None:
    """Append the draws of uniform numbers for `count` samples from rsi on, to `destination`.

    They are stored consecutively. rdi and rsi as for `emit_random_uniform`. Clobbers rax, rcx, rdx
    and xmm0.
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
