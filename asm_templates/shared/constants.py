"""Constants in every lane of a vector, read from the pool behind the code, and polynomials.

    shared_constant, load_constant   a constant as an operand, or in a register
    emit_polynomial                  polynomials over several vectors in step: latencies overlap
"""

from collections.abc import Sequence

from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Operand, Register


def shared_constant(asm: Assembler, value: float, uses: int, holder: Register) -> Operand:
    """An operand with `value` in every lane: `holder`, filled here, where it is used repeatedly.

    Read from memory for each vector, the constants alone keep both load ports busier than the
    arithmetic keeps its own.
    """
    if uses == 1:
        return asm.constant(value)
    load_constant(asm, holder, value)
    return holder


def load_constant(asm: Assembler, register: Register, value: float) -> None:
    """register = `value` in every lane."""
    constant = asm.constant(value)
    if constant.broadcast:
        asm.emit("vbroadcastss", register, Literal(constant.offset))
    else:
        asm.emit("vmovups", register, constant)


def emit_polynomial(
    asm: Assembler,
    results: Sequence[Register],
    arguments: Sequence[Register],
    coefficients: Sequence[float],
    holder: Register,
) -> None:
    """results[i] = the polynomial at arguments[i], by Horner's scheme in fused multiply-adds.

    `coefficients` begin with the constant term. If there are several vectors, clobbers `holder`.
    """
    *rest, leading = coefficients
    load_constant(asm, results[0], leading)
    for result in results[1:]:
        asm.emit("vmovaps", result, results[0])
    for value in reversed(rest):
        coefficient = shared_constant(asm, value, len(results), holder)
        for argument, result in zip(arguments, results, strict=True):
            asm.emit("vfmadd213ps", result, argument, coefficient)
