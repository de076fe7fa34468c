"""ATen's functions of single elements."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

from sparsejit.frontends.writing.arranging import expanded
from sparsejit.frontends.writing.pointwise import (
    Mapping,
    _all_bool,
    _is_float,
    add,
    binary,
    clamp,
    divide,
    is_infinite,
    is_nan,
    logical,
    multiply,
    power,
    power_of,
)
from sparsejit.frontends.writing.remainders import fmod, remainder
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.dtypes import largest_of
from sparsejit.ir.values import Element, Value


def unary(kind: str) -> Mapping:
    """Mapping to a pointwise function whose result has the operand's dtype."""

    def mapping(write: Writer, x: Operand) -> Value:
        return write.pointwise(kind, x)

    return mapping


def of_floats(kind: str) -> Mapping:
    """Mapping to a pointwise function whose result is float32 for whole numbers as well."""

    def mapping(write: Writer, x: Operand) -> Value:
        return write.pointwise(kind, write.floats(x))

    return mapping


def bitwise(kind: str, of_bools: str) -> Mapping:
    """Mapping to a function of the bits of whole numbers, or to `of_bools` for bools."""

    def mapping(write: Writer, x: Operand, other: Operand) -> Value:
        return write.pointwise(of_bools if _all_bool(write, x, other) else kind, x, other)

    return mapping


def bitwise_not(write: Writer, x: Operand) -> Value:
    """Every bit inverted: -1 - x."""
    if _all_bool(write, x):
        return write.pointwise("logical_not", x)
    return write.pointwise("sub", -1, x)


def subtract(write: Writer, x: Operand, other: Operand, alpha: float = 1) -> Value:
    """x - alpha other."""
    return write.pointwise("sub", x, other if alpha == 1 else multiply(write, other, alpha))


def subtract_from(write: Writer, x: Operand, other: Operand, alpha: float = 1) -> Value:
    """other - alpha x."""
    return subtract(write, other, x, alpha)


def floor_divide(write: Writer, x: Operand, other: Operand) -> Value:
    """The quotient, floored."""
    return divide(write, x, other, "floor")


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
    """x + weight (end - x), as torch has it: from the end for weights of 0.5 and more."""
    f = write.formula("lerp")
    x, end, weight = map(write.floats, (x, end, weight))
    way = f("sub", end, x)
    behind = f("fma", f("sub", weight, 1.0), way, end)
    ahead = f("fma", weight, way, x)
    near = f("less", f("abs", weight), 0.5)
    return f.finish(f("where", near, ahead, behind))


def clamp_max(write: Writer, x: Operand, high: Operand) -> Value:
    """min(x, high)."""
    return clamp(write, x, None, high)


def where(write: Writer, condition: Operand, x: Operand, other: Operand) -> Value:
    """x where the condition holds, else other."""
    return write.pointwise("where", condition, x, other)


def masked_fill(write: Writer, x: Operand, mask: Operand, value: Operand) -> Value:
    """x with `value` where the mask is set."""
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
    """x converted to a dtype; x itself if that is None."""
    return write.value(x) if dtype is None else write.converted(x, dtype)


def to_dtype_on_device(write: Writer, x: Operand, _: Any, dtype: Any, *__: Any) -> Value:
    """x converted to a dtype, whatever its device; x itself if that is None."""
    return to_dtype(write, x, dtype)


def to_dtype_of(write: Writer, x: Operand, other: Operand, *_: Any) -> Value:
    """x in the dtype of another tensor."""
    return write.converted(x, write.dtype(other))


def copy(write: Writer, x: Operand, source: Operand, *_: Any) -> Value:
    """The source in the shape and dtype of x."""
    return expanded(write, write.converted(source, write.dtype(x)), write.shape(x))


def nan_to_num(
    write: Writer,
    x: Operand,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Value:
    """x with NaN replaced, by default by 0, and infinities by the dtype's largest numbers."""
    if not _is_float(write, x):
        return write.value(x)
    largest = largest_of(write.dtype(x))
    f = write.formula("nan_to_num")
    high = f("equal", x, float("inf"))
    low = f("equal", x, float("-inf"))
    finite = f("where", high, largest if posinf is None else posinf, x)
    finite = f("where", low, -largest if neginf is None else neginf, finite)
    return f.finish(f("where", f("not_equal", x, x), nan or 0.0, finite))


def angle(write: Writer, x: Operand) -> Value:
    """pi where x < 0, else 0; NaN of NaN."""
    f = write.formula("angle")
    value = write.floats(x)
    side = f("where", f("less", value, 0.0), math.pi, 0.0)
    return f.finish(f("where", f("equal", value, value), side, value))


_KEEPING = {
    "neg": "neg",
    "abs": "abs",
    "relu": "relu",
    "sign": "sign",
    "sgn": "sign",
    "floor": "floor",
    "ceil": "ceil",
    "round": "round",
    "trunc": "trunc",
    "fix": "trunc",
}
_FLOAT = {
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "reciprocal": "reciprocal",
    "exp": "exp",
    "exp2": "exp2",
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

_OF_BITS = {"and": "logical_and", "or": "logical_or", "xor": "not_equal"}

_SAME = (
    *("alias", "detach", "clone", "contiguous", "lift_fresh", "lift_fresh_copy", "positive"),
    *("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"),
)


def _both(name: str, mapping: Mapping) -> dict[str, Mapping]:
    """Rows of the table for an operator's overloads with a tensor and with a number."""
    return {f"aten.{name}.Tensor": mapping, f"aten.{name}.Scalar": mapping}


OPERATORS: dict[str, Mapping] = {
    **{f"aten.{name}.default": unary(kind) for name, kind in _KEEPING.items()},
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
    "aten.remainder.Scalar_Tensor": remainder,
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
    **{
        f"aten.{name}.{overload}": bitwise(f"bitwise_{kind}", of_bools)
        for kind, of_bools in _OF_BITS.items()
        for name, overload in (
            *(product((f"bitwise_{kind}", f"__{kind}__"), ("Tensor", "Scalar"))),
            (f"bitwise_{kind}", "Scalar_Tensor"),
        )
    },
    **{
        f"aten.{name}.{overload}": binary(f"shift_{side}")
        for side in ("left", "right")
        for name, overload in (
            *(product((f"__{side[0]}shift__",), ("Tensor", "Scalar"))),
            *(product((f"bitwise_{side}_shift",), ("Tensor", "Tensor_Scalar", "Scalar_Tensor"))),
        )
    },
    "aten.bitwise_not.default": bitwise_not,
    "aten.angle.default": angle,
    "aten.square.default": lambda write, x: power(write, x, 2),
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
