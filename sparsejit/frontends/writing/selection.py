"""Rows by index, and the largest elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.frontends.writing.arranging import (
    joined,
    moved,
    permuted,
    reshaped,
    sliced,
)
from sparsejit.frontends.writing.writer import Unmapped
from sparsejit.ir.graph import Array, Element
from sparsejit.ir.ops import selection as ops
from sparsejit.ir.ops.types import axis_of

if TYPE_CHECKING:
    from sparsejit.frontends.writing.writer import Operand, Writer
    from sparsejit.ir.graph import Value

# A known choice of more separate runs than this becomes a look-up.
_MOST_RUNS = 8
_BAGS = (ops.BagKind.SUM, ops.BagKind.MEAN, ops.BagKind.MAX)


def embedding(write: Writer, weight: Operand, indices: Operand, *_: Any) -> Value:
    """Rows of a table."""
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
        kept = write.cast(write.pointwise("not_equal", index, padding_idx), Element.FLOAT32)
        factors = kept if factors is None else write.pointwise("mul", kept, factors)
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


def _bags(
    write: Writer, index: Value, offsets: Operand, include_last: bool
) -> tuple[int, int] | None:
    """(bags, length) where all are known to have one length."""
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


def taken(write: Writer, x: Operand, axis: int, places: Array) -> Value:
    """Known places of an axis: as slices where they are few runs, else rows of a table."""
    value = write.value(x)
    axis = axis_of(axis, len(value.shape))
    wrapped = np.where(places < 0, places + value.shape[axis], places).astype(np.int64)
    runs = _runs(wrapped.tolist())
    if len(runs) <= _MOST_RUNS and runs:
        return joined(write, [sliced(write, value, axis, *run) for run in runs], axis)
    return looked_up(write, value, axis, wrapped)


def _runs(places: Sequence[int]) -> list[tuple[int, int, int]]:
    """(first, end, step) of ascending ranges that make up the places in order."""
    runs: list[list[int]] = []
    for place in places:
        run = runs[-1] if runs else None
        if run and place > run[-1] and (len(run) == 1 or place - run[-1] == run[1] - run[0]):
            run.append(place)
        else:
            runs.append([place])
    return [(run[0], run[-1] + 1, run[1] - run[0] if len(run) > 1 else 1) for run in runs]


def looked_up(write: Writer, x: Operand, axis: int, indices: Operand) -> Value:
    """Places of an axis by indices (...), which come in its place."""
    if write.element(x) is not Element.FLOAT32:
        raise Unmapped("takes whole numbers by index")
    rows = moved(write, x, axis, 0)
    table = reshaped(write, rows, (rows.shape[0], prod(rows.shape[1:])))
    places = write.cast(indices, Element.INT64)
    found = write.one(ops.Embedding(), places, table)
    full = reshaped(write, found, (*places.shape, *rows.shape[1:]))
    front = range(len(places.shape))
    order = list(range(len(front), len(full.shape)))
    for number, own in enumerate(front):
        order.insert(axis_of(axis, len(rows.shape)) + number, own)
    return permuted(write, full, order)


def index_select(write: Writer, x: Operand, dim: int, index: Operand) -> Value:
    """Places of an axis."""
    known = write.known(index)
    if known is not None:
        return taken(write, x, dim, known.reshape(-1))
    return looked_up(write, x, dim, index)


def index(write: Writer, x: Operand, indices: Sequence[Operand]) -> Value:
    """x[..., indices, ...] for indices of one axis; their bounds are not checked."""
    named = [axis for axis, each in enumerate(indices) if each is not None]
    if len(named) != 1:
        return _grid(write, write.value(x), {axis: indices[axis] for axis in named})
    (axis,) = named
    chosen, known = indices[axis], write.known(indices[axis])
    if write.element(chosen) is Element.BOOL:
        if known is None or known.ndim != 1:
            raise Unmapped("by a mask, which leaves the size open")
        known = np.flatnonzero(known)
    if known is not None:
        result = taken(write, x, axis, known.reshape(-1))
        shape = write.shape(x)
        return reshaped(write, result, (*shape[:axis], *known.shape, *shape[axis + 1 :]))
    return looked_up(write, x, axis, chosen)


def _grid(write: Writer, x: Value, indices: dict[int, Operand]) -> Value:
    """Known indices of neighbouring axes, each of which varies along sizes of its own."""
    known = {axis: write.known(each) for axis, each in indices.items()}
    arrays = [array for array in known.values() if array is not None and array.dtype != bool]
    axes = list(known)
    first, last = (axes[0], axes[-1]) if axes else (0, -1)
    varying = [n for a in arrays for n in _varying(a, max(a.ndim for a in arrays))]
    if len(arrays) != last - first + 1 or varying != sorted(set(varying)):
        raise Unmapped(f"by indices of {len(indices)} axes")
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    result = x
    for axis, array in zip(axes, arrays, strict=True):
        result = taken(write, result, axis, array.reshape(-1))
    return reshaped(write, result, (*x.shape[:first], *shape, *x.shape[last + 1 :]))


def _varying(array: Array, rank: int) -> list[int]:
    """Along which of `rank` broadcast axes it has more than one element."""
    return [axis + rank - array.ndim for axis, n in enumerate(array.shape) if n > 1]


def flip(write: Writer, x: Operand, dims: Sequence[int]) -> Value:
    """Axes in reverse."""
    result = write.value(x)
    for axis in dims:
        result = taken(write, result, axis, np.arange(result.shape[axis])[::-1])
    return result


def top_k(
    write: Writer, x: Operand, k: int, dim: int = -1, largest: bool = True, in_order: bool = True
) -> tuple[Value, ...]:
    """The largest or least elements along an axis, in order, and their places."""
    value = write.floats(x)
    if not value.shape:
        raise Unmapped("of a number")
    rows = moved(write, value if largest else write.pointwise("neg", value), dim, -1)
    found, places = write.many(ops.TopK(k), rows)
    found = found if largest else write.pointwise("neg", found)
    return moved(write, found, -1, dim), moved(write, places, -1, dim)


def sort(write: Writer, x: Operand, dim: int = -1, descending: bool = False) -> tuple[Value, ...]:
    """All elements along an axis in order, and their places."""
    return top_k(write, x, write.shape(x)[dim], dim, descending)


def stable_sort(
    write: Writer, x: Operand, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Value, ...]:
    """As `sort`: of equals the first comes first."""
    return sort(write, x, dim, descending)


def arg_sort(write: Writer, x: Operand, dim: int = -1, descending: bool = False) -> Value:
    """The places alone."""
    return sort(write, x, dim, descending)[1]


def one_hot(write: Writer, x: Operand, num_classes: int = -1) -> Value:
    """Whether each of the classes is the one."""
    if num_classes < 0:
        raise Unmapped("of a number of classes that depends on the values; give num_classes")
    index = write.value(x)
    classes = np.arange(num_classes)
    hot = write.pointwise("equal", reshaped(write, index, (*index.shape, 1)), classes)
    return write.cast(hot, Element.INT64)


def lower_triangle(write: Writer, x: Operand, diagonal: int = 0) -> Value:
    """x with zeros above a diagonal."""
    return _triangle(write, x, below(write.shape(x), diagonal))


def upper_triangle(write: Writer, x: Operand, diagonal: int = 0) -> Value:
    """x with zeros below a diagonal."""
    return _triangle(write, x, ~below(write.shape(x), diagonal - 1))


def below(shape: Sequence[int], diagonal: int = 0) -> Array:
    """Which elements of the last two axes are on a diagonal or below it."""
    rows, columns = (np.arange(n) for n in shape[-2:])
    return np.asarray(columns <= rows[:, None] + diagonal)


def _triangle(write: Writer, x: Operand, kept: Array) -> Value:
    return write.pointwise("where", kept, x, write.cast(0, write.element(x)))


OPERATORS: dict[str, Callable[..., Any]] = {
    "aten.embedding.default": embedding,
    "aten.embedding_bag.default": embedding_bag,
    "aten.embedding_bag.padding_idx": embedding_bag,
    "aten._embedding_bag.default": embedding_bag,
    "aten._embedding_bag_forward_only.default": embedding_bag,
    "aten.index_select.default": index_select,
    "aten.index.Tensor": index,
    "aten._unsafe_index.Tensor": index,
    "aten.flip.default": flip,
    "aten.topk.default": top_k,
    "aten.sort.default": sort,
    "aten.sort.stable": stable_sort,
    "aten.argsort.default": arg_sort,
    "aten.one_hot.default": one_hot,
    "aten.tril.default": lower_triangle,
    "aten.triu.default": upper_triangle,
}
