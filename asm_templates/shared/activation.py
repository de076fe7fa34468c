"""ReLU, tanh and sigmoid, fused behind a kernel.

sigmoid(x) = 1 / (1 + 2^(-x log2 e)) and tanh(x) = sign(x) (1 - 2 / (1 + 2^(2 |x| log2 e))), with a
true division. Piecewise these are rational functions; over all floats they are monotone (see
`exponential`), stay inside [0, 1] and [-1, 1], and reach the ends exactly. Their error is bounded
in absolute terms, see docs/activations.md; tanh near zero comes in multiples of 2^-24.
"""

import math
from collections.abc import Callable, Sequence

from sparsejit.asm_templates.shared.exponential import emit_exp2, load_constant, shared_constant
from sparsejit.errors import CompileError
from sparsejit.ir.spec import Activation
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Operand, Register, ymm

SCRATCH_PER_VECTOR = 3  # scratch registers that one vector needs

_MAGNITUDE_BITS = 0x7FFFFFFF
_SIGN_BIT = -(2**31)
_FIRST_WHERE_MASK = 0xE4  # vpternlogd: third operand set ? first : second


def apply_activation(
    asm: Assembler, activation: Activation, registers: list[Register], scratch: list[Register]
) -> None:
    """registers = activation(registers), clobbering `scratch`.

    Any activation but NONE needs SCRATCH_PER_VECTOR registers of scratch; with n times as many
    and one more, n vectors run in step. Raises CompileError for fewer.
    """
    if activation is Activation.NONE:
        return
    if len(scratch) < SCRATCH_PER_VECTOR:
        raise CompileError(
            f"{activation.value} got {len(scratch)} scratch registers; "
            f"it needs at least {SCRATCH_PER_VECTOR}"
        )
    most_in_step = max(1, (len(scratch) - 1) // SCRATCH_PER_VECTOR)
    groups = -(-len(registers) // most_in_step)
    for group in range(groups):
        first, last = (len(registers) * edge // groups for edge in (group, group + 1))
        _TEMPLATES[activation](asm, registers[first:last], scratch)


def _relu(asm: Assembler, registers: Sequence[Register], scratch: Sequence[Register]) -> None:
    low = ymm(int(scratch[0].number))
    asm.emit("vpxord" if int(low.number) > 15 else "vpxor", low, low, low)
    for register in registers:
        # max returns its second source when either is NaN.
        asm.emit("vmaxps", register, scratch[0], register)


def _sigmoid(asm: Assembler, registers: Sequence[Register], scratch: Sequence[Register]) -> None:
    factor = shared_constant(asm, -math.log2(math.e), len(registers), scratch[-1])
    for register in registers:
        asm.emit("vmulps", register, register, factor)
    emit_exp2(asm, registers, scratch)
    one = scratch[0]
    load_constant(asm, one, 1.0)
    for register in registers:
        asm.emit("vaddps", register, register, one)
    for register in registers:
        asm.emit("vdivps", register, one, register)


def _tanh(asm: Assembler, registers: Sequence[Register], scratch: Sequence[Register]) -> None:
    magnitudes, rest = scratch[: len(registers)], scratch[len(registers) :]
    one, two, *_ = rest
    bits = shared_constant(asm, _MAGNITUDE_BITS, len(registers), one)
    factor = shared_constant(asm, 2.0 * math.log2(math.e), len(registers), two)
    for register, magnitude in zip(registers, magnitudes, strict=True):
        asm.emit("vandps", magnitude, register, bits)
        asm.emit("vmulps", magnitude, magnitude, factor)
    emit_exp2(asm, magnitudes, rest)
    load_constant(asm, one, 1.0)
    load_constant(asm, two, 2.0)
    for magnitude in magnitudes:
        asm.emit("vaddps", magnitude, magnitude, one)
    for magnitude in magnitudes:
        asm.emit("vdivps", magnitude, two, magnitude)
    sign = shared_constant(asm, _SIGN_BIT, len(registers), two)
    for register, magnitude in zip(registers, magnitudes, strict=True):
        asm.emit("vsubps", magnitude, one, magnitude)
        _copy_sign(asm, register, magnitude, sign)


def _copy_sign(asm: Assembler, register: Register, magnitude: Register, sign: Operand) -> None:
    """register = magnitude, which is not negative, with the sign of register."""
    if asm.target.isa == "avx512":
        asm.emit("vpternlogd", register, magnitude, sign, _FIRST_WHERE_MASK)
    else:
        asm.emit("vandps", register, register, sign)
        asm.emit("vorps", register, register, magnitude)


_Template = Callable[[Assembler, Sequence[Register], Sequence[Register]], None]
_TEMPLATES: dict[Activation, _Template] = {
    Activation.RELU: _relu,
    Activation.TANH: _tanh,
    Activation.SIGMOID: _sigmoid,
}
