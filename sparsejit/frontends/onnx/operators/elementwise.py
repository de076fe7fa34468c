"""Functions of single elements."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from sparsejit.frontends.onnx.call import Call
from sparsejit.frontends.onnx.reading import dtype_of
from sparsejit.frontends.onnx.words import is_text
from sparsejit.frontends.writing import arranging, pointwise, remainders
from sparsejit.frontends.writing.special_functions import INVERSES
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.values import Value

Mapping = Callable[[Writer, Call], Any]


def of_values(function: Callable[..., Any]) -> Mapping:
    """Mapping of function(write, *operands)."""
    return lambda write, call: function(write, *call.values(write))


def with_attributes(function: Callable[..., Any], **defaults: float) -> Mapping:
    """Mapping of function(write, x, *attributes), with ONNX's names and defaults of these."""

    def mapping(write: Writer, call: Call) -> Value:
        given = [float(call.attribute(name, default)) for name, default in defaults.items()]
        result: Value = function(write, call.value(write, 0), *given)
        return result

    return mapping


def folded(function: Callable[..., Value]) -> Mapping:
    """Mapping of any number of operands by a function of two, from the left."""
    return lambda write, call: reduce(lambda x, y: function(write, x, y), call.values(write))


def mean(write: Writer, call: Call) -> Value:
    """The mean of operands, which broadcast."""
    total: Value = folded(pointwise.add)(write, call)
    return write.pointwise("mul", total, 1.0 / len(call))


def divide(write: Writer, call: Call) -> Value:
    """The quotient; whole numbers are rounded towards zero."""
    x, other = call.values(write)
    whole = "f" not in (write.dtype(x).kind, write.dtype(other).kind)
    return pointwise.divide(write, x, other, "trunc" if whole else None)


def modulo(write: Writer, call: Call) -> Value:
    """The remainder with the divisor's sign; with fmod, with x's sign."""
    x, other = call.values(write)
    function = remainders.fmod if call.flag("fmod") else remainders.remainder
    return function(write, x, other)


def power(write: Writer, call: Call) -> Value:
    """x to a power."""
    x, exponent = call.values(write)
    known = write.known(exponent)
    if known is None:
        return pointwise.power_of(write, x, exponent)
    x = arranging.expanded(write, x, np.broadcast_shapes(x.shape, known.shape))
    if write.dtype(x).kind != "f" and known.size == 1 and known % 1 == 0:
        return pointwise.power(write, x, int(known.reshape(())))
    if known.size == 1 and abs(known.reshape(())) == 0.5:
        x = _for_root(write, x)
    return pointwise.power(write, x, exponent)


def _for_root(write: Writer, x: Value) -> Value:
    """x changed so that its root is its power: C's pow gives infinity for -inf, and 0 for -0."""
    f, x = write.formula("root"), write.floats(x)
    zero_or_x = f("where", f("equal", x, 0.0), 0.0, x)
    return f.finish(f("where", f("equal", x, -np.inf), np.inf, zero_or_x))


def shift(write: Writer, call: Call) -> Value:
    """Shift the bits of whole numbers to the left or to the right."""
    side = call.choice("direction", ("LEFT", "RIGHT"))
    return write.pointwise(f"shift_{side.lower()}", *call.values(write))


def bitwise_not(write: Writer, x: Value) -> Value:
    """Invert every bit: -1 - x."""
    return write.pointwise("sub", -1, x)


def clip(write: Writer, call: Call) -> Value:
    """Clamp to bounds, either of which may be left out."""
    low, high = call.optional(write, 1), call.optional(write, 2)
    return pointwise.clamp(write, call.value(write, 0), low, high)


def cast(write: Writer, call: Call) -> Value:
    """Cast to a dtype; floats become whole numbers towards zero."""
    dtype = dtype_of(call.attribute("to"), "attribute to")
    if (0 in call.texts) != is_text(dtype):
        raise Unmapped("casts strings to numbers, or numbers to strings; cast outside of the model")
    if is_text(dtype):
        return call.value(write, 0)
    if dtype == np.uint64:
        raise Unmapped("casts to uint64, which int64 does not hold")
    return write.converted(call.value(write, 0), dtype)


def cast_like(write: Writer, call: Call) -> Value:
    """Cast to the dtype of another operand."""
    like = call.operand(1)
    dtype = like.dtype if isinstance(like, np.ndarray) else write.dtype(like)
    return write.converted(call.value(write, 0), dtype)


def identity(write: Writer, call: Call) -> Any:
    """The operand itself."""
    return call.operand(0)


def dropout(write: Writer, call: Call) -> tuple[Value, None]:
    """The operand itself: nothing is drawn at random; the mask is not kept."""
    if call.has(2) and bool(call.known(2, "training_mode").any()):
        raise Unmapped("drops out at random, also in evaluation")
    return call.value(write, 0), None


def gelu(write: Writer, call: Call) -> Value:
    """x Phi(x), or its approximation with tanh."""
    kind = call.choice("approximate", ("none", "tanh"))
    return pointwise.gelu(write, call.value(write, 0), kind)


def prelu(write: Writer, call: Call) -> Value:
    """x times a slope for x < 0, else x; the slope broadcasts from the last axis."""
    x, slope = call.values(write)
    f = write.formula("prelu")
    return f.finish(f("where", f("less", x, 0.0), f("mul", x, slope), x))


