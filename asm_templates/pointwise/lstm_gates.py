"""The pointwise half of an LSTM step, after its two matrix products, in one pass."""

from collections.abc import Sequence

from sparsejit.asm_templates.shared.activation import apply_activation
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.asm_templates.shared.spans import Span, emit_spans
from sparsejit.ir.spec import Activation, LstmUpdate
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Register, rcx, rdi, rdx, rsi

# Each vector holds its four gates in registers, and three more for the activations.
_VECTORS_IN_STEP = {"avx512": 4, "avx2": 2}
_GATES = 4


def emit_lstm_update(asm: Assembler, spec: LstmUpdate, results: Sequence[Register]) -> None:
    """Append the update of `spec.LstmUpdate`, any `hidden`.

    rdi: input gates, rsi: recurrent gates, both float32 (4 * hidden,) in gate order i-f-g-o;
    rdx: c, rcx: where the new c goes, which may be the same, both float32 (hidden,); `results`:
    where the new h goes. Clobbers rax, the vector registers and k7.
    """
    step = _VECTORS_IN_STEP[asm.target.isa]
    emit_spans(asm, spec.hidden, step, lambda span: _emit_units(asm, spec, span, results))


def _emit_units(
    asm: Assembler, spec: LstmUpdate, span: Span, results: Sequence[Register]
) -> None:
    """Update the hidden units of a span, all its vectors in step."""
    every = [vector(asm, number) for number in range(asm.target.vector_registers)]
    count = len(span.firsts)
    keep_in, forget, out, cell = (every[gate * count : (gate + 1) * count] for gate in range(4))
    scratch = every[_GATES * count :]
    spare, other = scratch[:2]
    for gate, registers in enumerate((keep_in, forget, cell, out)):
        for position, register in enumerate(registers):
            span.load(register, rdi, position, spare, gate * spec.hidden)
            span.load(other, rsi, position, spare, gate * spec.hidden)
            asm.emit("vaddps", register, register, other)
    apply_activation(asm, Activation.SIGMOID, [*keep_in, *forget, *out], scratch)
    apply_activation(asm, Activation.TANH, cell, scratch)
    for position, (new, kept) in enumerate(zip(cell, forget, strict=True)):
        span.load(other, rdx, position, spare)
        asm.emit("vmulps", new, new, keep_in[position])
        asm.emit("vfmadd231ps", new, kept, other)
        span.store(new, rcx, position, spare)
    apply_activation(asm, Activation.TANH, cell, scratch)
    for position, (new, gate_out) in enumerate(zip(cell, out, strict=True)):
        asm.emit("vmulps", new, new, gate_out)
        for result in results:
            span.store(new, result, position, spare)
