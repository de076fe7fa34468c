"""Memory that an operator reserves and does not write, and the proof that no output shows it.

y = empty(3, 2)
y[:, 0] = a          y is Concat of a and b: none of its elements is unwritten
y[:, 1] = b
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from sparsejit.frontends.writing.missing import Missing
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.ops.views import Concat, Expand, Pad, Permute, Reshape, Slice
from sparsejit.ir.values import Array, Value
from sparsejit.passes.rewriter import remove_dead_code

_VIEWS = (Reshape, Permute, Slice, Expand, Concat, Pad)
_REASON = "leaves memory unwritten that an output shows; start from zeros() or full()"


def without_unwritten(graph: Graph, unwritten: Mapping[Value, str]) -> tuple[Graph, list[Missing]]:
    """The graph without inputs that stand for unwritten memory, and the operators that show it.

    `unwritten` names the operator of each such input. An input is shown if an output may depend on
    one of its elements. Zeros take the place of the others.
    """
    if not unwritten:
        return graph, []
    missing = [
        Missing(name, _REASON, value.origin)
        for value, name in unwritten.items()
        if any(mask.any() for mask in _shown(graph, value))
    ]
    inputs = tuple(value for value in graph.inputs if value not in unwritten)
    zeros = {
        value: np.zeros(value.shape, value.type.element.value)
        for value in graph.inputs
        if value in unwritten
    }
    constants = {**graph.constants, **zeros}
    return remove_dead_code(replace(graph, inputs=inputs, constants=constants)), missing


def _shown(graph: Graph, source: Value) -> list[Array]:
    """For each output, the mask of its elements that may depend on the input `source`."""
    masks: dict[Value, Array] = {source: np.ones(source.shape, bool)}
    for node in graph.nodes:
        if not masks.keys().isdisjoint(node.inputs):
            given = [_mask(masks, value) for value in node.inputs]
            found = _spread(graph, node, given)
            masks.update(pair for pair in zip(node.outputs, found, strict=True) if pair[1].any())
    return [_mask(masks, value) for value in graph.outputs]


def _mask(masks: Mapping[Value, Array], value: Value) -> Array:
    return masks[value] if value in masks else np.zeros(value.shape, bool)


def _spread(graph: Graph, node: Node, given: Sequence[Array]) -> Sequence[Array]:
    """Masks of the elements of a node's outputs that may depend on the marked elements it reads.

    They are exact for views and known choices; else all that may depend are marked.
    """
    if isinstance(node.op, _VIEWS):
        op = replace(node.op, value=0.0) if isinstance(node.op, Pad) else node.op
        return op.reference(*given)
    if isinstance(node.op, Pointwise):
        condition = graph.constants.get(node.inputs[0])
        if node.op.kind == "where" and condition is not None:
            return [np.where(condition, *given[1:])]
        return [np.logical_or.reduce(np.broadcast_arrays(*given))]
    reached = any(mask.any() for mask in given)
    return [np.full(value.shape, reached) for value in node.outputs]