def sign(write: Writer, x: Value) -> Value:
    """1 above 0, -1 below, 0 at 0; NaN of NaN."""
    if write.dtype(x).kind != "f":
        return write.pointwise("sign", x)
    f = write.formula("sign")
    return f.finish(f("where", f("equal", x, x), f("sign", x), x))


def hard_sigmoid(write: Writer, x: Value, alpha: float, beta: float) -> Value:
    """max(0, min(1, alpha x + beta))."""
    f = write.formula("hardsigmoid")
    return f.finish(f("minimum", f("relu", f("fma", x, alpha, beta)), 1.0))


def softsign(write: Writer, x: Value) -> Value:
    """x / (1 + |x|)."""
    f = write.formula("softsign")
    return f.finish(f("div", x, f("add", f("abs", x), 1.0)))


def selu(write: Writer, x: Value, alpha: float, gamma: float) -> Value:
    """gamma (x for x > 0, else alpha (exp(x) - 1))."""
    return pointwise.elu(write, x, alpha, gamma)


def thresholded_relu(write: Writer, x: Value, alpha: float) -> Value:
    """x for x > alpha, else 0, as for NaN."""
    f = write.formula("thresholded_relu")
    return f.finish(f("where", f("greater", x, alpha), x, 0.0))


def shrink(write: Writer, x: Value, bias: float, lambd: float) -> Value:
    """x + bias for x < -lambd, x - bias for x > lambd, else 0."""
    if write.dtype(x).kind != "f":
        raise Unmapped("of whole numbers")
    f = write.formula("shrink")
    below, above = f("less", x, -lambd), f("greater", x, lambd)
    inner = f("where", above, f("sub", x, bias), 0.0)
    return f.finish(f("where", below, f("add", x, bias), inner))


def is_infinite(write: Writer, call: Call) -> Value:
    """Whether x is infinite, with a sign that is not switched off."""
    x = call.value(write, 0)
    down, up = call.flag("detect_negative", True), call.flag("detect_positive", True)
    if down and up:
        return pointwise.is_infinite(write, x)
    if not down and not up:
        return write.pointwise("less", x, float("-inf"))  # never
    return write.pointwise("equal", x, float("inf") if up else float("-inf"))


def _pointwise(kind: str) -> Mapping:
    return lambda write, call: write.pointwise(kind, *call.values(write))


# ONNX's name and the function's kind in graphs.
_FUNCTIONS = {
    "Abs": "abs",
    "Ceil": "ceil",
    "Cos": "cos",
    "Equal": "equal",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Log": "log",
    "Mul": "mul",
    "Neg": "neg",
    "Reciprocal": "reciprocal",
    "Relu": "relu",
    "Round": "round",
    "Sigmoid": "sigmoid",
    "Sin": "sin",
    "Sqrt": "sqrt",
    "Sub": "sub",
    "Tanh": "tanh",
    "Where": "where",
}

OPERATORS: dict[str, Mapping] = {
    **{name: _pointwise(kind) for name, kind in _FUNCTIONS.items()},
    **{name.capitalize(): of_values(inverse) for name, inverse in INVERSES.items()},
    "Add": of_values(pointwise.add),
    "And": of_values(pointwise.logical("logical_and")),
    "Cast": cast,
    "CastLike": cast_like,
    "BitShift": shift,
    "BitwiseAnd": of_values(pointwise.binary("bitwise_and")),
    "BitwiseNot": of_values(bitwise_not),
    "BitwiseOr": of_values(pointwise.binary("bitwise_or")),
    "BitwiseXor": of_values(pointwise.binary("bitwise_xor")),
    "Celu": with_attributes(pointwise.celu, alpha=1.0),
    "Clip": clip,
    "Cosh": of_values(pointwise.cosh),
    "Div": divide,
    "Dropout": dropout,
    "Elu": with_attributes(pointwise.elu, alpha=1.0),
    "Gelu": gelu,
    "HardSigmoid": with_attributes(hard_sigmoid, alpha=0.2, beta=0.5),
    "HardSwish": of_values(pointwise.hardswish),
    "Identity": identity,
    "IsInf": is_infinite,
    "IsNaN": of_values(pointwise.is_nan),
    "LeakyRelu": with_attributes(pointwise.leaky_relu, alpha=0.01),
    "Max": folded(pointwise.binary("maximum")),
    "Mean": mean,
    "Min": folded(pointwise.binary("minimum")),
    "Mish": of_values(pointwise.mish),
    "Mod": modulo,
    "Not": of_values(pointwise.logical("logical_not")),
    "Or": of_values(pointwise.logical("logical_or")),
    "PRelu": prelu,
    "Pow": power,
    "Selu": with_attributes(selu, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875),
    "Sign": of_values(sign),
    "Shrink": with_attributes(shrink, bias=0.0, lambd=0.5),
    "Sinh": of_values(pointwise.sinh),
    "Softplus": of_values(pointwise.softplus),
    "Softsign": of_values(softsign),
    "Sum": folded(pointwise.add),
    "Tan": of_values(pointwise.tan),
    "ThresholdedRelu": with_attributes(thresholded_relu, alpha=1.0),
    "Xor": lambda write, call: write.pointwise("not_equal", *call.values(write)),
}
