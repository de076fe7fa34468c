"""An activation over an array."""

from sparsejit.asm_templates.shared.activation import SCRATCH_PER_VECTOR, apply_activation
from sparsejit.asm_templates.shared.loops import Span, emit_spans
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.ir.spec import Elementwise
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import rdi, rsi


def emit_elementwise(asm: Assembler, spec: Elementwise) -> None:
    """Append y = activation(x) of `spec.Elementwise`, any length.

    rdi: x, rsi: y, both float32 (length,); they may be the same array. Clobbers rax, the vector
    registers and k7.
    """
    every = [vector(asm, number) for number in range(asm.target.vector_registers)]
    step = (len(every) - 1) // (1 + SCRATCH_PER_VECTOR)
    scratch = every[step:]

    def body(span: Span) -> None:
        registers = every[: len(span.firsts)]
        for position, register in enumerate(registers):
            span.load(register, rdi, position, scratch[0])
        apply_activation(asm, spec.activation, registers, scratch)
        for position, register in enumerate(registers):
            span.store(register, rsi, position, scratch[0])

    emit_spans(asm, spec.length, step, body)
