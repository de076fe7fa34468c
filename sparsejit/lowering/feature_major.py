"""Choose the values that lie feature-major: x and y of panels, and values of chains between them.

    linear -> gelu -> linear                   no product transposes the values between them
    linear -> add, layer norm -> 3 x linear    the residual lies feature-major too
    3 x linear -> attention -> linear          scores have queries in the lanes

A value may lie both ways, by a copy, where it has other readers. Chains and attentions are tried
both ways, connected ones together, so that as few elements as possible are transposed.

    feature_major       the choice, as a `FeatureMajor`
    takes_panels        whether panels are best for a linear layer
    is_by_column        whether a chain can run over columns
    padded_type         the matrix that holds a value feature-major; `columns_of`: its columns
    column_attention    an attention that only views separate from the products around it

A `ColumnAttention` is linear -> reshape -> permute -> attention -> permute -> reshape -> linear.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from sparsejit.asm_templates.batch.lowered_batch import spread_pitch
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.pointwise import Chain, Pointwise
from sparsejit.ir.ops.products import Attention, Linear
from sparsejit.ir.ops.views import Permute, Reshape, Slice
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.ir.values import Element, TensorType, Value
from sparsejit.lowering.memory.storage import Buffer, View
from sparsejit.machine.target import Target
from sparsejit.passes.fuse_chains import as_chain
from sparsejit.planner.cheapest_row import about, choose, least, priced
from sparsejit.planner.layer_planner import LayerPlanner

_MOST_LANES = 16
# Cost of copying an element, relative to a product's cost of transposing one: 1.0 to 1.8.
_COPY = 2


@dataclass(frozen=True)
class FeatureMajor:
    """Layout plan: the values of a graph in feature-major layout, and the nodes that work on them.

    panels: linear layers whose kernel takes panels (feature-major columns of the batch).
    chains, attentions: nodes that run over columns.
    between: views around such an attention, for which no code is emitted.
    made: values whose producer writes them feature-major.
    read: values available feature-major, written so or by a transposed copy.
    """

    panels: frozenset[Node]
    chains: frozenset[Node]
    attentions: Mapping[Node, ColumnAttention]
    between: frozenset[Node]
    made: frozenset[Value]
    read: frozenset[Value]


_NOTHING = FeatureMajor(frozenset(), frozenset(), {}, frozenset(), frozenset(), frozenset())


class _Lying(NamedTuple):
    """A choice of layouts for a value: feature-major, batch-major, or both by a copy.

    cost: the number of elements that are transposed or copied for it.
    is_made: whether its producer writes it feature-major.
    is_read: whether it exists feature-major, as written or as a copy.
    """

    cost: int
    is_made: bool
    is_read: bool


def feature_major(
    graph: Graph,
    readers: Mapping[Value, Sequence[Node]],
    wanted: Collection[Value],
    takes: Callable[[Node], bool],
    target: Target,
    with_attention: bool = True,
) -> FeatureMajor:
    """Choose the values that lie feature-major, and the nodes that run on columns.

    wanted: values that must also exist batch-major, in a place that they have already.
    takes: the function that `takes_panels` returns.
    with_attention: whether attentions may run on columns.
    """
    panels = frozenset(node for node in graph.nodes if takes(node))
    if not panels:
        return _NOTHING
    sides = _Sides(graph, readers, {*wanted, *graph.outputs}, panels)
    if with_attention:
        sides.add_attentions(graph, target)
    return sides.chosen()


def is_by_column(node: Node) -> bool:
    """Whether a node is a float32 chain that can run on feature-major values.

    Operands must have the chain's whole shape, be a row of features, or a number.
    """
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
    """The operands and results of a chain that have all elements of its shape."""
    chain = as_chain(node).op
    assert isinstance(chain, Chain)
    return [v for v in dict.fromkeys((*node.inputs, *node.outputs)) if is_whole(v, chain)]


def _fits(value: Value, chain: Chain) -> bool:
    features = chain.shape[-1]
    by_feature = value.type.size == features and value.shape[-1:] == (features,)
    return value.type.size == 1 or by_feature or is_whole(value, chain)


def takes_panels(
    planner: LayerPlanner,
    matrix: Callable[[Value], SparseMatrix],
    nonzeros: Callable[[Value], int],
) -> Callable[[Node], bool]:
    """A function that tells whether a node is a linear layer that panels clearly compute fastest.

    Layers of one shape and about equal density share one answer, because finding it takes longer
    than choosing a kernel for a known matrix.
    """
    answers: dict[tuple[object, ...], bool] = {}

    def takes(node: Node) -> bool:
        if not isinstance(node.op, Linear) or prod(node.inputs[0].shape[:-1]) < 2:
            return False
        (x, weights), dtype = node.inputs[:2], node.op.dtype
        if not weights.type.size:
            return False
        rows, percent = prod(x.shape[:-1]), 100 * nonzeros(weights) // weights.type.size
        case = rows, weights.shape, dtype, percent
        if case not in answers:
            out_features, in_features = weights.shape
            each = MatVec(out_features, in_features, dtype=dtype)
            answers[case] = planner.prefers_panels(each, rows, matrix(weights))
        return answers[case]

    return takes


class _Sides:
    """Nodes that may run on rows or columns, and the choice of the nodes that run on columns."""

    def __init__(
        self,
        graph: Graph,
        readers: Mapping[Value, Sequence[Node]],
        wanted: Collection[Value],
        panels: frozenset[Node],
    ) -> None:
        self.readers, self.producers = dict(readers), graph.producers()
        self.panels, self.wanted = panels, wanted
        self.values: dict[Node, list[Value]] = {}  # of such a node: may lie feature-major
        self.attentions: dict[Node, ColumnAttention] = {}
        self.columns: set[Node] = set()
        for node in graph.nodes:
            if is_by_column(node):
                self.values[node] = _whole(node)

    def add_attentions(self, graph: Graph, target: Target) -> None:
        """Let the attentions run on columns that can."""
        readers = dict(self.readers)
        for node in graph.nodes:
            attention = column_attention(
                node, self.producers, readers, self.wanted.__contains__, target
            )
            if attention is not None:
                self._add(attention)

    def _add(self, attention: ColumnAttention) -> None:
        """Add an attention that reads and writes the products' values as if no views were there."""
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
        """Choose the nodes of a group that run on columns.

        The search starts from none of them, then from all of them; the cheaper result is taken.
        """
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
        """Move single nodes from rows to columns, or back, as long as a move lowers the cost."""
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
        """The cheapest layouts of a value, given the nodes that run on columns so far."""
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


