"""Removes views that do nothing, and merges views in a row.

a = permute(x, (1, 0))            b = reshape(x, (6,))        (x of shape (1, 6))
b = reshape(a, (6,))         ->
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Operator
from sparsejit.ir.ops.types import axis_of
from sparsejit.ir.ops.views import Concat, Expand, Pad, Permute, Reshape, Slice
from sparsejit.ir.values import Value
from sparsejit.passes.rewriter import Site, rewrite

Found = Sequence[Value] | None


def simplify_views(graph: Graph) -> Graph:
    """The graph after one walk with the rules of this file."""
    return rewrite(graph, _nothing_done, _permute_of_ones, _two_in_a_row, _slice_of_concat, _concat)


def _nothing_done(site: Site) -> Found:
    """A view whose result is its only operand."""
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
