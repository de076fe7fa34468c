"""Choose the values that lie feature-major: x and y of panels, and values of chains between them.

    linear -> gelu -> linear                   no product transposes the values between them
    linear -> add, layer norm -> 3 x linear    the residual lies feature-major too
    3 x linear -> attention -> linear          scores have queries in the lanes

A value may lie both ways, by a copy, where it has other readers. Chains and attentions are tried
both ways, connected ones together, so that as few elements as possible are transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.pointwise import Chain, Pointwise
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.ir.values import Element, Value
from sparsejit.lowering.column_attention import ColumnAttention, column_attention
from sparsejit.machine.target import Target
from sparsejit.passes.chain_steps import as_chain
from sparsejit.planner.choice import about, choose, least, priced
from sparsejit.planner.layer_planner import LayerPlanner

# Cost of copying an element, relative to a product's cost of transposing one: 1.0 to 1.8.
_COPY = 2


@dataclass(frozen=True)
class FeatureMajor:
    """Values that are `made`, and that can be `read`, feature-major, and the nodes that use them.

    `panels` are linear layers that take panels; `chains` and `attentions` run over columns.
    View operators `between` an attention and its feature-major values are not computed.
    """

    panels: frozenset[Node]
    chains: frozenset[Node]
    attentions: Mapping[Node, ColumnAttention]
    between: frozenset[Node]
    made: frozenset[Value]
    read: frozenset[Value]


_NOTHING = FeatureMajor(frozenset(), frozenset(), {}, frozenset(), frozenset(), frozenset())


class _Lying(NamedTuple):
    """A way for a value to lie, and its cost: the number of elements that are transposed."""

    cost: int
    is_made: bool
    is_read: bool


def feature_major(
    graph: Graph,
    readers: Mapping[Value, Sequence[Node]],
    wanted: Collection[Value],
    takes_panels: Callable[[Node], bool],
    target: Target,
) -> FeatureMajor:
    """The values that should lie feature-major; `wanted` have a batch-major place already."""
    panels = frozenset(node for node in graph.nodes if takes_panels(node))
    if not panels:
        return _NOTHING
    return _Sides(graph, readers, {*wanted, *graph.outputs}, panels, target).chosen()


def is_by_column(node: Node) -> bool:
    """Whether a node is a float32 chain over columns: operands are whole, a row, or a number."""
    if not isinstance(node.op, Pointwise | Chain):
        return False
    chain = as_chain(node).op
    assert isinstance(chain, Chain)
    if prod(chain.shape[:-1]) < 2 or 0 in chain.shape:
        return False
    values = (*node.inputs, *node.outputs)
    return (
        all(value.type.element is Element.FLOAT32 for value in values)
        and all(is_whole(value, chain) for value in node.outputs)
        and all(_fits(value, chain) for value in node.inputs)
    )


def is_whole(value: Value, chain: Chain) -> bool:
    """Whether a value has all elements of a chain's shape."""
    return value.type.size == prod(chain.shape) and value.shape[-1:] == chain.shape[-1:]


def _whole(node: Node) -> list[Value]:
    """The values of a chain that have all elements of its shape."""
    chain = as_chain(node).op
    assert isinstance(chain, Chain)
    return [v for v in dict.fromkeys((*node.inputs, *node.outputs)) if is_whole(v, chain)]


def _fits(value: Value, chain: Chain) -> bool:
    features = chain.shape[-1]
    by_feature = value.type.size == features and value.shape[-1:] == (features,)
    return value.type.size == 1 or by_feature or is_whole(value, chain)


class TakesPanels:
    """Whether a node is a linear layer of several rows for which panels are clearly best.

    Layers of one shape and about equal density share one answer, because finding it takes longer
    than choosing a kernel for a known matrix.
    """

    def __init__(
        self,
        planner: LayerPlanner,
        matrix: Callable[[Value], SparseMatrix],
        nonzeros: Callable[[Value], int],
    ) -> None:
        self._planner, self._matrix, self._nonzeros = planner, matrix, nonzeros
        self._answers: dict[tuple[object, ...], bool] = {}

    def __call__(self, node: Node) -> bool:
        if not isinstance(node.op, Linear) or prod(node.inputs[0].shape[:-1]) < 2:
            return False
        if not node.inputs[1].type.size:
            return False
        (x, weights), dtype = node.inputs[:2], node.op.dtype
        rows, percent = prod(x.shape[:-1]), 100 * self._nonzeros(weights) // weights.type.size
        case = rows, weights.shape, dtype, percent
        if case not in self._answers:
            out_features, in_features = weights.shape
            each, matrix = MatVec(out_features, in_features, dtype=dtype), self._matrix(weights)
            self._answers[case] = self._planner.prefers_panels(each, rows, matrix)
        return self._answers[case]


