"""Merges elementwise work and row reductions into chains that read and write memory once.

    s = add(x, y)                     s, n = chain(x, y, ...)[add, row_sum, ... fma]
    n = layer_norm(s)            ->   z = linear(n, W)
    z = linear(n, W)                  o = chain(z, s)[add]
    o = add(z, s)

Afterwards no Pointwise is left. No work is done twice: a producer moves into one consumer, which
also returns the results that others read.
"""

from __future__ import annotations

from heapq import heappop, heappush

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.pointwise import Chain, Pointwise
from sparsejit.ir.values import Element, Value
from sparsejit.passes.chain_steps import as_chain, merged, tidied

# Operands of more than one element, or not constant; one pointer each. Results likewise.
MOST_OPERANDS = 8
MOST_RESULTS = 2
MOST_STEPS = 40


def fuse_chains(graph: Graph) -> Graph:
    """The graph with as few chains as the limits allow, and no Pointwise."""
    fusion = _Fusion(graph)
    for node in list(fusion.nodes):
        if isinstance(node.op, Chain):
            fusion.draw_in_producers(node)
    return graph if not fusion.is_changed else fusion.finish()


class _Fusion:
    """The graph's nodes while they merge; values stay the same objects throughout."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.nodes: dict[Node, int] = {}
        self.is_changed = False
        self._producers: dict[Value, Node] = {}
        self._readers: dict[Value, dict[Node, None]] = {v: {} for v in graph.values()}
        for place, node in enumerate(graph.nodes):
            is_elementwise = isinstance(node.op, Pointwise | Chain)
            chain = tidied(as_chain(node)) if is_elementwise else node
            self.is_changed = self.is_changed or chain is not node
            self._insert(chain, place)

    def _insert(self, node: Node, place: int) -> None:
        self.nodes[node] = place
        self._producers.update((value, node) for value in node.outputs)
        for value in node.inputs:
            self._readers[value][node] = None

    def _remove(self, node: Node) -> int:
        for value in node.inputs:
            self._readers[value].pop(node, None)
        return self.nodes.pop(node)

    def draw_in_producers(self, consumer: Node) -> None:
        """Merge producers that are chains into a consumer until none fits."""
        current: Node | None = consumer if consumer in self.nodes else None
        while current is not None:
            candidates = dict.fromkeys(map(self._producers.get, current.inputs))
            attempts = (self._try(producer, current) for producer in candidates if producer)
            current = next((made for made in attempts if made), None)

    def _try(self, producer: Node, consumer: Node) -> Node | None:
        """The merged node, put in the place of both, or None."""
        if not isinstance(producer.op, Chain) or _is_integer(producer) != _is_integer(consumer):
            return None
        also = [value for value in producer.outputs if self._is_read_beside(value, consumer)]
        if also and self._is_reached_indirectly(producer, consumer):
            return None
        made = merged(producer, consumer, also)
        if made is None or not self._fits(made):
            return None
        self._remove(producer)
        self._insert(made, self._remove(consumer))
        self.is_changed = True
        return made

    def _is_read_beside(self, value: Value, consumer: Node) -> bool:
        return value in self._graph.outputs or self._readers[value].keys() != {consumer}

    def _is_reached_indirectly(self, producer: Node, consumer: Node) -> bool:
        """Whether a path leads from one to the other through a third node."""
        direct = set(producer.outputs)
        ahead = [value for value in consumer.inputs if value not in direct]
        seen: set[Node] = set()
        while ahead:
            node = self._producers.get(ahead.pop())
            if node is producer:
                return True
            if node is not None and node not in seen:
                seen.add(node)
                ahead.extend(node.inputs)
        return False

    def _fits(self, node: Node) -> bool:
        assert isinstance(node.op, Chain)
        constants = self._graph.constants
        arrays = [v for v in node.inputs if v.type.size > 1 or v not in constants]
        within = len(arrays) <= MOST_OPERANDS and len(node.outputs) <= MOST_RESULTS
        return within and len(node.op.steps) <= MOST_STEPS

    def finish(self) -> Graph:
        """The graph, with its nodes in their old order as far as they can run in it."""
        missing = {
            node: len({self._producers[v] for v in node.inputs if v in self._producers})
            for node in self.nodes
        }
        at = {place: node for node, place in self.nodes.items()}
        ready = sorted(place for node, place in self.nodes.items() if not missing[node])
        order: list[Node] = []
        while ready:
            node = at[heappop(ready)]
            order.append(node)
            for reader in {r: None for v in node.outputs for r in self._readers[v]}:
                missing[reader] -= 1
                if not missing[reader]:
                    heappush(ready, self.nodes[reader])
        graph = self._graph
        return Graph(graph.inputs, graph.outputs, tuple(order), graph.constants)


def _is_integer(node: Node) -> bool:
    """Whether the node computes with whole numbers; those chains stay apart from float ones."""
    values = (*node.inputs, *node.outputs)
    return any(value.type.element is Element.INT64 for value in values)
