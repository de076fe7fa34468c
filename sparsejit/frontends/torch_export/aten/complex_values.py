"""ATen's operators on complex tensors, or with complex results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparsejit.frontends.arrays import is_tensor
from sparsejit.frontends.torch_export.aten import (
    places,
    pointwise,
    products,
    reductions,
    selection,
    views,
)
from sparsejit.frontends.writing import complex_values as functions
from sparsejit.frontends.writing import complex_values as values
from sparsejit.frontends.writing.arranging import expanded, padded
from sparsejit.frontends.writing.complex_values import Complex, as_complex, paired
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.values import Element, Value

Row = Callable[..., Any]
_PARTS = ("real", "imag")


def pairs(write: Writer, nest: Any) -> Any:
    """Nested operands in which each known complex tensor is a `Complex` of its two parts."""
    if isinstance(nest, list | tuple):
        return type(nest)(pairs(write, item) for item in nest)
    if isinstance(nest, Mapping):
        return {key: pairs(write, item) for key, item in nest.items()}
    if is_tensor(nest) and nest.is_complex():
        plain = nest.detach().resolve_conj()
        return paired(write, plain.real.contiguous(), plain.imag.contiguous())
    return nest


def complex_dtype(nest: Any) -> str:
    """The shortest dtype of complex numbers, tensors and examples among operands, or nothing."""
    if isinstance(nest, list | tuple):
        found = set(map(complex_dtype, nest)) - {""}
        return min(found, key=("complex32", "complex64", "complex128").index, default="")
    if isinstance(nest, Complex | complex):
        return "complex64"
    return str(nest.dtype).removeprefix("torch.") if is_tensor(nest) and nest.is_complex() else ""


def _part(write: Writer, x: Operand, part: str, of_any: bool) -> Operand:
    """The part "real" or "imag" of an operand; an operand without data, such as axes, itself.

    `imag` of real floats, with `of_any` of real tensors of any dtype, is zeros.
    """
    if isinstance(x, list | tuple):
        return [_part(write, item, part, of_any) for item in x]
    if isinstance(x, Complex | complex):
        return getattr(x, part)
    is_data = (isinstance(x, Value) or is_tensor(x)) and (
        of_any or write.element(x) is Element.FLOAT32
    )
    if part == "imag" and is_data:
        return expanded(write, write.floats(0.0), write.shape(x))
    return x


def by_parts(row: Row, of_any: bool = False) -> Row:
    """Extend a row for real tensors to complex ones: it maps the real and the imaginary part alone.

    The row must be linear in all of its data, as views are. With `of_any` real operands of any
    dtype count as data.
    """

    def mapping(write: Writer, *args: Any, **kwargs: Any) -> Any:
        made = []
        for part in _PARTS:
            given = [_part(write, x, part, of_any) for x in args]
            named = {
                key: _part(write, x, part, of_any)
                for key, x in kwargs.items()
                if "complex" not in str(x)  # the dtype that both parts have together
            }
            made.append(row(write, *given, **named))
        return _joined(*made)

    return mapping


def _joined(real: Any, imag: Any) -> Any:
    """Complex tensors in place of two nests of their parts."""
    if isinstance(real, list | tuple):
        return [_joined(*pair) for pair in zip(real, imag, strict=True)]
    return Complex(real, imag) if isinstance(real, Value) else real


def real_part(write: Writer, z: Operand) -> Value:
    """The real part."""
    return as_complex(write, z).real


def of_pair(row: Row) -> Row:
    """A mapping that calls `row` with its first operand as a complex tensor."""
    return lambda write, x, *rest: row(write, as_complex(write, x), *rest)


def converted(write: Writer, x: Operand, dtype: Any = None, *_: Any) -> Any:
    """x in another dtype; a real dtype drops the imaginary part."""
    if dtype is None or "complex" in str(dtype):
        return as_complex(write, x)
    return write.converted(as_complex(write, x).real, dtype)


def converted_on_device(write: Writer, x: Operand, _: Any, dtype: Any, *__: Any) -> Any:
    """x in another dtype, whatever its device; a real dtype drops the imaginary part."""
    return converted(write, x, dtype)


def converted_as(write: Writer, x: Operand, other: Operand, *_: Any) -> Any:
    """x in the dtype of another tensor."""
    is_pair = isinstance(other, Complex)
    return as_complex(write, x) if is_pair else write.converted(x.real, write.dtype(other))


def copied(write: Writer, x: Operand, source: Operand, *_: Any) -> Any:
    """The source in the shape and dtype of x."""
    if isinstance(x, Complex):
        pair = as_complex(write, source)
        return Complex(*(expanded(write, getattr(pair, p), x.shape) for p in _PARTS))
    return pointwise.copy(write, x, source.real)


def where(write: Writer, condition: Operand, x: Operand, other: Operand) -> Complex:
    """x where the condition holds, else other."""
    ways = as_complex(write, x), as_complex(write, other)
    return paired(
        write,
        *(write.pointwise("where", condition, *(getattr(z, p) for z in ways)) for p in _PARTS),
    )


def masked_fill(write: Writer, x: Operand, mask: Operand, value: Operand) -> Complex:
    """x with `value` where the mask is set."""
    return where(write, mask, value, x)


def filled(number: float | None) -> Row:
    """Mapping to a tensor of one number, in the shape of a tensor or in a given one."""

    def mapping(write: Writer, x: Operand, *rest: Any, dtype: Any = None, **_: Any) -> Any:
        value = rest[-1] if number is None else number
        shape = rest[0] if rest and isinstance(rest[0], list | tuple) else _shape(write, x)
        if isinstance(x, Complex) and dtype is not None and "complex" not in str(dtype):
            return views.filled(number)(write, x.real, *rest, dtype=dtype)
        pair = as_complex(write, value)
        return Complex(*(expanded(write, getattr(pair, part), shape) for part in _PARTS))

    return mapping


def _shape(write: Writer, x: Operand) -> tuple[int, ...]:
    """The shape of a complex or of a real operand."""
    return x.shape if isinstance(x, Complex) else write.shape(x)


def constant_pad(
    write: Writer, x: Complex, pad: Sequence[int], value: complex | None = None
) -> Complex:
    """x with a number around each axis; `pad` lists the widths from the last axis on."""
    number = complex(value or 0.0)
    widths = list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    whole = [(0, 0)] * (len(x.shape) - len(widths)) + widths
    return Complex(*(padded(write, getattr(x, p), whole, getattr(number, p)) for p in _PARTS))


def pad_any(
    write: Writer,
    x: Complex,
    pad: Sequence[int],
    mode: str = "constant",
    value: complex | None = None,
) -> Complex:
    """x padded with a number, or with elements of x itself."""
    if mode == "constant":
        return constant_pad(write, x, pad, value)
    return Complex(*(views.pad_any(write, getattr(x, p), pad, mode) for p in _PARTS))


def adjoint(write: Writer, z: Complex) -> Complex:
    """The conjugate with the last two axes exchanged."""
    turned = by_parts(views.transpose_last)(write, z)
    return values.conjugate(write, turned)


def linear(write: Writer, x: Operand, weight: Operand, bias: Operand = None) -> Complex:
    """x W^T + bias."""
    turned = weight
    if len(_shape(write, weight)) == 2:
        turned = by_parts(views.transpose)(write, weight, 0, 1)
    product = values.matmul(write, x, turned)
    return product if bias is None else values.add(write, product, bias)


def scaled_sum(
    write: Writer, x: Operand, a: Operand, b: Operand, beta: complex = 1, alpha: complex = 1
) -> Complex:
    """beta x + alpha a b."""
    product = values.scaled(write, values.matmul(write, a, b), alpha)
    return product if beta == 0 else values.add(write, product, values.scaled(write, x, beta))


def conjugate_dot(write: Writer, a: Operand, b: Operand) -> Complex:
    """The dot product of a's conjugate and b."""
    return values.product_by(products.dot)(write, values.conjugate(write, a), b)