def padded_type(value: Value, pitch_of: Callable[[int], int] = spread_pitch) -> TensorType:
    """Type of a value's padded matrix (features, columns and padding)."""
    *rows, features = value.shape
    return replace(value.type, shape=(features, pitch_of(prod(rows))))


def columns_of(matrix: View, value: Value) -> View:
    """The value that a padded matrix holds: each column is a row of the value."""
    rows = prod(value.shape[:-1])
    view = matrix.sliced(1, 0, rows).permuted((1, 0)).reshaped(value.shape)
    assert view is not None
    return view


@dataclass(frozen=True)
class ColumnAttention:
    """An attention, with the views before and after it.

    Query, key and value are views of `roots`, through the view operators of `paths`. The view
    operators of `way_out` turn the result into `sink`.
    """

    node: Node
    roots: tuple[Value, ...]
    sink: Value
    paths: tuple[tuple[Node, ...], ...]
    way_out: tuple[Node, ...]

    @property
    def between(self) -> tuple[Node, ...]:
        """All view operators of `paths` and `way_out`."""
        return (*(node for path in self.paths for node in path), *self.way_out)

    @property
    def tokens(self) -> int:
        """Number of queries of one sample."""
        return self.node.output.shape[-2]

    @property
    def is_one_sample(self) -> bool:
        """Whether padding, and not the next sample, follows the last query."""
        return prod(self.sink.shape[:-1]) == self.tokens

    def operand(self, number: int, matrix: View) -> View | None:
        """The view of a query, key or value, by its number, in the matrix of its root.

        None where no strides describe it.
        """
        view: View | None = columns_of(matrix, self.roots[number])
        for node in self.paths[number]:
            view = None if view is None else _behind(node, view)
        return view

    def result(self, matrix: View) -> View | None:
        """The attention's result in the matrix of `sink`; None where no strides describe it."""
        view: View | None = columns_of(matrix, self.sink)
        for node in reversed(self.way_out):
            view = None if view is None else _before(node, view)
        return view


