"""ATen's sums, means, extremes and norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsejit.frontends.writing.arranging import reshaped
from sparsejit.frontends.writing.reductions import (
    Axes,
    Steps,
    _largest,
    _least,
    _mean,
    arg_max,
    arg_min,
    cumulative_sum,
    histogram,
    largest,
    least,
    log_sum_exp,
    mean_over,
    product_over,
    reduced,
    sum_over,
    vector_norm,
)
from sparsejit.frontends.writing.writer import Formula, FormulaStep, Operand, Writer
from sparsejit.ir.values import Element, Value


def sum_all(write: Writer, x: Operand, dtype: Any = None) -> Value:
    """The sum of all elements."""
    return sum_over(write, x, None, False, dtype)


def mean_all(write: Writer, x: Operand, dtype: Any = None) -> Value:
    """The mean of all elements."""
    return mean_over(write, x)


def product_of_all(write: Writer, x: Operand, dtype: Any = None) -> Value:
    """The product of all elements."""
    return product_over(write, reshaped(write, x, (-1,)), 0, False, dtype)


def _variance(correction: float) -> Steps:
    """The chain for a variance: the sum of squared deviations over (length - correction)."""

    def steps(f: Formula, x: Any, length: int) -> FormulaStep:
        centred = f("sub", x, _mean(f, x, length))
        squares = f("row_sum", f("square", centred))
        if length <= correction:  # 0 / 0 is NaN, as in torch
            return f("div", squares, 0.0)
        return f("mul", squares, 1.0 / (length - correction))

    return steps


def _deviation(correction: float) -> Steps:
    return lambda f, x, length: f("sqrt", _variance(correction)(f, x, length))


def spread(title: str, steps: Callable[[float], Steps]) -> dict[str, Callable[..., Value]]:
    """Rows of the table for the overloads of var, or of std."""

    def corrected(
        write: Writer,
        x: Operand,
        dim: Axes = None,
        correction: float | None = None,
        keepdim: bool = False,
    ) -> Value:
        unbiased = 1.0 if correction is None else float(correction)
        return reduced(write, write.floats(x), dim, keepdim, title, steps(unbiased))

    def of_axes(
        write: Writer, x: Operand, dim: Axes = None, unbiased: bool = True, keepdim: bool = False
    ) -> Value:
        return corrected(write, x, dim, float(unbiased), keepdim)

    def of_all(write: Writer, x: Operand, unbiased: bool = True) -> Value:
        return corrected(write, x, None, float(unbiased))

    return {
        f"aten.{title}.correction": corrected,
        f"aten.{title}.dim": of_axes,
        f"aten.{title}.default": of_all,
    }


def variance_and_mean(
    write: Writer,
    x: Operand,
    dim: Axes = None,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Value, Value]:
    """The variance and the mean over axes."""
    unbiased = _variance(1.0 if correction is None else float(correction))
    value = write.floats(x)
    return (
        reduced(write, value, dim, keepdim, "var", unbiased),
        reduced(write, value, dim, keepdim, "mean", _mean),
    )


def norm(
    write: Writer,
    x: Operand,
    p: float | None = 2,
    dim: Axes = None,
    keepdim: bool = False,
    **_: Any,
) -> Value:
    """The p-norm over axes, or over all elements, as torch.norm."""
    return vector_norm(write, x, 2 if p is None else p, dim, keepdim)


def any_over(write: Writer, x: Operand, dim: Axes = None, keepdim: bool = False) -> Value:
    """Whether an element differs from zero."""
    truths = write.cast(write.cast(x, Element.BOOL), Element.FLOAT32)
    return write.cast(reduced(write, truths, dim, keepdim, "any", _largest), Element.BOOL)


def all_over(write: Writer, x: Operand, dim: Axes = None, keepdim: bool = False) -> Value:
    """Whether all elements differ from zero."""
    truths = write.cast(write.cast(x, Element.BOOL), Element.FLOAT32)
    return write.cast(reduced(write, truths, dim, keepdim, "all", _least), Element.BOOL)


def max_with_place(
    write: Writer, x: Operand, dim: int, keepdim: bool = False
) -> tuple[Value, Value]:
    """The largest element along an axis, and its index."""
    return largest(write, x, dim, keepdim), arg_max(write, x, dim, keepdim)


def min_with_place(
    write: Writer, x: Operand, dim: int, keepdim: bool = False
) -> tuple[Value, Value]:
    """The least element along an axis, and its index."""
    return least(write, x, dim, keepdim), arg_min(write, x, dim, keepdim)


OPERATORS: dict[str, Callable[..., Any]] = {
    "aten.sum.dim_IntList": sum_over,
    "aten.sum.default": sum_all,
    "aten.mean.dim": mean_over,
    "aten.mean.default": mean_all,
    "aten.amax.default": largest,
    "aten.amin.default": least,
    "aten.max.default": largest,
    "aten.min.default": least,
    "aten.max.dim": max_with_place,
    "aten.min.dim": min_with_place,
    **spread("var", _variance),
    **spread("std", _deviation),
    "aten.var_mean.correction": variance_and_mean,
    "aten.linalg_vector_norm.default": vector_norm,
    "aten.norm.ScalarOpt_dim": norm,
    "aten.norm.ScalarOpt_dim_dtype": norm,
    "aten.norm.Scalar": norm,
    "aten.logsumexp.default": log_sum_exp,
    "aten.any.default": any_over,
    "aten.any.dim": any_over,
    "aten.any.dims": any_over,
    "aten.all.default": all_over,
    "aten.all.dim": all_over,
    "aten.all.dims": all_over,
    "aten.argmax.default": arg_max,
    "aten.argmin.default": arg_min,
    "aten.cumsum.default": cumulative_sum,
    "aten.histc.default": histogram,
    "aten.prod.dim_int": product_over,
    "aten.prod.default": product_of_all,
}
