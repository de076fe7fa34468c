"""Orders nodes so that less memory is held at once.

    a = linear(x, W)                  a = linear(x, W)
    b = linear(x, V)             ->   c = row_sum(a)       (a's memory is free again)
    c = row_sum(a)                    b = linear(x, V)
    d = row_sum(b)                    d = row_sum(b)

List scheduling: of the nodes that can run, the one that frees most or takes least comes next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.views import Reshape
from sparsejit.ir.values import Value


def order_for_memory(graph: Graph) -> Graph:
    """The graph in a greedy order, if that lowers its peak."""
    order = _greedy_order(graph)
    better = _peak(graph, order) < _peak(graph, graph.nodes)
    return Graph(graph.inputs, graph.outputs, order, graph.constants) if better else graph


def peak_bytes(graph: Graph) -> int:
    """The most bytes of intermediate values at once, without alignment.

    Inputs, constants and outputs do not count.

    While a node runs, its operands and its results are held. A Reshape shares its operand's memory.
    """
    return _peak(graph, graph.nodes)


class _HeldMemory:
    """The bytes that values hold while nodes run one after the other."""

    def __init__(self, graph: Graph) -> None:
        self.held = self.peak = 0
        self._owner: dict[Value, Value] = {}
        for node in graph.nodes:
            for value in node.outputs:
                alias = node.inputs[0] if isinstance(node.op, Reshape) else value
                self._owner[value] = self._owner.get(alias, alias)
        outside = {*graph.inputs, *graph.constants}
        outside.update(self._owner.get(value, value) for value in graph.outputs)
        self._bytes = {
            owner: 0 if owner in outside else owner.type.bytes for owner in self._owner.values()
        }
        self._left = Counter(owner for node in graph.nodes for owner in self._reads(node))

    def _reads(self, node: Node) -> set[Value]:
        """The owners of the memory that a node reads."""
        return {self._owner[value] for value in node.inputs if value in self._owner}

    def _takes(self, node: Node) -> int:
        return sum(self._bytes[value] for value in node.outputs if self._owner[value] is value)

    def _frees(self, node: Node) -> int:
        """Bytes that are free once the node has run: operands read last, and results never read."""
        last = sum(self._bytes[owner] for owner in self._reads(node) if self._left[owner] == 1)
        unread = (v for v in node.outputs if self._owner[v] is v and not self._left[v])
        return last + sum(self._bytes[value] for value in unread)

    def growth(self, node: Node) -> int:
        """The change of held bytes by running the node."""
        return self._takes(node) - self._frees(node)

    def run(self, node: Node) -> None:
        self.peak = max(self.peak, self.held + self._takes(node))
        self.held += self.growth(node)
        self._left.subtract(self._reads(node))


def _peak(graph: Graph, order: Sequence[Node]) -> int:
    memory = _HeldMemory(graph)
    for node in order:
        memory.run(node)
    return memory.peak


def _greedy_order(graph: Graph) -> tuple[Node, ...]:
    """Nodes by the least growth of held bytes; the earlier among equals stays first."""
    memory, producers, readers = _HeldMemory(graph), graph.producers(), graph.consumers()
    missing = {
        node: len({producers[value] for value in node.inputs if value in producers})
        for node in graph.nodes
    }
    place = {node: number for number, node in enumerate(graph.nodes)}
    ready = [node for node in graph.nodes if not missing[node]]
    order: list[Node] = []
    while ready:
        node = min(ready, key=lambda node: (memory.growth(node), place[node]))
        ready.remove(node)
        memory.run(node)
        order.append(node)
        for reader in {reader: None for value in node.outputs for reader in readers[value]}:
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    return tuple(order)
