"""Special functions and functions of the bits or magnitude of elements, as formulas of a graph's.

    INVERSES        inverse trigonometric and hyperbolic functions
    erfc, erfinv    error functions
    log_gamma       gamma functions; also `digamma` and `polygamma`
    hypot, signbit  functions of the bits or magnitude of elements
    float_power     powers of elements by elements, accurate to the last places of float32

The polynomials have the least relative error over their interval, at most 2e-8 with coefficients
rounded to float32, constant terms first.

Powers: x^y = 2^(y log2 x). log2 |x| and its product with the exponent are sums of two floats each,
so that the power of two is corrected by the rest of its exponent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.values import Element, Value

# atan z = z + z^3 P(z^2) for |z| <= 1.
_ATAN = (
    *(-0.333333321, 0.199999272, -0.142841672, 0.110945033, -0.0898543722, 0.0725943258),
    *(-0.054515864, 0.0344757546, -0.0162993626, 0.00492632039, -0.000697950739),
)
# asin z = z + z^3 P(z^2) for |z| <= 1 / 2.
_ASIN = (0.1666666, 0.0750050419, 0.0445169547, 0.0318077228, 0.0144385869, 0.0375164766)
# Each is the sum of two numbers of float32.
_HALF_PI = (1.57079637050628662109375, math.pi / 2 - 1.57079637050628662109375)
_PI = (3.1415927410125732421875, math.pi - 3.1415927410125732421875)
# From here on sqrt(x^2 + 1) is x.
_LARGE = 1e8

Function = Callable[[Writer, Operand], Value]


def polynomial(f: Any, t: Any, coefficients: Sequence[float]) -> Any:
    """c0 + c1 t + c2 t^2 + ... by Horner's rule."""
    total: Any = coefficients[-1]
    for each in reversed(coefficients[:-1]):
        total = f("fma", total, t, each)
    return total


def _odd(f: Any, z: Any, coefficients: Sequence[float]) -> Any:
    """The odd polynomial z + z^3 P(z^2), where P has these coefficients."""
    square = f("square", z)
    return f("fma", f("mul", z, square), polynomial(f, square, coefficients), z)


def atan(write: Writer, x: Operand) -> Value:
    """pi / 2 - atan(1 / |x|) beyond 1, with the sign of x."""
    f = write.formula("atan")
    size = f("abs", x)
    beyond = f("greater", size, 1.0)
    inner = _odd(f, f("where", beyond, f("reciprocal", size), size), _ATAN)
    outer = f("add", f("sub", _HALF_PI[0], inner), _HALF_PI[1])
    return f.finish(f("copysign", f("where", beyond, outer, inner), x))


def atan2(write: Writer, y: Operand, x: Operand) -> Value:
    """The angle of the point (x, y) in (-pi, pi], signs of zeros included.

    With q = min(|x|, |y|) / max(|x|, |y|) it is atan q, from pi / 2 where |y| is the larger, from
    pi where x is negative, with the sign of y.
    """
    y, x = write.floats(y), write.floats(x)
    f = write.formula("atan2")
    height, width = f("abs", y), f("abs", x)
    large, small = f("maximum", height, width), f("minimum", height, width)
    quotient = f("where", f("equal", large, small), 1.0, f("div", small, large))
    quotient = f("where", f("equal", large, 0.0), 0.0, quotient)
    angle = _odd(f, quotient, _ATAN)
    steep = f("add", f("sub", _HALF_PI[0], angle), _HALF_PI[1])
    angle = f("where", f("greater", height, width), steep, angle)
    behind = f("add", f("sub", _PI[0], angle), _PI[1])
    angle = f("where", f("less", f("copysign", 1.0, x), 0.0), behind, angle)
    angle = f("copysign", angle, y)
    is_number = f("equal", f("add", large, small), f("add", large, small))
    return f.finish(f("where", is_number, angle, math.nan))


def asin(write: Writer, x: Operand) -> Value:
    """pi / 2 - 2 asin sqrt((1 - |x|) / 2) beyond 1 / 2, with the sign of x."""
    f = write.formula("asin")
    size = f("abs", x)
    near = f("less_equal", size, 0.5)
    inner = _odd(f, f("where", near, size, _root_of_rest(f, size)), _ASIN)
    outer = f("add", f("fma", inner, -2.0, _HALF_PI[0]), _HALF_PI[1])
    return f.finish(f("copysign", f("where", near, inner, outer), x))


