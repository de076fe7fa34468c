"""Functions of single elements: those that graphs have, and those that are formulas of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sparsejit.frontends.writing.arranging import expanded
from sparsejit.frontends.writing.remainders import fmod, remainder
from sparsejit.frontends.writing.writer import Unmapped, element_of
from sparsejit.ir.graph import Element

if TYPE_CHECKING:
    from sparsejit.frontends.writing.writer import Operand, Writer
    from sparsejit.ir.graph import Value

Mapping = Callable[..., Any]


def unary(kind: str) -> Mapping:
    """A function that keeps the element."""

    def mapping(write: Writer, x: Operand) -> Value:
        return write.pointwise(kind, x)

    return mapping


def rounded(kind: str) -> Mapping:
    """A function that leaves whole numbers as they are."""

    def mapping(write: Writer, x: Operand) -> Value:
        return write.pointwise(kind, x) if _is_float(write, x) else write.value(x)

    return mapping


def of_floats(kind: str) -> Mapping:
    """A function whose result is float32 for whole numbers as well."""

    def mapping(write: Writer, x: Operand) -> Value:
        return write.pointwise(kind, write.floats(x))

    return mapping


def binary(kind: str) -> Mapping:
    """A function of two operands, promoted."""

    def mapping(write: Writer, x: Operand, other: Operand) -> Value:
        return write.pointwise(kind, x, other)

    return mapping


def logical(kind: str) -> Mapping:
    """A function of truths: whether each element differs from zero."""

    def mapping(write: Writer, *operands: Operand) -> Value:
        return write.pointwise(kind, *(write.cast(x, Element.BOOL) for x in operands))

    return mapping


def bitwise(kind: str) -> Mapping:
    """A function of the bits of bools, which are their truths."""

    def mapping(write: Writer, *operands: Operand) -> Value:
        if any(write.element(x) is not Element.BOOL for x in operands):
            raise Unmapped("of whole numbers")
        return write.pointwise(kind, *operands)

    return mapping


def _is_float(write: Writer, x: Operand) -> bool:
    return write.element(x) is Element.FLOAT32


def _all_bool(write: Writer, *operands: Operand) -> bool:
    return all(write.element(x) is Element.BOOL for x in operands)


def add(write: Writer, x: Operand, other: Operand, alpha: float = 1) -> Value:
    """x + alpha other."""
    if _all_bool(write, x, other):
        return write.pointwise("logical_or", x, other)
    return write.pointwise("add", x, other if alpha == 1 else multiply(write, other, alpha))


def subtract(write: Writer, x: Operand, other: Operand, alpha: float = 1) -> Value:
    """x - alpha other."""
    return write.pointwise("sub", x, other if alpha == 1 else multiply(write, other, alpha))


def subtract_from(write: Writer, x: Operand, other: Operand, alpha: float = 1) -> Value:
    """other - alpha x."""
    return subtract(write, other, x, alpha)


def multiply(write: Writer, x: Operand, other: Operand) -> Value:
    """x times other; of bools, both."""
    kind = "logical_and" if _all_bool(write, x, other) else "mul"
    return write.pointwise(kind, x, other)


def divide(write: Writer, x: Operand, other: Operand, rounding_mode: str | None = None) -> Value:
    """x / other in float32, then floored or truncated if asked."""
    whole = not _is_float(write, x) and not _is_float(write, other)
    if rounding_mode is not None and whole:
        raise Unmapped("rounded quotients of whole numbers")
    quotient = write.pointwise("div", write.floats(x), write.floats(other))
    return quotient if rounding_mode is None else write.pointwise(rounding_mode, quotient)


def floor_divide(write: Writer, x: Operand, other: Operand) -> Value:
    """The quotient, floored."""
    return divide(write, x, other, "floor")


def power(write: Writer, x: Operand, exponent: Operand) -> Value:
    """x to a known power: by products, or as exp(exponent log(x)) and NaN for x < 0 as in torch."""
    known = write.known(exponent)
    if known is None or known.size != 1:
        raise Unmapped("the exponent is not one known number")
    power = float(known.reshape(()))
    if not _is_float(write, x):
        raise Unmapped("of whole numbers")
    special = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal", 2.0: "square"}
    if power in special:
        return write.pointwise(special[power], x)
    if power == 0:
        return expanded(write, write.number(1.0, Element.FLOAT32), write.shape(x))
    if abs(power) <= 64 and power == int(power):
        return _whole_power(write, x, int(power))
    return _power_by_logarithm(write, x, power)


def _power_by_logarithm(write: Writer, x: Operand, power: float) -> Value:
    """Only whole powers of negative numbers are numbers, but all of -inf are."""
    f = write.formula("pow")
    whole = power % 1 == 0
    positive = f("abs", x) if whole else f("where", f("equal", x, -math.inf), math.inf, x)
    result = f("exp", f("mul", f("log", positive), power))
    if whole and power % 2:
        result = f("where", f("less", x, 0.0), f("neg", result), result)
    return f.finish(result)


def _whole_power(write: Writer, x: Operand, power: int) -> Value:
    """By repeated squaring."""
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
    """A known positive base to the power of each element: exp(exponent log(base))."""
    known = write.known(base)
    if known is None or known.size != 1 or float(known.reshape(())) <= 0:
        raise Unmapped("the base is not one known positive number")
    rate = math.log(float(known.reshape(())))
    f = write.formula("pow")
    return f.finish(f("exp", f("mul", write.floats(exponent), rate)))


def add_scaled_product(
    write: Writer, x: Operand, a: Operand, b: Operand, value: float = 1
) -> Value:
    """x + value a b."""
    return add(write, x, multiply(write, a, b), value)


def add_scaled_quotient(
    write: Writer, x: Operand, a: Operand, b: Operand, value: float = 1
) -> Value:
    """x + value a / b."""
    return add(write, x, divide(write, a, b), value)


def interpolate(write: Writer, x: Operand, end: Operand, weight: Operand) -> Value:
    """x + weight (end - x)."""
    f = write.formula("lerp")
    x, end, weight = map(write.floats, (x, end, weight))
    return f.finish(f("fma", weight, f("sub", end, x), x))


def clamp(write: Writer, x: Operand, low: Operand = None, high: Operand = None) -> Value:
    """min(max(x, low), high), each where it is given."""
    result = write.value(x)
    if low is not None:
        result = write.pointwise("maximum", result, low)
    return result if high is None else write.pointwise("minimum", result, high)


def clamp_max(write: Writer, x: Operand, high: Operand) -> Value:
    """min(x, high)."""
    return clamp(write, x, None, high)


def where(write: Writer, condition: Operand, x: Operand, other: Operand) -> Value:
    """x where the condition holds, else other."""
    return write.pointwise("where", condition, x, other)


def masked_fill(write: Writer, x: Operand, mask: Operand, value: Operand) -> Value:
    """value where the mask is set."""
    fill = write.cast(value, write.element(x))
    return write.pointwise("where", mask, fill, x)


def identity(write: Writer, x: Operand, *_: Any, **__: Any) -> Value:
    """x itself."""
    return write.value(x)


def dropout(write: Writer, x: Operand, p: float = 0.5, train: bool = False) -> Value:
    """x itself; random numbers are not drawn."""
    if train and p:
        raise Unmapped("drops out at random, also in evaluation")
    return write.value(x)


def to_dtype(write: Writer, x: Operand, dtype: Any = None, *_: Any) -> Value:
    """x with the graph's elements for a dtype."""
    return write.value(x) if dtype is None else write.cast(x, element_of(dtype))


