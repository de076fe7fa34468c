"""Complex numbers as pairs of real values: arithmetic, functions, products of matrices.

    Complex                    a tensor of complex numbers
    as_complex, parts          real operands as complex ones, and the two parts
    add, multiply, divide      arithmetic
    product_by, matmul         bilinear products of real tensors, extended to complex ones
    exponential, power         functions that are formulas of real functions of both parts

A real operand has no imaginary part, so that its products cost half.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsejit.frontends.writing import products, special_functions
from sparsejit.frontends.writing.arranging import at, expanded, joined
from sparsejit.frontends.writing.pointwise import cosh, sinh
from sparsejit.frontends.writing.views import unsqueeze
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.values import Value


@dataclass(frozen=True, eq=False)
class Complex:
    """A complex tensor: its real and its imaginary part, float32 values of one shape."""

    real: Value = field(repr=False)
    imag: Value = field(repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.real.shape


def paired(write: Writer, real: Operand, imag: Operand) -> Complex:
    """A complex tensor of two parts, broadcast to one shape."""
    parts = write.floats(real), write.floats(imag)
    shape = np.broadcast_shapes(*(part.shape for part in parts))
    return Complex(*(expanded(write, part, shape) for part in parts))


def as_complex(write: Writer, x: Operand) -> Complex:
    """Any operand as a complex tensor, a real one with zeros as its imaginary part."""
    if isinstance(x, Complex):
        return x
    real, imag = parts(write, x)
    return paired(write, real, 0.0 if imag is None else imag)


def parts(write: Writer, x: Operand) -> tuple[Value, Value | None]:
    """The real and the imaginary part; None for the latter of a real operand."""
    if isinstance(x, Complex):
        return x.real, x.imag
    if isinstance(x, complex):
        return write.floats(x.real), write.floats(x.imag) if x.imag else None
    return write.floats(x), None


def from_last_axis(write: Writer, x: Operand) -> Complex:
    """(..., 2) numbers as complex ones."""
    value = write.floats(x)
    return Complex(at(write, value, -1, 0), at(write, value, -1, 1))


def on_last_axis(write: Writer, z: Complex) -> Value:
    """The parts on a new last axis of two elements."""
    return joined(write, [unsqueeze(write, part, -1) for part in (z.real, z.imag)], -1)


def polar(write: Writer, magnitude: Operand, angle: Operand) -> Complex:
    """magnitude (cos(angle) + i sin(angle))."""
    f = write.formula("polar")
    r, a = write.floats(magnitude), write.floats(angle)
    return Complex(*f.all(f("mul", r, f("cos", a)), f("mul", r, f("sin", a))))


def add(write: Writer, x: Operand, other: Operand, alpha: complex = 1) -> Complex:
    """x + alpha other."""
    (a, b), (c, d) = parts(write, x), parts(write, scaled(write, other, alpha))
    imag: Operand = 0.0
    if b is not None or d is not None:
        both = [part for part in (b, d) if part is not None]
        imag = both[0] if len(both) == 1 else write.pointwise("add", *both)
    return paired(write, write.pointwise("add", a, c), imag)


def subtract(write: Writer, x: Operand, other: Operand, alpha: complex = 1) -> Complex:
    """x - alpha other."""
    return add(write, x, other, -alpha)


def scaled(write: Writer, x: Operand, factor: complex) -> Operand:
    """Product of x and a Python number, real or complex; x itself if the number is 1."""
    return x if factor == 1 else multiply(write, x, complex(factor))


def multiply(write: Writer, x: Operand, other: Operand) -> Complex:
    """(a + ib)(c + id) = ac - bd + i(ad + bc)."""
    (a, b), (c, d) = parts(write, x), parts(write, other)
    if b is None or d is None:
        imag = (a, d) if b is None else (b, c)
        both = None if imag[1] is None else write.pointwise("mul", *imag)
        return paired(write, write.pointwise("mul", a, c), 0.0 if both is None else both)
    f = write.formula("complex product")
    real = f("sub", f("mul", a, c), f("mul", b, d))
    return Complex(*f.all(real, f("fma", a, d, f("mul", b, c))))


def divide(write: Writer, x: Operand, other: Operand) -> Complex:
    """x / (c + id), scaled by the larger of |c| and |d| so that no square overflows."""
    (a, b), (c, d) = parts(write, x), parts(write, other)
    if d is None:
        rest: Operand = 0.0 if b is None else write.pointwise("div", b, c)
        return paired(write, write.pointwise("div", a, c), rest)
    f = write.formula("complex quotient")
    wide = f("greater_equal", f("abs", c), f("abs", d))
    long, short = f("where", wide, c, d), f("where", wide, d, c)
    ratio = f("where", f("equal", long, 0.0), 0.0, f("div", short, long))
    norm = f("fma", ratio, short, long)
    b = write.floats(0.0) if b is None else b
    near, far = f("where", wide, a, b), f("where", wide, b, a)
    real = f("div", f("fma", far, ratio, near), norm)
    along = f("sub", far, f("mul", near, ratio))
    imag = f("div", f("where", wide, along, f("neg", along)), norm)
    return Complex(*f.all(real, imag))


def conjugate(write: Writer, z: Operand) -> Complex:
    """z with its imaginary part negated."""
    pair = as_complex(write, z)
    return Complex(pair.real, write.pointwise("neg", pair.imag))


def both(combine: str, compare: str) -> Callable[[Writer, Operand, Operand], Value]:
    """A function that compares both parts by `compare`, and joins the two results by `combine`."""

    def mapping(write: Writer, x: Operand, other: Operand) -> Value:
        pair = as_complex(write, x), as_complex(write, other)
        found = [
            write.pointwise(compare, *(getattr(z, part) for z in pair)) for part in ("real", "imag")
        ]
        return write.pointwise(combine, *found)

    return mapping


def product_by(multiplied: Callable[[Writer, Value, Value], Value]) -> Callable[..., Complex]:
    """Extend a bilinear product of real tensors to complex ones."""

    def mapping(write: Writer, x: Operand, other: Operand) -> Complex:
        (a, b), (c, d) = parts(write, x), parts(write, other)

        def times(one: Value | None, two: Value | None) -> Value | None:
            return None if one is None or two is None else multiplied(write, one, two)

        real, less = times(a, c), times(b, d)
        imag = [made for made in (times(a, d), times(b, c)) if made is not None]
        whole = real if less is None else write.pointwise("sub", real, less)
        return paired(write, whole, imag[0] if len(imag) == 1 else write.pointwise("add", *imag))

    return mapping


matmul = product_by(products.matmul)


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
    return special_functions.atan2(write, z.imag, z.real)


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
