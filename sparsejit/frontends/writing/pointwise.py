"""Functions of single elements: functions of graphs, and formulas of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from sparsejit.frontends.writing.arranging import expanded
from sparsejit.frontends.writing.powers import float_power, whole_power
from sparsejit.frontends.writing.remainders import floor_quotient, whole_quotient
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.values import Element, Value

Mapping = Callable[..., Any]


def binary(kind: str) -> Mapping:
    """A function of two operands, which are promoted."""

    def mapping(write: Writer, x: Operand, other: Operand) -> Value:
        return write.pointwise(kind, x, other)

    return mapping


def logical(kind: str) -> Mapping:
    """A function of bools: whether each element differs from zero."""

    def mapping(write: Writer, *operands: Operand) -> Value:
        return write.pointwise(kind, *(write.cast(x, Element.BOOL) for x in operands))

    return mapping


def _is_float(write: Writer, x: Operand) -> bool:
    return write.element(x) is Element.FLOAT32


def _all_bool(write: Writer, *operands: Operand) -> bool:
    return all(write.element(x) is Element.BOOL for x in operands)


def add(write: Writer, x: Operand, other: Operand, alpha: float = 1) -> Value:
    """x + alpha other."""
    if _all_bool(write, x, other):
        return write.pointwise("logical_or", x, other) if alpha else write.cast(x, Element.BOOL)
    return write.pointwise("add", x, other if alpha == 1 else multiply(write, other, alpha))


def total(write: Writer, parts: Sequence[Value | None]) -> Value:
    """The sum of parts, of which at least one is not None."""
    first, *others = (part for part in parts if part is not None)
    for other in others:
        first = write.pointwise("add", first, other)
    return first


def multiply(write: Writer, x: Operand, other: Operand) -> Value:
    """x times other; for bools, x and other."""
    kind = "logical_and" if _all_bool(write, x, other) else "mul"
    return write.pointwise(kind, x, other)


def divide(write: Writer, x: Operand, other: Operand, rounding_mode: str | None = None) -> Value:
    """x / other in float32; by `rounding_mode` truncated, or floored as Python's //."""
    whole = not _is_float(write, x) and not _is_float(write, other)
    if rounding_mode is not None and whole:
        return whole_quotient(write, x, other, rounding_mode == "floor")
    if rounding_mode == "floor":
        return floor_quotient(write, x, other)
    quotient = write.pointwise("div", write.floats(x), write.floats(other))
    return quotient if rounding_mode is None else write.pointwise(rounding_mode, quotient)


def power(write: Writer, x: Operand, exponent: Operand) -> Value:
    """x to a power; one known power by products or as exp(exponent log(x)), NaN for x < 0."""
    known = write.known(exponent)
    if known is None or known.size != 1:
        if not _is_float(write, x) and not _is_float(write, exponent):
            return whole_power(write, x, exponent)
        return float_power(write, x, exponent)
    power = float(known.reshape(()))
    if not _is_float(write, x):
        x = write.floats(x) if known.dtype.kind == "f" else write.cast(x, Element.INT64)
    if power == 0:
        return expanded(write, write.number(1, write.element(x)), write.shape(x))
    if not _is_float(write, x):
        if power < 0:
            raise Unmapped("raises whole numbers to a negative power")
        return _whole_power(write, x, int(power))
    special = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal", 2.0: "square"}
    if power in special:
        return write.pointwise(special[power], x)
    if abs(power) <= 64 and power == int(power):
        return _whole_power(write, x, int(power))
    return _power_by_logarithm(write, x, power)


def _power_by_logarithm(write: Writer, x: Operand, power: float) -> Value:
    """exp(power log|x|); for negative x, NaN unless the power is whole or x is -inf."""
    f = write.formula("pow")
    whole = power % 1 == 0
    positive = f("abs", x) if whole else f("where", f("equal", x, -math.inf), math.inf, x)
    result = f("exp", f("mul", f("log", positive), power))
    if whole and power % 2:
        result = f("where", f("less", x, 0.0), f("neg", result), result)
    return f.finish(result)


def _whole_power(write: Writer, x: Operand, power: int) -> Value:
    """x to a whole power by repeated squaring."""
    f = write.formula("pow")
    square: Any = x
    result: Any = None
    left = abs(power)
    while left:
        if left & 1:
            result = square if result is None else f("mul", result, square)
        left >>= 1
        if left:
            square = f("square", square)
    if power < 0:
        result = f("reciprocal", result)
    return write.value(x) if result is x else f.finish(result)


def power_of(write: Writer, base: Operand, exponent: Operand) -> Value:
    """A known positive base to the power of each element: 2^(exponent log2(base)).

    Powers of 2 are exact: models write shifts so. Among whole numbers, base 2 becomes a shift, and
    other bases take `whole_power`.
    """
    known = write.known(base)
    if known is None or known.size != 1:
        return power(write, base, exponent)
    if known.dtype.kind != "f" and not _is_float(write, exponent):
        if known != 2 or write.dtype(exponent).kind == "b":
            return whole_power(write, base, exponent)
        return write.pointwise("shift_left", 1, write.cast(exponent, Element.INT64))
    if float(known.reshape(())) <= 0:
        return float_power(write, base, exponent)
    x, rate = write.floats(exponent), math.log2(float(known.reshape(())))
    return write.pointwise("exp2", x if rate == 1 else write.pointwise("mul", x, rate))


def clamp(write: Writer, x: Operand, low: Operand = None, high: Operand = None) -> Value:
    """min(max(x, low), high); either bound may be left out."""
    result = write.value(x)
    if low is not None:
        result = write.pointwise("maximum", result, low)
    return result if high is None else write.pointwise("minimum", result, high)


def is_nan(write: Writer, x: Operand) -> Value:
    """Whether x differs from itself."""
    return write.pointwise("not_equal", x, x)


def is_infinite(write: Writer, x: Operand) -> Value:
    """Whether |x| is infinite; no whole number is."""
    if not _is_float(write, x):
        return write.pointwise("less", x, x)
    return write.pointwise("equal", write.pointwise("abs", x), float("inf"))
