"""Polynomials over several vectors in step, so that their latencies overlap."""

from collections.abc import Sequence

from sparsejit.asm_templates.shared.constants import load_constant, shared_constant
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Register


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
