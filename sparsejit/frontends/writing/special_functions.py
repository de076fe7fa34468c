"""Error and gamma functions, and functions of the bits or magnitude of elements, as formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparsejit.frontends.writing.inverse_functions import polynomial
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.values import Element, Value

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
    """The n-th derivative of digamma, for 0 alone."""
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
