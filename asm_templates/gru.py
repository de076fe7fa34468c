"""The pointwise half of a GRU step, after its two matrix products."""

from collections.abc import Sequence

from sparsejit.asm_templates.activation import apply_activation
from sparsejit.asm_templates.rows import load, store, vector
from sparsejit.assembler import Assembler
from sparsejit.operands import Register, rdi, rdx, rsi
from sparsejit.spec import Activation, GruUpdate

_VECTORS_IN_STEP = {"avx512": 8, "avx2": 4}


def emit_gru_update(asm: Assembler, spec: GruUpdate) -> None:
    """Append the update of `spec.GruUpdate`, any `hidden`.

    rdi: input gates, rsi: recurrent gates, both float32 (3 * hidden,) in gate order r-z-n;
    rdx: state, float32 (hidden,), updated in place. Clobbers rax, the vector registers and k7.
    """
    lanes = asm.target.lanes
    step = lanes * _VECTORS_IN_STEP[asm.target.isa]
    for first in range(0, spec.hidden, step):
        _emit_units(asm, spec, range(first, min(first + step, spec.hidden), lanes))


def _emit_units(asm: Assembler, spec: GruUpdate, firsts: Sequence[int]) -> None:
    """Update `lanes` hidden units from each of `firsts` on, all vectors in step."""
    every = [vector(asm, number) for number in range(asm.target.vector_registers)]
    count = len(firsts)
    reset, update, scratch = every[:count], every[count : 2 * count], every[2 * count :]
    for gate, registers in enumerate((reset, update)):
        for first, register in zip(firsts, registers, strict=True):
            _load_gate(asm, spec, register, rdi, gate, first, scratch[0])
            _load_gate(asm, spec, scratch[1], rsi, gate, first, scratch[0])
            asm.emit("vaddps", register, register, scratch[1])
    apply_activation(asm, Activation.SIGMOID, [*reset, *update], scratch)
    candidate = reset
    for first, register in zip(firsts, candidate, strict=True):
        _load_gate(asm, spec, scratch[1], rsi, 2, first, scratch[0])
        _load_gate(asm, spec, scratch[2], rdi, 2, first, scratch[0])
        asm.emit("vfmadd213ps", register, scratch[1], scratch[2])
    apply_activation(asm, Activation.TANH, candidate, scratch)
    for first, new, gate_value in zip(firsts, candidate, update, strict=True):
        load(asm, scratch[1], rdx, first, spec.hidden, scratch[0])
        asm.emit("vsubps", scratch[1], scratch[1], new)
        asm.emit("vfmadd231ps", new, gate_value, scratch[1])
        store(asm, new, rdx, first, spec.hidden, scratch[0])


def _load_gate(
    asm: Assembler,
    spec: GruUpdate,
    register: Register,
    gates: Register,
    gate: int,
    first: int,
    scratch: Register,
) -> None:
    begin = gate * spec.hidden
    load(asm, register, gates, begin + first, begin + spec.hidden, scratch)