def acos(write: Writer, x: Operand) -> Value:
    """2 asin sqrt((1 - x) / 2) beyond 1 / 2, pi - acos(-x) below -1 / 2."""
    f = write.formula("acos")
    size = f("abs", x)
    near = f("less_equal", size, 0.5)
    inner = _odd(f, f("where", near, x, _root_of_rest(f, size)), _ASIN)
    middle = f("add", f("sub", _HALF_PI[0], inner), _HALF_PI[1])
    right = f("mul", inner, 2.0)
    left = f("add", f("sub", _PI[0], right), _PI[1])
    outer = f("where", f("less", x, 0.0), left, right)
    return f.finish(f("where", near, middle, outer))


def _root_of_rest(f: Any, size: Any) -> Any:
    """sqrt((1 - size) / 2), NaN beyond 1."""
    return f("sqrt", f("mul", f("sub", 1.0, size), 0.5))


def asinh(write: Writer, x: Operand) -> Value:
    """log1p(a + a^2 / (1 + sqrt(a^2 + 1))) with a = |x|, with the sign of x."""
    f = write.formula("asinh")
    size = f("abs", x)
    square = f("square", f("minimum", size, _LARGE))
    root = f("sqrt", f("add", square, 1.0))
    near = f("log1p", f("add", size, f("div", square, f("add", root, 1.0))))
    return f.finish(f("copysign", _or_log_of_double(f, size, near), x))


def acosh(write: Writer, x: Operand) -> Value:
    """log1p(t + sqrt(t (t + 2))) with t = x - 1; NaN below 1."""
    f = write.formula("acosh")
    over = f("sub", f("minimum", x, _LARGE), 1.0)
    near = f("log1p", f("add", over, f("sqrt", f("mul", over, f("add", over, 2.0)))))
    return f.finish(f("where", f("less", x, 1.0), math.nan, _or_log_of_double(f, x, near)))


def _or_log_of_double(f: Any, size: Any, near: Any) -> Any:
    """log(2 size) for large sizes, else `near`."""
    far = f("add", f("log", size), float(np.float32(math.log(2))))
    return f("where", f("greater", size, _LARGE), far, near)


def atanh(write: Writer, x: Operand) -> Value:
    """log1p(2 a / (1 - a)) / 2 with a = |x|, with the sign of x; NaN beyond 1."""
    f = write.formula("atanh")
    size = f("abs", x)
    ratio = f("div", f("add", size, size), f("sub", 1.0, size))
    return f.finish(f("copysign", f("mul", f("log1p", ratio), 0.5), x))


INVERSES: dict[str, Function] = {
    "atan": atan,
    "asin": asin,
    "acos": acos,
    "asinh": asinh,
    "acosh": acosh,
    "atanh": atanh,
}


# (1 + 2 x) exp(x^2) erfc(x) as a polynomial of (x - 2) / (x + 2) for x >= 1 / 2.
_ERFC = (
    *(1.27697838, -0.0927637666, -0.166030822, 0.164048832, -0.0542113054, -0.00800651131),
    *(0.00865941517, 0.00114922163, -0.00126595785, -0.000228389767),
)
# erfinv(x) / x for w = -log(1 - x^2): below 5 of w - 5 / 2, else of sqrt(w) - 3.
_ERFINV = (
    *(1.50140936, 0.246640286, -0.00417738678, -0.00125274188, 0.000218344438),
    *(-4.96334524e-06, -3.46270445e-06, 4.66170092e-07, 2.32326194e-08, -8.79101499e-09),
)
_ERFINV_FAR = (
    *(2.8329768, 1.00167526, 0.0094452549, -0.00764321246, 0.00568815069, -0.00356462699),
    *(0.00147325874, -0.000125066247, -0.00027387557, 0.00016400335, -3.21484344e-05),
)
# lgamma(x) = (x - 1) (x - 2) P(x - 2) for 1 <= x <= 3.
_LGAMMA = (
    *(0.422784326, -0.100317273, 0.0329656268, -0.0123849739, 0.00499155264, -0.00210206873),
    *(0.000944317817, -0.000425552935, 0.00013061054, -5.24406109e-05, 7.8183442e-05),
    -3.87253509e-05,
)
_STIRLING = (1 / 12, -1 / 360, 1 / 1260)
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240)
# From here on Stirling's series are right to float32's last place.
_FAR = 8
# log |gamma| of numbers below it is -log |x|.
_TINY = 1e-12


