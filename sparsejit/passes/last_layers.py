"""The last layers of a model, where a sample has few rows, for several samples at once.

    trunk        x -> convolutions over many positions -> pooled      of one sample
    last layers  pooled -> linear -> y                                of one, or of several together

A product of one row reads all its weights for each sample. For several samples together it reads
them once, and each weight meets a vector full of samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node, Operator
from sparsejit.ir.ops.convolution import Convolution, Pooling
from sparsejit.ir.ops.pointwise import Chain, Pointwise
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.views import Reshape
from sparsejit.ir.spec import DType
from sparsejit.ir.values import TensorType, Value


@dataclass(frozen=True)
class LastLayers:
    """The end of a graph of one sample, copied for several samples.

    read: values of the one-sample graph that it reads, in the order of the inputs of `graph`.
    graph: the end for several samples, which lie on axis 0 of all its inputs and outputs.
    outputs: the numbers of the model's outputs that it makes, in the order of its own.
    """

    read: tuple[Value, ...]
    graph: Graph
    outputs: tuple[int, ...]


def last_layers(single: Graph, samples: int, enough_rows: int) -> LastLayers | None:
    """The last layers of a one-sample graph, with products of under `enough_rows` rows, or None.

    None too if no product before them has enough rows: then samples run together throughout, or
    not at all. The graph is cut where the fewest bytes cross.
    """
    nodes = single.nodes
    start = _start(single, enough_rows)
    products = (n for n in range(start, len(nodes)) if _has_weights(single, nodes[n]))
    first_product = next(products, None)
    is_wide = any(_rows(node) >= enough_rows for node in nodes[:start])
    if not is_wide or first_product is None:
        return None
    cuts = range(first_product, start - 1, -1)
    cut = min(cuts, key=lambda number: sum(v.type.bytes for v in _crossing(single, number)))
    read = tuple(_crossing(single, cut))
    if any(single.is_shared(n) for n, value in enumerate(single.inputs) if value in read):
        return None
    made = {value for node in nodes[cut:] for value in node.outputs}
    outputs = tuple(n for n, value in enumerate(single.outputs) if value in made)
    graph = _Repeated(single, read, samples).of(nodes[cut:], outputs)
    return None if graph is None else LastLayers(read, graph, outputs)


def weights_behind(single: Graph, enough_rows: int) -> list[Value]:
    """The weights of products that follow the last node with enough rows of x.

    A node that cannot run for several samples at once counts as one with enough rows.
    """
    nodes = single.nodes[_start(single, enough_rows) :]
    return [node.inputs[1] for node in nodes if _has_weights(single, node)]


def _start(single: Graph, enough_rows: int) -> int:
    """The number of the first node after the last one with enough rows of x.

    A node that cannot run for several samples at once counts as one with enough rows.
    """
    for number in reversed(range(len(single.nodes))):
        node = single.nodes[number]
        if not _may_repeat(node.op) or _rows(node) >= enough_rows:
            return number + 1
    return 0


def _may_repeat(op: Operator) -> bool:
    """Whether an operator computes every sample on axis 0 independently of the others."""
    if isinstance(op, Convolution) and op.rounding is not None:
        return False
    if isinstance(op, Linear | Convolution):
        # Without a scale of its own, x is quantised by its largest element in all samples.
        return op.dtype is not DType.INT8 or op.x_steps is not None
    return isinstance(op, Pooling | Pointwise | Chain | Reshape)


def _rows(node: Node) -> int:
    """The number of rows of x that meet a product's weights; 0 for other operators."""
    if isinstance(node.op, Convolution):
        return prod(node.output.shape[2:])
    return prod(node.output.shape[:-1]) if isinstance(node.op, Linear) else 0


def _has_weights(graph: Graph, node: Node) -> bool:
    return isinstance(node.op, Linear | Convolution) and node.inputs[1] in graph.constants


def _crossing(graph: Graph, cut: int) -> Iterable[Value]:
    """The values that nodes from the `cut`-th on read and do not make, each once."""
    made: set[Value] = set()
    read: dict[Value, None] = {}
    for node in graph.nodes[cut:]:
        read |= {v: None for v in node.inputs if v not in made and v not in graph.constants}
        made.update(node.outputs)
    return read


class _Repeated:
    """Copies nodes of one sample for several samples."""

    def __init__(self, single: Graph, read: Iterable[Value], samples: int) -> None:
        self._single, self._read, self._samples = single, tuple(read), samples
        self._new: dict[Value, Value] = {}

    def of(self, nodes: Iterable[Node], outputs: Iterable[int]) -> Graph | None:
        """The graph of these nodes; None where the batch is not axis 0 of all their values."""
        nodes = tuple(nodes)
        values = (*self._read, *(value for node in nodes for value in node.outputs))
        if any(value.shape[:1] != (1,) for value in values):
            return None
        inputs = tuple(map(self._several, self._read))
        made = [self._node(node) for node in nodes]
        if None in made:
            return None
        known = self._single.constants
        constants = {v: known[v] for node in nodes for v in node.inputs if v in known}
        results = tuple(self._new[self._single.outputs[number]] for number in outputs)
        return Graph(inputs, results, tuple(node for node in made if node), constants)

    def _several(self, value: Value) -> Value:
        kind = TensorType((self._samples, *value.shape[1:]), value.type.element)
        self._new[value] = Value(kind, value.origin)
        return self._new[value]

    def _node(self, node: Node) -> Node | None:
        """The node for several samples; None where axes or types of its values do not fit."""
        read = {len(value.shape) for value in node.inputs if value in self._new}
        made = {len(value.shape) for value in node.outputs}
        if isinstance(node.op, Chain | Pointwise) and not (read == made and len(made) == 1):
            return None
        op = node.op
        if isinstance(op, Reshape | Chain):
            op = replace(op, shape=(self._samples, *op.shape[1:]))
        inputs = tuple(self._new.get(value, value) for value in node.inputs)
        outputs = tuple(map(self._several, node.outputs))
        try:
            kinds = op.infer(*(value.type for value in inputs))
        except InvalidInput:
            return None
        alike = kinds == tuple(value.type for value in outputs)
        return Node(op, inputs, outputs) if alike else None
