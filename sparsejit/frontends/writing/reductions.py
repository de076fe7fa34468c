"""Reductions over any axes, and scans along one.

    reduced, sum_over     sums, means, extremes and norms over some axes
    arg_max, arg_min      places of extremes
    histogram             counts of elements by intervals
    scanned               scans: each place has a product, extreme or log sum of all places up to it
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from sparsejit.frontends.writing.arranging import (
    at,
    expanded,
    joined,
    moved,
    padded,
    permuted,
    reshaped,
    sliced,
    with_axis,
)
from sparsejit.frontends.writing.views import unsqueeze
from sparsejit.frontends.writing.writer import (
    Formula,
    FormulaStep,
    Operand,
    Unmapped,
    Writer,
)
from sparsejit.ir.ops.selection import ArgMax
from sparsejit.ir.values import Element, Value, axis_of

Axes = int | Sequence[int] | None
# Writes steps over rows of a length; returns the last step, which is the result.
Steps = Callable[["Formula", "Value", int], "FormulaStep"]


def reduced(write: Writer, x: Value, dim: Axes, keepdim: bool, title: str, steps: Steps) -> Value:
    """A reduction over some axes, or over all where `dim` is None or empty."""
    rank = len(x.shape)
    named = [dim] if isinstance(dim, int) else list(dim or range(rank))
    axes = sorted({axis_of(axis, rank) for axis in named}) if rank else []
    kept = [axis for axis in range(rank) if axis not in axes]
    length = prod(x.shape[axis] for axis in axes)
    last = permuted(write, x, [*kept, *axes])
    rows = reshaped(write, last, (*(x.shape[axis] for axis in kept), length))
    f = write.formula(title)
    result = f.finish(steps(f, rows, length))
    if not length:
        result = _of_nothing(write, result)
    sizes = [1 if axis in axes else n for axis, n in enumerate(x.shape)]
    return reshaped(write, result, sizes if keepdim else [x.shape[axis] for axis in kept])


def _of_nothing(write: Writer, made: Value) -> Value:
    """The result of a reduction of no elements, as a constant."""
    op, operands = write.producer(made) or (None, ())
    known = [np.zeros(x.shape) if not x.type.size else write.known(x) for x in operands]
    if op is None or any(array is None for array in known):
        raise Unmapped("reduces no elements")
    try:
        (result,) = op.reference(*[np.asarray(array) for array in known])
    except ValueError:  # the extreme of nothing
        raise Unmapped("reduces no elements") from None
    return write.constant(result.astype(made.type.element.value), made.origin.name)


def _sum(f: Formula, x: Any, length: int) -> FormulaStep:
    return f("row_sum", x)


def _mean(f: Formula, x: Any, length: int) -> FormulaStep:
    return f("mul", f("row_sum", x), 1.0 / length if length else math.nan)


def _largest(f: Formula, x: Any, length: int) -> FormulaStep:
    return f("row_max", x)


def _least(f: Formula, x: Any, length: int) -> FormulaStep:
    return f("row_min", x)


def sum_over(
    write: Writer, x: Operand, dim: Axes = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    """The sum; a whole number for whole numbers and bools."""
    return reduced(write, _summands(write, x, dtype), dim, keepdim, "sum", _sum)


def _summands(write: Writer, x: Operand, dtype: Any) -> Value:
    """x in `dtype`, or without it, bools as whole numbers."""
    if dtype is not None:
        return write.converted(x, dtype)
    return write.cast(x, Element.INT64) if write.element(x) is Element.BOOL else write.value(x)


def mean_over(
    write: Writer, x: Operand, dim: Axes = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    """The sum divided by the number of elements."""
    return reduced(write, write.floats(x), dim, keepdim, "mean", _mean)


def extreme(title: str, steps: Steps) -> Callable[..., Value]:
    """A function that reduces axes to the largest or the least element, as `steps` has it."""

    def mapping(write: Writer, x: Operand, dim: Axes = None, keepdim: bool = False) -> Value:
        value = write.value(x)
        if value.type.element is not Element.BOOL:
            return reduced(write, value, dim, keepdim, title, steps)
        result = reduced(write, write.floats(value), dim, keepdim, title, steps)
        return write.cast(result, Element.BOOL)

    return mapping


def _norm(order: float) -> Steps:
    """The chain for a norm over a row: (sum |x|^order)^(1 / order).

    For order inf it is the largest |x|, for -inf the least, for 0 the number of nonzeros.
    """

    def steps(f: Formula, x: Any, length: int) -> FormulaStep:
        if order == 2:
            return f("sqrt", f("row_sum", f("square", x)))
        size = f("abs", x)
        if order == float("inf"):
            return f("row_max", size)
        if order == float("-inf"):
            return f("row_min", size)
        if order == 1:
            return f("row_sum", size)
        if order == 0:
            return f("row_sum", f("where", f("not_equal", x, 0.0), 1.0, 0.0))
        powers = f("exp", f("mul", f("log", size), float(order)))
        return f("exp", f("mul", f("log", f("row_sum", powers)), 1 / order))

    return steps


def vector_norm(
    write: Writer,
    x: Operand,
    ord: float = 2,  # noqa: A002 (torch's name)
    dim: Axes = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> Value:
    """The norm of order `ord` over some axes, as torch.linalg.vector_norm."""
    return reduced(write, write.floats(x), dim, keepdim, "norm", _norm(float(ord)))


def log_sum_exp(write: Writer, x: Operand, dim: Axes, keepdim: bool = False) -> Value:
    """max + log(sum(exp(x - max))); an infinite max is not subtracted."""

    def steps(f: Formula, rows: Any, length: int) -> FormulaStep:
        largest = f("row_max", rows)
        infinite = f("equal", f("abs", largest), math.inf)
        shift = f("where", infinite, 0.0, largest)
        return f("add", shift, f("log", f("row_sum", f("exp", f("sub", rows, shift)))))

    return reduced(write, write.floats(x), dim, keepdim, "logsumexp", steps)


def _place(
    write: Writer, x: Value, dim: int | None, keepdim: bool, found: Callable[[Value], Value]
) -> Value:
    """The index of the largest of `found(rows)`, the first of equals.

    Rows are x along an axis, or all of x if `dim` is None.
    """
    if dim is None or not x.shape:
        place = write.one(ArgMax(), found(reshaped(write, x, (-1,))))
        return reshaped(write, place, (1,) * len(x.shape)) if keepdim else place
    axis = axis_of(dim, len(x.shape))
    place = write.one(ArgMax(keeps_axis=keepdim), found(moved(write, x, axis, -1)))
    return moved(write, place, -1, axis) if keepdim else place


def arg_max(write: Writer, x: Operand, dim: int | None = None, keepdim: bool = False) -> Value:
    """The first place of the largest element along an axis, or of all in order."""
    if write.element(x) is Element.INT64:
        return _place(write, write.value(x), dim, keepdim, lambda rows: _hits(largest, write, rows))
    return _place(write, write.floats(x), dim, keepdim, lambda rows: rows)


def arg_min(write: Writer, x: Operand, dim: int | None = None, keepdim: bool = False) -> Value:
    """The first place of the least element along an axis, or of all in order."""
    if write.element(x) is Element.INT64:
        return _place(write, write.value(x), dim, keepdim, lambda rows: _hits(least, write, rows))
    return arg_max(write, write.pointwise("neg", write.floats(x)), dim, keepdim)


def _hits(extreme: Callable[..., Value], write: Writer, rows: Value) -> Value:
    """1.0 at the elements of each row that equal its extreme, as `extreme` finds it; else 0.0."""
    return write.floats(write.pointwise("equal", rows, extreme(write, rows, -1, True)))


def cumulative_sum(write: Writer, x: Operand, dim: int, dtype: Any = None) -> Value:
    """Sums up to each place, by shifted additions, twice as far each time."""
    value = _summands(write, x, dtype)
    axis, shift = axis_of(dim, len(value.shape)), 1
    while shift < (value.shape[axis] if value.shape else 0):
        widths = [(shift, 0) if other == axis else (0, 0) for other in range(len(value.shape))]
        behind = sliced(write, value, axis, 0, value.shape[axis] - shift)
        value = write.pointwise("add", value, padded(write, behind, widths))
        shift *= 2
    return value


def product_over(
    write: Writer, x: Operand, dim: int, keepdim: bool = False, dtype: Any = None
) -> Value:
    """The product along an axis: elements half a length apart are multiplied, and so on."""
    value = _summands(write, x, dtype)
    if dtype is None and value.type.element is Element.INT64:
        value = write.converted(value, Element.INT64.value)
    shape, factors = value.shape, with_axis(write, value)
    axis = axis_of(dim, len(shape))
    while (length := factors.shape[axis]) > 1:
        half = length // 2
        pair = [sliced(write, factors, axis, n * half, (n + 1) * half) for n in range(2)]
        rest = sliced(write, factors, axis, 2 * half, length)
        factors = joined(write, [write.pointwise("mul", *pair), rest], axis)
    kept = [n for other, n in enumerate(shape) if other != axis]
    if not length:
        factors = expanded(write, write.cast(1, value.type.element), kept)
    whole = [1 if other == axis else n for other, n in enumerate(shape)]
    return reshaped(write, factors, whole if keepdim else kept)


largest, least = extreme("amax", _largest), extreme("amin", _least)


def histogram(
    write: Writer, x: Operand, bins: int = 100, low: float = 0.0, high: float = 0.0
) -> Value:
    """The number of elements in each of `bins` equal parts of low .. high, as floats."""
    if not low < high:
        raise Unmapped("has the least and the largest element as bounds, which a call decides")
    value = reshaped(write, write.floats(x), (1, -1))
    each = write.constant(np.arange(bins)[:, None], "bins")
    zero, one = (write.number(n, Element.FLOAT32) for n in (0, 1))
    f = write.formula("histogram")
    place = f("div", f("mul", f("sub", value, float(low)), float(bins)), float(high - low))
    # The last part has its upper end too.
    part = f("minimum", f("floor", place), float(bins - 1))
    within = f(
        "logical_and", f("greater_equal", value, float(low)), f("less_equal", value, float(high))
    )
    counted = f("logical_and", within, f("equal", part, write.floats(each)))
    count = f("row_sum", f("where", counted, one, zero))
    shape = (bins, value.shape[1])
    return reshaped(write, f.finish(count, shape=shape), (bins,))


Combine = Callable[[Value, Value], Value]
# Products of more places are not multiplied in order.
_MOST_IN_ORDER = 64


def scanned(write: Writer, x: Value, dim: int, combine: Combine) -> Value:
    """Combine all places up to each one, by shifts of one, two, four ... places."""
    if not x.shape:
        return x
    axis, shift = axis_of(dim, len(x.shape)), 1
    length = x.shape[axis]
    while shift < length:
        behind = sliced(write, x, axis, 0, length - shift)
        ahead = sliced(write, x, axis, shift, length)
        parts = [sliced(write, x, axis, 0, shift), combine(behind, ahead)]
        x, shift = joined(write, parts, axis), 2 * shift
    return x


def cumulative_product(write: Writer, x: Operand, dim: int, dtype: Any = None) -> Value:
    """Products up to each place; few places are multiplied in order."""
    if dtype is not None:
        value = write.converted(x, dtype)
    elif write.element(x) is Element.BOOL:
        value = write.cast(x, Element.INT64)
    else:
        value = write.value(x)
    length = value.shape[axis_of(dim, len(value.shape))] if value.shape else 1
    if length > _MOST_IN_ORDER:
        return scanned(write, value, dim, lambda a, b: write.pointwise("mul", a, b))
    if length < 2:
        return value
    parts = [at(write, value, dim, 0)]
    for place in range(1, length):
        parts.append(write.pointwise("mul", parts[-1], at(write, value, dim, place)))
    axis = axis_of(dim, len(value.shape))
    return joined(write, [unsqueeze(write, part, axis) for part in parts], axis)


def cumulative_extreme(kind: str) -> Callable[..., tuple[Value, Value]]:
    """Mapping of cummax or cummin: the extreme up to each place, and the last place that has it."""

    def mapping(write: Writer, x: Operand, dim: int) -> tuple[Value, Value]:
        value = write.value(x)
        if value.type.element is Element.BOOL:
            found, places = mapping(write, write.cast(value, Element.INT64), dim)
            return write.cast(found, Element.BOOL), places
        made = scanned(write, value, dim, lambda a, b: write.pointwise(kind, a, b))
        shape = [1] * len(value.shape)
        if shape:
            axis = axis_of(dim, len(shape))
            shape[axis] = value.shape[axis]
        numbers = write.constant(np.arange(shape[axis] if shape else 1), "places")
        own = reshaped(write, numbers, shape)
        has_it = write.pointwise("equal", value, made)
        if value.type.element is Element.FLOAT32:
            no_number = write.pointwise("not_equal", value, value)
            has_it = write.pointwise("logical_or", has_it, no_number)
        places = write.pointwise("where", has_it, own, write.number(-1, Element.INT64))
        return made, scanned(write, places, dim, lambda a, b: write.pointwise("maximum", a, b))

    return mapping


def cumulative_log_sum(write: Writer, x: Operand, dim: int) -> Value:
    """log of the sum of exp up to each place."""

    def combine(a: Value, b: Value) -> Value:
        f = write.formula("logaddexp")
        large, small = f("maximum", a, b), f("minimum", a, b)
        same = f("equal", large, small)  # infinities have no difference
        distance = f("where", same, 0.0, f("sub", small, large))
        return f.finish(f("add", large, f("log1p", f("exp", distance))))

    value = write.floats(x)
    made = scanned(write, value, dim, combine)
    none = write.pointwise("equal", made, float("-inf"))
    return write.pointwise("where", none, float("-inf"), made)