def erfc(write: Writer, x: Operand) -> Value:
    """1 - erf(x); from 1 / 2 on exp(-x^2) times a polynomial, which keeps its last places."""
    f = write.formula("erfc")
    size = f("maximum", f("minimum", x, 11.0), 0.5)
    part = f("div", f("sub", size, 2.0), f("add", size, 2.0))
    square = f("square", size)
    rest = f("fma", size, size, f("neg", square))
    bell = f("exp", f("neg", square))
    bell = f("fma", f("neg", bell), rest, bell)
    tail = f("div", f("mul", bell, polynomial(f, part, _ERFC)), f("fma", size, 2.0, 1.0))
    near = f("sub", 1.0, f("erf", x))
    return f.finish(f("where", f("greater", x, 0.5), tail, near))


def erfinv(write: Writer, x: Operand) -> Value:
    """The number whose erf is x, by polynomials of -log(1 - x^2)."""
    f = write.formula("erfinv")
    log = f("neg", f("log", f("mul", f("sub", 1.0, x), f("add", 1.0, x))))
    near = polynomial(f, f("sub", log, 2.5), _ERFINV)
    far = polynomial(f, f("sub", f("sqrt", log), 3.0), _ERFINV_FAR)
    made = f("mul", x, f("where", f("less", log, 5.0), near, far))
    edge = f("equal", f("abs", x), 1.0)
    return f.finish(f("where", edge, f("copysign", math.inf, x), made))


def log_gamma(write: Writer, x: Operand) -> Value:
    """log |gamma(x)|; by reflection at 0 for negative numbers, infinite at whole ones up to 0."""
    f = write.formula("lgamma")
    size = f("abs", x)
    positive = _log_gamma(f, size)
    sine = _sine_of_turns(f, size)
    reflected = f("sub", math.log(math.pi), f("add", f("log", size), f("log", f("abs", sine))))
    reflected = f("sub", reflected, positive)
    reflected = f("where", f("less", size, _TINY), f("neg", f("log", size)), reflected)
    reflected = f("where", f("equal", f("floor", size), size), math.inf, reflected)
    return f.finish(f("where", f("less_equal", x, 0.0), reflected, positive))


def _log_gamma(f: Any, x: Any) -> Any:
    """A polynomial between 1 and 3, steps from there, or Stirling's series; x is positive."""
    small = f("less", x, 1.0)
    steps: Any = 1.0
    rest: Any = x
    for step in range(1, _FAR - 2):
        within = f("greater_equal", x, float(step + 2))
        steps = f("where", within, f("mul", steps, f("sub", x, float(step))), steps)
        rest = f("where", within, f("sub", x, float(step)), rest)
    above = f("where", small, x, f("sub", rest, 1.0))  # x - 1, which is exact
    d = f("sub", above, 1.0)
    near = f("mul", f("mul", above, d), polynomial(f, d, _LGAMMA))
    near = f("add", near, f("log", steps))
    near = f("where", small, f("sub", near, f("log", x)), near)
    inverse = f("reciprocal", f("maximum", x, 1.0))
    series = f("mul", inverse, polynomial(f, f("square", inverse), _STIRLING))
    far = f("mul", f("sub", x, 0.5), f("sub", f("log", x), 1.0))
    far = f("add", far, f("add", series, 0.5 * math.log(2 * math.pi) - 0.5))
    return f("where", f("less", x, float(_FAR)), near, far)


def _sine_of_turns(f: Any, x: Any) -> Any:
    """sin(pi x) up to its sign."""
    return f("sin", f("mul", f("sub", x, f("round", x)), math.pi))


