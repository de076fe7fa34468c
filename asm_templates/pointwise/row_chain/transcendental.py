"""exp, log and related functions, erf, sine and cosine, in place, of several vectors in step."""

from collections.abc import Sequence

from sparsejit.asm_templates.pointwise.row_chain.coefficients import (
    COS,
    ERF_DENOMINATOR,
    ERF_LIMIT,
    ERF_NUMERATOR,
    ERF_STEP,
    EXP,
    EXP2_HIGHEST,
    EXP2_LOWEST,
    EXP_HIGHEST,
    EXP_LEAST_POWER,
    EXP_LOWEST,
    EXPM1_LOWEST,
    HALF_PI,
    LN2,
    LN2_REST,
    LN2_SHORT,
    LOG,
    LOG2_E,
    SIN,
    SINE_NEAR,
    TURN_BITS,
    erf_pieces,
    turn_words,
)
from sparsejit.asm_templates.pointwise.row_chain.lanes import bits, compare, is_wide, move, select
from sparsejit.asm_templates.shared.constants import emit_polynomial, load_constant
from sparsejit.asm_templates.shared.rows import zero
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Register, k

Registers = Sequence[Register]
_TO_NEAREST = 8  # of vroundps and vrndscaleps, without exception flags
_MANTISSA_FROM_3_4 = 0x0B  # of vgetmantps: in [3/4, 3/2); NaN for negative numbers
_NOT_BELOW = 22  # predicate of vcmpps: not less or equal, or NaN
_LESS, _GREATER = 17, 30  # predicates of vcmpps, false of NaN
_MASK = k(1)
# vpternlogd a, b, mask: b where the mask has ones, a elsewhere.
_FIRST_ELSE = 0xD8


def _parts(scratch: Registers, count: int, parts: int) -> list[Registers]:
    return [scratch[part * count : (part + 1) * count] for part in range(parts)]


def _each(asm: Assembler, mnemonic: str, *columns: Registers | int) -> None:
    """Emit the instruction for every vector; an int among the columns is the same for all."""
    vectors = max(len(column) for column in columns if not isinstance(column, int))
    for number in range(vectors):
        asm.emit(mnemonic, *(c if isinstance(c, int) else c[number] for c in columns))


def _with(
    asm: Assembler,
    mnemonic: str,
    results: Registers,
    firsts: Registers,
    value: float,
    spare: Register,
) -> None:
    """results = mnemonic(firsts, value)."""
    load_constant(asm, spare, value)
    for result, first in zip(results, firsts, strict=True):
        asm.emit(mnemonic, result, first, spare)


def _clamp(asm: Assembler, x: Registers, lowest: float, highest: float, spare: Register) -> None:
    """x into [lowest, highest]; NaN stays."""
    for mnemonic, bound in (("vminps", highest), ("vmaxps", lowest)):
        load_constant(asm, spare, bound)
        for register in x:
            # min and max return their second source when either is NaN.
            asm.emit(mnemonic, register, spare, register)


def _round(asm: Assembler, results: Registers, sources: Registers) -> None:
    _each(asm, "vrndscaleps" if is_wide(asm) else "vroundps", results, sources, _TO_NEAREST)


def _reduce_by_ln2(asm: Assembler, x: Registers, n: Registers, spare: Register) -> None:
    """n = x / ln 2 rounded, x -= n ln 2."""
    _with(asm, "vmulps", n, x, LOG2_E, spare)
    _round(asm, n, n)
    for part in LN2:
        load_constant(asm, spare, part)
        for number, register in zip(n, x, strict=True):
            asm.emit("vfnmadd231ps", register, number, spare)


def exp(asm: Assembler, x: Registers, scratch: Registers) -> None:
    """x = exp(x) = 2^n p(x - n ln 2), n whole: overflows to infinity, underflows by denormals.

    Inputs at the lower bound or below it, such as -infinity in a mask, become 0 without arithmetic
    that underflows, which would take a hundred cycles.
    """
    (n, p), spare = _parts(scratch, len(x), 2), scratch[-1]
    _clamp(asm, x, EXP_LOWEST, EXP_HIGHEST, spare)
    _reduce_by_ln2(asm, x, n, spare)
    _scaled_exp(asm, x, n, p, spare)