def variance(overload: str) -> Row:
    """Mapping of var of complex numbers: the sum of the variances of both parts."""
    row = reductions.OPERATORS[f"aten.var.{overload}"]

    def mapping(write: Writer, z: Complex, *args: Any, **kwargs: Any) -> Value:
        return write.pointwise("add", *(row(write, getattr(z, p), *args, **kwargs) for p in _PARTS))

    return mapping


def deviation(overload: str) -> Row:
    """Mapping of std of complex numbers: the root of the variance."""
    row = variance(overload)
    return lambda write, z, *args, **named: write.pointwise("sqrt", row(write, z, *args, **named))


def is_nan(write: Writer, z: Complex) -> Value:
    """Whether a part is NaN."""
    return values.both("logical_or", "not_equal")(write, z, z)


def is_infinite(write: Writer, z: Complex) -> Value:
    """Whether a part is infinite."""
    return write.pointwise("equal", functions.magnitude(write, z), float("inf"))


def _subtract_from(write: Writer, x: Operand, other: Operand, alpha: complex = 1) -> Complex:
    return values.subtract(write, other, x, alpha)


def _divide(write: Writer, x: Operand, other: Operand, rounding_mode: str | None = None) -> Complex:
    if rounding_mode is not None:
        raise Unmapped("rounds complex quotients")
    return values.divide(write, x, other)


