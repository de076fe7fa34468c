"""Elementwise functions of a byte, as a table of 256, or as numbers added by channel.

    s = sigmoid(x)
    y = mul(x, s)          of x in steps, y read in steps      ->      y = table[x]
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.pointwise import FUNCTIONS, Chain, Pointwise
from sparsejit.ir.spec import Quantisation
from sparsejit.ir.values import Array, Element, Value
from sparsejit.passes.fuse_chains import as_chain

BYTES = 256
_LEAST, _LARGEST = -128, 127
_MOST_NODES = 32


@dataclass(frozen=True, eq=False)
class ByteFunction:
    """Nodes, in order, that compute `last` from `value` and constants."""

    value: Value
    last: Value
    nodes: tuple[Node, ...]

    def constants(self) -> list[Value]:
        """The values that the nodes read besides `value` and each other's results."""
        made = {self.value, *(node.output for node in self.nodes)}
        return [value for node in self.nodes for value in node.inputs if value not in made]

    def table(
        self,
        own: Quantisation,
        result: Quantisation,
        number_of: Callable[[Value], float | None],
    ) -> tuple[int, ...] | None:
        """Results for -128 to 127 in the value's steps `own`, as integers in the steps `result`.

        None where a constant is not one number, or a result is NaN.
        """
        numbers = {value: number_of(value) for value in self.constants()}
        if None in numbers.values():
            return None
        known: dict[Value, Array] = {v: np.array(n, np.float64) for v, n in numbers.items()}
        known[self.value] = (np.arange(_LEAST, _LARGEST + 1) - own.zero_point) * _exactly(own.scale)
        with np.errstate(all="ignore"):
            for node in self.nodes:
                known[node.output] = _evaluated(node, [known[value] for value in node.inputs])
        integers = np.rint(known[self.last] / _exactly(result.scale)) + result.zero_point
        if np.isnan(integers).any():
            return None
        return tuple(int(n) for n in integers.clip(_LEAST, _LARGEST))

    def added_by_channel(self, constants: Mapping[Value, Array]) -> Array | None:
        """The numbers (channels,) that the function adds; None if it does anything else."""
        (node, *others) = self.nodes
        if others or not isinstance(node.op, Pointwise) or node.op.kind != "add":
            return None
        array = next((constants[value] for value in self.constants() if value in constants), None)
        if array is None or array.ndim > len(self.last.shape):
            return None
        aligned = array.reshape((1,) * (len(self.last.shape) - array.ndim) + array.shape)
        channels = self.last.shape[1]
        if aligned.size not in (1, channels) or aligned.shape[1] != aligned.size:
            return None
        return np.array(np.broadcast_to(aligned.reshape(-1), (channels,)))


class ByteFunctions:
    """Finds elementwise functions of one value in a graph."""

    def __init__(self, graph: Graph, readers: Mapping[Value, Sequence[Node]]) -> None:
        self._graph, self._readers = graph, readers
        self._place = {node: number for number, node in enumerate(graph.nodes)}

    def behind(self, value: Value) -> Iterator[ByteFunction]:
        """Yield functions of a value that lead to one result read elsewhere, the longest first."""
        nodes = self._reached(value)
        while nodes:
            inside = {value, *(node.output for node in nodes)}
            ends = [each for each in inside if self._is_read_outside(each, nodes)]
            if len(ends) == 1 and ends[0] is not value:
                yield ByteFunction(value, ends[0], tuple(nodes))
            nodes.pop()

    def _reached(self, value: Value) -> list[Node]:
        inside, nodes, waiting = {value}, list[Node](), list(self._readers[value])
        while waiting and len(nodes) < _MOST_NODES:
            waiting.sort(key=self._place.__getitem__)
            node = waiting.pop(0)
            others = [v for v in node.inputs if v not in inside and v not in self._graph.constants]
            if node in nodes or others or not _is_elementwise(node, value):
                continue
            nodes.append(node)
            inside.add(node.output)
            waiting += self._readers[node.output]
        return nodes

    def _is_read_outside(self, value: Value, nodes: Sequence[Node]) -> bool:
        is_output = value in self._graph.outputs
        return is_output or any(reader not in nodes for reader in self._readers[value])


def _is_elementwise(node: Node, value: Value) -> bool:
    if not isinstance(node.op, Pointwise | Chain) or len(node.outputs) != 1:
        return False
    if isinstance(node.op, Chain) and node.op.reduces:
        return False
    is_whole = node.output.shape == value.shape and prod(value.shape) > 0
    return is_whole and node.output.type.element is Element.FLOAT32


def _evaluated(node: Node, operands: Sequence[Array]) -> Array:
    chain = as_chain(node).op
    assert isinstance(chain, Chain)
    values = list(operands)
    for step in chain.steps:
        arguments = [values[number] for number in step.arguments]
        values.append(np.asarray(FUNCTIONS[step.kind].evaluate(*arguments)))
    return values[chain.results[0]]


def _exactly(scale: float) -> float:
    return float(np.float32(scale))