def sigmoid(asm: Assembler, x: Registers, scratch: Registers) -> None:
    """x = 1 / (1 + exp(-x)): accurate to the last places where it is small, too."""
    spare = scratch[-1]
    _with(asm, "vmulps", x, x, -1.0, spare)
    exp(asm, x, scratch)
    _with(asm, "vaddps", x, x, 1.0, spare)
    for register in x:
        asm.emit("vdivps", register, spare, register)


def exp2(asm: Assembler, x: Registers, scratch: Registers) -> None:
    """x = 2^x = 2^n p((x - n) ln 2): as `exp`, and exact where x is whole."""
    (n, p), spare = _parts(scratch, len(x), 2), scratch[-1]
    _clamp(asm, x, EXP2_LOWEST, EXP2_HIGHEST, spare)
    _round(asm, n, x)
    _each(asm, "vsubps", x, x, n)
    _with(asm, "vmulps", x, x, sum(LN2), spare)
    _scaled_exp(asm, x, n, p, spare)


def _scaled_exp(asm: Assembler, x: Registers, n: Registers, p: Registers, spare: Register) -> None:
    """x = 2^n exp(x) for x in [-ln 2 / 2, ln 2 / 2]; 0 where n is least."""
    emit_polynomial(asm, p, x, (1.0, 1.0, *EXP), spare)
    if is_wide(asm):
        load_constant(asm, spare, EXP_LEAST_POWER + 0.5)
        for result, power, whole in zip(x, p, n, strict=True):
            asm.emit("vcmpps", _MASK, whole, spare, _NOT_BELOW)
            asm.emit("vscalefps", result.masked(_MASK, zeroing=True), power, whole)
        return
    # 2^n in two factors, as 2^-150 and 2^128 are no normal floats; of the least n both are 0.
    _each(asm, "vcvtps2dq", n, n)
    _each(asm, "vpsrad", x, n, 1)
    _each(asm, "vpsubd", n, n, x)
    move(asm, spare, asm.constant(1.0))
    for factor in (x, n):
        _each(asm, "vpslld", factor, factor, 23)
        for register in factor:
            asm.emit("vpaddd", register, register, spare)
    _each(asm, "vmulps", p, p, x)
    _each(asm, "vmulps", x, p, n)


def expm1(asm: Assembler, x: Registers, scratch: Registers) -> None:
    """x = exp(x) - 1 = 2 (s q + (s - 1/2)), s = 2^(n - 1), q = exp(x - n ln 2) - 1."""
    (s, q), spare = _parts(scratch, len(x), 2), scratch[-1]
    _clamp(asm, x, EXPM1_LOWEST, EXP_HIGHEST, spare)
    _reduce_by_ln2(asm, x, s, spare)
    emit_polynomial(asm, q, x, EXP, spare)
    _each(asm, "vmulps", q, q, x)
    _each(asm, "vfmadd213ps", q, x, x)
    _each(asm, "vcvtps2dq", s, s)
    _each(asm, "vpslld", s, s, 23)
    move(asm, spare, asm.constant(0.5))
    for register in s:
        asm.emit("vpaddd", register, register, spare)
    for register, scale in zip(x, s, strict=True):
        asm.emit("vsubps", register, scale, spare)
    _each(asm, "vfmadd231ps", x, q, s)
    _each(asm, "vaddps", x, x, x)


