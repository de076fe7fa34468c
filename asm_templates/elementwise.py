"""An activation over an array."""

from sparsejit.asm_templates.activation import SCRATCH_PER_VECTOR, apply_activation
from sparsejit.asm_templates.rows import load, store, vector
from sparsejit.assembler import Assembler
from sparsejit.operands import Memory, dword, rax, rdi, rsi
from sparsejit.spec import Elementwise


def emit_elementwise(asm: Assembler, spec: Elementwise) -> None:
    """Append y = activation(x) of `spec.Elementwise`, any length.

    rdi: x, rsi: y, both float32 (length,); they may be the same array. Clobbers rax, the vector
    registers and k7.
    """
    lanes = asm.target.lanes
    every = [vector(asm, number) for number in range(asm.target.vector_registers)]
    step = (len(every) - 1) // (1 + SCRATCH_PER_VECTOR)
    registers, scratch = every[:step], every[step:]
    whole_steps = spec.length // (step * lanes)
    if whole_steps:
        asm.emit("xor", dword(rax), dword(rax))
        loop = asm.label("elements")
        asm.bind(loop)
        for position, register in enumerate(registers):
            asm.emit("vmovups", register, Memory(rdi, 4 * lanes * position, rax))
        apply_activation(asm, spec.activation, registers, scratch)
        for position, register in enumerate(registers):
            asm.emit("vmovups", Memory(rsi, 4 * lanes * position, rax), register)
        asm.emit("add", rax, 4 * lanes * step)
        asm.emit("cmp", rax, 4 * lanes * step * whole_steps)
        asm.jump("jb", loop)
    rest = range(whole_steps * step * lanes, spec.length, lanes)
    for first, register in zip(rest, registers, strict=False):
        load(asm, register, rdi, first, spec.length, scratch[0])
    apply_activation(asm, spec.activation, registers[: len(rest)], scratch)
    for first, register in zip(rest, registers, strict=False):
        store(asm, register, rsi, first, spec.length, scratch[0])
