"""Merges elementwise work and row reductions into chains that read and write memory once.

    merged, tidied   the arithmetic on the steps of chains
    fuse_chains      the pass

Steps of two chains:

    a = chain(x, k)[mul(0, 1)]            b = chain(x, k)[mul(0, 1), exp(2)]
    b = chain(a)[exp(0)]             ->

The pass:

    s = add(x, y)                     s, n = chain(x, y, ...)[add, row_sum, ... fma]
    n = layer_norm(s)            ->   z = linear(n, W)
    z = linear(n, W)                  o = chain(z, s)[add]
    o = add(z, s)

Afterwards no Pointwise is left. No work is done twice: a producer moves into one consumer, which
also returns the results that others read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from math import prod

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.pointwise import FUNCTIONS, Chain, ChainStep, Pointwise
from sparsejit.ir.values import Element, Value

# Most names of parts in a fused chain's title.
MOST_TITLES = 4


def as_chain(node: Node) -> Node:
    """A Pointwise node as a chain of one step; a Chain node as it is."""
    if isinstance(node.op, Chain):
        return node
    assert isinstance(node.op, Pointwise)
    count = len(node.inputs)
    step = ChainStep(node.op.kind, tuple(range(count)))
    chain = Chain(node.output.shape, count, (step,), (count,), node.op.kind)
    return Node(chain, node.inputs, node.outputs)


def merged(producer: Node, consumer: Node, also: Collection[Value]) -> Node | None:
    """Merge two chains into one, which returns the producer's results in `also` as well.

    None where the two do not walk the same rows, so that work would be repeated, and where types
    would change.
    """
    first, second = producer.op, consumer.op
    assert isinstance(first, Chain) and isinstance(second, Chain)
    shape = common_shape(first, second)
    if shape is None:
        return None
    outside = [*producer.inputs, *(v for v in consumer.inputs if v not in producer.outputs)]
    inputs = tuple(dict.fromkeys(outside))
    known = {value: number for number, value in enumerate(inputs)}
    steps: list[ChainStep] = []
    for node, chain in ((producer, first), (consumer, second)):
        numbers = [known[value] for value in node.inputs]
        for step in chain.steps:
            numbers.append(len(inputs) + len(steps))
            steps.append(ChainStep(step.kind, tuple(numbers[n] for n in step.arguments)))
        results = zip(node.outputs, chain.results, strict=True)
        known.update((value, numbers[n]) for value, n in results)
    outputs = (*(v for v in producer.outputs if v in also), *consumer.outputs)
    chosen = tuple(known[value] for value in outputs)
    whole = Chain(shape, len(inputs), tuple(steps), chosen, _title(first.title, second.title))
    made = tidied(Node(whole, inputs, outputs))
    types = made.op.infer(*(value.type for value in made.inputs))
    return made if types == tuple(value.type for value in outputs) else None


def common_shape(first: Chain, second: Chain) -> tuple[int, ...] | None:
    """The shape over which both chains do the same work as alone, or None.

    They must have equally many rows. A chain whose rows have one element must not reduce them: it
    becomes work once a row.
    """
    try:
        shape = np.broadcast_shapes(first.shape, second.shape)
    except ValueError:
        return None
    for chain in (first, second):
        if prod(chain.shape[:-1]) != prod(shape[:-1]):
            return None
        if chain.shape[-1:] != shape[-1:] and chain.reduces:
            return None
    return shape


def _title(*titles: str) -> str:
    """The title of merged chains: the first MOST_TITLES names in their titles, joined by "+"."""
    names = [name for title in titles for name in title.split("+") if name not in ("chain", "...")]
    shown = list(dict.fromkeys(names))
    more = ["..."] if len(shown) > MOST_TITLES else []
    return "+".join([*shown[:MOST_TITLES], *more]) or "chain"


def tidied(node: Node) -> Node:
    """A chain's node without equal steps, unread steps, unread or repeated operands.

    A product that only a sum reads becomes an fma with it, where all operands are float32.
    """
    op = node.op
    assert isinstance(op, Chain)
    inputs = tuple(dict.fromkeys(node.inputs))
    numbers = [inputs.index(value) for value in node.inputs]
    steps: list[ChainStep] = []
    seen: dict[ChainStep, int] = {}
    for step in op.steps:
        same = ChainStep(step.kind, tuple(numbers[n] for n in step.arguments))
        if same not in seen:
            seen[same] = len(inputs) + len(steps)
            steps.append(same)
        numbers.append(seen[same])
    results = tuple(numbers[n] for n in op.results)
    if all(value.type.element is Element.FLOAT32 for value in inputs):
        steps = _with_fma(steps, results, len(inputs))
    made = _without_unread(Node(op, inputs, node.outputs), steps, results)
    return node if made.op == op and made.inputs == node.inputs else made


def _with_fma(
    steps: Sequence[ChainStep], results: tuple[int, ...], operands: int
) -> list[ChainStep]:
    """The steps with add(mul(a, b), c) as fma(a, b, c); the mul is left unread."""
    uses = Counter([*results, *(n for step in steps for n in step.arguments)])
    bools = {i for i, s in enumerate(steps, operands) if s.kind in FUNCTIONS and _answers(s)}
    fused = list(steps)
    for place, step in enumerate(steps):
        if step.kind != "add":
            continue
        for product, other in (step.arguments, step.arguments[::-1]):
            if product < operands or steps[product - operands].kind != "mul":
                continue
            arguments = (*steps[product - operands].arguments, other)
            if uses[product] == 1 and product != other and not bools.intersection(arguments):
                fused[place] = ChainStep("fma", arguments)
                break
    return fused


def _answers(step: ChainStep) -> bool:
    return FUNCTIONS[step.kind].to_bool


def _without_unread(node: Node, steps: list[ChainStep], results: tuple[int, ...]) -> Node:
    """The node with only the steps and operands that a result depends on."""
    op, count = node.op, len(node.inputs)
    assert isinstance(op, Chain)
    needed = set(results)
    for number in reversed(range(len(steps))):
        if count + number in needed:
            needed.update(steps[number].arguments)
    kept = sorted(needed)
    new = {old: place for place, old in enumerate(kept)}
    chosen = tuple(
        ChainStep(steps[n - count].kind, tuple(new[a] for a in steps[n - count].arguments))
        for n in kept
        if n >= count
    )
    inputs = tuple(node.inputs[n] for n in kept if n < count)
    results = tuple(new[n] for n in results)
    whole = Chain(op.shape, len(inputs), chosen, results, op.title)
    return Node(whole, inputs, node.outputs)


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
        """Merge the chains that `consumer` reads into it, then their producers, until none fits."""
        current: Node | None = consumer if consumer in self.nodes else None
        while current is not None:
            candidates = dict.fromkeys(map(self._producers.get, current.inputs))
            attempts = (self._try(producer, current) for producer in candidates if producer)
            current = next((made for made in attempts if made), None)

    def _try(self, producer: Node, consumer: Node) -> Node | None:
        """Merge a producer into a consumer; return the merged node, or None if they do not fit."""
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
