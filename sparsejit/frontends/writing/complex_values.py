"""Complex numbers as pairs of real values: arithmetic, functions, products of matrices.

A real operand has no imaginary part, so that its products cost half.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from sparsejit.frontends.writing import products
from sparsejit.frontends.writing.arranging import at, expanded, joined
from sparsejit.frontends.writing.views import unsqueeze
from sparsejit.frontends.writing.writer import Operand, Writer
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
    """x times a number."""
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
    """Compare both parts with `compare`, and join the two results with `combine`."""

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