def digamma(write: Writer, x: Operand) -> Value:
    """The derivative of log gamma; NaN at negative whole numbers, infinite at 0."""
    f = write.formula("digamma")
    reflects = f("less", x, 0.0)
    shifted = f("where", reflects, f("sub", 1.0, x), x)
    sum_: Any = 0.0
    for _ in range(_FAR):
        below = f("less", shifted, float(_FAR))
        sum_ = f("where", below, f("add", sum_, f("reciprocal", shifted)), sum_)
        shifted = f("where", below, f("add", shifted, 1.0), shifted)
    inverse = f("reciprocal", shifted)
    square = f("square", inverse)
    series = f("fma", square, polynomial(f, square, _DIGAMMA), f("mul", inverse, 0.5))
    made = f("sub", f("sub", f("log", shifted), series), sum_)
    turn = f("mul", f("sub", x, f("round", x)), math.pi)
    cotangent = f("div", f("mul", f("cos", turn), math.pi), f("sin", turn))
    made = f("where", reflects, f("sub", made, cotangent), made)
    is_whole = f("logical_and", reflects, f("equal", f("floor", x), x))
    made = f("where", is_whole, math.nan, made)
    pole = f("copysign", math.inf, f("neg", x))
    return f.finish(f("where", f("equal", x, 0.0), pole, made))


def polygamma(write: Writer, n: int, x: Operand) -> Value:
    """digamma, which is polygamma of order 0. Raises Unmapped for any other order n."""
    if n:
        raise Unmapped(f"has order {n}")
    return digamma(write, write.floats(x))


def hypot(write: Writer, x: Operand, other: Operand) -> Value:
    """sqrt(x^2 + other^2), which overflows only where it must; infinite beside any infinity."""
    f = write.formula("hypot")
    first, second = f("abs", write.floats(x)), f("abs", write.floats(other))
    large, small = f("maximum", first, second), f("minimum", first, second)
    ratio = f("div", small, f("where", f("equal", large, 0.0), 1.0, large))
    made = f("mul", large, f("sqrt", f("fma", ratio, ratio, 1.0)))
    infinite = f("logical_or", f("equal", first, math.inf), f("equal", second, math.inf))
    return f.finish(f("where", infinite, math.inf, made))


def copysign(write: Writer, x: Operand, other: Operand) -> Value:
    """The magnitude of x with the sign of `other`."""
    return write.pointwise("copysign", write.floats(x), write.floats(other))


def signbit(write: Writer, x: Operand) -> Value:
    """Whether the sign bit is set, also of zeros and NaN."""
    if write.element(x) is Element.BOOL:
        return write.pointwise("not_equal", x, x)
    if write.element(x) is Element.INT64:
        return write.pointwise("less", x, 0)
    f = write.formula("signbit")
    return f.finish(f("less", f("copysign", 1.0, x), 0.0))


def extreme_number(kind: str) -> Any:
    """fmax and fmin: the larger or smaller of two, where NaN is skipped."""

    def mapping(write: Writer, x: Operand, other: Operand) -> Value:
        first, second = write.promoted(x, other)
        if first.type.element is not Element.FLOAT32:
            return write.pointwise(kind, first, second)
        f = write.formula("extreme")
        made = f("where", f("equal", second, second), f(kind, first, second), first)
        return f.finish(f("where", f("equal", first, first), made, second))

    return mapping


def round_to(write: Writer, x: Operand, decimals: int = 0) -> Value:
    """Round to the nearest number of `decimals` decimals, as torch scales and rounds."""
    if write.element(x) is not Element.FLOAT32:
        raise Unmapped("of whole numbers")
    if decimals == 0:
        return write.pointwise("round", x)
    scale = float(np.float32(10.0 ** abs(decimals)))
    f = write.formula("round")
    if decimals > 0:
        return f.finish(f("div", f("round", f("mul", x, scale)), scale))
    return f.finish(f("mul", f("round", f("div", x, scale)), scale))


_LOG2_E = 1.44269504088896
# 2 / log(2) as a sum of two numbers of float32.
_TWICE = float(np.float32(2 * _LOG2_E))
_TWICE_REST = 2 / math.log(2) - _TWICE
# atanh q / q = 1 + t P(t) for t = q^2.
_ATANH = (1 / 3, 1 / 5, 1 / 7, 1 / 9, 1 / 11)
_LEAST_NORMAL = 1.1754943508222875e-38
_FURTHEST = 300.0  # a power of two beyond it is 0 or infinite


