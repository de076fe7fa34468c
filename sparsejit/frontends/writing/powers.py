"""Powers of elements by elements, accurate to the last places of float32.

x^y = 2^(y log2 x). log2 |x| and its product with the exponent are sums of two floats each, so that
the power of two is corrected by the rest of its exponent.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparsejit.frontends.writing.inverse_functions import polynomial
from sparsejit.frontends.writing.writer import Operand, Writer
from sparsejit.ir.values import Element, Value

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
    """Most bits of an exponent that is not negative."""
    known = write.known(exponent)
    if known is not None:
        return max(int(known.max(initial=0)).bit_length(), 1)
    dtype = write.dtype(exponent)
    return 1 if dtype.kind == "b" else int(np.iinfo(dtype).max).bit_length()
