"""The pointwise half of a plain recurrent step: the sum of its two products, activated."""

from collections.abc import Sequence

from sparsejit.asm_templates.shared.activation import SCRATCH_PER_VECTOR, apply_activation
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.asm_templates.shared.spans import Span, emit_spans
from sparsejit.ir.spec import RnnUpdate
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Register, rdi, rsi


def emit_rnn_update(asm: Assembler, spec: RnnUpdate, results: Sequence[Register]) -> None:
    """Append the update of `spec.RnnUpdate`, any `hidden`.

    rdi: input gates, rsi: recurrent gates, both float32 (hidden,); `results`: where the new state
    goes. Clobbers rax, the vector registers and k7.
    """
    step = (asm.target.vector_registers - 1) // (SCRATCH_PER_VECTOR + 1)
    emit_spans(asm, spec.hidden, step, lambda span: _emit_units(asm, spec, span, results))


def _emit_units(asm: Assembler, spec: RnnUpdate, span: Span, results: Sequence[Register]) -> None:
    """Update the hidden units of a span, all its vectors in step."""
    every = [vector(asm, number) for number in range(asm.target.vector_registers)]
    states, scratch = every[: len(span.firsts)], every[len(span.firsts) :]
    spare, other = scratch[:2]
    for position, register in enumerate(states):
        span.load(register, rdi, position, spare)
        span.load(other, rsi, position, spare)
        asm.emit("vaddps", register, register, other)
    apply_activation(asm, spec.activation, states, scratch)
    for position, register in enumerate(states):
        for result in results:
            span.store(register, result, position, spare)