def float_power(write: Writer, x: Operand, exponent: Operand) -> Value:
    """x^exponent in float32; zeros, infinities and NaN as in C's pow."""
    f = write.formula("pow")
    base, power = write.floats(x), write.floats(exponent)
    size = f("abs", base)
    high, low = _logarithm(f, size)
    whole = f("mul", power, high)
    rest = f("fma", power, low, f("fma", power, high, f("neg", whole)))
    rest = f("where", f("less", f("abs", whole), _FURTHEST), rest, 0.0)
    scaled = f("exp2", whole)
    made = f("fma", scaled, f("mul", rest, math.log(2)), scaled)
    made = f("where", f("less", whole, 128.0), made, scaled)
    below = f("less", power, 0.0)
    made = f("where", f("equal", size, 0.0), f("where", below, math.inf, 0.0), made)
    made = f("where", f("equal", size, math.inf), f("where", below, 0.0, math.inf), made)
    made = f("where", f("equal", size, 1.0), 1.0, made)
    is_whole = f("equal", f("floor", power), power)
    half = f("mul", power, 0.5)
    is_odd = f("logical_and", is_whole, f("not_equal", f("floor", half), half))
    made = f("where", is_odd, f("copysign", made, base), made)
    is_negative = f("logical_and", f("less", base, 0.0), f("less", size, math.inf))
    broken = f("logical_and", is_negative, f("not_equal", f("floor", power), power))
    unknown = f("logical_or", f("not_equal", base, base), f("not_equal", power, power))
    made = f("where", f("logical_or", broken, unknown), math.nan, made)
    one = f("logical_or", f("equal", power, 0.0), f("equal", base, 1.0))
    return f.finish(f("where", one, 1.0, made))


def _logarithm(f: Any, size: Any) -> tuple[Any, Any]:
    """log2 of a positive number as a sum of two: its exponent, and 2 atanh((m - 1) / (m + 1))."""
    tiny = f("less", size, _LEAST_NORMAL)
    normal = f("where", tiny, f("mul", size, 2.0**24), size)
    exponent = f("round", f("mul", f("log", normal), _LOG2_E))
    mantissa = f("mul", normal, f("exp2", f("neg", exponent)))
    exponent = f("sub", exponent, f("where", tiny, 24.0, 0.0))
    up, down = f("add", mantissa, 1.0), f("sub", mantissa, 1.0)
    up_rest = f("sub", mantissa, f("sub", up, 1.0))
    q = f("div", down, up)
    left = f("fma", f("neg", q), up, down)
    left = f("fma", f("neg", q), up_rest, left)
    square = f("square", q)
    series = f("mul", square, polynomial(f, square, _ATANH))
    q_rest = f("fma", q, series, f("div", left, up))
    high = f("mul", q, _TWICE)
    low = f("fma", q, _TWICE, f("neg", high))
    low = f("fma", q_rest, _TWICE, f("fma", q, _TWICE_REST, low))
    near = f("add", high, low)
    low = f("sub", low, f("sub", near, high))
    total = f("add", exponent, near)
    return total, f("add", f("sub", near, f("sub", total, exponent)), low)


def whole_power(write: Writer, x: Operand, exponent: Operand) -> Value:
    """x^exponent modulo 2^64 by repeated squaring; below 0 it is 0 except for 1 and -1."""
    base, power = write.cast(x, Element.INT64), write.cast(exponent, Element.INT64)
    zero, one, minus = (write.number(n, Element.INT64) for n in (0, 1, -1))
    f = write.formula("pow")
    square: Any = base
    left: Any = power
    made: Any = one
    bits = _bits(write, exponent)
    for bit in range(bits):
        is_set = f("not_equal", f("bitwise_and", left, one), zero)
        made = f("where", is_set, f("mul", made, square), made)
        if bit + 1 < bits:
            square, left = f("mul", square, square), f("shift_right", left, one)
    odd = f("not_equal", f("bitwise_and", power, one), zero)
    inverse = f("where", f("equal", base, one), one, zero)
    inverse = f("where", f("equal", base, minus), f("where", odd, minus, one), inverse)
    return f.finish(f("where", f("less", power, zero), inverse, made))


def _bits(write: Writer, exponent: Operand) -> int:
    """The most bits that an exponent may have, a whole number that is not negative."""
    known = write.known(exponent)
    if known is not None:
        return max(int(known.max(initial=0)).bit_length(), 1)
    dtype = write.dtype(exponent)
    return 1 if dtype.kind == "b" else int(np.iinfo(dtype).max).bit_length()
