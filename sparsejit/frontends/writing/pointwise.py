"""Functions of single elements: functions of graphs, and formulas of them.

    binary, logical           functions of graphs
    add, divide, power        arithmetic
    gelu, elu, hardtanh       activations, as torch's manual gives them
    tan, sinh, cosh, log_to   other functions
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from sparsejit.frontends.writing.arranging import expanded, reshaped, sliced
from sparsejit.frontends.writing.remainders import floor_quotient, whole_quotient
from sparsejit.frontends.writing.special_functions import float_power, whole_power
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
    """The sum of the parts that are not None, at least one."""
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
    """x to a power.

    A single known exponent: whole up to 64, by products; 0.5, -0.5, -1 and 2, by functions of their
    own; any other as exp(exponent log|x|), which is NaN for negative finite x unless the exponent
    is whole. Integer x to a negative known power raises Unmapped.
    """
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


def gelu(write: Writer, x: Operand, approximate: str = "none") -> Value:
    """x Phi(x), or 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    f = write.formula("gelu")
    if approximate == "tanh":
        cubic = f("mul", f("fma", f("square", x), 0.044715, 1.0), x)
        bell = f("tanh", f("mul", cubic, math.sqrt(2 / math.pi)))
    else:
        bell = f("erf", f("mul", x, math.sqrt(0.5)))
    return f.finish(f("mul", f("mul", x, 0.5), f("add", bell, 1.0)))


def silu(write: Writer, x: Operand) -> Value:
    """x sigmoid(x)."""
    f = write.formula("silu")
    return f.finish(f("mul", x, f("sigmoid", x)))


def mish(write: Writer, x: Operand) -> Value:
    """x tanh(softplus(x))."""
    f = write.formula("mish")
    return f.finish(f("mul", x, f("tanh", _softplus(f, x))))


def _softplus(f: Any, x: Any) -> Any:
    """log(1 + exp(x)) as max(x, 0) + log1p(exp(-|x|)), which does not overflow."""
    return f("add", f("relu", x), f("log1p", f("exp", f("neg", f("abs", x)))))


def softplus(write: Writer, x: Operand, beta: float = 1, threshold: float = 20) -> Value:
    """log(1 + exp(beta x)) / beta, and x where beta x is above the threshold."""
    f = write.formula("softplus")
    if beta == 1:
        return f.finish(f("where", f("greater", x, threshold), x, _softplus(f, x)))
    scaled = f("mul", x, beta)
    smooth = f("mul", _softplus(f, scaled), 1 / beta)
    return f.finish(f("where", f("greater", scaled, threshold), x, smooth))


def log_sigmoid(write: Writer, x: Operand) -> Value:
    """-softplus(-x)."""
    f = write.formula("log_sigmoid")
    return f.finish(f("neg", _softplus(f, f("neg", x))))