# Rows of other groups that are linear in their data, by the names of these rows.
_SELECTIONS = (
    *("embedding.default", "index_select.default", "flip.default"),
    *("tril.default", "triu.default"),
)
_PLACES = (
    *("gather.default", "take_along_dim.default", "take.default", "put.default"),
    *("index.Tensor", "_unsafe_index.Tensor", "index_put.default", "index_copy.default"),
    *("scatter.src", "scatter_add.default", "masked_scatter.default"),
)
_SUMS = ("sum.default", "sum.dim_IntList", "mean.default", "mean.dim", "cumsum.default")
_SAME = tuple(
    f"{name}.default"
    for name in (
        *("alias", "detach", "clone", "contiguous", "lift_fresh", "lift_fresh_copy", "positive"),
        *("dropout", "neg"),
    )
)
_SPREADS = ("default", "dim", "correction")
_FUNCTIONS = {
    "abs": functions.magnitude,
    "angle": functions.angle,
    "sgn": functions.unit,
    "exp": functions.exponential,
    "log": functions.logarithm,
    "log2": functions.log_to(2),
    "log10": functions.log_to(10),
    "sqrt": functions.square_root,
    "rsqrt": functions.inverse_root,
    "sin": functions.sine,
    "cos": functions.cosine,
    "tan": functions.tangent,
    "sinh": functions.hyperbolic_sine,
    "cosh": functions.hyperbolic_cosine,
    "tanh": functions.hyperbolic_tangent,
    "sigmoid": functions.sigmoid,
    "silu": functions.silu,
}
_JOINING = ("cat", "concat", "concatenate", "stack")
_FILLING = {"zeros_like": 0, "ones_like": 1, "full_like": None, "new_zeros": 0, "new_ones": 1}
_FILLING |= {"new_full": None, "zero": 0}
_OWN = {"aten.constant_pad_nd.default", "aten.pad.default", "aten.fill.Scalar", "aten.fill.Tensor"}
_OWN |= {f"aten.{name}.default" for name in (*_JOINING, *_FILLING)}

_LINEAR: dict[str, Row] = {
    **{key: by_parts(row) for key, row in views.OPERATORS.items() if key not in _OWN},
    **{
        f"aten.{name}": by_parts(group.OPERATORS[f"aten.{name}"])
        for group, names in (
            (selection, _SELECTIONS),
            (places, _PLACES),
            (reductions, _SUMS),
            (pointwise, _SAME),
        )
        for name in names
    },
    **{
        f"aten.{name}.default": by_parts(views.OPERATORS[f"aten.{name}.default"], of_any=True)
        for name in _JOINING
    },
}


def _each(name: str, row: Row) -> dict[str, Row]:
    """Rows of the table for an operator's overloads with a tensor and with a number."""
    return {f"aten.{name}.Tensor": row, f"aten.{name}.Scalar": row}


OPERATORS: dict[str, Row] = {
    **_LINEAR,
    **{f"aten.{name}.default": filled(number) for name, number in _FILLING.items()},
    "aten.fill.Scalar": filled(None),
    "aten.fill.Tensor": filled(None),
    "aten.constant_pad_nd.default": constant_pad,
    "aten.pad.default": pad_any,
    "aten.complex.default": paired,
    "aten.polar.default": values.polar,
    "aten.view_as_complex.default": values.from_last_axis,
    "aten.view_as_real.default": values.on_last_axis,
    "aten.real.default": real_part,
    "aten.imag.default": lambda write, z: as_complex(write, z).imag,
    **{
        f"aten.{name}.default": values.conjugate
        for name in ("conj", "_conj", "conj_physical", "_conj_physical")
    },
    **{
        f"aten.{name}.default": lambda write, z: z for name in ("resolve_conj", "resolve_neg")
    },
    "aten.adjoint.default": adjoint,
    "aten.mH.default": adjoint,
    **{f"aten.{name}.default": of_pair(row) for name, row in _FUNCTIONS.items()},
    **{f"aten.var.{overload}": variance(overload) for overload in _SPREADS},
    **{f"aten.std.{overload}": deviation(overload) for overload in _SPREADS},
    "aten.square.default": lambda write, z: values.multiply(write, z, z),
    "aten.reciprocal.default": lambda write, z: values.divide(write, 1.0, z),
    "aten.pow.Tensor_Scalar": of_pair(functions.power),
    **_each("add", values.add),
    **_each("sub", values.subtract),
    **_each("rsub", _subtract_from),
    **_each("mul", values.multiply),
    **_each("div", _divide),
    **_each("eq", values.both("logical_and", "equal")),
    **_each("ne", values.both("logical_or", "not_equal")),
    "aten.isnan.default": is_nan,
    "aten.isinf.default": is_infinite,
    **{
        f"aten.where.{overload}": where
        for overload in ("self", "ScalarOther", "ScalarSelf", "Scalar")
    },
    **{f"aten.masked_fill.{kind}": masked_fill for kind in ("Scalar", "Tensor")},
    **{f"aten.{name}.default": values.matmul for name in ("matmul", "mm", "bmm", "mv")},
    "aten.dot.default": values.product_by(products.dot),
    "aten.vdot.default": conjugate_dot,
    "aten.outer.default": values.product_by(products.outer),
    "aten.linear.default": linear,
    **{f"aten.{name}.default": scaled_sum for name in ("addmm", "addmv", "baddbmm")},
    "aten.to.dtype": converted,
    "aten.to.dtype_layout": converted,
    "aten.to.device": converted_on_device,
    "aten.to.other": converted_as,
    "aten._to_copy.default": converted,
    "aten.type_as.default": converted_as,
    "aten.copy.default": copied,
}
