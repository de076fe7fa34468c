"""Merges, moves and removes views.

    traced           the effect of views in a row, found by sending the numbers of the elements
                     through them
    merge_views      views in a row as one Reshape and one Permute, with slices before them
    move_views       Reshape and Permute behind operators that compute, so that these stand together
    simplify_views   views that do nothing removed, and views in a row merged

`merge_views`:

    p = reshape(x, (6, 2, 3, 16))     s = slice(x, the i-th 16)
    q = permute(p, (2, 1, 0, 3))      r = reshape(s, (6, 2, 16))
    r = slice(q, axis 0, i)      ->   t = permute(r, (1, 0, 2))
    t = reshape(r, (2, 6, 16))

`move_views`:

    y = linear(x, W)                  y = linear(x, W)
    r = reshape(y, (2, 3, 8))    ->   z = relu(y)
    z = relu(r)                       r = reshape(z, (2, 3, 8))

`simplify_views`:

    a = permute(x, (1, 0))            b = reshape(x, (6,))        (x of shape (1, 6))
    b = reshape(a, (6,))         ->
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node, Operator
from sparsejit.ir.ops.pointwise import Chain, Pointwise
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.views import Concat, Expand, Pad, Permute, Reshape, Slice
from sparsejit.ir.values import Array, Value, axis_of
from sparsejit.passes.rewriter import Site, rewrite

# Larger tensors are not traced; their views stay.
MOST_TRACED = 2**24


def traced(views: Sequence[Node], shape: tuple[int, ...]) -> Array | None:
    """Apply views in a row to a tensor of that shape that holds the numbers of its elements.

    Returns int64, of the last view's shape; None for a tensor without elements, or of too many.
    """
    size = prod(shape)
    if not 0 < size <= MOST_TRACED:
        return None
    numbers = np.arange(size).reshape(shape)
    for view in views:
        (numbers,) = view.op.reference(numbers)
    return numbers


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
    """Replace three Permutes and Reshapes in a row, or two Permutes, by a Reshape and a Permute."""
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


def move_views(graph: Graph) -> Graph:
    """The graph with views behind functions that do not depend on shapes."""
    return rewrite(graph, _move, _move_behind_linear)


def _move_behind_linear(site: Site) -> Sequence[Value] | None:
    """linear(reshape(x)) as reshape(linear(x)) where the features stay as they are."""
    view = _view(site, site.inputs[0]) if isinstance(site.op, Linear) else None
    if view is None or not isinstance(view.op, Reshape):
        return None
    (source,) = view.inputs
    if source.shape[-1:] != view.output.shape[-1:]:
        return None
    return (site.one(Reshape(site.output.shape), site.one(site.op, source, *site.inputs[1:])),)


def _move(site: Site) -> Sequence[Value] | None:
    """f(view(x), view(y), numbers) as view(f(x, y, numbers))."""
    if not isinstance(site.op, Pointwise | Chain) or len(site.outputs) != 1:
        return None
    views = [_view(site, value) for value in site.inputs]
    first = next((view for view in views if view is not None), None)
    if first is None or first.output.shape != site.output.shape:
        return None
    before, op = _moved_op(site.op, first), first.op
    if before is None:
        return None
    sources: list[Value] = []
    for value, view in zip(site.inputs, views, strict=True):
        if view is not None and view.op == op and view.inputs[0].shape == first.inputs[0].shape:
            sources.append(view.inputs[0])
        elif site.is_constant(value) and _is_free_of(value, first):
            sources.append(value)
        else:
            return None
    return (site.one(op, site.one(before, *sources)),)


def _view(site: Site, value: Value) -> Node | None:
    """The Reshape or Permute that makes `value` for this node alone."""
    node = site.producer(value)
    is_view = node is not None and isinstance(node.op, Reshape | Permute)
    return node if is_view and site.is_used_once(value) else None


def _moved_op(op: Operator, view: Node) -> Operator | None:
    """The operator over the shape before the view, or None where its rows would change."""
    if isinstance(op, Pointwise):
        return op
    assert isinstance(op, Chain)
    shape, after = view.inputs[0].shape, view.output.shape
    keeps_rows = isinstance(view.op, Reshape) and shape[-1:] == after[-1:]
    return replace(op, shape=shape) if keeps_rows and op.shape == after else None


def _is_free_of(constant: Value, view: Node) -> bool:
    """Whether a constant means the same before the view: a number, or a row that stays one."""
    if len(constant.shape) > len(view.inputs[0].shape):
        return False
    if constant.type.size == 1:
        return True
    is_row = set(constant.shape[:-1]) <= {1} and constant.shape[-1] == view.inputs[0].shape[-1]
    if isinstance(view.op, Permute):
        return is_row and view.op.axes[-1] == len(view.op.axes) - 1
    return is_row and view.output.shape[-1] == view.inputs[0].shape[-1]


Found = Sequence[Value] | None


def simplify_views(graph: Graph) -> Graph:
    """The graph after one walk with the rules of this file."""
    return rewrite(graph, _nothing_done, _permute_of_ones, _two_in_a_row, _slice_of_concat, _concat)


def _nothing_done(site: Site) -> Found:
    """Replace a view that changes nothing by its only operand."""
    op = site.op
    if not isinstance(op, Reshape | Permute | Slice | Expand | Concat | Pad):
        return None
    (first, *rest), same = site.inputs, site.inputs[0].type == site.output.type
    in_order = not isinstance(op, Permute) or op.axes == tuple(range(len(op.axes)))
    return (first,) if same and in_order and not rest else None


def _permute_of_ones(site: Site) -> Found:
    """A Permute that keeps the order of all axes of more than one element is a Reshape."""
    if not isinstance(site.op, Permute):
        return None
    moved = [axis for axis in site.op.axes if site.inputs[0].shape[axis] != 1]
    if moved != sorted(moved):
        return None
    return (site.one(Reshape(site.output.shape), site.inputs[0]),)


def _two_in_a_row(site: Site) -> Found:
    is_view = isinstance(site.op, Reshape | Expand | Permute | Slice | Pad)
    node = site.producer(site.inputs[0]) if is_view else None
    if node is None or type(node.op) is not type(site.op):
        return None
    whole = _combined(node.op, site.op, len(site.output.shape))
    return None if whole is None else (site.one(whole, *node.inputs),)


def _combined(first: Any, then: Any, rank: int) -> Operator | None:
    """One view for two of the same kind."""
    if isinstance(then, Reshape | Expand):
        return then
    if isinstance(then, Permute):
        return Permute(tuple(first.axes[axis] for axis in then.axes))
    if isinstance(then, Slice):
        return _slice_of_slice(first, then, rank)
    if isinstance(then, Pad) and first.value == then.value:
        pairs = zip(first.widths, then.widths, strict=True)
        return Pad(tuple((a + c, b + d) for (a, b), (c, d) in pairs), then.value)
    return None


def _slice_of_slice(first: Slice, then: Slice, rank: int) -> Slice | None:
    if axis_of(first.axis, rank) != axis_of(then.axis, rank):
        return None
    kept = range(first.first, first.end, first.step)[then.first : then.end : then.step]
    if not kept:
        return None
    return Slice(first.axis, kept[0], kept[-1] + 1, kept.step)


def _slice_of_concat(site: Site) -> Found:
    """A part that lies in one operand of a Concat is a slice of that operand."""
    node = site.producer(site.inputs[0])
    if not isinstance(site.op, Slice) or node is None or not isinstance(node.op, Concat):
        return None
    axis = axis_of(site.op.axis, len(site.output.shape))
    if axis != axis_of(node.op.axis, len(site.output.shape)):
        return None
    start = 0
    for part in node.inputs:
        end = start + part.shape[axis]
        if start <= site.op.first and site.op.end <= end and site.op.first < site.op.end:
            inside = Slice(axis, site.op.first - start, site.op.end - start, site.op.step)
            return (site.one(inside, part),)
        start = end
    return None


def _concat(site: Site) -> Found:
    """Replace operands that are Concats along the axis by theirs, and join adjacent slices."""
    if not isinstance(site.op, Concat):
        return None
    axis = axis_of(site.op.axis, len(site.output.shape))
    parts = [part for value in site.inputs for part in _spread(site, value, axis)]
    joined: list[Value] = []
    for part in parts:
        whole = _joined(site, joined[-1], part, axis) if joined else None
        if whole is None:
            joined.append(part)
        else:
            joined[-1] = whole
    if tuple(joined) == site.inputs or not joined:
        return None
    return (joined[0] if len(joined) == 1 else site.one(Concat(axis), *joined),)


def _spread(site: Site, value: Value, axis: int) -> Sequence[Value]:
    node = site.producer(value)
    if node is None or not isinstance(node.op, Concat) or not site.is_used_once(value):
        return (value,) if value.shape[axis] else ()
    return node.inputs if axis_of(node.op.axis, len(value.shape)) == axis else (value,)


def _joined(site: Site, left: Value, right: Value, axis: int) -> Value | None:
    """One slice for two that follow each other in the same value."""
    nodes = site.producer(left), site.producer(right)
    if nodes[0] is None or nodes[1] is None or nodes[0].inputs != nodes[1].inputs:
        return None
    a, b = nodes[0].op, nodes[1].op
    if not isinstance(a, Slice) or not isinstance(b, Slice) or a.step != 1 or b.step != 1:
        return None
    rank = len(left.shape)
    if not axis_of(a.axis, rank) == axis_of(b.axis, rank) == axis or a.end != b.first:
        return None
    return site.one(Slice(axis, a.first, b.end), *nodes[0].inputs)
