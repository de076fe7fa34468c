"""Rational tanh and sigmoid, fused behind a kernel or over an array."""

from sparsejit.assembler import Assembler
from sparsejit.operands import Register
from sparsejit.spec import Activation


def apply_activation(
    asm: Assembler, activation: Activation, registers: list[Register], scratch: list[Register]
) -> None:
    """registers = activation(registers), clobbering `scratch`."""
    if activation is not Activation.NONE:
        raise NotImplementedError(activation)
