"""Destinations of values that are written straight to outputs, or to their part of a concat."""

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.views import Concat, Reshape
from sparsejit.ir.values import Value
from sparsejit.lowering.memory.storage import Buffer, OutputBuffer, View


def destinations(graph: Graph) -> dict[Value, View]:
    """The view to which a node should write each value that has a destination.

    A value with two destinations is written to the first and copied to the others.
    """
    finder = _Finder(graph.producers())
    for number, value in enumerate(graph.outputs):
        finder.want(value, View.whole(OutputBuffer(value.type.bytes, number), value.type))
    for node in reversed(graph.nodes):
        if isinstance(node.op, Concat):
            finder.want(node.output, View.whole(Buffer(node.output.type.bytes), node.output.type))
    return finder.found


class _Finder:
    def __init__(self, producers: dict[Value, Node]) -> None:
        self.producers = producers
        self.found: dict[Value, View] = {}

    def want(self, value: Value, view: View) -> None:
        """Have a value written to a view, unless no node computes it or it has a destination."""
        node = self.producers.get(value)
        if node is None or value in self.found:
            return
        self.found[value] = view
        if isinstance(node.op, Reshape):
            before = view.reshaped(node.inputs[0].shape)
            if before is not None:
                self.want(node.inputs[0], before)
        elif isinstance(node.op, Concat):
            for part, operand in zip(concat_parts(node, view), node.inputs, strict=True):
                self.want(operand, part)


def concat_parts(node: Node, view: View) -> list[View]:
    """The part of a concat's view that each operand fills."""
    assert isinstance(node.op, Concat)
    axis = node.op.axis % len(view.shape)
    parts, first = [], 0
    for operand in node.inputs:
        end = first + operand.shape[axis]
        parts.append(view.sliced(axis, first, end))
        first = end
    return parts
