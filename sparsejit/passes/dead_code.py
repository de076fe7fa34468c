"""Drops nodes and constants that no output depends on.

y = linear(x, W)                       y = linear(x, W)
z = relu(y)          (not read)   ->   return y
return y
"""

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.values import Value


def remove_dead_code(graph: Graph) -> Graph:
    """The graph without nodes and constants that no output depends on; inputs stay."""
    needed: set[Value] = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    constants = {value: array for value, array in graph.constants.items() if value in needed}
    if len(kept) == len(graph.nodes) and len(constants) == len(graph.constants):
        return graph
    return Graph(graph.inputs, graph.outputs, tuple(reversed(kept)), constants)
