"""A model as a graph in static single assignment: typed values, operators, constants.

    BatchAxes      the batch axes of a model's inputs and outputs
    OpenAxis       an axis of an output whose length a call computes
    Graph          the model
    GraphBuilder   a graph under construction

Every value has one producer: an input, a constant, or one output of one node. Nodes are in an order
in which they can run. Passes take a graph and return another; nothing is changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.operator import Follower, Node, Operator
from sparsejit.ir.values import Array, Decision, Element, Origin, TensorType, Value


class BatchAxes(NamedTuple):
    """The batch axis of each input and of each output; None for an input without batch.

    An input without batch is the same for all samples. Every output has the batch.
    """

    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]

    @property
    def are_first(self) -> bool:
        """Whether the batch is axis 0 of everything."""
        return not any(axis != 0 for axis in (*self.inputs, *self.outputs))

    @property
    def are_moved(self) -> bool:
        """Whether any batch axis is not axis 0."""
        return any((*self.inputs, *self.outputs))


def to_first(axis: int, rank: int) -> tuple[int, ...]:
    """The permutation that moves an axis to the front and keeps the order of the others."""
    return (axis, *(each for each in range(rank) if each != axis))


def from_first(axis: int, rank: int) -> tuple[int, ...]:
    """The inverse of the permutation `to_first`."""
    places = to_first(axis, rank)
    return tuple(places.index(each) for each in range(rank))


_ELEMENTS = {np.dtype(element.value): element for element in Element}


class OpenAxis(NamedTuple):
    """An axis of an output whose valid length a call computes; the output's array has the most.

    Attributes:
        output: number of the output
        axis: the axis
        inner: the first count * inner elements of the axis are valid
        size: number of the output, int64 (), that has the count
    """

    output: int
    axis: int
    inner: int
    size: int


@dataclass(frozen=True, eq=False)
class Graph:
    """A model. `constants` holds the arrays of values that are known at compile time.

    `notes` tell the user how the model was read. `batch_axes` are the batch's axes in the user's
    model (in the graph the batch lies on axis 0); None means axis 0 of everything with a batch.
    `open_axes` are the open axes of outputs of a model as it was read; passes drop them.
    `decisions` are the choices that led to this graph, of element types; passes drop them too.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[Value, Array]
    notes: tuple[str, ...] = ()
    batch_axes: BatchAxes | None = None
    open_axes: tuple[OpenAxis, ...] = ()
    decisions: tuple[Decision, ...] = ()

    def with_open_axes(self, counts: Sequence[Value], axes: Sequence[OpenAxis]) -> Graph:
        """The graph with these counts, int64 (), as further outputs, and with these open axes."""
        return replace(self, outputs=(*self.outputs, *counts), open_axes=tuple(axes))

    def is_shared(self, number: int) -> bool:
        """Whether input number `number` has no batch, so that it is the same for all samples."""
        return self.batch_axes is not None and self.batch_axes.inputs[number] is None

    def producers(self) -> dict[Value, Node]:
        """The node that makes each value, for all results of nodes."""
        return {value: node for node in self.nodes for value in node.outputs}

    def consumers(self) -> dict[Value, list[Node]]:
        """The nodes that read each value, once for each operand; no nodes for unread values."""
        readers: dict[Value, list[Node]] = {value: [] for value in self.values()}
        for node in self.nodes:
            for value in node.inputs:
                readers[value].append(node)
        return readers

    def values(self) -> list[Value]:
        """Inputs, constants and results of nodes, in that order."""
        made = (value for node in self.nodes for value in node.outputs)
        return [*self.inputs, *self.constants, *made]

    def evaluate(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs in float64, by the operators' references."""
        known: dict[Value, Array] = {
            value: _wide(array) for value, array in self.constants.items()
        }
        known.update(zip(self.inputs, map(_wide, inputs), strict=True))
        for node in self.nodes:
            results = node.op.reference(*(known[value] for value in node.inputs))
            known.update(zip(node.outputs, results, strict=True))
        return [known[value] for value in self.outputs]

    def follower(self, batch: int) -> Follower:
        """A `Follower`, which finds the batch's place in each value, for a batch of that length."""
        return Follower(self.constants, self.producers(), batch)

    def __str__(self) -> str:
        """A line for each node: `name: type = op(operands)  # module, file:line`."""
        names = _names(self)
        lines = [f"input  {names[value]}: {value.type}" for value in self.inputs]
        lines += [f"weight {names[value]}: {value.type}" for value in self.constants]
        lines += [_line(node, names) for node in self.nodes]
        return "\n".join([*lines, f"return {', '.join(names[value] for value in self.outputs)}"])


def _line(node: Node, names: dict[Value, str]) -> str:
    results = ", ".join(f"{names[value]}: {value.type}" for value in node.outputs)
    operands = ", ".join(names[value] for value in node.inputs)
    origin = node.outputs[0].origin
    place = ", ".join(part for part in (origin.module, origin.source) if part)
    return f"{results} = {node.op.as_text()}({operands})" + (f"  # {place}" if place else "")


def _names(graph: Graph) -> dict[Value, str]:
    """A name for each value: its origin's name, with a number where that is taken."""
    taken: dict[str, int] = {}
    names = {}
    for value in graph.values():
        stem = value.origin.name or "value"
        taken[stem] = taken.get(stem, 0) + 1
        names[value] = stem if taken[stem] == 1 else f"{stem}.{taken[stem]}"
    return names


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


class GraphBuilder:
    """Makes a graph value by value, in the order in which it runs."""

    def __init__(self) -> None:
        self._inputs: list[Value] = []
        self._nodes: list[Node] = []
        self._constants: dict[Value, Array] = {}

    def input(self, kind: TensorType, origin: Origin) -> Value:
        """A new input."""
        value = Value(kind, origin)
        self._inputs.append(value)
        return value

    def constant(
        self, array: Array, origin: Origin, floats: Element = Element.FLOAT32
    ) -> Value:
        """A value known at compile time; floating-point numbers are rounded to `floats`.

        Whole numbers become int64. Raises InvalidInput for a dtype that no `Element` stands for.
        """
        array = np.asarray(array)  # numpy computes with arrays of no axes and returns scalars
        if array.dtype.kind == "f":
            array = array.astype(floats.value, copy=False)
        elif array.dtype.kind in "iu":
            array = array.astype(np.int64, copy=False)
        element = _ELEMENTS.get(array.dtype)
        if element is None:
            raise InvalidInput(
                f"{origin.name} has dtype {array.dtype}; use real or whole numbers"
            )
        value = Value(TensorType(array.shape, element), origin)
        self._constants[value] = array
        return value

    def adopt(self, value: Value, array: Array | None = None) -> Value:
        """Take over a value of another graph: an input, or with its array a constant."""
        if array is None:
            self._inputs.append(value)
        else:
            self._constants[value] = array
        return value

    def is_constant(self, value: Value) -> bool:
        """Whether a value is known at compile time."""
        return value in self._constants

    def array(self, value: Value) -> Array:
        """The array of a constant."""
        return self._constants[value]

    def add(self, op: Operator, *inputs: Value, origin: Origin) -> tuple[Value, ...]:
        """Apply an operator. Raises InvalidInput where it does not take these operands."""
        types = op.infer(*(value.type for value in inputs))
        outputs = tuple(Value(kind, origin) for kind in types)
        self._nodes.append(Node(op, inputs, outputs))
        return outputs

    def adopt_node(self, node: Node) -> None:
        """Take over a node of another graph, whose operands are here already."""
        self._nodes.append(node)

    def one(self, op: Operator, *inputs: Value, origin: Origin) -> Value:
        """Apply an operator that has one output."""
        (output,) = self.add(op, *inputs, origin=origin)
        return output

    def finish(self, outputs: Sequence[Value]) -> Graph:
        """The graph, without constants that nothing reads."""
        read = {value for node in self._nodes for value in node.inputs} | set(outputs)
        constants = {value: a for value, a in self._constants.items() if value in read}
        return Graph(tuple(self._inputs), tuple(outputs), tuple(self._nodes), constants)
