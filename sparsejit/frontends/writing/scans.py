"""Scans along an axis: each place has a product, extreme or log sum of all places up to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsejit.frontends.writing.arranging import at, joined, reshaped, sliced
from sparsejit.frontends.writing.views import unsqueeze
from sparsejit.frontends.writing.writer import Operand, Writer
from sparsejit.ir.ops.types import axis_of
from sparsejit.ir.values import Element, Value

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
    """cummax and cummin: the extreme up to each place, and the last place that has it."""

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
