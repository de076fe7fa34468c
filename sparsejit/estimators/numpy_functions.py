"""numpy's elementwise functions as formulas of a graph, in float32 and float64.

    UFUNCS                 functions by numpy's names: their formula, and whether bits are numpy's
    power, sigmoid, tanh   formulas that models share
    normal_quantile        the inverse of the normal distribution

float64 has no code of its own for most functions: they are written by exp, log and arithmetic.

    log1p x    log(u) x / (u - 1) with u = 1 + x
    expm1 x    (u - 1) x / log(u) with u = exp(x)
    sin x      (-1)^k sin r, x = k pi + r, with pi in four parts of 26 bits and k in two
    atan x     4 atan of an angle that is halved twice, by its series
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import factorial, pi
from typing import NamedTuple

import numpy as np

from sparsejit.frontends.writing.writer import Formula, Operand

_INFINITY = float("inf")
_MOST_POWER = 64  # the largest exponent of a power that is a product


class Ufunc(NamedTuple):
    """A function: its formula in float32 or, with the flag, in float64.

    `is_exact`: the result has all bits of numpy's if the operands have. `jumps`: operands that
    hardly differ may give results that do.
    """

    write: Callable[..., Operand]
    is_exact: bool = False
    jumps: bool = False


def _plain(kind: str) -> Callable[..., Operand]:
    return lambda f, is_double, *operands: f(kind, *operands)


def _log1p(f: Formula, is_double: bool, x: Operand) -> Operand:
    if not is_double:
        return f("log1p", x)
    more = f("add", x, 1.0)
    less = f("sub", more, 1.0)
    is_small = f("equal", less, 0.0)
    far = f("mul", f("log", more), f("div", x, f("where", is_small, 1.0, less)))
    found = f("where", f("equal", more, _INFINITY), more, far)
    return f("where", is_small, x, found)


def _expm1(f: Formula, is_double: bool, x: Operand) -> Operand:
    if not is_double:
        return f("expm1", x)
    power = f("exp", x)
    less = f("sub", power, 1.0)
    far = f("mul", less, f("div", x, f("log", power)))
    found = f("where", f("equal", less, -1.0), -1.0, far)
    found = f("where", f("equal", power, _INFINITY), power, found)
    return f("where", f("equal", power, 1.0), x, found)


def tanh(f: Formula, is_double: bool, x: Operand) -> Operand:
    if not is_double:
        return f("tanh", x)
    near = f("maximum", f("minimum", x, 20.0), -20.0)
    more = _expm1(f, True, f("mul", near, 2.0))
    return f("div", more, f("add", more, 2.0))


def _sinh(f: Formula, is_double: bool, x: Operand) -> Operand:
    up, down = _expm1(f, is_double, x), _expm1(f, is_double, f("neg", x))
    return f("mul", f("sub", up, down), 0.5)


def _cosh(f: Formula, is_double: bool, x: Operand) -> Operand:
    return f("mul", f("add", f("exp", x), f("exp", f("neg", x))), 0.5)


def _parts_of_pi() -> list[float]:
    """pi as a sum of four numbers of 26 bits."""
    digits = "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899"
    left, parts = Fraction(digits), []
    for place in range(4):
        unit = Fraction(1, 1 << (24 + 26 * place))
        parts.append(float(left // unit * unit))
        left -= Fraction(parts[-1])
    return parts


_PI = _parts_of_pi()
_SINE = [(-1) ** place / factorial(2 * place + 1) for place in range(11)]
_ARCTANGENT = [(-1) ** place / (2 * place + 1) for place in range(12)]


def _series(f: Formula, x: Operand, terms: list[float]) -> Operand:
    """x (terms[0] + terms[1] x^2 + terms[2] x^4 + ...)"""
    square = f("mul", x, x)
    *others, last = terms
    total: Operand = last
    for term in reversed(others):
        total = f("add", f("mul", square, total), term)
    return f("mul", x, total)


def _shifted_sine(f: Formula, x: Operand, shift: float) -> Operand:
    """sin(x + shift pi) for the shifts 0 and 1/2."""
    turns = f("round", f("add", f("mul", x, 1 / pi), shift))
    half = f("sub", turns, shift)
    high = f("mul", f("round", f("mul", half, 2.0**-25)), 2.0**25)
    low = f("sub", half, high)
    left: Operand = x
    for place, part in enumerate(_PI):
        left = f("sub", left, f("mul", high, part))
        left = f("sub", left, f("mul", low, _PI[place]))
    odd = f("sub", turns, f("mul", f("floor", f("mul", turns, 0.5)), 2.0))
    sign = f("sub", 1.0, f("mul", odd, 2.0))
    return f("mul", _series(f, left, _SINE), sign)


def _sin(f: Formula, is_double: bool, x: Operand) -> Operand:
    return _shifted_sine(f, x, 0.0) if is_double else f("sin", x)


def _cos(f: Formula, is_double: bool, x: Operand) -> Operand:
    return _shifted_sine(f, x, 0.5) if is_double else f("cos", x)


def _tan(f: Formula, is_double: bool, x: Operand) -> Operand:
    return f("div", _sin(f, is_double, x), _cos(f, is_double, x))


def _arctan(f: Formula, is_double: bool, x: Operand) -> Operand:
    size = f("abs", x)
    is_large = f("greater", size, 1.0)
    angle = f("where", is_large, f("div", 1.0, size), size)
    for _ in range(2):
        root = f("sqrt", f("add", f("mul", angle, angle), 1.0))
        angle = f("div", angle, f("add", root, 1.0))
    found = f("mul", _series(f, angle, _ARCTANGENT), 4.0)
    found = f("where", is_large, f("sub", pi / 2, found), found)
    return f("where", f("less", x, 0.0), f("neg", found), found)


def _arcsin(f: Formula, is_double: bool, x: Operand) -> Operand:
    other = f("sqrt", f("mul", f("sub", 1.0, x), f("add", 1.0, x)))
    return _arctan(f, is_double, f("div", x, other))


def _arccos(f: Formula, is_double: bool, x: Operand) -> Operand:
    return f("sub", pi / 2, _arcsin(f, is_double, x))


def _log_by(base: float) -> Callable[..., Operand]:
    return lambda f, is_double, x: f("mul", f("log", x), 1 / float(np.log(base)))


def _exp2(f: Formula, is_double: bool, x: Operand) -> Operand:
    return f("exp", f("mul", x, float(np.log(2)))) if is_double else f("exp2", x)


def _cbrt(f: Formula, is_double: bool, x: Operand) -> Operand:
    root = f("exp", f("mul", f("log", f("abs", x)), 1 / 3))
    return f("where", f("less", x, 0.0), f("neg", root), root)


def _hypot(f: Formula, is_double: bool, x: Operand, y: Operand) -> Operand:
    one, other = f("abs", x), f("abs", y)
    large, small = f("maximum", one, other), f("minimum", one, other)
    share = f("div", small, f("where", f("equal", large, 0.0), 1.0, large))
    return f("mul", large, f("sqrt", f("add", f("mul", share, share), 1.0)))


def sigmoid(f: Formula, x: Operand) -> Operand:
    """1 / (1 + exp(-x))"""
    return f("div", 1.0, f("add", f("exp", f("neg", x)), 1.0))


def is_whole_power(exponent: float) -> bool:
    """Whether a power is a product, of few enough factors."""
    return exponent == int(exponent) and abs(exponent) <= _MOST_POWER


def power(f: Formula, x: Operand, exponent: float) -> Operand:
    """x^exponent: a product for a whole exponent, or its inverse; else NaN of negative x."""
    if not is_whole_power(exponent):
        return f("exp", f("mul", f("log", x), exponent))
    result: Operand = None
    square, left = x, abs(int(exponent))
    while left:
        if left & 1:
            result = square if result is None else f("mul", result, square)
        left >>= 1
        square = f("square", square) if left else square
    if result is None:
        result = f("add", f("mul", x, 0.0), 1.0)
    return f("div", 1.0, result) if exponent < 0 else f("mul", result, 1.0)


def _logit(f: Formula, is_double: bool, x: Operand) -> Operand:
    return f("log", f("div", x, f("sub", 1.0, x)))


def _sign(f: Formula, is_double: bool, x: Operand) -> Operand:
    below = f("where", f("less", x, 0.0), -1.0, x)
    return f("where", f("greater", x, 0.0), 1.0, below)


def _of_numbers(kind: str) -> Callable[..., Operand]:
    """fmax and fmin, which ignore NaN."""

    def write(f: Formula, is_double: bool, x: Operand, y: Operand) -> Operand:
        found = f("where", f("not_equal", y, y), x, f(kind, x, y))
        return f("where", f("not_equal", x, x), y, found)

    return write


def _scaled(factor: float) -> Callable[..., Operand]:
    return lambda f, is_double, x: f("mul", x, factor)


def _divided(f: Formula, x: Operand, y: float) -> tuple[Operand, Operand]:
    """The whole quotient, rounded down, and the rest of x by a whole number y, which are exact.

    The quotient that is rounded to float may be the next whole number: the rest is then below 0.
    """
    whole = f("floor", f("div", x, y))
    rest = f("sub", x, f("mul", whole, y))
    is_below = f("less", f("mul", rest, np.sign(y)), 0.0)
    whole = f("where", is_below, f("sub", whole, 1.0), whole)
    return whole, f("where", is_below, f("add", rest, y), rest)


def _floor_divide(f: Formula, is_double: bool, x: Operand, y: float) -> Operand:
    whole, rest = _divided(f, x, y)
    return f("add", whole, f("mul", rest, 0.0))  # NaN for infinity


def _remainder(f: Formula, is_double: bool, x: Operand, y: float) -> Operand:
    return _divided(f, x, y)[1]


# Rational functions of AS 241 (Wichura, 1988): numerator, denominator, lowest term first.
_CENTRAL = (
    (3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
     1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
     3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
     2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
     5.2264952788528545610e3),
)  # fmt: skip
_OUTER = (
    (1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
     3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
     2.27238449892691845833e-2, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
     1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
     1.05075007164441684324e-9),
)  # fmt: skip


def normal_quantile(f: Formula, share: Operand) -> Operand:
    """The number below which a normal distribution has a share; infinite beyond 1e-11 of an end."""
    apart = f("sub", share, 0.5)
    central = f("mul", apart, _ratio(f, f("sub", 0.180625, f("mul", apart, apart)), _CENTRAL))
    tail = f("minimum", share, f("sub", 1.0, share))
    depth = f("sub", f("sqrt", f("neg", f("log", tail))), 1.6)
    outer = f("where", f("greater", depth, 3.4), _INFINITY, _ratio(f, depth, _OUTER))
    outer = f("where", f("less", apart, 0.0), f("neg", outer), outer)
    return f("where", f("greater", f("abs", apart), 0.425), outer, central)


def _ratio(
    f: Formula, x: Operand, terms: tuple[tuple[float, ...], tuple[float, ...]]
) -> Operand:
    """The quotient of two polynomials."""
    sides = []
    for *others, highest in terms:
        total: Operand = highest
        for term in reversed(others):
            total = f("add", f("mul", total, x), term)
        sides.append(total)
    return f("div", *sides)


def _isfinite(f: Formula, is_double: bool, x: Operand) -> Operand:
    return f("less", f("abs", x), _INFINITY)


UFUNCS: dict[str, Ufunc] = {
    **{
        name: Ufunc(_plain(kind), is_exact=True)
        for name, kind in {
            "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div",
            "maximum": "maximum", "minimum": "minimum", "negative": "neg", "absolute": "abs",
            "fabs": "abs", "sqrt": "sqrt", "square": "square", "reciprocal": "reciprocal",
        }.items()
    },
    **{
        name: Ufunc(_plain(kind), is_exact=True, jumps=True)
        for name, kind in {
            "floor": "floor", "ceil": "ceil", "rint": "round", "trunc": "trunc",
            "equal": "equal", "not_equal": "not_equal", "less": "less",
            "less_equal": "less_equal", "greater": "greater", "greater_equal": "greater_equal",
        }.items()
    },
    **{name: Ufunc(_plain(name)) for name in ("exp", "log")},
    "sign": Ufunc(_sign, is_exact=True, jumps=True),
    "floor_divide": Ufunc(_floor_divide, is_exact=True, jumps=True),
    "remainder": Ufunc(_remainder, is_exact=True, jumps=True),
    "fmax": Ufunc(_of_numbers("maximum"), is_exact=True),
    "fmin": Ufunc(_of_numbers("minimum"), is_exact=True),
    "isnan": Ufunc(lambda f, is_double, x: f("not_equal", x, x), is_exact=True),
    "isinf": Ufunc(lambda f, is_double, x: f("equal", f("abs", x), _INFINITY), is_exact=True),
    "isfinite": Ufunc(_isfinite, is_exact=True),
    "log1p": Ufunc(_log1p),
    "expm1": Ufunc(_expm1),
    "exp2": Ufunc(_exp2),
    "log2": Ufunc(_log_by(2)),
    "log10": Ufunc(_log_by(10)),
    "tanh": Ufunc(tanh),
    "sinh": Ufunc(_sinh),
    "cosh": Ufunc(_cosh),
    "sin": Ufunc(_sin),
    "cos": Ufunc(_cos),
    "tan": Ufunc(_tan),
    "arctan": Ufunc(_arctan),
    "arcsin": Ufunc(_arcsin),
    "arccos": Ufunc(_arccos),
    "cbrt": Ufunc(_cbrt),
    "hypot": Ufunc(_hypot),
    "deg2rad": Ufunc(_scaled(pi / 180)),
    "radians": Ufunc(_scaled(pi / 180)),
    "rad2deg": Ufunc(_scaled(180 / pi)),
    "degrees": Ufunc(_scaled(180 / pi)),
    "expit": Ufunc(lambda f, is_double, x: sigmoid(f, x)),
    "logit": Ufunc(_logit),
}
