"""A row quantised to 255 steps from min(x, 0) to max(x, 0), as by ONNX's DynamicQuantizeLinear.

    scale = (max(x, 0) - min(x, 0)) / 255      zero = round(-min(x, 0) / scale)
    q     = clip(round(x / scale), -zero, 255 - zero)

A product with int8 weights w reads q + zero - 128, and (128 - zero) sum(w) is added to its sums.
"""

from dataclasses import dataclass

from sparsejit.asm_templates.pointwise.row_chain.reductions import across_lanes
from sparsejit.asm_templates.shared.constants import load_constant
from sparsejit.asm_templates.shared.loops import Span, emit_spans
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.ir.spec import SMALLEST_SCALE
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register, rdi, rdx, rsi, xmm

PAIR_BYTES = 8  # the scale, and the scale times 128 - zero, both float32
_STEPS, _MIDDLE = 255.0, 128.0
_VECTORS_IN_STEP = 4
_TO_NEAREST = 8  # of vroundps and vrndscaleps, without exception flags


@dataclass(frozen=True)
class RowQuantisation:
    """Quantisation of a row of `length` floats to 255 steps of its own range.

    With `as_integers` the result is q + zero - 128, else q * scale; see the top of this file.
    """

    length: int
    as_integers: bool


def emit_row_quantisation(asm: Assembler, spec: RowQuantisation) -> None:
    """Append the quantisation of x. rdi: x; rsi: the result, both float32; rdx: the pair.

    The pair is the scale and scale * (128 - zero), both float32. The result for NaN and infinity is
    undefined. Clobbers rax, the vector registers and k7.
    """
    every = [vector(asm, number) for number in range(16)]
    highs, lows, held = every[:4], every[4:8], every[8:12]
    spare, other = every[12:14]
    for register in (*highs, *lows):
        asm.emit("vxorps", register, register, register)

    def find(span: Span) -> None:
        for position in range(len(span.firsts)):
            span.load(held[position], rdi, position, spare)
            asm.emit("vmaxps", highs[position], highs[position], held[position])
            asm.emit("vminps", lows[position], lows[position], held[position])

    emit_spans(asm, spec.length, _VECTORS_IN_STEP, find)
    for mnemonic, kind, (total, *rest) in (
        ("vmaxps", "row_max", highs),
        ("vminps", "row_min", lows),
    ):
        for register in rest:
            asm.emit(mnemonic, total, total, register)
        across_lanes(asm, kind, [total], [spare, other])
    scale, zero, least, largest = _limits(asm, highs, lows)

    def write(span: Span) -> None:
        registers = held[: len(span.firsts)]
        for position, register in enumerate(registers):
            span.load(register, rdi, position, spare)
            asm.emit("vdivps", register, register, scale)
            _round(asm, register)
            asm.emit("vmaxps", register, register, least)
            asm.emit("vminps", register, register, largest)
            by = ("vaddps", zero) if spec.as_integers else ("vmulps", scale)
            asm.emit(by[0], register, register, by[1])
            span.store(register, rsi, position, spare)

    emit_spans(asm, spec.length, _VECTORS_IN_STEP, write)


def _limits(
    asm: Assembler, highs: list[Register], lows: list[Register]
) -> tuple[Register, Register, Register, Register]:
    """Return scale, zero - 128, and the limits of q, in all lanes; store the pair at rdx.

    `highs[0]` and `lows[0]` hold max(x, 0) and min(x, 0) in all lanes.
    """
    scale, constant, largest, product = highs
    low, zero, least, _ = lows
    asm.emit("vsubps", scale, scale, low)
    load_constant(asm, constant, _STEPS)
    asm.emit("vdivps", scale, scale, constant)
    load_constant(asm, largest, SMALLEST_SCALE)
    asm.emit("vmaxps", scale, scale, largest)
    asm.emit("vdivps", least, low, scale)  # -zero
    _round(asm, least)
    asm.emit("vxorps", largest, largest, largest)
    asm.emit("vsubps", largest, largest, constant)
    asm.emit("vmaxps", least, least, largest)
    asm.emit("vaddps", largest, least, constant)
    load_constant(asm, constant, _MIDDLE)
    asm.emit("vaddps", product, least, constant)  # 128 - zero
    asm.emit("vxorps", zero, zero, zero)
    asm.emit("vsubps", zero, zero, product)
    asm.emit("vmulps", product, product, scale)
    asm.emit("vmovss", Memory(rdx), xmm(scale.number))
    asm.emit("vmovss", Memory(rdx, PAIR_BYTES // 2), xmm(product.number))
    return scale, zero, least, largest


def _round(asm: Assembler, register: Register) -> None:
    mnemonic = "vrndscaleps" if asm.target.isa == "avx512" else "vroundps"
    asm.emit(mnemonic, register, register, _TO_NEAREST)


def emit_from_own_steps(asm: Assembler, length: int) -> None:
    """Append the end of a product of a quantised row by int8 weights: sums y become float outputs.

    y = scale y + (scale (128 - zero)) sums + bias, sums being sum(w) of each output. rdi: y; rsi:
    sums, then the bias behind them, all three `length` floats; rdx: the pair. Clobbers rax, the
    vector registers and k7.
    """
    scale, rest, spare, loaded, *held = (vector(asm, number) for number in range(12))
    asm.emit("vbroadcastss", scale, Memory(rdx))
    asm.emit("vbroadcastss", rest, Memory(rdx, PAIR_BYTES // 2))

    def body(span: Span) -> None:
        for position, register in enumerate(held[: len(span.firsts)]):
            span.load(loaded, rdi, position, spare)
            span.load(register, rsi, position, spare, length)
            asm.emit("vfmadd231ps", register, loaded, scale)
            span.load(loaded, rsi, position, spare)
            asm.emit("vfmadd231ps", register, loaded, rest)
            span.store(register, rdi, position, spare)

    emit_spans(asm, length, len(held), body)
