"""Functions of float64: sixteen lanes (AVX2: eight) fill a pair of registers, lower lanes first.

    exp x = 2^n P(x - n ln 2)                    n whole, P of Taylor
    log x = e ln 2 + 2 atanh s                   x = 2^e m, m in [3/4, 3/2), s = (m - 1) / (m + 1)

Both are accurate to two units in the last place.
"""

from math import factorial

import numpy as np

from sparsejit.asm_templates.pointwise.row_chain.integers import (
    INT_FUNCTIONS,
    Pair,
    PairFunction,
    both,
    join_truths,
    long_of_double,
)
from sparsejit.asm_templates.pointwise.row_chain.lanes import (
    FIRST_MASK,
    SECOND_MASK,
    doubles,
    extreme,
    high_half,
    is_wide,
    join,
    longs,
    low,
    move,
)
from sparsejit.asm_templates.shared.rows import zero
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Register

# exp x = sum of x^k / k! on [-ln 2 / 2, ln 2 / 2]: the next term is below 4e-18.
_EXP = tuple(1 / factorial(power) for power in range(14))
_LOWEST, _HIGHEST = -746.0, 710.0  # exp is 0 below, and infinite above
# 2 atanh s = s P(s^2) on [-1/7, 1/5]: the next term is below 4e-18.
_ATANH = tuple(2 / (2 * power + 1) for power in range(12))
# 32 bits and the rest: a whole number below 2^11 times the first is exact.
_LN2 = 0.693147180369123816490
_LN2_REST = 1.90821492927058770002e-10
_TO_NEAREST, _FLOOR, _CEIL, _TRUNC = 8, 9, 10, 11  # of vroundpd, without exception flags
_MANTISSA_FROM_3_4 = 0x0B  # of vgetmantpd
_LESS, _EQUAL, _NOT_LESS = 17, 0, 5  # predicates of vcmppd
_THREE_QUARTERS, _ONE = 0x3FE8000000000000, 0x3FF0000000000000


