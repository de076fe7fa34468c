"""ATen's look-ups by index, embedding bags and sorting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsejit.frontends.writing.arranging import reshaped, sliced, with_axis
from sparsejit.frontends.writing.selection import (
    flip,
    looked_up,
    lower_triangle,
    taken,
    top_k,
    upper_triangle,
)
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.ops import selection as ops
from sparsejit.ir.values import Element, Value

_BAGS = (ops.BagKind.SUM, ops.BagKind.MEAN, ops.BagKind.MAX)


def embedding(write: Writer, weight: Operand, indices: Operand, *_: Any) -> Value:
    """Rows of a table by index."""
    return write.one(ops.Embedding(), write.cast(indices, Element.INT64), write.floats(weight))


def embedding_bag(
    write: Writer,
    weight: Operand,
    indices: Operand,
    offsets: Operand,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Operand = None,
    include_last_offset: bool = False,
    padding_idx: int | None = -1,
) -> tuple[Any, ...]:
    """Sums, means or maxima of rows; bags of one known length need no offsets."""
    index, kind = write.cast(indices, Element.INT64), _BAGS[mode]
    factors = None if per_sample_weights is None else write.floats(per_sample_weights)
    if padding_idx is not None and padding_idx >= 0:
        if kind is not ops.BagKind.SUM:
            raise Unmapped(f"the {kind.value} of rows other than padding_idx")
        kept = write.pointwise("not_equal", index, padding_idx)
        factors = write.pointwise("where", kept, 1.0 if factors is None else factors, 0.0)
    rest, weighted = ([] if factors is None else [factors]), factors is not None
    shape = _bags(write, index, offsets, include_last_offset)
    if shape is not None:
        rest = [reshaped(write, each, shape) for each in rest]
        op = ops.EmbeddingBag(kind, weighted=weighted)
        result = write.one(op, reshaped(write, index, shape), write.floats(weight), *rest)
        return result, None, None, None
    starts = write.cast(offsets, Element.INT64)
    if include_last_offset:
        starts = sliced(write, starts, 0, 0, starts.shape[0] - 1)
    op = ops.EmbeddingBag(kind, with_offsets=True, weighted=weighted)
    return write.one(op, index, write.floats(weight), starts, *rest), None, None, None


def padded_embedding_bag(
    write: Writer, weight: Operand, indices: Operand, offsets: Operand, *rest: Any
) -> tuple[Any, ...]:
    """As `embedding_bag`; a negative padding_idx counts from the end of the table."""
    padding_idx = rest[-1]
    wrapped = None if padding_idx is None else padding_idx % write.shape(weight)[0]
    bag: Callable[..., tuple[Any, ...]] = embedding_bag
    return bag(write, weight, indices, offsets, *rest[:-1], wrapped)


def _bags(
    write: Writer, index: Value, offsets: Operand, include_last: bool
) -> tuple[int, int] | None:
    """(bags, length) if all bags are known to have one length, else None."""
    if len(index.shape) == 2:
        return index.shape[0], index.shape[1]
    known = write.known(offsets)
    if known is None or not known.size:
        return None
    starts = known[:-1] if include_last else known
    bags, total = len(starts), index.shape[0]
    if not bags or total % bags or not np.array_equal(starts, np.arange(bags) * (total // bags)):
        return None
    return bags, total // bags


def index_select(write: Writer, x: Operand, dim: int, index: Operand) -> Value:
    """Elements at indices of an axis; a tensor without axes has one element, and no axes after."""
    known, rows = write.known(index), with_axis(write, x)
    if known is not None:
        found = taken(write, rows, dim, known.reshape(-1))
    else:
        found = looked_up(write, rows, dim, with_axis(write, index))
    return found if write.shape(x) else reshaped(write, found, ())


def sort(write: Writer, x: Operand, dim: int = -1, descending: bool = False) -> tuple[Value, ...]:
    """All elements along an axis in order, and their indices."""
    return top_k(write, x, with_axis(write, x).shape[dim], dim, descending)


def stable_sort(
    write: Writer, x: Operand, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Value, ...]:
    """As `sort`, which keeps the order of equals."""
    return sort(write, x, dim, descending)


def arg_sort(write: Writer, x: Operand, dim: int = -1, descending: bool = False) -> Value:
    """The indices of `sort` alone."""
    return sort(write, x, dim, descending)[1]


def one_hot(write: Writer, x: Operand, num_classes: int = -1) -> Value:
    """1 for the class of each element and 0 for other classes, on a new last axis."""
    if num_classes < 0:
        raise Unmapped("has a number of classes that depends on the values; give num_classes")
    index = write.value(x)
    classes = np.arange(num_classes)
    hot = write.pointwise("equal", reshaped(write, index, (*index.shape, 1)), classes)
    return write.cast(hot, Element.INT64)


OPERATORS: dict[str, Callable[..., Any]] = {
    "aten.embedding.default": embedding,
    "aten.embedding_bag.default": embedding_bag,
    "aten.embedding_bag.padding_idx": padded_embedding_bag,
    "aten._embedding_bag.default": embedding_bag,
    "aten._embedding_bag_forward_only.default": embedding_bag,
    "aten.index_select.default": index_select,
    "aten.flip.default": flip,
    "aten.topk.default": top_k,
    "aten.sort.default": sort,
    "aten.sort.stable": stable_sort,
    "aten.argsort.default": arg_sort,
    "aten.one_hot.default": one_hot,
    "aten.tril.default": lower_triangle,
    "aten.triu.default": upper_triangle,
}