def column_attention(
    node: Node,
    producers: Mapping[Value, Node],
    readers: Mapping[Value, Sequence[Node]],
    is_wanted: Callable[[Value], bool],
    target: Target,
) -> ColumnAttention | None:
    """The attention of a node, if it can run on columns: unmasked, with scores that stay in L2."""
    if not isinstance(node.op, Attention) or len(node.inputs) > 3:
        return None
    paths = tuple(_path(value, producers) for value in node.inputs)
    roots = tuple(
        path[0].inputs[0] if path else value
        for path, value in zip(paths, node.inputs, strict=True)
    )
    way_out = _way_out(node.output, readers)
    sink = way_out[-1].output if way_out else node.output
    found = ColumnAttention(node, roots, sink, paths, way_out)
    inner = {node, *found.between}
    values = (*roots, *(each.output for each in inner if each.output is not sink))
    alone = not any(is_wanted(value) for value in values) and all(
        inner.issuperset(readers[value]) for value in values
    )
    return found if alone and _suits_columns(found, target) else None


def _path(value: Value, producers: Mapping[Value, Node]) -> tuple[Node, ...]:
    """The view operators that lead to a value, in the order in which they apply."""
    path: list[Node] = []
    while (node := producers.get(value)) and isinstance(node.op, Reshape | Permute | Slice):
        path.insert(0, node)
        value = node.inputs[0]
    return tuple(path)


def _way_out(value: Value, readers: Mapping[Value, Sequence[Node]]) -> tuple[Node, ...]:
    path: list[Node] = []
    while len(readers[value]) == 1 and isinstance(readers[value][0].op, Reshape | Permute):
        path.append(readers[value][0])
        value = path[-1].output
    return tuple(path)


def _suits_columns(found: ColumnAttention, target: Target) -> bool:
    query, key, value = found.node.inputs
    stack, tokens = found.node.output.shape[:-2], found.tokens
    kinds = [*found.roots, found.sink, query, key, value]
    scores = 4 * prod(stack) * key.shape[-2] * tokens
    rows = prod(found.sink.shape[:-1])
    return (
        all(each.shape[:-2] == stack for each in (query, key, value))
        and all(each.type.element is Element.FLOAT32 for each in kinds)
        and prod(found.roots[0].shape[:-1]) == rows > 1
        and all(prod(each.shape[:-1]) > 1 for each in found.roots)
        and (found.is_one_sample or tokens % _MOST_LANES == 0)
        and 2 * scores <= target.l2_bytes
        and all(map(_are_columns, _views(found)))
    )


def _views(found: ColumnAttention) -> list[View | None]:
    """The operands and the result as views into feature-major matrices; None for no such view."""

    def matrix(value: Value) -> View:
        return View.whole(Buffer(padded_type(value).bytes), padded_type(value))

    operands = [found.operand(n, matrix(root)) for n, root in enumerate(found.roots)]
    return [*operands, found.result(matrix(found.sink))]


def _are_columns(view: View | None) -> bool:
    """Whether a view's tokens are contiguous and its features at least all tokens apart."""
    if view is None:
        return False
    (tokens, features), (step, pitch) = view.shape[-2:], view.strides[-2:]
    return step == Element.FLOAT32.bytes and features > 1 and pitch >= step * tokens


def _behind(node: Node, view: View) -> View | None:
    """The view of the result of a view operator, if its operand lies at `view`."""
    if isinstance(node.op, Reshape):
        return view.reshaped(node.op.shape)
    if isinstance(node.op, Permute):
        return view.permuted(node.op.axes)
    assert isinstance(node.op, Slice)
    op = node.op
    return view.sliced(op.axis % len(view.shape), op.first, op.end, op.step)


def _before(node: Node, view: View) -> View | None:
    """The view at which the operand of a Reshape or Permute lies, if its result lies at `view`."""
    if isinstance(node.op, Reshape):
        return view.reshaped(node.inputs[0].shape)
    assert isinstance(node.op, Permute)
    return view.permuted_back(node.op.axes)
