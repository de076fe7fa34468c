"""Activations as formulas of the functions that graphs have, as torch's manual gives them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sparsejit.frontends.writing.arranging import reshaped, sliced
from sparsejit.frontends.writing.pointwise import clamp
from sparsejit.frontends.writing.writer import Operand, Writer
from sparsejit.ir.values import Element, Value


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
