"""ReLU, ReLU6, tanh and sigmoid, fused behind a kernel.

    tanh x = x P(x^2) / Q(x^2)        sigmoid x = 1/2 + tanh(x / 2) / 2

after x is clamped to [-LIMIT, LIMIT] for tanh and to twice that for sigmoid. In float32 xP reaches
Q at the limit and never exceeds it before, so the results end at 1 exactly and never pass it. Near
zero P = Q = 1 and tanh x = x, denormals included. Rounding makes neither function monotone.
docs/notes/activations.md has the errors over all floats.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.shared.constants import emit_polynomial, load_constant, shared_constant
from sparsejit.errors import CompileError
from sparsejit.ir.spec import Activation
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Register, ymm

SCRATCH_PER_VECTOR = 3  # scratch registers that one vector needs
COSTLY = (Activation.TANH, Activation.SIGMOID)  # faster with several vectors in step

# P and Q, constant terms first: least largest absolute error on [0, 8] under P(0) = Q(0) = 1,
# 1.5e-7, by Remez's exchange (`git show 740c1e5:perf/fit_tanh.py`), and the limit from them.
NUMERATOR = (1.0, 0.12924959, 0.0029502632, 1.1420546e-05)
DENOMINATOR = (1.0, 0.46258187, 0.023812434, 0.00023856331, 2.456783e-07)
LIMIT = 7.8414664

# The same on [0, 5], 5.3e-5, for results that are rounded more coarsely than that.
COARSE_NUMERATOR = (1.0, 0.10249205, 0.0006718431)
COARSE_DENOMINATOR = (1.0, 0.43555942, 0.012836478)
COARSE_LIMIT = 5.0

# vrangeps: the number of smaller magnitude, with the first one's sign; NaN only if both are NaN.
_SMALLER_MAGNITUDE = 0x02


@dataclass(frozen=True)
class Tanh:
    """A rational function for tanh.

    `refined`: the quotient is exact up to rounding; otherwise AVX-512 multiplies by an estimate of
    the reciprocal, good to 14 bits.
    """

    numerator: Sequence[float]
    denominator: Sequence[float]
    limit: float
    refined: bool


FINE = Tanh(NUMERATOR, DENOMINATOR, LIMIT, refined=True)
# Error of tanh at most 1.2e-4, and of tanh(x / 2) / 2 half of that.
COARSE = Tanh(COARSE_NUMERATOR, COARSE_DENOMINATOR, COARSE_LIMIT, refined=False)


def apply_activation(
    asm: Assembler,
    activation: Activation,
    registers: list[Register],
    scratch: list[Register],
    tanh: Tanh = FINE,
) -> None:
    """registers = activation(registers), clobbering `scratch`; `tanh` serves tanh and sigmoid.

    Any activation but NONE needs SCRATCH_PER_VECTOR registers of scratch; with n times that number
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
    if activation not in COSTLY:
        most_in_step = len(registers)
    groups = ceil_div(len(registers), max(1, most_in_step))
    for group in range(groups):
        first, last = (len(registers) * edge // groups for edge in (group, group + 1))
        _TEMPLATES[activation](asm, registers[first:last], scratch, tanh)


def _relu(
    asm: Assembler, registers: Sequence[Register], scratch: Sequence[Register], tanh: Tanh
) -> None:
    low = ymm(int(scratch[0].number))
    asm.emit("vpxord" if int(low.number) > 15 else "vpxor", low, low, low)
    for register in registers:
        # max returns its second source when either is NaN.
        asm.emit("vmaxps", register, scratch[0], register)


def _relu6(
    asm: Assembler, registers: Sequence[Register], scratch: Sequence[Register], tanh: Tanh
) -> None:
    _relu(asm, registers, scratch, tanh)
    load_constant(asm, scratch[1], 6.0)
    for register in registers:
        # So does min: NaN stays.
        asm.emit("vminps", register, scratch[1], register)


def _tanh(
    asm: Assembler, registers: Sequence[Register], scratch: Sequence[Register], tanh: Tanh
) -> None:
    _scaled_tanh(asm, registers, scratch, tanh, 1.0)


def _sigmoid(
    asm: Assembler, registers: Sequence[Register], scratch: Sequence[Register], tanh: Tanh
) -> None:
    _scaled_tanh(asm, registers, scratch, tanh, 0.5)
    half = shared_constant(asm, 0.5, len(registers), scratch[-1])
    for register in registers:
        asm.emit("vaddps", register, register, half)


def _scaled_tanh(
    asm: Assembler,
    registers: Sequence[Register],
    scratch: Sequence[Register],
    tanh: Tanh,
    scale: float,
) -> None:
    """registers = scale * tanh(scale * registers).

    `scale` is a power of two, so that it goes into the coefficients without rounding them.
    """
    count, holder = len(registers), scratch[-1]
    squares, tops, bottoms = (scratch[part * count : (part + 1) * count] for part in range(3))
    _clamp_and_square(asm, registers, squares, tanh.limit / scale, (tops[0], bottoms[0]))
    numerator = [value * scale ** (2 * power + 2) for power, value in enumerate(tanh.numerator)]
    denominator = [value * scale ** (2 * power) for power, value in enumerate(tanh.denominator)]
    emit_polynomial(asm, bottoms, squares, denominator, holder)
    emit_polynomial(asm, tops, squares, numerator, holder)
    for register, top in zip(registers, tops, strict=True):
        asm.emit("vmulps", register, register, top)
    if tanh.refined or asm.target.isa == "avx2":
        _divide(asm, registers, bottoms, squares, tops)
        return
    for register, divisor, reciprocal in zip(registers, bottoms, squares, strict=True):
        asm.emit("vrcp14ps", reciprocal, divisor)
        asm.emit("vmulps", register, register, reciprocal)


def _clamp_and_square(
    asm: Assembler,
    registers: Sequence[Register],
    squares: Sequence[Register],
    limit: float,
    bounds: tuple[Register, Register],
) -> None:
    """registers into [-limit, limit], squares = registers^2; NaN stays, in the square at least.

    Clobbers `bounds`.
    """
    # min and max return their second source when either is NaN.
    high, low = bounds
    load_constant(asm, high, limit)
    if asm.target.isa == "avx2":
        load_constant(asm, low, -limit)
        for register in registers:
            asm.emit("vminps", register, high, register)
            asm.emit("vmaxps", register, low, register)
        for register, square in zip(registers, squares, strict=True):
            asm.emit("vmulps", square, register, register)
        return
    highest_square = low
    load_constant(asm, highest_square, float(np.float32(limit)) ** 2)
    for register, square in zip(registers, squares, strict=True):
        asm.emit("vmulps", square, register, register)
        asm.emit("vrangeps", register, register, high, _SMALLER_MAGNITUDE)
    for square in squares:
        asm.emit("vminps", square, highest_square, square)


def _divide(
    asm: Assembler,
    registers: Sequence[Register],
    divisors: Sequence[Register],
    reciprocals: Sequence[Register],
    quotients: Sequence[Register],
) -> None:
    """registers /= divisors, which are positive; the quotient 1 and the sign of zero are exact.

    AVX-512 takes an estimate of 14 bits and one Newton step on the quotient, q -= (q d - n) / d:
    for 16 lanes the divider would be busy longer than the multipliers are.
    """
    if asm.target.isa == "avx2":
        for register, divisor in zip(registers, divisors, strict=True):
            asm.emit("vdivps", register, register, divisor)
        return
    for reciprocal, divisor in zip(reciprocals, divisors, strict=True):
        asm.emit("vrcp14ps", reciprocal, divisor)
    for quotient, register, reciprocal in zip(quotients, registers, reciprocals, strict=True):
        asm.emit("vmulps", quotient, register, reciprocal)
    for register, quotient, divisor in zip(registers, quotients, divisors, strict=True):
        asm.emit("vfmsub231ps", register, quotient, divisor)
    for register, reciprocal, quotient in zip(registers, reciprocals, quotients, strict=True):
        asm.emit("vfnmadd213ps", register, reciprocal, quotient)


_Template = Callable[[Assembler, Sequence[Register], Sequence[Register], Tanh], None]
_TEMPLATES: dict[Activation, _Template] = {
    Activation.RELU: _relu,
    Activation.RELU6: _relu6,
    Activation.TANH: _tanh,
    Activation.SIGMOID: _sigmoid,
}
