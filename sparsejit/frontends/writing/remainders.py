"""Rounded quotients and their remainders: C's and Python's."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsejit.frontends.writing.arranging import reshaped
from sparsejit.frontends.writing.writer import Formula, FormulaStep, Operand, Unmapped, Writer
from sparsejit.ir.ops.selection import Embedding
from sparsejit.ir.values import Element, Value
from sparsejit.whole_numbers import ceil_div


def remainder(write: Writer, x: Operand, other: Operand) -> Value:
    """x - floor(x / other) other: with the divisor's sign."""
    return _rest(write, x, other, signed_as_divisor=True)


def fmod(write: Writer, x: Operand, other: Operand) -> Value:
    """x - trunc(x / other) other: with the dividend's sign."""
    return _rest(write, x, other, signed_as_divisor=False)


def whole_quotient(write: Writer, x: Operand, other: Operand, floored: bool) -> Value:
    """The quotient of whole numbers, floored or rounded towards zero."""
    x, other = _divided(write, x, other)
    f = write.formula("quotient")
    quotient = f("quotient", x, other)
    if not floored:
        return f.finish(quotient)
    rest = f("sub", x, f("mul", quotient, other))
    one, zero = write.number(1, Element.INT64), write.number(0, Element.INT64)
    return f.finish(f("sub", quotient, f("where", _is_beyond(f, rest, other, zero), one, zero)))


def _divided(write: Writer, x: Operand, other: Operand) -> tuple[Value, Value]:
    """Both operands as whole numbers of one dtype. Raises Unmapped for a divisor known to be 0.

    A computed divisor of 0 looks up a row that its table does not have, so that the call raises.
    """
    x, other = (write.cast(each, Element.INT64) for each in write.promoted(x, other))
    known = write.known(other)
    if known is not None:
        if not known.all():
            raise Unmapped("divides by zero; give other divisors")
        return x, other
    places = write.cast(write.pointwise("equal", other, 0), Element.INT64)
    found = write.one(Embedding(), places, np.zeros((1, 1), np.int64))
    return x, write.pointwise("add", other, reshaped(write, found, other.shape))


def _is_beyond(f: Formula, rest: FormulaStep, other: Value, zero: Any = 0.0) -> FormulaStep:
    """Whether a remainder is not 0 and its sign is not the divisor's.

    `zero` is 0 in their element type.
    """
    differs = f("not_equal", f("less", rest, zero), f("less", other, zero))
    return f("logical_and", f("not_equal", rest, zero), differs)


def _rest_of_whole(write: Writer, x: Operand, other: Operand, signed_as_divisor: bool) -> Value:
    x, other = _divided(write, x, other)
    f = write.formula("remainder")
    rest = f("sub", x, f("mul", f("quotient", x, other), other))
    if not signed_as_divisor:
        return f.finish(rest)
    beyond = _is_beyond(f, rest, other, write.number(0, Element.INT64))
    return f.finish(f("where", beyond, f("add", rest, other), rest))


def _powers(write: Writer, other: Value) -> list[int]:
    """Exponents of the powers of two that divisors are multiplied with, one after the other.

    They fall by 23, from one that is large enough for any float32 x.
    """
    known = write.known(other)
    sizes = np.zeros(0) if known is None else np.abs(known[known != 0])
    least = int(np.frexp(sizes.min())[1]) - 1 if sizes.size else -149
    last = max(0, ceil_div(128 - 24 - least, 23))  # leaves a quotient below 2^24
    return [23 * number for number in range(last, -1, -1)]


def floor_quotient(write: Writer, x: Operand, other: Operand) -> Value:
    """Floor division in float32, as Python's `x // other`.

    It is (x - r) / other with the truncated remainder r, minus 1 where r is not 0 and differs in
    sign from `other`, then corrected for rounding; x / other where `other` is 0. It is not
    floor(x / other), which may round up to a whole number: 1.0 // 0.1 is 9.
    """
    x, other = write.floats(x), write.floats(other)
    f = write.formula("floor_divide")
    rest, quotient = _steps(write, f, x, other, False), f("div", x, other)
    whole = f("div", f("sub", x, rest), other)
    whole = f("where", _is_beyond(f, rest, other), f("sub", whole, 1.0), whole)
    whole = _floored(f, x, other, f("round", whole))
    floored = f("where", f("equal", whole, 0.0), f("mul", quotient, 0.0), whole)
    return f.finish(f("where", f("equal", other, 0.0), quotient, floored))


def _floored(f: Formula, x: Value, other: Value, near: FormulaStep) -> FormulaStep:
    """The largest whole number up to x / other, found from `near`, which is at most 1 off.

    fma makes the sign of the remainder exact. Numbers of 25 bits and more are kept.
    """
    rest = f("fma", f("neg", near), other, x)
    above = _is_beyond(f, rest, other)
    below = f("greater", f("abs", rest), f("abs", other))
    moved = f("where", above, f("sub", near, 1.0), f("where", below, f("add", near, 1.0), near))
    # An infinite divisor leaves no remainder.
    is_exact = f("logical_and", f("less", f("abs", near), 2.0**24), f("equal", rest, rest))
    return f("where", is_exact, moved, near)


def _rest(write: Writer, x: Operand, other: Operand, signed_as_divisor: bool) -> Value:
    if Element.FLOAT32 not in (write.element(x), write.element(other)):
        return _rest_of_whole(write, x, other, signed_as_divisor)
    f = write.formula("remainder")
    return f.finish(_steps(write, f, write.floats(x), write.floats(other), signed_as_divisor))


def _steps(
    write: Writer, f: Formula, x: Value, other: Value, signed_as_divisor: bool
) -> FormulaStep:
    """The exact remainder of x / other, with the sign of x, as C's fmod, or with the divisor's.

    A zero has the sign of x. Each round takes a quotient of 23 bits by the divisor times a power of
    two, the largest first; the fma of x minus the rounded quotient times the divisor is exact. The
    last quotient may be rounded up to a whole number, which leaves a remainder of the wrong sign,
    one divisor off.
    """
    rest: Any = x
    for power in _powers(write, other):
        divisor: Any = other
        for part in (min(power, 127), power - 127):  # float32 holds no larger power
            divisor = f("mul", divisor, 2.0**part) if part > 0 else divisor
        quotient = f("trunc", f("div", rest, divisor))
        less = f("fma", f("neg", quotient), divisor, rest)
        # An infinite divisor leaves x.
        rest = f("where", f("equal", quotient, 0.0), rest, less)
    like = other if signed_as_divisor else x
    negative = f("less", like, 0.0)
    size = f("abs", other)
    divisor = f("where", negative, f("neg", size), size)
    wrong = f("where", negative, f("greater", rest, 0.0), f("less", rest, 0.0))
    signed = f("where", wrong, f("add", rest, divisor), rest)
    return f("where", f("equal", rest, 0.0), f("mul", x, 0.0), signed)