def _rounded(control: int) -> PairFunction:
    def emit(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
        for register, a in zip(d, args[0], strict=True):
            _round(asm, register, a, control)

    return PairFunction(emit)


def _round(asm: Assembler, d: Register, a: Register, control: int) -> None:
    asm.emit("vrndscalepd" if is_wide(asm) else "vroundpd", d, a, control)


def _extreme(mnemonic: str) -> PairFunction:
    def emit(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
        for register, a, b in zip(d, *args, strict=True):
            extreme(asm, mnemonic, register, [a, b], scratch[0])

    return PairFunction(emit, scratch=1)


def _compared(predicate: int) -> PairFunction:
    def emit(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
        if is_wide(asm):
            for mask, a, b in zip((FIRST_MASK, SECOND_MASK), *args, strict=True):
                asm.emit("vcmppd", mask, a, b, predicate)
            asm.emit("kunpckbw", FIRST_MASK, SECOND_MASK, FIRST_MASK)
            asm.emit("vpmovm2d", d[0], FIRST_MASK)
            return
        for register, a, b in zip((d[0], scratch[0]), *args, strict=True):
            asm.emit("vcmppd", register, a, b, predicate)
        join_truths(asm, d[0], scratch[0])

    return PairFunction(emit, scratch=1)


def _with_bits(mnemonic: str, pattern: int) -> PairFunction:
    def emit(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
        for register, a in zip(d, args[0], strict=True):
            asm.emit(mnemonic, register, a, longs(asm, pattern))

    return PairFunction(emit)


def _unary(mnemonic: str, operands: int = 1) -> PairFunction:
    def emit(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
        for register, a in zip(d, args[0], strict=True):
            asm.emit(mnemonic, register, *[a] * operands)

    return PairFunction(emit)


def _reciprocal(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
    asm.emit("vmovups", scratch[0], doubles(asm, 1.0))
    for register, a in zip(d, args[0], strict=True):
        asm.emit("vdivpd", register, scratch[0], a)


def _polynomial(
    asm: Assembler, d: Register, x: Register, coefficients: tuple[float, ...]
) -> None:
    """d = the polynomial of x, constant term first. d may not be x."""
    *others, highest = coefficients
    asm.emit("vmovups", d, doubles(asm, highest))
    for coefficient in reversed(others):
        asm.emit("vfmadd213pd", d, x, doubles(asm, coefficient))


def _exp(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
    for x, a in zip(d, args[0], strict=True):
        _exp_of_half(asm, x, a, *scratch)


def _exp_of_half(
    asm: Assembler, x: Register, a: Register, n: Register, p: Register, spare: Register
) -> None:
    """x = exp(a). min and max return their second source when either is NaN, so NaN stays."""
    asm.emit("vmovups", spare, doubles(asm, _HIGHEST))
    asm.emit("vminpd", x, spare, a)
    asm.emit("vmovups", spare, doubles(asm, _LOWEST))
    asm.emit("vmaxpd", x, spare, x)
    asm.emit("vmulpd", n, x, doubles(asm, float(np.log2(np.e))))
    _round(asm, n, n, _TO_NEAREST)
    for part in (_LN2, _LN2_REST):
        asm.emit("vfnmadd231pd", x, n, doubles(asm, part))
    _polynomial(asm, p, x, _EXP)
    if is_wide(asm):
        asm.emit("vscalefpd", x, p, n)
        return
    # 2^n in two factors, as 2^-1076 and 2^1024 are no normal doubles.
    asm.emit("vcvtpd2dq", low(n), n)
    asm.emit("vpsrad", low(spare), low(n), 1)
    asm.emit("vpsubd", low(n), low(n), low(spare))
    for factor in (n, spare):
        asm.emit("vpmovsxdq", factor, low(factor))
        asm.emit("vpsllq", factor, factor, 52)
        asm.emit("vpaddq", factor, factor, longs(asm, _ONE))
    asm.emit("vmulpd", p, p, spare)
    asm.emit("vmulpd", x, p, n)


def _log(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
    for x, a in zip(d, args[0], strict=True):
        _log_of_half(asm, x, a, *scratch)


def _log_of_half(
    asm: Assembler, m: Register, a: Register, e: Register, p: Register, spare: Register
) -> None:
    """m = log a."""
    if is_wide(asm):
        asm.emit("vgetexppd", e, a)
        asm.emit("vgetmantpd", m, a, _MANTISSA_FROM_3_4)
        asm.emit("vgetexppd", p, m)
        asm.emit("vsubpd", e, e, p)
    else:
        _split_exponent(asm, m, a, e, p, spare)
    asm.emit("vaddpd", spare, m, doubles(asm, 1.0))
    asm.emit("vsubpd", m, m, doubles(asm, 1.0))
    asm.emit("vdivpd", m, m, spare)
    asm.emit("vmulpd", spare, m, m)
    _polynomial(asm, p, spare, _ATANH)
    asm.emit("vmulpd", m, m, p)
    for part in (_LN2_REST, _LN2):
        asm.emit("vfmadd231pd", m, e, doubles(asm, part))
    if not is_wide(asm):
        _special_logarithms(asm, m, a, p, spare)


def _split_exponent(
    asm: Assembler, m: Register, a: Register, e: Register, bits: Register, spare: Register
) -> None:
    """AVX2: a = 2^e m with m in [3/4, 3/2), of denormals as well."""
    asm.emit("vmovups", spare, doubles(asm, 2.0**-1022))
    asm.emit("vcmppd", spare, a, spare, _LESS)
    asm.emit("vmulpd", m, a, doubles(asm, 2.0**54))
    asm.emit("vblendvpd", m, a, m, spare)
    asm.emit("vandps", spare, spare, doubles(asm, 54.0))
    asm.emit("vmovups", e, longs(asm, _THREE_QUARTERS))
    asm.emit("vpsubq", bits, m, e)
    asm.emit("vandps", e, bits, longs(asm, -(1 << 52)))
    asm.emit("vpsubq", m, m, e)
    # The upper 32 bits of each double have its exponent.
    asm.emit("vpsrad", bits, bits, 20)
    high_half(asm, e, bits)
    asm.emit("vshufps", low(bits), low(bits), low(e), 0xDD)
    asm.emit("vcvtdq2pd", e, low(bits))
    asm.emit("vsubpd", e, e, spare)


def _special_logarithms(
    asm: Assembler, result: Register, x: Register, truth: Register, spare: Register
) -> None:
    """AVX2: result = log x where x is zero, negative, infinite or NaN."""
    zero(asm, spare)
    asm.emit("vcmppd", truth, x, spare, _EQUAL)
    asm.emit("vblendvpd", result, result, doubles(asm, float("-inf")), truth)
    asm.emit("vmovups", truth, doubles(asm, float("inf")))
    asm.emit("vcmppd", truth, x, truth, _NOT_LESS)  # infinity or NaN
    asm.emit("vblendvpd", result, result, x, truth)
    asm.emit("vcmppd", truth, x, spare, _LESS)
    asm.emit("vorps", result, result, truth)


def _to_float(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
    for register, a in zip((d[0], scratch[0]), args[0], strict=True):
        asm.emit("vcvtpd2ps", low(register), a)
    join(asm, d[0], d[0], scratch[0])


def _to_long(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
    for register, a in zip(d, args[0], strict=True):
        move(asm, register, a)
        long_of_double(asm, register, scratch)


def _of_float(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
    source = args[0][0]
    asm.emit("vcvtps2pd", d[0], low(source))
    high_half(asm, d[1], source)
    asm.emit("vcvtps2pd", d[1], low(d[1]))


def _of_bool(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
    asm.emit("vpmovsxdq", d[0], low(args[0][0]))
    high_half(asm, d[1], args[0][0])
    asm.emit("vpmovsxdq", d[1], low(d[1]))
    for register in d:
        asm.emit("vandps", register, register, doubles(asm, 1.0))


DOUBLE_FUNCTIONS: dict[str, PairFunction] = {
    "add": both("vaddpd"),
    "sub": both("vsubpd"),
    "mul": both("vmulpd"),
    "div": both("vdivpd"),
    "maximum": _extreme("vmaxpd"),
    "minimum": _extreme("vminpd"),
    "neg": _with_bits("vxorps", -(1 << 63)),
    "abs": _with_bits("vandps", (1 << 63) - 1),
    "sqrt": _unary("vsqrtpd"),
    "reciprocal": PairFunction(_reciprocal, 1),
    "square": _unary("vmulpd", 2),
    "exp": PairFunction(_exp, 3),
    "log": PairFunction(_log, 3),
    "floor": _rounded(_FLOOR),
    "ceil": _rounded(_CEIL),
    "round": _rounded(_TO_NEAREST),
    "trunc": _rounded(_TRUNC),
    "equal": _compared(0),
    "not_equal": _compared(4),
    "less": _compared(17),
    "less_equal": _compared(18),
    "greater": _compared(30),
    "greater_equal": _compared(29),
    "where": INT_FUNCTIONS["where"],
    "to_float32": PairFunction(_to_float, 1),
    "to_int64": PairFunction(_to_long, 2),
}
OF_FLOAT, OF_BOOL = PairFunction(_of_float), PairFunction(_of_bool)
