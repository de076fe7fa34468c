"""What division leaves, as C's fmod and as Python's %."""

from __future__ import annotations

from typing import Any

from sparsejit.frontends.writing.writer import Formula, FormulaStep, Operand, Unmapped, Writer
from sparsejit.ir.graph import Element, Value


def remainder(write: Writer, x: Operand, other: Operand) -> Value:
    """x - floor(x / other) other: with the divisor's sign."""
    return _rest(write, x, other, signed_as_divisor=True)


def fmod(write: Writer, x: Operand, other: Operand) -> Value:
    """x - trunc(x / other) other: with the dividend's sign."""
    return _rest(write, x, other, signed_as_divisor=False)


def floor_quotient(write: Writer, x: Operand, other: Operand) -> Value:
    """Python's x // other in float32: (x - rest) / other, less 1 where the rest's sign differs.

    Not floor(x / other), whose quotient may be rounded up to a whole number: 1.0 // 0.1 is 9.
    """
    x, other = write.floats(x), write.floats(other)
    f = write.formula("floor_divide")
    rest, quotient = _steps(f, x, other, False), f("div", x, other)
    whole = f("div", f("sub", x, rest), other)
    differs = f("not_equal", f("less", other, 0.0), f("less", rest, 0.0))
    differs = f("logical_and", f("not_equal", rest, 0.0), differs)
    whole = f("where", differs, f("sub", whole, 1.0), whole)
    floored = f("where", f("equal", whole, 0.0), f("mul", quotient, 0.0), f("round", whole))
    return f.finish(f("where", f("equal", other, 0.0), quotient, floored))


def _rest(write: Writer, x: Operand, other: Operand, signed_as_divisor: bool) -> Value:
    if Element.FLOAT32 not in (write.element(x), write.element(other)):
        raise Unmapped("of whole numbers")
    f = write.formula("remainder")
    return f.finish(_steps(f, write.floats(x), write.floats(other), signed_as_divisor))


def _steps(f: Formula, x: Value, other: Value, signed_as_divisor: bool) -> FormulaStep:
    """Exact, as C's fmod, for quotients below 2^46; a zero has the dividend's sign.

    What fma leaves of x less the rounded quotient of divisors is exact, so a quotient of 46 bits
    takes two rounds. The last quotient may be rounded up to a whole number, which leaves a rest of
    the wrong sign, one divisor off.
    """
    rest: Any = x
    for _ in range(2):
        quotient = f("trunc", f("div", rest, other))
        less = f("fma", f("neg", quotient), other, rest)
        # An infinite divisor leaves x.
        rest = f("where", f("equal", quotient, 0.0), rest, less)
    like = other if signed_as_divisor else x
    negative = f("less", like, 0.0)
    size = f("abs", other)
    divisor = f("where", negative, f("neg", size), size)
    wrong = f("where", negative, f("greater", rest, 0.0), f("less", rest, 0.0))
    signed = f("where", wrong, f("add", rest, divisor), rest)
    return f("where", f("equal", rest, 0.0), f("mul", x, 0.0), signed)
