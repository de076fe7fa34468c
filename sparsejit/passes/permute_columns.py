"""Folds views that only move, drop or repeat features into the weights around them.

    y = linear(x, W, b)               y = linear(x, W[order], b[order])
    p = reshape(y); permute; reshape  z = ...
                                 ->
    p = permute(conv, (0, 2, 3, 1))   z = linear(reshape(conv), W[:, inverse])
    z = linear(reshape(p), W)

    c = concat(x, constant)           y = linear(x, W[:, :n], b + W[:, n:] constant)
    y = linear(c, W, b)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution, adds_operand
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.views import Concat, Permute, Reshape, Slice
from sparsejit.ir.values import Array, Value, axis_of
from sparsejit.passes.merge_views import traced
from sparsejit.passes.rewriter import Site, rewrite


def permute_columns(graph: Graph) -> Graph:
    """The graph with fewer views between products."""
    return rewrite(graph, _fold_into_producer, _fold_into_consumer, _constant_columns)


def _fold_into_producer(site: Site) -> Sequence[Value] | None:
    """Replace a view of a product's features by a product with its weights' rows in that order."""
    if not isinstance(site.op, Permute | Slice | Reshape):
        return None
    nodes = _views(site, Node(site.op, site.inputs, site.outputs), once=True)
    product = site.producer(nodes[0].inputs[0])
    if product is None or not site.is_used_once(nodes[0].inputs[0]):
        return None
    if not _has_free_features(product) or not all(map(site.is_constant, product.inputs[1:])):
        return None
    shape, old = _rows_features_inner(product, product.output), product.output
    order = _order(nodes, old.shape, shape)
    if order is None or len(order) > shape[1] or _is_identity(order, shape[1]):
        return None
    rows = [_taken(site, value, order) for value in product.inputs[1:]]
    made = site.one(product.op, product.inputs[0], *rows, origin=old.origin)
    return (site.one(Reshape(site.output.shape), made),)


def _fold_into_consumer(site: Site) -> Sequence[Value] | None:
    """Replace a product of permuted features by a product with permuted columns of weights."""
    node = Node(site.op, site.inputs, site.outputs)
    weights = site.array(site.inputs[1]) if _has_free_features(node) else None
    view = site.producer(site.inputs[0])
    if weights is None or view is None or not isinstance(view.op, Permute | Reshape):
        return None
    nodes = [n for n in _views(site, view, once=False) if not isinstance(n.op, Slice)]
    x = site.inputs[0]
    shape = _rows_features_inner(node, x)
    for first in range(len(nodes)):
        source = nodes[first].inputs[0]
        order = _order(nodes[first:], source.shape, shape)
        if order is None or len(set(order)) != shape[1] or _is_identity(order, shape[1]):
            continue
        columns = np.ascontiguousarray(weights[:, np.argsort(order)])
        moved = site.constant(columns, site.inputs[1].origin)
        return site.add(site.op, site.one(Reshape(x.shape), source), moved, *site.inputs[2:])
    return None


def _constant_columns(site: Site) -> Sequence[Value] | None:
    """Replace constant features of a Linear's operand by a larger bias."""
    node = site.producer(site.inputs[0]) if isinstance(site.op, Linear) else None
    if node is None or not isinstance(node.op, Concat):
        return None
    axis, last = axis_of(node.op.axis, len(node.output.shape)), len(node.output.shape) - 1
    arrays = [site.array(value) for value in site.inputs[1:]]
    rows = [_only_row(site.array(part)) for part in node.inputs]
    if axis != last or any(a is None for a in arrays) or all(row is None for row in rows):
        return None
    weights, *bias = (a.astype(np.float64) for a in arrays if a is not None)
    total = bias[0] if bias else np.zeros(len(weights))
    ends = np.cumsum([part.shape[-1] for part in node.inputs])
    kept = []
    for row, columns in zip(rows, np.split(weights, ends[:-1], axis=1), strict=True):
        if row is None:
            kept.append(columns)
        else:
            total = total + columns @ row
    parts = [part for part, row in zip(node.inputs, rows, strict=True) if row is None]
    if not parts:
        return None
    x = site.one(Concat(axis), *parts, origin=node.output.origin)
    origin = site.inputs[1].origin
    named = site.inputs[2].origin if bias else replace(origin, name=f"{origin.name}.bias")
    matrix = site.constant(np.concatenate(kept, axis=1), origin)
    return site.add(site.op, x, matrix, site.constant(total, named))


def _only_row(array: Array | None) -> Array | None:
    """The vector that all rows of a constant equal, else None."""
    if array is None or array.size == 0:
        return None
    rows = array.reshape(-1, array.shape[-1])
    return rows[0].astype(np.float64) if (rows == rows[0]).all() else None


def _has_free_features(node: Node) -> bool:
    """Whether all outputs of a product see all its inputs, so that any order is as good."""
    if isinstance(node.op, Convolution):
        return node.op.groups == 1 and not node.op.transposed and not adds_operand(node)
    return isinstance(node.op, Linear)


def _rows_features_inner(product: Node, value: Value) -> tuple[int, int, int]:
    """The value's shape as rows, features of the product, and elements within a feature."""
    shape = value.shape
    axis = 1 if isinstance(product.op, Convolution) else len(shape) - 1
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])


def _views(site: Site, last: Node, once: bool) -> list[Node]:
    """The views in a row that end in this one, first to last; with `once`, each read only once."""
    nodes = [last]
    while True:
        (source,) = nodes[0].inputs
        node = site.producer(source)
        if node is None or not isinstance(node.op, Permute | Slice | Reshape):
            return nodes
        if once and not site.is_used_once(source):
            return nodes
        nodes.insert(0, node)


def _order(
    views: Sequence[Node], shape: tuple[int, ...], rows_features_inner: tuple[int, int, int]
) -> list[int] | None:
    """The features that views of a tensor keep, in order; None if they mix rows or elements."""
    rows, features, inner = rows_features_inner
    numbers = traced(views, shape) if prod(shape) == rows * features * inner else None
    if numbers is None or numbers.size == 0 or numbers.size % (rows * inner):
        return None
    numbers = numbers.reshape(rows, -1, inner)
    order = numbers[0, :, 0] // inner
    row_starts = np.arange(rows).reshape(-1, 1, 1) * (features * inner)
    expected = row_starts + order.reshape(-1, 1) * inner + np.arange(inner)
    return [int(n) for n in order] if np.array_equal(numbers, expected) else None


def _is_identity(order: Sequence[int], features: int) -> bool:
    return list(order) == list(range(features))


def _taken(site: Site, value: Value, order: Sequence[int]) -> Value:
    """The constant whose row i is row order[i] of this one."""
    array = site.array(value)
    assert array is not None
    return site.constant(np.ascontiguousarray(array[list(order)]), value.origin)
