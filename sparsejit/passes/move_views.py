"""Moves Reshape and Permute behind operators that compute, so that these stand together.

y = linear(x, W)                  y = linear(x, W)
r = reshape(y, (2, 3, 8))    ->   z = relu(y)
z = relu(r)                       r = reshape(z, (2, 3, 8))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node, Operator
from sparsejit.ir.ops.pointwise import Chain, Pointwise
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.views import Permute, Reshape
from sparsejit.ir.values import Value
from sparsejit.passes.rewriter import Site, rewrite


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
