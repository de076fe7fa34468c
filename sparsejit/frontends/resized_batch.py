"""Rewrites a graph of one batch size for another size: sizes and shapes follow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.frontends.batch_axis import follow_from_inputs, output_axes
from sparsejit.frontends.batch_first import InputAxes
from sparsejit.ir.batch_axes import BatchAxes
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import BatchPlace, Follower, Node, Operator, SamplesMixed
from sparsejit.ir.ops.pointwise import Chain
from sparsejit.ir.ops.views import Expand, Reshape
from sparsejit.ir.values import Array, TensorType, Value


class SizedBatch:
    """A graph that does not mix samples, with its batch on these axes of the inputs.

    Raises SamplesMixed, with the reason, for any other graph.
    """

    def __init__(self, graph: Graph, axes: InputAxes) -> None:
        pairs = zip(graph.inputs, axes, strict=True)
        batch = next(value.shape[axis] for value, axis in pairs if axis is not None)
        if batch < 2:
            raise SamplesMixed("a batch of one sample does not show which sizes are the batch's")
        self._graph = graph
        self._found = follow_from_inputs(graph, batch, axes)
        self.axes = BatchAxes(tuple(axes), output_axes(graph, self._found))
        self._made: dict[int, Graph] = {}
        self.graph(1)  # raises now if the graph cannot be made

    def graph(self, batch: int) -> Graph:
        """The graph for that batch. Raises SamplesMixed where an operator does not allow it."""
        if batch not in self._made:
            self._made[batch] = _Resized(self._graph, self._found, batch).graph()
        return self._made[batch]


class _Resized:
    """Makes the graph for one batch size, node after node."""

    def __init__(self, graph: Graph, found: Follower, batch: int) -> None:
        self._old, self._found, self._batch = graph, found, batch
        self._new: dict[Value, Value] = {}
        self._constants: dict[Value, Array] = {}

    def graph(self) -> Graph:
        inputs = tuple(map(self._placed, self._old.inputs))
        nodes = tuple(map(self._node, self._old.nodes))
        outputs = tuple(self._value(value) for value in self._old.outputs)
        return Graph(inputs, outputs, nodes, self._constants, self._old.notes)

    def _node(self, node: Node) -> Node:
        if self._found.places.keys().isdisjoint((*node.inputs, *node.outputs)):
            return self._kept(node)
        inputs = tuple(map(self._value, node.inputs))
        op = self._resized(node, [value.shape for value in inputs])
        try:
            made = op.infer(*(value.type for value in inputs))
        except InvalidInput as error:
            raise SamplesMixed(str(error)) from None
        outputs = tuple(Value(kind, v.origin) for kind, v in zip(made, node.outputs, strict=True))
        for value, output in zip(node.outputs, outputs, strict=True):
            if self._shape(value) != output.shape:
                raise SamplesMixed(f"{op} has sizes that depend on the batch")
        self._new.update(zip(node.outputs, outputs, strict=True))
        return Node(op, inputs, outputs)

    def _kept(self, node: Node) -> Node:
        """Keep a node that depends on no sample; results that must be resized become constants."""
        known = self._old.constants
        self._constants.update({value: known[value] for value in node.inputs if value in known})
        shared = self._found.shared
        self._new.update({value: value for value in node.outputs if value not in shared})
        return node

    def _resized(self, node: Node, shapes: list[tuple[int, ...]]) -> Operator:
        op = node.op
        if isinstance(op, Reshape | Expand):
            return replace(op, shape=self._shape(node.outputs[0]))
        if isinstance(op, Chain) and op.shape:
            before = np.broadcast_shapes(*(value.shape for value in node.inputs))
            if before != op.shape:
                raise SamplesMixed(f"{op} has sizes that its operands do not have")
            return replace(op, shape=np.broadcast_shapes(*shapes))
        return op

    def _shape(self, value: Value) -> tuple[int, ...]:
        place = self._found.places.get(value)
        return value.shape if place is None else self._sizes(value, place)

    def _sizes(self, value: Value, place: BatchPlace) -> tuple[int, ...]:
        sizes = list(value.shape)
        sizes[place.axis] = place.outer * self._batch * place.inner
        return tuple(sizes)

    def _placed(self, value: Value) -> Value:
        if value not in self._found.places:
            self._new[value] = value
            return value
        kind = TensorType(self._shape(value), value.type.element)
        self._new[value] = Value(kind, value.origin)
        return self._new[value]

    def _value(self, value: Value) -> Value:
        if value not in self._new:
            array = self._array(value)
            kind = TensorType(array.shape, value.type.element)
            self._new[value] = Value(kind, value.origin)
            self._constants[self._new[value]] = array
        return self._new[value]

    def _array(self, value: Value) -> Array:
        """A constant's array; if it has a copy for every sample, a copy for each of the batch."""
        place = self._found.shared.get(value)
        if place is None:
            return self._old.constants[value]
        array = self._found.array(value).astype(value.type.element.value)
        axis = place.axis % array.ndim
        sizes = (place.outer, -1, place.inner)
        apart = array.reshape(*array.shape[:axis], *sizes, *array.shape[axis + 1 :])
        one = apart.take([0], axis=axis + 1).repeat(self._batch, axis=axis + 1)
        return one.reshape(*array.shape[:axis], -1, *array.shape[axis + 1 :])
