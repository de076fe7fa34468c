"""ReLU, tanh and sigmoid, fused behind a kernel.

sigmoid(x) = 1 / (1 + 2^(-x log2 e)) and tanh(x) = sign(x) (1 - 2 / (1 + 2^(2 |x| log2 e))), with a
true division. Piecewise these are rational functions; over all floats they are monotone (see
`exponential`), stay inside [0, 1] and [-1, 1], and reach the ends exactly.
"""

import math
from collections.abc import Callable, Sequence

from sparsejit.asm_templates.exponential import emit_exp2, load_constant
from sparsejit.assembler import Assembler
from sparsejit.errors import CompileError
from sparsejit.operands import Register, ymm
from sparsejit.spec import Activation

SCRATCH_PER_VECTOR = 3  # scratch registers that one vector needs

_MAGNITUDE_BITS = 0x7FFFFFFF
_SIGN_BIT = -(2**31)
_FIRST_WHERE_MASK = 0xE4  # vpternlogd: third operand set ? first : second


def apply_activation(
    asm: Assembler, activation: Activation, registers: list[Register], scratch: list[Register]
) -> None:
    """registers = activation(registers), clobbering `scratch`.

    Any activation but NONE needs SCRATCH_PER_VECTOR registers of scratch; n times as many let n
    vectors run in step. Raises CompileError for fewer.
    """
    if activation is Activation.NONE:
        return
    width = len(scratch) // SCRATCH_PER_VECTOR
    if width == 0:
        raise CompileError(
            f"{activation.value} got {len(scratch)} scratch registers; "
            f"it needs at least {SCRATCH_PER_VECTOR}"
        )
    for first in range(0, len(registers), width):
        _TEMPLATES[activation](asm, registers[first : first + width], scratch)


def _relu(asm: Assembler, registers: Sequence[Register], scratch: Sequence[Register]) -> None:
    low = ymm(int(scratch[0].number))
    asm.emit("vpxord" if int(low.number) > 15 else "vpxor", low, low, low)
    for register in registers:
        # max returns its second source when either is NaN.
        asm.emit("vmaxps", register, scratch[0], register)


def _sigmoid(asm: Assembler, registers: Sequence[Register], scratch: Sequence[Register]) -> None:
    for register in registers:
        asm.emit("vmulps", register, register, asm.constant(-math.log2(math.e)))
    emit_exp2(asm, registers, scratch)
    for register in registers:
        asm.emit("vaddps", register, register, asm.constant(1.0))
    one = scratch[0]
    load_constant(asm, one, 1.0)
    for register in registers:
        asm.emit("vdivps", register, one, register)


def _tanh(asm: Assembler, registers: Sequence[Register], scratch: Sequence[Register]) -> None:
    magnitudes, rest = scratch[: len(registers)], scratch[len(registers) :]
    for register, magnitude in zip(registers, magnitudes, strict=True):
        asm.emit("vandps", magnitude, register, asm.constant(_MAGNITUDE_BITS))
        asm.emit("vmulps", magnitude, magnitude, asm.constant(2.0 * math.log2(math.e)))
    emit_exp2(asm, magnitudes, rest)
    for magnitude in magnitudes:
        asm.emit("vaddps", magnitude, magnitude, asm.constant(1.0))
    one, two = rest[:2]
    load_constant(asm, two, 2.0)
    load_constant(asm, one, 1.0)
    for magnitude in magnitudes:
        asm.emit("vdivps", magnitude, two, magnitude)
    for register, magnitude in zip(registers, magnitudes, strict=True):
        asm.emit("vsubps", magnitude, one, magnitude)
        _copy_sign(asm, register, magnitude)


def _copy_sign(asm: Assembler, register: Register, magnitude: Register) -> None:
    """register = magnitude, which is not negative, with the sign of register."""
    sign = asm.constant(_SIGN_BIT)
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