def log(asm: Assembler, x: Registers, scratch: Registers) -> None:
    """x = log x = e ln 2 + log m, x = 2^e m with m in [3/4, 3/2)."""
    parts, spare = _parts(scratch, len(x), 3 if is_wide(asm) else 4), scratch[-1]
    e, p, square = parts[:3]
    if is_wide(asm):
        _each(asm, "vgetexpps", e, x)
        _each(asm, "vgetmantps", x, x, _MANTISSA_FROM_3_4)
        _each(asm, "vgetexpps", p, x)
        _each(asm, "vsubps", e, e, p)
    else:
        for original, register in zip(parts[3], x, strict=True):
            asm.emit("vmovaps", original, register)
        _split_exponent(asm, x, e, p, spare)
    _with(asm, "vsubps", x, x, 1.0, spare)
    _each(asm, "vmulps", square, x, x)
    emit_polynomial(asm, p, x, LOG, spare)
    _each(asm, "vmulps", p, p, x)
    _each(asm, "vmulps", p, p, square)
    for mnemonic, value, factor, total in (
        ("vfmadd231ps", LN2_REST, e, p),
        ("vfnmadd231ps", 0.5, square, p),
    ):
        load_constant(asm, spare, value)
        for first, sum_ in zip(factor, total, strict=True):
            asm.emit(mnemonic, sum_, first, spare)
    _each(asm, "vaddps", x, x, p)
    load_constant(asm, spare, LN2_SHORT)
    for exponent, register in zip(e, x, strict=True):
        asm.emit("vfmadd231ps", register, exponent, spare)
    if not is_wide(asm):
        for original, register, truth in zip(parts[3], x, p, strict=True):
            _special_logarithms(asm, register, original, truth, spare)


def _split_exponent(
    asm: Assembler, x: Registers, e: Registers, truth: Registers, spare: Register
) -> None:
    """x = 2^e m, left in x, with m in [3/4, 3/2); of denormals as well."""
    for register, exponent, small in zip(x, e, truth, strict=True):
        asm.emit("vcmpps", small, register, bits(asm, 0x00800000), 17)  # below 2^-126
        asm.emit("vmulps", exponent, register, asm.constant(2.0**23))
        asm.emit("vblendvps", register, register, exponent, small)
        move(asm, spare, bits(asm, 0x3F400000))
        asm.emit("vpsubd", exponent, register, spare)
        asm.emit("vpsrad", exponent, exponent, 23)
        asm.emit("vpslld", spare, exponent, 23)
        asm.emit("vpsubd", register, register, spare)
        asm.emit("vcvtdq2ps", exponent, exponent)
        asm.emit("vandps", small, small, asm.constant(23.0))
        asm.emit("vsubps", exponent, exponent, small)


def _special_logarithms(
    asm: Assembler, result: Register, x: Register, truth: Register, spare: Register
) -> None:
    """result = log x where x is zero, negative, infinite or NaN."""
    zero(asm, spare)
    asm.emit("vcmpps", truth, x, spare, 0)
    asm.emit("vblendvps", result, result, asm.constant(float("-inf")), truth)
    asm.emit("vcmpps", truth, x, asm.constant(float("inf")), 5)  # not less: infinity, NaN
    asm.emit("vblendvps", result, result, x, truth)
    asm.emit("vcmpps", truth, x, spare, 17)
    asm.emit("vorps", result, result, truth)


def log1p(asm: Assembler, x: Registers, scratch: Registers) -> None:
    """x = log(1 + x) = log u + (x - (u - 1)) / u, u = 1 + x rounded."""
    rest, spare = scratch[: len(x)], scratch[-1]
    u = scratch[len(x) : 2 * len(x)]
    load_constant(asm, spare, 1.0)
    for register, one_more, lost in zip(x, u, rest, strict=True):
        asm.emit("vaddps", one_more, register, spare)
        asm.emit("vsubps", lost, one_more, spare)
        asm.emit("vsubps", lost, register, lost)
        asm.emit("vdivps", lost, lost, one_more)
        asm.emit("vmovaps", register, one_more)
        # NaN where u is zero or infinite, and then its logarithm is the result.
        if is_wide(asm):
            asm.emit("vcmpps", _MASK, lost, lost, 7)
            asm.emit("vmovaps", lost.masked(_MASK, zeroing=True), lost)
        else:
            asm.emit("vcmpps", one_more, lost, lost, 7)
            asm.emit("vandps", lost, lost, one_more)
    log(asm, x, scratch[len(x) :])
    _each(asm, "vaddps", x, x, rest)


def erf(asm: Assembler, x: Registers, scratch: Registers) -> None:
    """x = erf(x), exactly 1 beyond ERF_LIMIT, so that gelu vanishes for large negative x."""
    if is_wide(asm):
        _erf_in_pieces(asm, x, scratch)
    else:
        _erf_as_quotient(asm, x, scratch)