def to_dtype_on_device(write: Writer, x: Operand, _: Any, dtype: Any, *__: Any) -> Value:
    """As `to_dtype`."""
    return to_dtype(write, x, dtype)


def to_dtype_of(write: Writer, x: Operand, other: Operand, *_: Any) -> Value:
    """x with the elements of another tensor."""
    return write.cast(x, write.element(other))


def copy(write: Writer, x: Operand, source: Operand, *_: Any) -> Value:
    """The source in the shape and elements of x."""
    return expanded(write, write.cast(source, write.element(x)), write.shape(x))


def is_nan(write: Writer, x: Operand) -> Value:
    """Whether x differs from itself."""
    return write.pointwise("not_equal", x, x)


def is_infinite(write: Writer, x: Operand) -> Value:
    """Whether |x| is infinite."""
    return write.pointwise("equal", write.pointwise("abs", x), float("inf"))


def nan_to_num(
    write: Writer,
    x: Operand,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Value:
    """Finite numbers, by default 0 and the largest, in the place of those that are not."""
    largest = 3.4028234663852886e38
    f = write.formula("nan_to_num")
    high = f("equal", x, float("inf"))
    low = f("equal", x, float("-inf"))
    finite = f("where", high, largest if posinf is None else posinf, x)
    finite = f("where", low, -largest if neginf is None else neginf, finite)
    return f.finish(f("where", f("not_equal", x, x), nan or 0.0, finite))


_KEEPING = {
    "neg": "neg",
    "abs": "abs",
    "relu": "relu",
    "sign": "sign",
    "sgn": "sign",
    "square": "square",
}
_ROUNDING = {"floor": "floor", "ceil": "ceil", "round": "round", "trunc": "trunc", "fix": "trunc"}
_FLOAT = {
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "reciprocal": "reciprocal",
    "exp": "exp",
    "expm1": "expm1",
    "log": "log",
    "log1p": "log1p",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "erf": "erf",
    "sin": "sin",
    "cos": "cos",
    "special_expit": "sigmoid",
}
_COMPARING = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
_SAME = (
    *("alias", "detach", "clone", "contiguous", "lift_fresh", "lift_fresh_copy", "positive"),
    *("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"),
)


def _both(name: str, mapping: Mapping) -> dict[str, Mapping]:
    """The overloads for a tensor and for a number."""
    return {f"aten.{name}.Tensor": mapping, f"aten.{name}.Scalar": mapping}


OPERATORS: dict[str, Mapping] = {
    **{f"aten.{name}.default": unary(kind) for name, kind in _KEEPING.items()},
    **{f"aten.{name}.default": rounded(kind) for name, kind in _ROUNDING.items()},
    **{f"aten.{name}.default": of_floats(kind) for name, kind in _FLOAT.items()},
    **{
        key: row
        for name, kind in _COMPARING.items()
        for key, row in _both(name, binary(kind)).items()
    },
    **{f"aten.{name}.default": identity for name in _SAME if "dropout" not in name},
    **{f"aten.{name}.default": dropout for name in _SAME if "dropout" in name},
    **_both("add", add),
    **_both("sub", subtract),
    **_both("rsub", subtract_from),
    **_both("mul", multiply),
    **_both("div", divide),
    "aten.div.Tensor_mode": divide,
    "aten.div.Scalar_mode": divide,
    "aten.floor_divide.default": floor_divide,
    "aten.floor_divide.Scalar": floor_divide,
    **_both("remainder", remainder),
    **_both("fmod", fmod),
    "aten.pow.Tensor_Scalar": power,
    "aten.pow.Tensor_Tensor": power,
    "aten.pow.Scalar": power_of,
    "aten.maximum.default": binary("maximum"),
    "aten.minimum.default": binary("minimum"),
    "aten.max.other": binary("maximum"),
    "aten.min.other": binary("minimum"),
    "aten.addcmul.default": add_scaled_product,
    "aten.addcdiv.default": add_scaled_quotient,
    "aten.lerp.Scalar": interpolate,
    "aten.lerp.Tensor": interpolate,
    "aten.clamp.default": clamp,
    "aten.clamp.Tensor": clamp,
    "aten.clamp_min.default": clamp,
    "aten.clamp_min.Tensor": clamp,
    "aten.clamp_max.default": clamp_max,
    "aten.clamp_max.Tensor": clamp_max,
    "aten.where.self": where,
    "aten.where.ScalarOther": where,
    "aten.where.ScalarSelf": where,
    "aten.where.Scalar": where,
    **{f"aten.masked_fill.{kind}": masked_fill for kind in ("Scalar", "Tensor")},
    **{f"aten.logical_{name}.default": logical(f"logical_{name}") for name in ("and", "or", "not")},
    "aten.logical_xor.default": lambda write, x, other: write.pointwise(
        "not_equal", write.cast(x, Element.BOOL), write.cast(other, Element.BOOL)
    ),
    "aten.bitwise_and.Tensor": bitwise("logical_and"),
    "aten.bitwise_or.Tensor": bitwise("logical_or"),
    "aten.bitwise_xor.Tensor": bitwise("not_equal"),
    "aten.bitwise_not.default": bitwise("logical_not"),
    "aten.isnan.default": is_nan,
    "aten.isinf.default": is_infinite,
    "aten.nan_to_num.default": nan_to_num,
    "aten.to.dtype": to_dtype,
    "aten.to.dtype_layout": to_dtype,
    "aten.to.device": to_dtype_on_device,
    "aten.to.other": to_dtype_of,
    "aten._to_copy.default": to_dtype,
    "aten.type_as.default": to_dtype_of,
    "aten.copy.default": copy,
}