class _Sides:
    """Nodes that may run on rows or columns, and the choice of the nodes that run on columns."""

    def __init__(
        self,
        graph: Graph,
        readers: Mapping[Value, Sequence[Node]],
        wanted: Collection[Value],
        panels: frozenset[Node],
        target: Target,
    ) -> None:
        self.readers, self.producers = dict(readers), graph.producers()
        self.panels, self.wanted = panels, wanted
        self.values: dict[Node, list[Value]] = {}  # of such a node: may lie feature-major
        self.attentions: dict[Node, ColumnAttention] = {}
        self.columns: set[Node] = set()
        for node in graph.nodes:
            if is_by_column(node):
                self.values[node] = _whole(node)
        for node in graph.nodes:
            attention = column_attention(
                node, self.producers, readers, wanted.__contains__, target
            )
            if attention is not None:
                self._add(attention)

    def _add(self, attention: ColumnAttention) -> None:
        """Add an attention as if the views around it did not exist."""
        node = attention.node
        self.attentions[node] = attention
        self.values[node] = [*dict.fromkeys(attention.roots), attention.sink]
        self.readers |= {root: [node] for root in attention.roots}
        self.producers[attention.sink] = node

    def chosen(self) -> FeatureMajor:
        """Choose the nodes that run on columns, and the values that lie feature-major."""
        for group in self._groups():
            self._choose(group)
        values = dict.fromkeys(v for node in self.panels for v in (node.inputs[0], node.output))
        values |= dict.fromkeys(v for node in self.columns for v in self.values[node])
        lying = {value: self._lying(value) for value in values}
        attentions = {n: each for n, each in self.attentions.items() if n in self.columns}
        return FeatureMajor(
            self.panels,
            frozenset(self.columns.difference(attentions)),
            attentions,
            frozenset(node for each in attentions.values() for node in each.between),
            frozenset(value for value, how in lying.items() if how.is_made),
            frozenset(value for value, how in lying.items() if how.is_read),
        )

    def _groups(self) -> list[list[Node]]:
        """Groups of connected nodes: one reads the other's value, or both read the same value."""
        groups: list[list[Node]] = []
        left = dict.fromkeys(self.values)
        while left:
            ahead, group = [next(iter(left))], []
            while ahead:
                node = ahead.pop()
                if node not in left:
                    continue
                del left[node]
                group.append(node)
                for value in self.values[node]:
                    ahead += [self.producers[value]] if value in self.producers else []
                    ahead += self.readers[value]
            groups.append(group)
        return groups

    def _choose(self, group: list[Node]) -> None:
        """Choose nodes of a group: improve the choice of none and of all, and take the cheaper."""
        values = list(dict.fromkeys(v for node in group for v in self.values[node]))
        rows = []
        for name, start in (("by row", set[Node]()), ("by column", set(group))):
            self.columns |= start
            self._improve(group)
            cost = self._cost(values)
            of_columns = self.columns.intersection(group)
            rows.append(priced(name, cost, of_columns))
            self.columns -= set(group)
        about(group[0].outputs[0].origin.layer)
        self.columns |= choose("layout", rows, None, unit="elements").row.emitter

    def _improve(self, group: list[Node]) -> None:
        """Change single nodes to the other way as long as that lowers the cost."""
        gains = True
        while gains:
            gains = False
            for node in group:
                values = self.values[node]
                costs = {False: self._cost(values)}
                self.columns ^= {node}
                costs[True] = self._cost(values)
                if least(costs, costs.__getitem__):
                    gains = True
                else:
                    self.columns ^= {node}

    def _cost(self, values: Sequence[Value]) -> int:
        """Number of elements of these values that are transposed."""
        return sum(self._lying(value).cost for value in values)

    def _lying(self, value: Value) -> _Lying:
        """The cheapest way for a value to lie, given the nodes chosen so far."""
        producer, readers = self.producers.get(value), self.readers[value]
        by_panels = producer in self.panels
        ways = [producer in self.columns]
        if by_panels:
            ways = [False] if value in self.wanted else [False, True]
        panels = sum(node in self.panels and node.inputs[0] is value for node in readers)
        asked = {node in self.columns for node in readers if node not in self.panels}
        if value in self.wanted:
            asked.add(False)
        found = []
        for is_made in ways:
            for all_asked in (asked, asked | {True}):
                places = all_asked | {is_made}
                turned = (by_panels and not is_made) + (0 if True in places else panels)
                cost = value.type.size * (turned + _COPY * (len(places) - 1))
                found.append(_Lying(cost, is_made, True in places))
        return least(found, lambda each: each.cost)
