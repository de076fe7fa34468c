"""Sums, means and extremes over axes, and places of the largest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsejit.frontends.onnx.call import Call
from sparsejit.frontends.writing import arranging, reductions, selection, views
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.values import Value, axis_of

# From this opset on axes are an operand of all reductions.
_AXES_AS_OPERAND = 18


def over_axes(
    function: Callable[..., Value], since: int = _AXES_AS_OPERAND
) -> Callable[[Writer, Call], Value]:
    """Mapping of function(write, x, axes, keepdims) over the axes named, or over all.

    With `noop_with_empty_axes` and no axes, the function reduces each element alone.
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


def place(function: Callable[..., Value], is_least: bool) -> Callable[[Writer, Call], Value]:
    """Mapping to the index of the largest or the least along an axis, the first or last of equals.

    As in ONNX Runtime a NaN is skipped, except in the first place, where the search then stays.
    """

    def mapping(write: Writer, call: Call) -> Value:
        x, keepdims = call.value(write, 0), call.flag("keepdims", True)
        axis, is_last = axis_of(call.attribute("axis", 0), len(x.shape)), False
        rows = arranging.moved(write, x, axis, -1)
        first = arranging.sliced(write, rows, -1, 0, 1)
        if write.dtype(x).kind == "f":
            rows = _without_nan(write, rows, is_least)
        if call.flag("select_last_index"):
            is_last, rows = True, selection.flip(write, rows, [-1])
        found = function(write, rows, -1, True)
        if is_last:
            found = write.pointwise("sub", x.shape[axis] - 1, found)
            found = write.pointwise("where", write.pointwise("equal", first, first), found, 0)
        found = arranging.moved(write, found, -1, axis)
        return found if keepdims else views.squeeze(write, found, axis)

    return mapping


def _without_nan(write: Writer, rows: Value, is_least: bool) -> Value:
    """Replace NaN by the infinity that a search finds last; in the first place by the other one."""
    away = np.full(rows.shape[-1], np.inf if is_least else -np.inf, np.float32)
    away[:1] *= -1
    f, rows = write.formula("places"), write.floats(rows)
    return f.finish(f("where", f("equal", rows, rows), rows, away))


def top_k(write: Writer, call: Call) -> tuple[Value, ...]:
    """The largest or least elements along an axis, in order, and their places."""
    count = call.number(1, "k")
    axis, largest = call.attribute("axis", -1), call.flag("largest", True)
    return selection.top_k(write, call.value(write, 0), count, axis, largest)


def cumulative_sum(write: Writer, call: Call) -> Value:
    """Sums up to each place: without its own element if exclusive, from the end if reverse."""
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
    "ArgMax": place(reductions.arg_max, False),
    "ArgMin": place(reductions.arg_min, True),
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
