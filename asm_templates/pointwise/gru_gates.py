"""The pointwise half of a GRU step, after its two matrix products."""

from collections.abc import Sequence

from sparsejit.asm_templates.pointwise.row_sums import RowSum
from sparsejit.asm_templates.shared.activation import FINE, Tanh, apply_activation
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.asm_templates.shared.spans import Span, emit_spans
from sparsejit.ir.spec import Activation, DType, GruUpdate
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Register, rdi, rdx, rsi

# More vectors in step overlap more latencies and share more constants: 256 units take 172 ns with
# 8, 175 ns with 4, 220 ns with 1 (AVX-512).
_VECTORS_IN_STEP = {"avx512": 8, "avx2": 4}


def emit_gru_update(
    asm: Assembler,
    spec: GruUpdate,
    results: Sequence[Register] = (rdx,),
    gates: RowSum | None = None,
    tanh: Tanh = FINE,
) -> None:
    """Append the update of `spec.GruUpdate`, any `hidden`.

    rdi: input gates, rsi: recurrent gates, both float32 (3 * hidden,) in gate order r-z-n;
    rdx: state, float32 (hidden,). `results`: where the new state goes, in place if nothing is said.
    Input gates that are a sum of rows are added up here, at `gates` instead of rdi. `tanh` is that
    of the new gate and the reset gate; the update gate is FINE. Clobbers rax, the vector registers,
    k7 and the index of `gates`.
    """
    step = _VECTORS_IN_STEP[asm.target.isa]
    given = gates or RowSum(DType.FLOAT32, (), rdi)

    def body(span: Span) -> None:
        _emit_units(asm, spec, span, results, given, tanh)

    emit_spans(asm, spec.hidden, step, body)


def _emit_units(
    asm: Assembler,
    spec: GruUpdate,
    span: Span,
    results: Sequence[Register],
    gates: RowSum,
    tanh: Tanh,
) -> None:
    """Update the hidden units of a span, all its vectors in step."""
    every = [vector(asm, number) for number in range(asm.target.vector_registers)]
    count = len(span.firsts)
    reset, update, scratch = every[:count], every[count : 2 * count], every[2 * count :]
    spare, first, second = scratch[:3]
    gates.begin(asm, span)
    for gate, registers in enumerate((reset, update)):
        for position, register in enumerate(registers):
            gates.load(span, register, position, scratch, gate * spec.hidden)
            span.load(first, rsi, position, spare, gate * spec.hidden)
            asm.emit("vaddps", register, register, first)
    if tanh is FINE:
        apply_activation(asm, Activation.SIGMOID, [*reset, *update], scratch)
    else:
        # What a unit keeps for thousands of samples depends on the last bits of its update gate.
        apply_activation(asm, Activation.SIGMOID, update, scratch)
        apply_activation(asm, Activation.SIGMOID, reset, scratch, tanh)
    candidate = reset
    for position, register in enumerate(candidate):
        gates.load(span, second, position, scratch[3:], 2 * spec.hidden)
        span.load(first, rsi, position, spare, 2 * spec.hidden)
        asm.emit("vfmadd213ps", register, first, second)
    apply_activation(asm, Activation.TANH, candidate, scratch, tanh)
    for position, (new, kept) in enumerate(zip(candidate, update, strict=True)):
        span.load(first, rdx, position, spare)
        asm.emit("vsubps", first, first, new)
        asm.emit("vfmadd231ps", new, kept, first)
        for result in results:
            span.store(new, result, position, spare)
