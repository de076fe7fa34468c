"""ATen's operators that take, replace or reduce elements at indices."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from sparsejit.frontends.writing import places
from sparsejit.frontends.writing.arranging import expanded, reshaped, sliced
from sparsejit.frontends.writing.indexing import index_replaced, indexed
from sparsejit.frontends.writing.pointwise import _is_float, divide, multiply
from sparsejit.frontends.writing.reductions import cumulative_sum
from sparsejit.frontends.writing.writer import Operand, Writer
from sparsejit.ir.values import Element, Value, axis_of


def gather(write: Writer, x: Operand, dim: int, index: Operand, *_: Any, **__: Any) -> Value:
    """The element of x at each index along an axis."""
    value, chosen = _with_axes(write, x, index)
    rank = max(len(value.shape), 1)
    if 0 in chosen.shape:
        return expanded(write, write.number(0, value.type.element), write.shape(index))
    found = places.by_axis(write, value, chosen, axis_of(dim, rank))
    return reshaped(write, found, write.shape(index))


def _with_axes(write: Writer, x: Operand, index: Operand) -> tuple[Value, Operand]:
    """x and an index, each without axes as a vector of one element; a known index as an array."""
    value, chosen = write.value(x), write.known(index)
    shape = write.shape(index) or (1,)
    if chosen is None:
        return reshaped(write, value, value.shape or (1,)), reshaped(write, index, shape)
    return reshaped(write, value, value.shape or (1,)), chosen.reshape(shape)


def take_along_dim(write: Writer, x: Operand, index: Operand, dim: int | None = None) -> Value:
    """As `gather`, with the other axes broadcast; without `dim`, from all elements in order."""
    if dim is None:
        flat, chosen = (reshaped(write, each, (-1,)) for each in (x, index))
        return gather(write, flat, 0, chosen)
    axis = axis_of(dim, len(write.shape(x)))
    pairs = enumerate(zip(write.shape(x), write.shape(index), strict=True))
    broadcast = {n: np.broadcast_shapes((a,), (b,))[0] for n, (a, b) in pairs if n != axis}
    whole, chosen = (
        expanded(write, each, [broadcast.get(n, size) for n, size in enumerate(write.shape(each))])
        for each in (x, index)
    )
    known = write.known(index)
    if known is not None:
        return places.by_axis(write, whole, np.broadcast_to(known, chosen.shape), axis)
    return places.by_axis(write, whole, chosen, axis)


# The reduction of an update by torch's name.
_REDUCTIONS = {
    **dict.fromkeys(("add", "sum", "mean"), "add"),
    **dict.fromkeys(("multiply", "prod"), "mul"),
    "amax": "max",
    "amin": "min",
}


def scatter(reduction: str) -> Callable[..., Value]:
    """Mapping to x with elements at indices along an axis replaced by updates, or reduced."""

    def mapping(
        write: Writer,
        x: Operand,
        dim: int,
        index: Operand,
        updates: Operand,
        *,
        reduce: str | None = None,
    ) -> Value:
        value, chosen = _with_axes(write, x, index)
        shape = tuple(chosen.shape)
        new = write.converted(updates, write.dtype(x))
        if not new.shape:
            new = expanded(write, new, shape)
        for axis, size in enumerate(shape):
            new = sliced(write, new, axis, 0, size)
        kind = reduction if reduce is None else _REDUCTIONS[reduce]
        axis = axis_of(dim, len(value.shape))
        made = places.replaced_by_axis(write, value, chosen, new, axis, kind)
        return reshaped(write, made, write.shape(x))

    return mapping


def scatter_reduce(
    write: Writer,
    x: Operand,
    dim: int,
    index: Operand,
    updates: Operand,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    """x with elements at indices reduced with `updates`; `include_self` counts the old element."""

    def put(into: Operand, new: Operand, kind: str) -> Value:
        return scatter(kind)(write, into, dim, index, new)

    return _reduced_at_places(write, x, updates, put, reduce, include_self)


def index_reduce(
    write: Writer,
    x: Operand,
    dim: int,
    index: Operand,
    updates: Operand,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    """x with parts at indices reduced with `updates`; `include_self` counts the old part."""

    def put(into: Operand, new: Operand, kind: str) -> Value:
        return put_parts(write, into, dim, index, new, kind)

    return _reduced_at_places(write, x, updates, put, reduce, include_self)


def _reduced_at_places(
    write: Writer,
    x: Operand,
    updates: Operand,
    put: Callable[[Operand, Operand, str], Value],
    reduce: str,
    include_self: bool,
) -> Value:
    """x with updates combined into elements at indices, by the function `put`.

    Without `include_self` old elements do not count: there the reduction begins at its neutral
    number.
    """
    value, kind = write.value(x), _REDUCTIONS[reduce]
    ones = expanded(write, write.number(1, value.type.element), write.shape(updates))
    base, none = value, expanded(write, write.cast(0, value.type.element), value.shape)
    touched = put(none, ones, "none") if not include_self else None
    if touched is not None:
        base = write.pointwise("where", touched, _start_of(write, kind, value), value)
    made = put(base, updates, kind)
    if reduce != "mean":
        return made
    first = write.cast(1, value.type.element)
    start = first if touched is None else write.pointwise("where", touched, none, first)
    counts = put(expanded(write, start, value.shape), ones, "add")
    return divide(write, made, counts, None if _is_float(write, value) else "floor")


def _start_of(write: Writer, kind: str, x: Value) -> Value:
    """The neutral number of a reduction."""
    if x.type.element is Element.FLOAT32:
        low, high = -np.inf, np.inf
    else:
        limits = np.iinfo(write.dtype(x)) if x.type.element is Element.INT64 else None
        low, high = (0, 1) if limits is None else (int(limits.min), int(limits.max))
    return write.cast({"add": 0, "mul": 1, "max": low, "min": high}[kind], x.type.element)


def put_parts(
    write: Writer, x: Operand, dim: int, index: Operand, updates: Operand, kind: str
) -> Value:
    """x with parts at indices along an axis replaced by `updates`, or reduced with them."""
    value, new = write.value(x), write.converted(updates, write.dtype(x))
    axis = axis_of(dim, len(value.shape or (1,)))
    known = write.known(index)
    number = write.cast(index, Element.INT64) if known is None else known
    return places.replaced_parts(write, value, axis, number, new, kind)


def index_add(
    write: Writer, x: Operand, dim: int, index: Operand, source: Operand, *, alpha: float = 1
) -> Value:
    """x with alpha times parts of the source added to parts at indices."""
    new = source if alpha == 1 else multiply(write, source, alpha)
    return put_parts(write, x, dim, index, new, "add")


def index_copy(write: Writer, x: Operand, dim: int, index: Operand, source: Operand) -> Value:
    """x with parts at indices replaced by parts of the source."""
    return put_parts(write, x, dim, index, source, "none")


def index_fill(write: Writer, x: Operand, dim: int, index: Operand, value: Operand) -> Value:
    """x with parts at indices replaced by one number."""
    shape = write.shape(x) or (1,)
    axis = axis_of(dim, len(shape))
    none = expanded(write, write.number(0, Element.FLOAT32), (shape[axis],))
    chosen = put_parts(write, none, 0, index, write.number(1, Element.FLOAT32), "none")
    mask = reshaped(write, chosen, (-1, *(1,) * (len(shape) - axis - 1)))
    mask = reshaped(write, mask, (shape[axis],)) if len(shape) == 1 else mask
    fill = write.converted(value, write.dtype(x))
    filled = write.pointwise("where", mask, fill, reshaped(write, x, shape))
    return reshaped(write, filled, write.shape(x))


def take(write: Writer, x: Operand, index: Operand) -> Value:
    """Elements of x at indices in row-major order."""
    flat = reshaped(write, x, (-1,))
    return indexed(write, flat, [index])


def put(
    write: Writer, x: Operand, index: Operand, source: Operand, accumulate: bool = False
) -> Value:
    """x with elements at indices in row-major order replaced or added to."""
    flat = reshaped(write, x, (-1,))
    new = reshaped(write, source, write.shape(index))
    return reshaped(write, index_replaced(write, flat, [index], new, accumulate), write.shape(x))


def masked_scatter(write: Writer, x: Operand, mask: Operand, source: Operand) -> Value:
    """x with elements of the source, one after another, where the mask is set."""
    shape = np.broadcast_shapes(write.shape(x), write.shape(mask))
    if not prod(shape):
        return expanded(write, x, shape)
    chosen = reshaped(write, expanded(write, write.cast(mask, Element.BOOL), shape), (-1,))
    before = write.pointwise("sub", cumulative_sum(write, chosen, 0), 1)
    found = take(write, source, write.pointwise("maximum", before, 0))
    new = reshaped(write, write.converted(found, write.dtype(x)), shape)
    return write.pointwise("where", reshaped(write, chosen, shape), new, x)


OPERATORS: dict[str, Callable[..., Any]] = {
    "aten.gather.default": gather,
    "aten.take_along_dim.default": take_along_dim,
    "aten.scatter.src": scatter("none"),
    "aten.scatter.value": scatter("none"),
    "aten.scatter_add.default": scatter("add"),
    "aten.scatter.reduce": scatter("none"),
    "aten.scatter.value_reduce": scatter("none"),
    "aten.scatter_reduce.two": scatter_reduce,
    "aten.index.Tensor": indexed,
    "aten._unsafe_index.Tensor": indexed,
    "aten.index_put.default": index_replaced,
    "aten._unsafe_index_put.default": index_replaced,
    "aten.index_add.default": index_add,
    "aten.index_copy.default": index_copy,
    "aten.index_fill.int_Scalar": index_fill,
    "aten.index_fill.int_Tensor": index_fill,
    "aten.index_reduce.default": index_reduce,
    "aten.take.default": take,
    "aten.put.default": put,
    "aten.masked_scatter.default": masked_scatter,
}
