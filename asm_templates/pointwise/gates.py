"""The pointwise half of a recurrent step, after its two matrix products.

    emit_gru_update    a GRU
    emit_gru_reset     a GRU's reset of its state, before a product that reads the reset state
    emit_lstm_update   an LSTM, in one pass
    emit_rnn_update    a plain recurrent layer: the sum of its two products, activated
"""

from collections.abc import Sequence

from sparsejit.asm_templates.pointwise.table_row_sums import RowSum, ScaledColumn
from sparsejit.asm_templates.shared.activation import (
    FINE,
    SCRATCH_PER_VECTOR,
    Tanh,
    apply_activation,
)
from sparsejit.asm_templates.shared.loops import Span, emit_spans
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.ir.spec import Activation, DType, GruUpdate, LstmUpdate, RnnUpdate
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Register, rcx, rdi, rdx, rsi

# More vectors in step overlap more latencies and share more constants: 256 units take 172 ns with
# 8, 175 ns with 4, 220 ns with 1 (AVX-512).
_GRU_VECTORS = {"avx512": 8, "avx2": 4}


def emit_gru_update(
    asm: Assembler,
    spec: GruUpdate,
    results: Sequence[Register] = (rdx,),
    gates: RowSum | ScaledColumn | None = None,
    tanh: Tanh = FINE,
    is_reset: bool = False,
) -> None:
    """Append a GRU's new state from its gates and its state, as `spec.GruUpdate`, any `hidden`.

    rdi: input gates, rsi: recurrent gates, both float32 (3 * hidden,) in gate order r-z-n;
    rdx: state, float32 (hidden,). `results`: where the new state goes, by default in place. With
    `gates` the input gates are a sum, which is computed here; rdi is not read. `tanh` is used for
    the new gate and the reset gate, FINE for the update gate. With `is_reset` the recurrent gate n
    comes from the state that `emit_gru_reset` wrote, and the recurrent gate r is not read.
    Clobbers rax, the vector registers, k7 and the index of `gates`.
    """
    step = _GRU_VECTORS[asm.target.isa]
    given = gates or RowSum(DType.FLOAT32, (), rdi)

    def body(span: Span) -> None:
        _update_gru(asm, spec, span, results, given, tanh, is_reset)

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

    emit_spans(asm, spec.hidden, _GRU_VECTORS[asm.target.isa], body)


def _update_gru(
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


# Each vector holds its four gates in registers, and three more for the activations.
_LSTM_VECTORS = {"avx512": 4, "avx2": 2}
_LSTM_GATES = 4


def emit_lstm_update(asm: Assembler, spec: LstmUpdate, results: Sequence[Register]) -> None:
    """Append an LSTM's new c and h from its gates and its c, as `spec.LstmUpdate`, any `hidden`.

    rdi: input gates, rsi: recurrent gates, both float32 (4 * hidden,) in gate order i-f-g-o;
    rdx: c, rcx: where the new c goes, which may be the same, both float32 (hidden,); `results`:
    where the new h goes. Clobbers rax, the vector registers and k7.
    """
    step = _LSTM_VECTORS[asm.target.isa]
    emit_spans(asm, spec.hidden, step, lambda span: _update_lstm(asm, spec, span, results))


def _update_lstm(
    asm: Assembler, spec: LstmUpdate, span: Span, results: Sequence[Register]
) -> None:
    """Update the hidden units of a span, all its vectors in step."""
    every = [vector(asm, number) for number in range(asm.target.vector_registers)]
    count = len(span.firsts)
    keep_in, forget, out, cell = (every[gate * count : (gate + 1) * count] for gate in range(4))
    scratch = every[_LSTM_GATES * count :]
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


def emit_rnn_update(asm: Assembler, spec: RnnUpdate, results: Sequence[Register]) -> None:
    """Append a plain recurrent layer's new state from its gates, as `spec.RnnUpdate`.

    rdi: input gates, rsi: recurrent gates, both float32 (hidden,), which are added and activated;
    any `hidden`. `results`: where the new state goes. Clobbers rax, the vector registers and k7.
    """
    step = (asm.target.vector_registers - 1) // (SCRATCH_PER_VECTOR + 1)
    emit_spans(asm, spec.hidden, step, lambda span: _update_rnn(asm, spec, span, results))


def _update_rnn(asm: Assembler, spec: RnnUpdate, span: Span, results: Sequence[Register]) -> None:
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
