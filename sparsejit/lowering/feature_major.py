"""Which values lie feature-major: what panels make or read, and what chains compute in between.

    linear -> gelu -> linear                   no product transposes what lies between them
    linear -> add, layer norm -> 3 x linear    the residual lies so too

A value may lie both ways, by a copy, where others read it. Chains are tried both ways, those that
hand on to each other together, for as few elements as possible to be transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from sparsejit.asm_templates.batch.lowered_batch import spread_pitch
from sparsejit.ir.graph import Element, Graph, Node, TensorType, Value
from sparsejit.ir.ops.pointwise import Chain, Pointwise
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.lowering.memory.storage import View
from sparsejit.passes.chain_steps import as_chain
from sparsejit.planner.layer_planner import LayerPlanner

# What a copy takes, of what a product takes to transpose as many elements: 1.0 to 1.8.
_COPY = 2


@dataclass(frozen=True)
class FeatureMajor:
    """Chains that run over columns; values that are made, and that can be read, feature-major.

    `panels` are the linear layers that take panels.
    """

    panels: frozenset[Node]
    chains: frozenset[Node]
    made: frozenset[Value]
    read: frozenset[Value]


class _Lying(NamedTuple):
    """What is transposed, in elements, and how a value lies then."""

    cost: int
    is_made: bool
    is_read: bool


def feature_major(
    graph: Graph,
    readers: Mapping[Value, Sequence[Node]],
    wanted: Collection[Value],
    takes_panels: Callable[[Node], bool],
) -> FeatureMajor:
    """What should lie so; `wanted` are values that have a place already, batch-major."""
    return _ChainSides(graph, readers, wanted, takes_panels).made()


def is_by_column(node: Node) -> bool:
    """Whether a node is a chain of float32 over columns: operands are whole, by feature, or one."""
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


def _fits(value: Value, chain: Chain) -> bool:
    features = chain.shape[-1]
    by_feature = value.type.size == features and value.shape[-1:] == (features,)
    return value.type.size == 1 or by_feature or is_whole(value, chain)


def padded_type(value: Value) -> TensorType:
    """The matrix (features, columns and padding) that a value is."""
    *rows, features = value.shape
    return replace(value.type, shape=(features, spread_pitch(prod(rows))))


def columns_of(matrix: View, value: Value) -> View:
    """A value, of which a column of a padded matrix is a row."""
    rows = prod(value.shape[:-1])
    view = matrix.sliced(1, 0, rows).permuted((1, 0)).reshaped(value.shape)
    assert view is not None
    return view


class TakesPanels:
    """Whether a node is a linear layer of several rows for which panels are clearly best.

    Layers of one shape and about as many zeros have one answer, as it takes longer than to choose a
    kernel whose matrix is known.
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
        (x, weights), dtype = node.inputs[:2], node.op.dtype
        rows, percent = prod(x.shape[:-1]), 100 * self._nonzeros(weights) // weights.type.size
        case = rows, weights.shape, dtype, percent
        if case not in self._answers:
            out_features, in_features = weights.shape
            each, matrix = MatVec(out_features, in_features, dtype=dtype), self._matrix(weights)
            self._answers[case] = self._planner.prefers_panels(each, rows, matrix)
        return self._answers[case]


class _ChainSides:
    def __init__(
        self,
        graph: Graph,
        readers: Mapping[Value, Sequence[Node]],
        wanted: Collection[Value],
        takes_panels: Callable[[Node], bool],
    ) -> None:
        self.readers, self.producers = readers, graph.producers()
        self.panels = {node for node in graph.nodes if takes_panels(node)}
        self.wanted = {*wanted, *graph.outputs}
        self.constants = graph.constants
        possible = [node for node in graph.nodes if is_by_column(node)] if self.panels else []
        self.possible = dict.fromkeys(possible)
        self.chains: set[Node] = set()

    def made(self) -> FeatureMajor:
        for group in self._groups():
            self._choose(group)
        values = dict.fromkeys(v for node in self.panels for v in (node.inputs[0], node.output))
        values |= dict.fromkeys(v for node in self.chains for v in self._whole(node))
        lying = {value: self._lying(value) for value in values}
        made = frozenset(value for value, how in lying.items() if how.is_made)
        read = frozenset(value for value, how in lying.items() if how.is_read)
        return FeatureMajor(frozenset(self.panels), frozenset(self.chains), made, read)

    def _whole(self, node: Node) -> list[Value]:
        """The values of a chain that may lie so."""
        chain = as_chain(node).op
        assert isinstance(chain, Chain)
        values = (*node.inputs, *node.outputs)
        return [value for value in dict.fromkeys(values) if is_whole(value, chain)]

    def _groups(self) -> list[list[Node]]:
        """Chains that hand whole values to each other, or read the same."""
        groups: list[list[Node]] = []
        left = dict(self.possible)
        while left:
            ahead, group = [next(iter(left))], []
            while ahead:
                node = ahead.pop()
                if node not in left:
                    continue
                del left[node]
                group.append(node)
                for value in self._whole(node):
                    ahead += [self.producers[value]] if value in self.producers else []
                    ahead += self.readers[value]
            groups.append(group)
        return groups

    def _choose(self, group: list[Node]) -> None:
        """Some of a group, by the cheaper of what all and what none lead to."""
        values = list(dict.fromkeys(v for node in group for v in self._whole(node)))
        found = []
        for start in (set[Node](), set(group)):
            self.chains |= start
            self._improve(group)
            cost = sum(self._lying(value).cost for value in values)
            found.append((cost, self.chains.intersection(group)))
            self.chains -= set(group)
        _, best = min(found, key=lambda each: each[0])
        self.chains |= best

    def _improve(self, group: list[Node]) -> None:
        """Turn single chains over as long as one gains."""
        gains = True
        while gains:
            gains = False
            for node in group:
                values = self._whole(node)
                before = sum(self._lying(value).cost for value in values)
                self.chains ^= {node}
                if sum(self._lying(value).cost for value in values) < before:
                    gains = True
                else:
                    self.chains ^= {node}

    def _lying(self, value: Value) -> _Lying:
        """How a value lies best, the chains being as they are."""
        producer, readers = self.producers.get(value), self.readers[value]
        by_panels = producer in self.panels
        ways = [producer in self.chains]
        if by_panels:
            ways = [False] if value in self.wanted else [False, True]
        panels = sum(node in self.panels and node.inputs[0] is value for node in readers)
        asked = {node in self.chains for node in readers if node not in self.panels}
        if value in self.wanted:
            asked.add(False)
        found = []
        for is_made in ways:
            for all_asked in (asked, asked | {True}):
                places = all_asked | {is_made}
                turned = (by_panels and not is_made) + (0 if True in places else panels)
                cost = value.type.size * (turned + _COPY * (len(places) - 1))
                found.append(_Lying(cost, is_made, True in places))
        return min(found, key=lambda each: each.cost)
