"""ATen's scans, medians, diagonals, and distances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations as choices
from itertools import combinations_with_replacement
from math import prod
from typing import Any

import numpy as np

from sparsejit.frontends.torch_export.aten.places import put_parts
from sparsejit.frontends.writing import ranks, reductions
from sparsejit.frontends.writing.arranging import moved, reshaped, sliced
from sparsejit.frontends.writing.products import matmul
from sparsejit.frontends.writing.reductions import sum_over, vector_norm
from sparsejit.frontends.writing.selection import taken
from sparsejit.frontends.writing.views import unsqueeze
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.values import Value, axis_of


def diagonal(
    write: Writer, x: Operand, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    """Elements whose second index is the first plus the offset, on a new last axis."""
    flat, places = _on_diagonal(write, x, offset, dim1, dim2)
    if not len(places):
        return sliced(write, flat, -1, 0, 0)
    step = int(places[1] - places[0]) if len(places) > 1 else 1
    return sliced(write, flat, -1, int(places[0]), int(places[-1]) + 1, step)


def _on_diagonal(
    write: Writer, x: Operand, offset: int, dim1: int, dim2: int
) -> tuple[Value, np.ndarray[Any, np.dtype[np.int64]]]:
    """x with both axes merged into the last, and the indices of a diagonal there."""
    shape = write.shape(x)
    rows, columns = axis_of(dim1, len(shape)), axis_of(dim2, len(shape))
    matrices = moved(write, moved(write, x, rows, -1), columns - (columns > rows), -1)
    *lead, height, width = matrices.shape
    count = max(min(height + min(offset, 0), width - max(offset, 0)), 0)
    first = max(-offset, 0) * width + max(offset, 0)
    places = first + (width + 1) * np.arange(count)
    return reshaped(write, matrices, (*lead, height * width)), places


def diagonal_replaced(
    write: Writer, x: Operand, source: Operand, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    """x with its diagonal of two axes replaced by `source`."""
    shape = write.shape(x)
    rows, columns = axis_of(dim1, len(shape)), axis_of(dim2, len(shape))
    flat, places = _on_diagonal(write, x, offset, dim1, dim2)
    made = put_parts(write, flat, -1, write.constant(places, "diagonal"), source, "none")
    sizes = [n for axis, n in enumerate(shape) if axis not in (rows, columns)]
    whole = reshaped(write, made, (*sizes, shape[rows], shape[columns]))
    back = moved(write, whole, -1, columns - (columns > rows))
    return moved(write, back, -1, rows)


def trace(write: Writer, x: Operand) -> Value:
    """The sum of the diagonal."""
    return sum_over(write, diagonal(write, x))


def strided(
    write: Writer,
    x: Operand,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Value:
    """Elements of x at any strides over its row-major order."""
    value = write.value(x)
    places = _strided_places(value, size, stride, storage_offset)
    flat = reshaped(write, value, (-1,))
    if not places.size:
        return reshaped(write, sliced(write, flat, 0, 0, 0), size)
    return reshaped(write, taken(write, flat, 0, places.reshape(-1)), size)


def _strided_places(
    x: Value, size: Sequence[int], stride: Sequence[int], storage_offset: int | None
) -> np.ndarray[Any, np.dtype[np.int64]]:
    places = np.full(tuple(size), storage_offset or 0, np.int64)
    for axis, (length, step) in enumerate(zip(size, stride, strict=True)):
        shape = [1] * len(size)
        shape[axis] = length
        places = places + step * np.arange(length).reshape(shape)
    if places.size and not 0 <= places.min() <= places.max() < x.type.size:
        raise Unmapped("reaches beyond its elements")
    return places


def strided_replaced(
    write: Writer,
    x: Operand,
    source: Operand,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Value:
    """x with the elements that `strided` reads replaced by `source`."""
    value = write.value(x)
    places = _strided_places(value, size, stride, storage_offset).reshape(-1)
    flat, new = reshaped(write, value, (-1,)), reshaped(write, source, (-1,))
    made = put_parts(write, flat, 0, write.constant(places, "strides"), new, "none")
    return reshaped(write, made, value.shape)


def distances(
    write: Writer, x: Operand, other: Operand, p: float = 2, compute_mode: int | None = None
) -> Value:
    """The p-norm of the difference of each row of x and each row of `other`."""
    first, second = unsqueeze(write, write.floats(x), -2), unsqueeze(write, write.floats(other), -3)
    return vector_norm(write, write.pointwise("sub", first, second), p, [-1])


def distances_of_pairs(write: Writer, x: Operand, p: float = 2) -> Value:
    """The p-norm of the difference of each pair of rows."""
    value = write.floats(x)
    pairs = np.array(list(choices(range(value.shape[0]), 2)), np.int64).reshape(-1, 2)
    if not len(pairs):
        return sliced(write, reshaped(write, value, (-1,)), 0, 0, 0)
    first, second = (taken(write, value, 0, pairs[:, n]) for n in range(2))
    return vector_norm(write, write.pointwise("sub", first, second), p, [-1])


def combinations(
    write: Writer, x: Operand, r: int = 2, with_replacement: bool = False
) -> Value:
    """All choices of r elements, in order."""
    value = write.value(x)
    choose = combinations_with_replacement if with_replacement else choices
    places = np.array(list(choose(range(value.shape[0]), r)), np.int64).reshape(-1, r)
    if not places.size:
        return reshaped(write, sliced(write, value, 0, 0, 0), places.shape)
    return reshaped(write, taken(write, value, 0, places.reshape(-1)), places.shape)


def bilinear(
    write: Writer, x: Operand, other: Operand, weight: Operand, bias: Operand = None
) -> Value:
    """x W[o] other + bias[o] for each output o, row by row."""
    outputs, inputs, others = write.shape(weight)
    table = reshaped(write, moved(write, weight, 0, 1), (inputs, outputs * others))
    lead = write.shape(x)[:-1]
    rows = reshaped(write, write.floats(x), (prod(lead), inputs))
    products = reshaped(write, matmul(write, rows, table), (prod(lead), outputs, others))
    column = reshaped(write, write.floats(other), (prod(lead), 1, others))
    made = sum_over(write, write.pointwise("mul", products, column), [-1])
    made = reshaped(write, made, (*lead, outputs))
    return made if bias is None else write.pointwise("add", made, bias)


OPERATORS: dict[str, Callable[..., Any]] = {
    "aten.cumprod.default": reductions.cumulative_product,
    "aten.cummax.default": reductions.cumulative_extreme("maximum"),
    "aten.cummin.default": reductions.cumulative_extreme("minimum"),
    "aten.logcumsumexp.default": reductions.cumulative_log_sum,
    "aten.kthvalue.default": ranks.of_rank,
    "aten.median.dim": ranks.median(passes_nan=False),
    "aten.median.default": ranks.median_of_all(passes_nan=False),
    "aten.nanmedian.dim": ranks.median(passes_nan=True),
    "aten.nanmedian.default": ranks.median_of_all(passes_nan=True),
    **{
        f"aten.searchsorted.{kind}": lambda write, ordered, x, out_int32=False, **named: (
            ranks.ranks_among(write, ordered, x, **named)
        )
        for kind in ("Tensor", "Scalar")
    },
    **{
        f"aten.bucketize.{kind}": lambda write, x, boundaries, out_int32=False, **named: (
            ranks.ranks_in(write, x, boundaries, **named)
        )
        for kind in ("Tensor", "Scalar")
    },
    "aten.diagonal.default": diagonal,
    "aten.diagonal_copy.default": diagonal,
    "aten.linalg_diagonal.default": lambda write, x, *, offset=0, dim1=-2, dim2=-1: diagonal(
        write, x, offset, dim1, dim2
    ),
    "aten.diagonal_scatter.default": diagonal_replaced,
    "aten.trace.default": trace,
    "aten.as_strided.default": strided,
    "aten.as_strided_copy.default": strided,
    "aten.as_strided_scatter.default": strided_replaced,
    "aten.cdist.default": distances,
    "aten._cdist_forward.default": distances,
    "aten.pdist.default": distances_of_pairs,
    "aten._pdist_forward.default": distances_of_pairs,
    "aten.combinations.default": combinations,
    "aten.bilinear.default": bilinear,
}
