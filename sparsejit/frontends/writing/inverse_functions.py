"""Inverse trigonometric and hyperbolic functions, as formulas of the functions that graphs have.

The polynomials have the least relative error over their interval, at most 2e-8 with coefficients
rounded to float32, constant terms first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparsejit.frontends.writing.writer import Operand, Writer
from sparsejit.ir.values import Value

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
    """z + z^3 P(z^2)."""
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