def elu(
    write: Writer, x: Operand, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> Value:
    """scale x for x > 0, else scale alpha (exp(input_scale x) - 1)."""
    f = write.formula("elu")
    powers = f("expm1", x if input_scale == 1 else f("mul", x, input_scale))
    if alpha * scale != 1:
        powers = f("mul", powers, alpha * scale)
    return f.finish(f("where", f("greater", x, 0.0), _times(f, x, scale), powers))


def _times(f: Any, x: Any, scale: float) -> Any:
    return x if scale == 1 else f("mul", x, scale)


def selu(write: Writer, x: Operand) -> Value:
    """elu with the constants of Klambauer et al. 2017."""
    return elu(write, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def celu(write: Writer, x: Operand, alpha: float = 1) -> Value:
    """max(0, x) + min(0, alpha (exp(x / alpha) - 1))."""
    return elu(write, x, alpha, 1, 1 / alpha)


def leaky_relu(write: Writer, x: Operand, negative_slope: float = 0.01) -> Value:
    """x for x > 0, else negative_slope x."""
    f = write.formula("leaky_relu")
    return f.finish(f("where", f("greater", x, 0.0), x, f("mul", x, negative_slope)))


def prelu(write: Writer, x: Operand, weight: Operand) -> Value:
    """leaky_relu with one slope, or one for each channel, axis 1."""
    value, slope = write.floats(x), write.floats(weight)
    if slope.type.size > 1:
        slope = reshaped(write, slope, (-1, *(1,) * (len(value.shape) - 2)))
    else:
        slope = reshaped(write, slope, ())
    f = write.formula("prelu")
    return f.finish(f("where", f("greater", value, 0.0), value, f("mul", value, slope)))


def hardtanh(write: Writer, x: Operand, low: float = -1, high: float = 1) -> Value:
    """min(max(x, low), high), which products may apply as they write; whole numbers stay whole."""
    kind = float if write.element(x) is Element.FLOAT32 else int
    return clamp(write, x, kind(low), kind(high))


def relu6(write: Writer, x: Operand) -> Value:
    """min(max(x, 0), 6)."""
    return hardtanh(write, x, 0, 6)


def _hard_gate(f: Any, x: Any) -> Any:
    """min(max(x + 3, 0), 6) / 6."""
    return f("mul", f("minimum", f("relu", f("add", x, 3.0)), 6.0), 1 / 6)


def hardsigmoid(write: Writer, x: Operand) -> Value:
    """min(max(x + 3, 0), 6) / 6."""
    f = write.formula("hardsigmoid")
    return f.finish(_hard_gate(f, x))


def hardswish(write: Writer, x: Operand) -> Value:
    """x hardsigmoid(x)."""
    f = write.formula("hardswish")
    return f.finish(f("mul", x, _hard_gate(f, x)))


def hardshrink(write: Writer, x: Operand, width: float = 0.5) -> Value:
    """x where |x| > width, else 0."""
    f = write.formula("hardshrink")
    return f.finish(f("where", f("less_equal", f("abs", x), width), 0.0, x))


def softshrink(write: Writer, x: Operand, width: float = 0.5) -> Value:
    """x moved towards 0 by width: x - min(max(x, -width), width)."""
    f = write.formula("softshrink")
    return f.finish(f("sub", x, f("minimum", f("maximum", x, -width), width)))


def threshold(write: Writer, x: Operand, least: float, value: float) -> Value:
    """x where it is above `least`, else value; whole numbers stay whole."""
    kind = float if write.element(x) is Element.FLOAT32 else int
    below = write.pointwise("less_equal", x, kind(least))
    return write.pointwise("where", below, kind(value), x)


def tan(write: Writer, x: Operand) -> Value:
    """sin(x) / cos(x)."""
    f = write.formula("tan")
    return f.finish(f("div", f("sin", x), f("cos", x)))


def sinh(write: Writer, x: Operand) -> Value:
    """2 sinh(x / 2) cosh(x / 2), which overflow late, by expm1, which is exact near zero."""
    f = write.formula("sinh")
    half = f("mul", x, 0.5)
    up, down = f("expm1", half), f("expm1", f("neg", half))
    twice_cosh = f("add", f("add", up, down), 2.0)
    return f.finish(f("mul", f("mul", f("sub", up, down), 0.5), twice_cosh))


def cosh(write: Writer, x: Operand) -> Value:
    """(exp(x / 2)^2 + exp(-x / 2)^2) / 2, halved before it can overflow."""
    f = write.formula("cosh")
    half = f("mul", x, 0.5)
    up, down = f("exp", half), f("exp", f("neg", half))
    return f.finish(f("fma", f("mul", up, 0.5), up, f("mul", f("mul", down, 0.5), down)))


def glu(write: Writer, x: Operand, dim: int = -1) -> Value:
    """The first half along an axis times the sigmoid of the second."""
    length = write.shape(x)[dim]
    f = write.formula("glu")
    value, gate = (
        sliced(write, x, dim, 0, length // 2),
        sliced(write, x, dim, length // 2, length),
    )
    return f.finish(f("mul", value, f("sigmoid", gate)))


def log_to(base: float) -> Callable[[Writer, Operand], Value]:
    """log(x) / log(base)."""

    def mapping(write: Writer, x: Operand) -> Value:
        f = write.formula(f"log{base:g}")
        return f.finish(f("mul", f("log", x), 1 / math.log(base)))

    return mapping
