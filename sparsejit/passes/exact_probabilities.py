"""Makes probabilities that a model returns precise to their last digits.

    p = sigmoid(x)                    e = exp(neg(x))
    return reshape(p)            ->   p = reciprocal(add(e, 1))
                                      return reshape(p)

Within a model sigmoid may have an error of 5e-7, which makes it almost free at the end of a
product. But a probability of 1e-4 that is read by itself, or compared, would lose digits.
"""

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.pointwise import Chain, Pointwise
from sparsejit.ir.ops.row_chains import ChainWriter
from sparsejit.ir.ops.views import Concat, Expand, Permute, Reshape, Slice
from sparsejit.ir.values import Value
from sparsejit.passes.rewriter import Site, rewrite

_PASSING = (Reshape, Permute, Slice, Concat, Expand)
# Functions that keep the relative precision of operands that are not negative.
_KEEPING = {"row_sum", "row_max", "mul", "maximum", "minimum"}


def exact_probabilities(graph: Graph) -> Graph:
    """The graph with a precise sigmoid where outputs show its digits."""
    shown = _shown(graph)

    def exact(site: Site) -> tuple[Value, ...] | None:
        if site.op != Pointwise("sigmoid") or site.output not in shown:
            return None
        (x,) = site.inputs
        write = ChainWriter(x.shape, 2)
        power = write.step("exp", write.step("neg", 0))
        chain = write.finish(write.step("reciprocal", write.step("add", power, 1)), title="sigmoid")
        return site.add(chain, x, site.constant(np.ones((), np.float32)))

    return rewrite(graph, exact)


def _shown(graph: Graph) -> set[Value]:
    """Outputs of the graph, and values that become outputs without a loss of relative precision."""
    producers = {value: node for node in graph.nodes for value in node.outputs}
    found, ahead = set(graph.outputs), list(graph.outputs)
    while ahead:
        node = producers.get(ahead.pop())
        if node is not None and _passes(node):
            ahead.extend(value for value in node.inputs if value not in found)
            found.update(node.inputs)
    return found


def _passes(node: Node) -> bool:
    if isinstance(node.op, Pointwise):
        return node.op.kind in _KEEPING
    if isinstance(node.op, Chain):
        return {step.kind for step in node.op.steps} <= _KEEPING
    return isinstance(node.op, _PASSING)
