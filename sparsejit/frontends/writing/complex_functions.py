"""Functions of complex numbers that are formulas of real functions of both parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sparsejit.frontends.writing import inverse_functions
from sparsejit.frontends.writing.activations import cosh, sinh
from sparsejit.frontends.writing.arranging import expanded
from sparsejit.frontends.writing.complex_values import (
    Complex,
    add,
    divide,
    multiply,
    paired,
)
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.values import Value


def magnitude(write: Writer, z: Complex) -> Value:
    """sqrt(a^2 + b^2), scaled by the larger part so that no square overflows."""
    f = write.formula("magnitude")
    return f.finish(_magnitude(f, z))


def _magnitude(f: Any, z: Complex) -> Any:
    a, b = f("abs", z.real), f("abs", z.imag)
    large, small = f("maximum", a, b), f("minimum", a, b)
    ratio = f("div", small, large)
    length = f("mul", large, f("sqrt", f("fma", ratio, ratio, 1.0)))
    length = f("where", f("equal", large, 0.0), 0.0, length)
    infinite = f("logical_or", f("equal", a, math.inf), f("equal", b, math.inf))
    return f("where", infinite, math.inf, length)


def angle(write: Writer, z: Complex) -> Value:
    """atan2 of the imaginary and the real part."""
    return inverse_functions.atan2(write, z.imag, z.real)


def exponential(write: Writer, z: Complex) -> Complex:
    """exp(a) (cos(b) + i sin(b)); real for a real number."""
    f = write.formula("complex exp")
    size = f("exp", z.real)
    imag = f("where", f("equal", z.imag, 0.0), z.imag, f("mul", size, f("sin", z.imag)))
    return Complex(*f.all(f("mul", size, f("cos", z.imag)), imag))


def logarithm(write: Writer, z: Complex) -> Complex:
    """log|z| + i angle(z), near |z| = 1 by log1p of |z|^2 - 1."""
    f = write.formula("complex log")
    a, b = f("abs", z.real), f("abs", z.imag)
    large, small = f("maximum", a, b), f("minimum", a, b)
    beyond = f("mul", f("sub", large, 1.0), f("add", large, 1.0))
    precise = f("mul", f("log1p", f("fma", small, small, beyond)), 0.5)
    near = f("logical_and", f("greater", large, 0.7), f("less", large, 1.5))
    real = f.finish(f("where", near, precise, f("log", _magnitude(f, z))))
    return Complex(real, angle(write, z))


def square_root(write: Writer, z: Complex) -> Complex:
    """The root whose real part is not negative: t + i b / 2t with t = sqrt((|z| + |a|) / 2)."""
    f = write.formula("complex sqrt")
    half = f("fma", _magnitude(f, z), 0.5, f("mul", f("abs", z.real), 0.5))
    t = f("sqrt", half)
    rest = f("div", f("mul", z.imag, 0.5), t)
    rest = f("where", f("equal", t, 0.0), z.imag, rest)
    right = f("greater_equal", z.real, 0.0)
    real = f("where", right, t, f("abs", rest))
    return Complex(*f.all(real, f("where", right, rest, f("copysign", t, z.imag))))


def unit(write: Writer, z: Complex) -> Complex:
    """z / |z|, and 0 of 0."""
    length = magnitude(write, z)
    whole = write.pointwise("where", write.pointwise("equal", length, 0.0), 1.0, length)
    return divide(write, z, whole)


def sine(write: Writer, z: Complex) -> Complex:
    """sin(a) cosh(b) + i cos(a) sinh(b)."""
    up, side = cosh(write, z.imag), sinh(write, z.imag)
    f = write.formula("complex sin")
    return Complex(*f.all(f("mul", f("sin", z.real), up), f("mul", f("cos", z.real), side)))


def cosine(write: Writer, z: Complex) -> Complex:
    """cos(a) cosh(b) - i sin(a) sinh(b)."""
    up, side = cosh(write, z.imag), sinh(write, z.imag)
    f = write.formula("complex cos")
    imag = f("neg", f("mul", f("sin", z.real), side))
    return Complex(*f.all(f("mul", f("cos", z.real), up), imag))


def hyperbolic_sine(write: Writer, z: Complex) -> Complex:
    """sinh(a) cos(b) + i cosh(a) sin(b)."""
    swapped = sine(write, Complex(z.imag, z.real))
    return Complex(swapped.imag, swapped.real)


def hyperbolic_cosine(write: Writer, z: Complex) -> Complex:
    """cosh(a) cos(b) + i sinh(a) sin(b)."""
    swapped = cosine(write, Complex(z.imag, z.real))
    return Complex(swapped.real, write.pointwise("neg", swapped.imag))


def hyperbolic_tangent(write: Writer, z: Complex) -> Complex:
    """(t + i sin(b) cos(b) (1 - t^2)) / (cos(b)^2 + t^2 sin(b)^2) with t = tanh(a)."""
    f = write.formula("complex tanh")
    t, s, c = f("tanh", z.real), f("sin", z.imag), f("cos", z.imag)
    squared = f("square", t)
    below = f("fma", f("mul", squared, s), s, f("square", c))
    rest = f("mul", f("mul", s, c), f("sub", 1.0, squared))
    return Complex(*f.all(f("div", t, below), f("div", rest, below)))


def tangent(write: Writer, z: Complex) -> Complex:
    """-i tanh(i z)."""
    made = hyperbolic_tangent(write, Complex(write.pointwise("neg", z.imag), z.real))
    return Complex(made.imag, write.pointwise("neg", made.real))


def sigmoid(write: Writer, z: Complex) -> Complex:
    """(1 + tanh(z / 2)) / 2."""
    half = hyperbolic_tangent(write, multiply(write, z, 0.5))
    return add(write, multiply(write, half, 0.5), 0.5)


def silu(write: Writer, z: Complex) -> Complex:
    """z sigmoid(z)."""
    return multiply(write, z, sigmoid(write, z))


def log_to(base: float) -> Callable[[Writer, Complex], Complex]:
    """log(z) / log(base)."""
    return lambda write, z: multiply(write, logarithm(write, z), 1 / math.log(base))


def inverse_root(write: Writer, z: Complex) -> Complex:
    """1 / sqrt(z)."""
    return divide(write, 1.0, square_root(write, z))


def power(write: Writer, z: Complex, exponent: Operand) -> Complex:
    """z to a known whole power by products, or its root."""
    known = write.known(exponent) if not isinstance(exponent, Complex) else None
    number = complex(known.reshape(())) if known is not None and known.size == 1 else None
    if number == 0.5:
        return square_root(write, z)
    if number is None or number.imag or number.real % 1 or abs(number.real) > 64:
        raise Unmapped("raises a complex base to a power that is not a known whole number or 0.5")
    left = int(abs(number.real))
    result: Operand = 1.0
    factor = z
    while left:
        if left & 1:
            result = multiply(write, factor, result) if isinstance(result, Complex) else factor
        left >>= 1
        factor = multiply(write, factor, factor) if left else factor
    if number.real < 0:
        return divide(write, 1.0, result)
    if isinstance(result, Complex):
        return result
    return paired(write, expanded(write, write.floats(1.0), z.shape), 0.0)
