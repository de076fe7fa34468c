"""Elements by their rank along an axis, and ranks of elements among sorted ones."""

from __future__ import annotations

from collections.abc import Callable

from sparsejit.frontends.writing.arranging import at, expanded, reshaped
from sparsejit.frontends.writing.places import by_axis
from sparsejit.frontends.writing.reductions import sum_over
from sparsejit.frontends.writing.selection import top_k
from sparsejit.frontends.writing.views import unsqueeze
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.values import Element, Value, axis_of

Ranked = tuple[Value, Value]


def of_rank(write: Writer, x: Operand, k: int, dim: int = -1, keepdim: bool = False) -> Ranked:
    """The k-th smallest element along an axis, and its place."""
    value = write.value(x)
    if not value.shape:
        return value, write.number(0, Element.INT64)
    found, places = top_k(write, value, k, dim, largest=False)
    results = [at(write, each, dim, k - 1) for each in (found, places)]
    axis = axis_of(dim, len(value.shape))
    if keepdim:
        results = [unsqueeze(write, each, axis) for each in results]
    return results[0], results[1]


def median(passes_nan: bool) -> Callable[..., Ranked]:
    """Mapping to the lower median along an axis, and its place.

    The median is NaN if an element is NaN, unless `passes_nan`.
    """

    def mapping(write: Writer, x: Operand, dim: int = -1, keepdim: bool = False) -> Ranked:
        value = write.value(x)
        if not value.shape:
            return value, write.number(0, Element.INT64)
        axis = axis_of(dim, len(value.shape))
        length = value.shape[axis]
        if value.type.element is not Element.FLOAT32:
            return of_rank(write, value, (length + 1) // 2, axis, keepdim)
        found, places = top_k(write, value, length, axis, largest=False)
        numbers = write.pointwise("equal", value, value)
        count = sum_over(write, write.cast(numbers, Element.INT64), [axis], True)
        lower = write.pointwise("shift_right", write.pointwise("sub", count, 1), 1)
        rank = write.pointwise("maximum", lower, 0)
        if not passes_nan:  # NaN are sorted last
            whole = write.pointwise("equal", count, length)
            rank = write.pointwise("where", whole, rank, write.number(length - 1, Element.INT64))
        results = [by_axis(write, each, rank, axis) for each in (found, places)]
        if not keepdim:
            results = [at(write, each, axis, 0) for each in results]
        return results[0], results[1]

    return mapping


def median_of_all(passes_nan: bool) -> Callable[[Writer, Operand], Value]:
    """Mapping to the lower median of all elements."""

    def mapping(write: Writer, x: Operand) -> Value:
        if not write.value(x).type.size:
            raise Unmapped("has no elements")
        return median(passes_nan)(write, reshaped(write, x, (-1,)))[0]

    return mapping


def ranks_among(
    write: Writer,
    ordered: Operand,
    x: Operand,
    *,
    right: bool = False,
    side: str | None = None,
    sorter: Operand = None,
) -> Value:
    """Index at which each element would be inserted in sorted ones on the last axis; NaN last."""
    line = write.value(ordered)
    if sorter is not None:
        known = write.known(sorter)
        places = write.value(sorter) if known is None else known
        line = by_axis(write, line, places, len(line.shape) - 1)
    value = write.value(x)
    behind = right or side == "right"
    sorted_, each = write.promoted(line, value)
    length = sorted_.shape[-1]
    if not value.type.size or not length:
        return expanded(write, write.number(0, Element.INT64), value.shape)
    each = reshaped(write, each, (*value.shape, 1))
    lines = sorted_
    if len(line.shape) > 1:
        lines = reshaped(write, sorted_, (*line.shape[:-1], 1, length))
    beyond = write.pointwise("greater" if behind else "greater_equal", lines, each)
    before = write.pointwise("where", beyond, *(write.number(n, Element.INT64) for n in (0, 1)))
    return sum_over(write, before, [-1])


def ranks_in(write: Writer, x: Operand, boundaries: Operand, *, right: bool = False) -> Value:
    """The bucket between boundaries that each element falls in."""
    return ranks_among(write, boundaries, x, right=right)
