"""Adds the recurrent bias once to the input product, instead of at every step.

    g = linear(x, W_ih, b_ih)         g = linear(x, W_ih, b_ih + b_hh)
    h = lstm(g, h0, c0, W_hh, b_hh)   h = lstm(g, h0, c0, W_hh, 0)
                                 ->

A GRU does so for its gates r and z only: n multiplies its recurrent part by r first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.recurrent import Recurrence, RecurrentCell
from sparsejit.ir.ops.views import Permute, Reshape
from sparsejit.ir.spec import Activation
from sparsejit.ir.values import Value
from sparsejit.passes.rewriter import Site, rewrite


def fold_recurrent_bias(graph: Graph) -> Graph:
    """The graph with as much of b_hh as possible in the product before the recurrence."""
    return rewrite(graph, _fold)


def _fold(site: Site) -> Sequence[Value] | None:
    if not isinstance(site.op, Recurrence):
        return None
    gates, *states, weights, second = site.inputs
    recurrent, views = site.array(second), _views_behind_linear(site, gates)
    if recurrent is None or views is None:
        return None
    linear, *rest = views
    x, input_weights, *bias = linear.inputs
    first = site.array(bias[0]) if bias else np.zeros_like(recurrent)
    rows = len(recurrent) * 2 // 3 if site.op.cell is RecurrentCell.GRU else len(recurrent)
    if first is None or not recurrent[:rows].any():
        return None
    total, left = first.astype(np.float64), recurrent.copy()
    total[:rows] += recurrent[:rows]
    left[:rows] = 0
    named = bias[0].origin if bias else second.origin
    operands = (x, input_weights, site.constant(total, named))
    moved = site.one(linear.op, *operands, origin=linear.output.origin)
    for view in rest:
        moved = site.one(view.op, moved, origin=view.output.origin)
    left_bias = site.constant(left, second.origin)
    return site.add(site.op, moved, *states, weights, left_bias)


def _views_behind_linear(site: Site, value: Value) -> list[Node] | None:
    """A plain Linear and the views that lead to `value`, all read once, features kept last."""
    views: list[Node] = []
    while (node := site.producer(value)) is not None and site.is_used_once(value):
        views.append(node)
        if isinstance(node.op, Linear):
            return views[::-1] if node.op.activation is Activation.NONE else None
        if not _keeps_features(node):
            return None
        (value,) = node.inputs
    return None


def _keeps_features(node: Node) -> bool:
    if isinstance(node.op, Permute):
        return node.op.axes[-1] == len(node.op.axes) - 1
    if isinstance(node.op, Reshape):
        return node.inputs[0].shape[-1:] == node.output.shape[-1:]
    return False
