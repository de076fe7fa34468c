"""The pointwise half of a GRU step, after its two matrix products."""

from collections.abc import Sequence

from sparsejit.asm_templates.pointwise.row_sums import RowSum, ScaledColumn
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
    gates: RowSum | ScaledColumn | None = None,
    tanh: Tanh = FINE,
    is_reset: bool = False,
) -> None:
    """Append the update of `spec.GruUpdate`, any `hidden`.

    rdi: input gates, rsi: recurrent gates, both float32 (3 * hidden,) in gate order r-z-n;
    rdx: state, float32 (hidden,). `results`: where the new state goes, by default in place. With
    `gates` the input gates are a sum, which is computed here; rdi is not read. `tanh` is used for
    the new gate and the reset gate, FINE for the update gate. With `is_reset` the recurrent gate n
    comes from the state that `emit_gru_reset` wrote, and the recurrent gate r is not read.
    Clobbers rax, the vector registers, k7 and the index of `gates`.
    """
    step = _VECTORS_IN_STEP[asm.target.isa]
    given = gates or RowSum(DType.FLOAT32, (), rdi)

    def body(span: Span) -> None:
        _emit_units(asm, spec, span, results, given, tanh, is_reset)

    emit_spans(asm, spec.hidden, step, body)


def emit_gru_reset(asm: Assembler, spec: GruUpdate, result: Register) -> None:
    """Append result = sigmoid(r of the input + r of the recurrent gates) * state.

    Registers as for `emit_gru_update`; clobbers rax, the vector registers and k7.
    """
    every = [vector(asm, number) for number in range(asm.target.vector_registers)]

    def body(span: Span) -> None:
        count = len(span.firsts)
        reset, (spare, loaded, *scratch) = every[:count], every[count:]
        for position, register in enumerate(reset):
            span.load(register, rdi, position, spare)
            span.load(loaded, rsi, position, spare)
            asm.emit("vaddps", register, register, loaded)
        apply_activation(asm, Activation.SIGMOID, reset, [spare, loaded, *scratch])
        for position, register in enumerate(reset):
            span.load(loaded, rdx, position, spare)
            asm.emit("vmulps", register, register, loaded)
            span.store(register, result, position, spare)

    emit_spans(asm, spec.hidden, _VECTORS_IN_STEP[asm.target.isa], body)


def _emit_units(
    asm: Assembler,
    spec: GruUpdate,
    span: Span,
    results: Sequence[Register],
    gates: RowSum | ScaledColumn,
    tanh: Tanh,
    is_reset: bool,
) -> None:
    """Update the hidden units of a span, all its vectors in step."""
    every = [vector(asm, number) for number in range(asm.target.vector_registers)]
    count = len(span.firsts)
    reset, update, scratch = every[:count], every[count : 2 * count], every[2 * count :]
    spare, first, second = scratch[:3]
    gates.begin(asm, span)
    for gate, registers in enumerate((reset, update)):
        if registers is reset and is_reset:
            continue
        for position, register in enumerate(registers):
            gates.load(span, register, position, scratch, gate * spec.hidden)
            span.load(first, rsi, position, spare, gate * spec.hidden)
            asm.emit("vaddps", register, register, first)
    if tanh is FINE:
        opened = update if is_reset else [*reset, *update]
        apply_activation(asm, Activation.SIGMOID, opened, scratch)
    else:
        # A state that lasts thousands of samples depends on the last bits of its update gate.
        apply_activation(asm, Activation.SIGMOID, update, scratch)
        apply_activation(asm, Activation.SIGMOID, reset, scratch, tanh)
    candidate = reset
    for position, register in enumerate(candidate):
        gates.load(span, second, position, scratch[3:], 2 * spec.hidden)
        span.load(first, rsi, position, spare, 2 * spec.hidden)
        if is_reset:
            asm.emit("vaddps", register, first, second)
        else:
            asm.emit("vfmadd213ps", register, first, second)
    apply_activation(asm, Activation.TANH, candidate, scratch, tanh)
    for position, (new, kept) in enumerate(zip(candidate, update, strict=True)):
        span.load(first, rdx, position, spare)
        asm.emit("vsubps", first, first, new)
        asm.emit("vfmadd231ps", new, kept, first)
        for result in results:
            span.store(new, result, position, spare)