def _erf_in_pieces(asm: Assembler, x: Registers, scratch: Registers) -> None:
    """AVX-512: x = erf(x) by pieces, each a polynomial in |x| / ERF_STEP less the nearest whole n.

    n chooses the coefficients.
    """
    (steps, rest, p), spare = _parts(scratch, len(x), 3), scratch[-1]
    pieces = erf_pieces(asm.target.lanes)
    move(asm, spare, bits(asm, 0x7FFFFFFF))
    for magnitude, register in zip(rest, x, strict=True):
        asm.emit("vandps", magnitude, register, spare)
    _with(asm, "vmulps", rest, rest, 1 / ERF_STEP, spare)
    load_constant(asm, spare, asm.target.lanes - 0.51)
    for register in rest:
        # min returns its second source when either is NaN.
        asm.emit("vminps", register, spare, register)
    # Adding 2^23 leaves a whole number in the lowest bits, the only bits that vpermps reads.
    _with(asm, "vaddps", steps, rest, 2.0**23, spare)
    for whole, number in zip(p, steps, strict=True):
        asm.emit("vsubps", whole, number, spare)
    _each(asm, "vsubps", rest, rest, p)
    table = asm.literal(pieces)
    *others, highest = [Literal(table + pieces[0].nbytes * power) for power in range(len(pieces))]
    for result, number in zip(p, steps, strict=True):
        asm.emit("vpermps", result, number, highest)
    for place in reversed(others):
        for result, number, argument in zip(p, steps, rest, strict=True):
            asm.emit("vpermps", spare, number, place)
            asm.emit("vfmadd213ps", result, argument, spare)
    # Combine the sign of x with the magnitude of p.
    for register, result in zip(x, p, strict=True):
        asm.emit("vpternlogd", register, result, bits(asm, 0x7FFFFFFF), _FIRST_ELSE)


def _erf_as_quotient(asm: Assembler, x: Registers, scratch: Registers) -> None:
    """AVX2: x = erf(x) = x P(x^2) / Q(x^2), clamped to [-1, 1].

    Where x^2 is clamped the quotient grows with x.
    """
    (square, top, bottom), spare = _parts(scratch, len(x), 3), scratch[-1]
    _each(asm, "vmulps", square, x, x)
    load_constant(asm, spare, ERF_LIMIT**2)
    for register in square:
        asm.emit("vminps", register, spare, register)
    emit_polynomial(asm, bottom, square, ERF_DENOMINATOR, spare)
    emit_polynomial(asm, top, square, ERF_NUMERATOR, spare)
    _each(asm, "vdivps", bottom, top, bottom)
    # The factor x comes last: it may be infinite, P / Q is not.
    _each(asm, "vmulps", x, x, bottom)
    _clamp(asm, x, -1.0, 1.0, spare)


def sin(asm: Assembler, x: Registers, scratch: Registers) -> None:
    _sine(asm, x, scratch, 0)


def cos(asm: Assembler, x: Registers, scratch: Registers) -> None:
    _sine(asm, x, scratch, 1)


def _within_a_turn(asm: Assembler, x: Register, scratch: Registers) -> None:
    """x less whole turns where SINE_NEAR < |x| < infinity; if no lane is, a jump skips all this."""
    a, b, c, _ = scratch
    near = asm.label("no number is far")
    magnitude = bits(asm, 0x7FFFFFFF)
    asm.emit("vandps", c, x, magnitude)
    if is_wide(asm):
        asm.emit("vcmpps", _MASK, c, asm.constant(SINE_NEAR), _GREATER)
        asm.emit("kortestw", _MASK, _MASK)
    else:
        asm.emit("vcmpps", a, c, asm.constant(SINE_NEAR), _GREATER)
        asm.emit("vtestps", a, a)
    asm.jump("jz", near)
    _turns(asm, x, scratch)
    asm.emit("vcvtdq2ps", b, b)
    asm.emit("vmulps", b, b, asm.constant(2.0**-31 * 3.141592653589793))
    asm.emit("vandps", c, x, bits(asm, 0x80000000))
    asm.emit("vxorps", b, b, c)
    asm.emit("vandps", c, x, magnitude)
    compare(asm, a, c, asm.constant(SINE_NEAR), _GREATER)
    compare(asm, c, c, asm.constant(float("inf")), _LESS)
    asm.emit("vandps", a, a, c)
    select(asm, x, a, b, x)
    asm.bind(near)


