"""2^t over vectors: the exponential behind softmax.

2^t = 2^floor(t) * p(t - floor(t)), p a polynomial of degree 5 on [0, 1].

Every step is a monotone function rounded to float32, hence monotone itself: the coefficients are
positive and the argument is not negative, so each fused multiply-add of Horner's scheme grows
with its argument. Where floor(t) steps up, p(1) = 2 meets 2 p(0) = 2. A class with a larger logit
is therefore never drawn more rarely than one with a smaller.
"""

from collections.abc import Sequence

from sparsejit.asm_templates.shared.constants import emit_polynomial, load_constant
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Register

# Minimax in relative error on [0, 1] under p(0) = 1 and p(1) = 2, constant term first.
# A linear program (`git show 740c1e5:perf/fit_exp2.py`): relative error at most 1.1e-7.
COEFFICIENTS = (1.0, 0.6931517, 0.24015926, 0.055818714, 0.008990947, 0.0018793384)

# Bounds of t on AVX2, where floor(t) is added to the exponent bits of p: 2^128 comes out as
# infinity and 2^-127 as zero.
_LARGEST, _SMALLEST = 128.0, -127.0
_EXPONENT_SHIFT = 23
_ROUND_DOWN = 0x09  # of vroundps and vreduceps: towards minus infinity, no exception flags


def emit_exp2(asm: Assembler, exponents: Sequence[Register], scratch: Sequence[Register]) -> None:
    """exponents[i] = 2^exponents[i], all vectors in step so that their latencies overlap.

    `scratch` holds two registers for each exponent and, where there are several, one more, last,
    for constants. NaN gives NaN, 128 and above infinity. Results below 2^-126 go to zero
    monotonically but carry no precision.
    """
    fractions = scratch[: len(exponents)]
    powers = scratch[len(exponents) : 2 * len(exponents)]
    if asm.target.isa == "avx512":
        for t, fraction in zip(exponents, fractions, strict=True):
            asm.emit("vreduceps", fraction, t, _ROUND_DOWN)
        emit_polynomial(asm, powers, fractions, COEFFICIENTS, scratch[-1])
        for t, power in zip(exponents, powers, strict=True):
            asm.emit("vscalefps", t, power, t)
        return
    _split_avx2(asm, exponents, fractions, powers)
    emit_polynomial(asm, powers, exponents, COEFFICIENTS, scratch[-1])
    for t, whole, power in zip(exponents, fractions, powers, strict=True):
        asm.emit("vpaddd", t, whole, power)


def _split_avx2(
    asm: Assembler,
    exponents: Sequence[Register],
    wholes: Sequence[Register],
    bounds: Sequence[Register],
) -> None:
    """AVX2: append code that splits exponents into fraction and whole part.

    exponents -= floor(exponents), and wholes = floor(exponents) shifted to the exponent bits.
    """
    largest, smallest = wholes[0], bounds[0]
    load_constant(asm, largest, _LARGEST)
    load_constant(asm, smallest, _SMALLEST)
    for t in exponents:
        # min and max return their second source when either is NaN: t must stand there.
        asm.emit("vminps", t, largest, t)
        asm.emit("vmaxps", t, smallest, t)
    for t, whole in zip(exponents, wholes, strict=True):
        asm.emit("vroundps", whole, t, _ROUND_DOWN)
    for t, whole in zip(exponents, wholes, strict=True):
        asm.emit("vsubps", t, t, whole)
        asm.emit("vcvtps2dq", whole, whole)
        asm.emit("vpslld", whole, whole, _EXPONENT_SHIFT)
