"""The pointwise half of a GRU step, after its two matrix products."""

from collections.abc import Sequence
from dataclasses import dataclass

from sparsejit.asm_templates.shared.activation import apply_activation
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.asm_templates.shared.spans import Span, emit_spans
from sparsejit.ir.spec import Activation, GruUpdate
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register, rdi, rdx, rsi

# More vectors in step overlap more latencies and share more constants: 256 units take 172 ns with
# 8, 175 ns with 4, 220 ns with 1 (AVX-512).
_VECTORS_IN_STEP = {"avx512": 8, "avx2": 4}


@dataclass(frozen=True)
class GateInputs:
    """Where input gates come from: the sum of rows (3 * hidden,) at addresses, in their order.

    With `half_index`, which is clobbered, all rows but the last are float16. Several rows take
    a `hidden` of whole vectors.
    """

    rows: Sequence[Register] = (rdi,)
    half_index: Register | None = None

    def begin(self, span: Span) -> None:
        """Before the first load of a span."""
        if self.half_index is not None and span.index is not None:
            span.asm.emit("mov", self.half_index, span.index)
            span.asm.emit("shr", self.half_index, 1)

    def load(
        self, span: Span, register: Register, position: int, other: Register, skip: int
    ) -> None:
        """register = vector `position` of the gates `skip` floats on. Clobbers `other`."""
        *rows, rest = self.rows
        for number, row in enumerate(rows):
            into = other if number else register
            if self.half_index is None:
                span.load(into, row, position, other, skip)
            else:
                first = 2 * (skip + span.firsts[position])
                index = None if span.index is None else self.half_index
                span.asm.emit("vcvtph2ps", into, Memory(row, first, index))
            if number:
                span.asm.emit("vaddps", register, register, other)
        span.load(other if rows else register, rest, position, other, skip)
        if rows:
            span.asm.emit("vaddps", register, register, other)


def emit_gru_update(
    asm: Assembler,
    spec: GruUpdate,
    results: Sequence[Register] = (rdx,),
    inputs: GateInputs = GateInputs(),
    operands: tuple[Register, Register] = (rsi, rdx),
) -> None:
    """Append the update of `spec.GruUpdate`, any `hidden`.

    inputs: input gates, operands: recurrent gates, both float32 (3 * hidden,) in gate order r-z-n,
    and state, float32 (hidden,). `results`: where the new state goes, in place if nothing is said.
    Clobbers rax, the vector registers and k7.
    """
    step = _VECTORS_IN_STEP[asm.target.isa]
    units = _GruUnits(asm, spec, results, inputs, *operands)
    emit_spans(asm, spec.hidden, step, units.emit)


@dataclass(frozen=True)
class _GruUnits:
    asm: Assembler
    spec: GruUpdate
    results: Sequence[Register]
    inputs: GateInputs
    recurrent: Register
    state: Register

    def emit(self, span: Span) -> None:
        """Update the hidden units of a span, all its vectors in step."""
        asm, spec = self.asm, self.spec
        self.inputs.begin(span)
        every = [vector(asm, number) for number in range(asm.target.vector_registers)]
        count = len(span.firsts)
        reset, update, scratch = every[:count], every[count : 2 * count], every[2 * count :]
        spare, first, second = scratch[:3]
        for gate, registers in enumerate((reset, update)):
            for position, register in enumerate(registers):
                self.inputs.load(span, register, position, spare, gate * spec.hidden)
                span.load(first, self.recurrent, position, spare, gate * spec.hidden)
                asm.emit("vaddps", register, register, first)
        apply_activation(asm, Activation.SIGMOID, [*reset, *update], scratch)
        candidate = reset
        for position, register in enumerate(candidate):
            span.load(first, self.recurrent, position, spare, 2 * spec.hidden)
            self.inputs.load(span, second, position, spare, 2 * spec.hidden)
            asm.emit("vfmadd213ps", register, first, second)
        apply_activation(asm, Activation.TANH, candidate, scratch)
        for position, (new, kept) in enumerate(zip(candidate, update, strict=True)):
            span.load(first, self.state, position, spare)
            asm.emit("vsubps", first, first, new)
            asm.emit("vfmadd231ps", new, kept, first)
            for result in self.results:
                span.store(new, result, position, spare)