def _turns(asm: Assembler, x: Register, scratch: Registers) -> None:
    """scratch[1] = the fraction of a turn in |x|, times 2^32 as a whole number.

    Payne and Hanek 1983: |x| is a mantissa of 24 bits times a power of two, and the fraction is the
    mantissa times the bits of 1 / (2 pi) from that power on, modulo 1. 64 of these bits leave an
    error of 2^-31. scratch[2] holds |x|.
    """
    a, b, c, spare = scratch
    low_bits = bits(asm, 31)
    first, second, third = (Literal(asm.literal(each)) for each in turn_words(asm.target.lanes))
    asm.emit("vpsrld", c, c, 23)
    asm.emit("vpaddd", a, c, bits(asm, -TURN_BITS & 0xFFFFFFFF))
    asm.emit("vpsrld", c, a, 5)  # c: the word that has the first bit; a: its place there
    asm.emit("vandps", a, a, low_bits)

    def shift_in(word: Register, behind: Register, place: Literal) -> None:
        """The word from its bit `a` on, and the first bits of the next one."""
        asm.emit("vpsllvd", word, word, a)
        asm.emit("vxorps", a, a, low_bits)
        asm.emit("vpermd", behind, c, place)
        asm.emit("vpsrlvd", behind, behind, a)
        asm.emit("vpsrld", behind, behind, 1)
        asm.emit("vorps", word, word, behind)
        asm.emit("vxorps", a, a, low_bits)

    asm.emit("vpermd", b, c, first)
    shift_in(b, spare, second)
    asm.emit("vpermd", spare, c, second)
    shift_in(spare, c, third)
    asm.emit("vandps", a, x, bits(asm, 0x7FFFFF))
    asm.emit("vorps", a, a, bits(asm, 0x800000))
    asm.emit("vpmulld", b, b, a)
    asm.emit("vpsrld", spare, spare, 8)
    asm.emit("vcvtdq2ps", spare, spare)
    asm.emit("vcvtdq2ps", a, a)
    asm.emit("vmulps", spare, spare, a)
    asm.emit("vmulps", spare, spare, asm.constant(2.0**-24))
    asm.emit("vcvtps2dq", spare, spare)
    asm.emit("vpaddd", b, b, spare)


def _sine(asm: Assembler, x: Registers, scratch: Registers, quarter: int) -> None:
    """x = sin(x + quarter pi / 2), in place.

    x less a whole number of quarters of a turn goes through the polynomial of sine or cosine, which
    that number chooses. Errors are at most 2e-7 for |x| up to SINE_NEAR, and 4e-7 beyond.
    """
    (n, square, p), spare = _parts(scratch, len(x), 3), scratch[-1]
    for register, *others in zip(x, n, square, p, strict=True):
        _within_a_turn(asm, register, [*others, spare])
    _with(asm, "vmulps", n, x, 2 / 3.141592653589793, spare)
    _round(asm, n, n)
    for part in HALF_PI:
        load_constant(asm, spare, part)
        for number, register in zip(n, x, strict=True):
            asm.emit("vfnmadd231ps", register, number, spare)
    _each(asm, "vcvtps2dq", n, n)
    if quarter:
        move(asm, spare, asm.constant(quarter))
        for register in n:
            asm.emit("vpaddd", register, register, spare)
    _each(asm, "vmulps", square, x, x)
    emit_polynomial(asm, p, square, SIN, spare)
    _each(asm, "vmulps", x, x, p)
    emit_polynomial(asm, p, square, COS, spare)
    for register, number, cosine, scratch_ in zip(x, n, p, square, strict=True):
        asm.emit("vpslld", scratch_, number, 31)
        select(asm, register, scratch_, cosine, register)
        asm.emit("vpsrld", number, number, 1)
        asm.emit("vpslld", number, number, 31)
        asm.emit("vxorps", register, register, number)
