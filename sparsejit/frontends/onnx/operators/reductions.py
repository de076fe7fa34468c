"""Sums, means and extremes over axes, and places of the largest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsejit.frontends.onnx.call import Call
from sparsejit.frontends.writing import arranging, reductions, selection
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.graph import Value
from sparsejit.ir.ops.types import axis_of

# From this opset on axes are an operand of all reductions.
_AXES_AS_OPERAND = 18


def over_axes(
    function: Callable[..., Value], since: int = _AXES_AS_OPERAND
) -> Callable[[Writer, Call], Value]:
    """function(write, x, axes, keepdims) over the axes named, or over all.

    With `noop_with_empty_axes` over none: what is left is what it does with each element.
    """

    def mapping(write: Writer, call: Call) -> Value:
        x, axes = call.value(write, 0), call.axes(1, since)
        if not axes:
            if call.flag("noop_with_empty_axes"):
                return function(write, arranging.reshaped(write, x, (*x.shape, 1)), [-1], False)
            axes = list(range(len(x.shape)))
        return function(write, x, axes, call.flag("keepdims", True))

    return mapping


def _sum_of_squares(write: Writer, x: Value, axes: list[int], keepdims: bool) -> Value:
    return reductions.sum_over(write, write.pointwise("square", x), axes, keepdims)


def _log_sum(write: Writer, x: Value, axes: list[int], keepdims: bool) -> Value:
    if write.dtype(x).kind != "f":
        raise Unmapped("of whole numbers")
    return write.pointwise("log", reductions.sum_over(write, x, axes, keepdims))


def _norm(order: float) -> Callable[..., Value]:
    return lambda write, x, axes, keepdims: reductions.vector_norm(write, x, order, axes, keepdims)


def _product(write: Writer, x: Value, axes: list[int], keepdims: bool) -> Value:
    for axis in sorted((axis_of(axis, len(x.shape)) for axis in axes), reverse=True):
        x = reductions.product_over(write, x, axis, keepdims)
    return x


def place(function: Callable[..., Value]) -> Callable[[Writer, Call], Value]:
    """The first place of the largest or least along an axis."""

    def mapping(write: Writer, call: Call) -> Value:
        if call.flag("select_last_index"):
            raise Unmapped("the last of equals")
        axis, keepdims = call.attribute("axis", 0), call.flag("keepdims", True)
        return function(write, call.value(write, 0), axis, keepdims)

    return mapping


def top_k(write: Writer, call: Call) -> tuple[Value, ...]:
    """The largest or least elements along an axis, in order, and their places."""
    count = call.number(1, "k")
    axis, largest = call.attribute("axis", -1), call.flag("largest", True)
    return selection.top_k(write, call.value(write, 0), count, axis, largest)


def cumulative_sum(write: Writer, call: Call) -> Value:
    """Sums up to each place, itself left out if exclusive, from the end if reverse."""
    x, axis = call.value(write, 0), call.number(1, "axis")
    axis = axis_of(axis, len(x.shape))
    backwards = call.flag("reverse")
    if backwards:
        x = selection.flip(write, x, [axis])
    if call.flag("exclusive"):
        widths = [(1, -1) if other == axis else (0, 0) for other in range(len(x.shape))]
        x = arranging.padded(write, x, widths)
    x = reductions.cumulative_sum(write, x, axis)
    return selection.flip(write, x, [axis]) if backwards else x


OPERATORS: dict[str, Callable[[Writer, Call], Any]] = {
    "ArgMax": place(reductions.arg_max),
    "ArgMin": place(reductions.arg_min),
    "CumSum": cumulative_sum,
    "ReduceL1": over_axes(_norm(1)),
    "ReduceL2": over_axes(_norm(2)),
    "ReduceLogSum": over_axes(_log_sum),
    "ReduceLogSumExp": over_axes(reductions.log_sum_exp),
    "ReduceMax": over_axes(reductions.largest),
    "ReduceMean": over_axes(reductions.mean_over),
    "ReduceMin": over_axes(reductions.least),
    "ReduceProd": over_axes(_product),
    "ReduceSum": over_axes(reductions.sum_over, since=13),
    "ReduceSumSquare": over_axes(_sum_of_squares),
    "TopK": top_k,
}
