"""Merges views in a row into one Reshape and one Permute, and moves slices before them.

p = reshape(x, (6, 2, 3, 16))     s = slice(x, the i-th 16)
q = permute(p, (2, 1, 0, 3))      r = reshape(s, (6, 2, 16))
r = slice(q, axis 0, i)      ->   t = permute(r, (1, 0, 2))
t = reshape(r, (2, 6, 16))
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.types import axis_of
from sparsejit.ir.ops.views import Permute, Reshape, Slice
from sparsejit.ir.values import Array, Value
from sparsejit.passes.rewriter import Site, rewrite
from sparsejit.passes.traced_views import traced


def merge_views(graph: Graph) -> Graph:
    """The graph with at most one Permute between two nodes that compute, where one is enough."""
    return rewrite(graph, _slice_first, _merge)


def _slice_first(site: Site) -> Sequence[Value] | None:
    """slice(permute(x)) as permute(slice(x)); likewise for a Reshape that splits an axis."""
    node = site.producer(site.inputs[0]) if isinstance(site.op, Slice) else None
    if node is None or not isinstance(site.op, Slice):
        return None
    if not isinstance(node.op, Permute | Reshape):
        return None
    cut, axis, (x,) = site.op, axis_of(site.op.axis, len(site.output.shape)), node.inputs
    if isinstance(node.op, Permute):
        part = site.one(Slice(node.op.axes[axis], cut.first, cut.end, cut.step), x)
        return (site.one(node.op, part),)
    if cut.step != 1:
        return None
    before, outer = 0, prod(node.op.shape[:axis])
    while before < len(x.shape) and prod(x.shape[:before]) != outer:
        before += 1
    inner = prod(node.op.shape[axis + 1 :])
    is_split = before < len(x.shape) and x.shape[before] % inner == 0 if inner else False
    if not is_split or prod(x.shape[before + 1 :]) != 1:
        return None
    part = site.one(Slice(before, cut.first * inner, cut.end * inner), x)
    return (site.one(Reshape(site.output.shape), part),)


def _merge(site: Site) -> Sequence[Value] | None:
    """Three views in a row, or two Permutes, as one Permute of a Reshape."""
    nodes: list[Node] = []
    node: Node | None = Node(site.op, site.inputs, site.outputs)
    while node is not None and isinstance(node.op, Permute | Reshape):
        nodes.insert(0, node)
        node = site.producer(node.inputs[0])
    permutes = sum(isinstance(n.op, Permute) for n in nodes)
    if permutes == 0 or (permutes == 1 and len(nodes) < 3):
        return None
    (source,) = nodes[0].inputs
    numbers = traced(nodes, source.shape)
    strides = None if numbers is None else _strides(numbers)
    if numbers is None or strides is None:
        return None
    by_stride = sorted(range(numbers.ndim), key=lambda axis: (-strides[axis], axis))
    whole = site.one(Reshape(tuple(numbers.shape[axis] for axis in by_stride)), source)
    return (site.one(Permute(tuple(by_stride.index(a) for a in range(numbers.ndim))), whole),)


def _strides(numbers: Array) -> list[int] | None:
    """The stride of numbers along each axis, 0 for one element; None if a stride varies."""
    strides = [int(numbers.take(1, axis).flat[0]) if n > 1 else 0 for axis, n in _axes(numbers)]
    grid = np.zeros(numbers.shape, np.int64)
    for (axis, n), stride in zip(_axes(numbers), strides, strict=True):
        grid += (np.arange(n) * stride).reshape(-1, *(1,) * (numbers.ndim - axis - 1))
    return strides if np.array_equal(grid, numbers) else None


def _axes(numbers: Array) -> list[tuple[int, int]]:
    return list(enumerate(numbers.shape))
