"""Transposed convolutions with a stride: one product of each position, and a sum that overlaps.

y = convT[stride 4](x, W)             z = conv(x, W')        all taps of a position, as channels
                                ->    y = z[taps 0 .. 3] + z[taps 4 .. 7] of the position before

As a convolution of an image with zeros between its elements it has `stride` times the products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Operator
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.pointwise import Pointwise, write_activation
from sparsejit.ir.ops.views import Pad, Permute, Reshape, Slice
from sparsejit.ir.spec import DType
from sparsejit.ir.values import Array, Value
from sparsejit.passes.rewriter import Site, rewrite
from sparsejit.whole_numbers import ceil_div


def overlap_transposed(graph: Graph) -> Graph:
    """The graph with products and sums for transposed convolutions with a stride on one axis."""
    return rewrite(graph, _overlapped)


def _overlapped(site: Site) -> Sequence[Value] | None:
    op = site.op
    if not _is_plain(op) or len(site.inputs) > 3:
        return None
    x, weights, *bias = site.inputs
    array = site.array(weights)
    kernel = weights.shape[2:]
    long = [axis for axis, taps in enumerate(kernel) if (taps, op.stride[axis]) != (1, 1)]
    if array is None or len(long) != 1 or op.stride[long[0]] == 1:
        return None
    (axis,) = long
    if any(width for n, width in enumerate(op.padding) if n != axis):
        return None
    if any(width for n, width in enumerate(op.output_padding) if n != axis):
        return None
    stride, channels = op.stride[axis], weights.shape[1]
    matrix, blocks = _by_blocks(array, stride)
    ones, none = (1,) * len(kernel), (0,) * len(kernel)
    taps = site.constant(matrix.reshape(*matrix.shape, *ones), weights.origin)
    made = site.one(Convolution(ones, none, ones), x, taps)
    total = _sum(site, made, blocks, 2 + axis)
    result = _apart(site, total, channels, stride, axis)
    result = _cut(site, result, 2 + axis, op.padding[axis])
    for value in bias:
        column = site.one(Reshape((channels, *ones)), value)
        result = site.one(Pointwise("add"), result, column)
    activated = write_activation(
        op.activation,
        result,
        lambda kind, *operands: site.one(Pointwise(kind), *operands),
        lambda number: site.constant(np.array(number, np.float32)),
    )
    return (activated,)


def _is_plain(op: Operator) -> TypeGuard[Convolution]:
    """Whether an operator is a float32 transposed convolution without groups or dilation."""
    if not isinstance(op, Convolution) or not op.transposed or op.groups != 1:
        return False
    is_plain = op.x_steps is None and op.rounding is None and op.dtype is DType.FLOAT32
    return is_plain and set(op.dilation) == {1}


def _by_blocks(weights: Array, stride: int) -> tuple[Array, int]:
    """W (in, out, taps) as (blocks * out * stride, in), with zeros after the last tap; blocks."""
    given, made = weights.shape[:2]
    rows = weights.reshape(given, made, -1)
    blocks = ceil_div(rows.shape[2], stride)
    whole = np.pad(rows, [(0, 0), (0, 0), (0, blocks * stride - rows.shape[2])])
    apart = whole.reshape(given, made, blocks, stride).transpose(2, 1, 3, 0)
    return np.ascontiguousarray(apart.reshape(-1, given)), blocks


def _sum(site: Site, made: Value, blocks: int, axis: int) -> Value:
    """The sum of blocks of channels, each a position later than the one before."""
    each, total = made.shape[1] // blocks, None
    for n in range(blocks):
        part = site.one(Slice(1, n * each, (n + 1) * each), made) if blocks > 1 else made
        widths = tuple((n, blocks - 1 - n) if k == axis else (0, 0) for k in range(len(made.shape)))
        late = site.one(Pad(widths), part) if blocks > 1 else part
        total = late if total is None else site.one(Pointwise("add"), total, late)
    assert total is not None
    return total


def _apart(site: Site, total: Value, channels: int, stride: int, axis: int) -> Value:
    """(batch, channels * stride, *space) as (batch, channels, *space), `stride` to a position."""
    batch, _, *space = total.shape
    split = site.one(Reshape((batch, channels, stride, *space)), total)
    order = [*range(2), *range(3, 4 + axis), 2, *range(4 + axis, len(split.shape))]
    turned = site.one(Permute(tuple(order)), split)
    space[axis] *= stride
    return site.one(Reshape((batch, channels, *space)), turned)


def _cut(site: Site, result: Value, axis: int, first: int) -> Value:
    """The positions of the site's result; those after the last sum are zeros."""
    end = first + site.output.shape[axis]
    missing = end - result.shape[axis]
    if missing > 0:
        widths = tuple((0, missing if k == axis else 0) for k in range(len(result.shape)))
        result = site.one(Pad(widths), result)
    if (first, end) == (0, result.shape[axis]):
        return result
    return site.one(Slice(axis, first, end), result)
