"""Has convolutions of a quantised model make bytes, where all that read them read these.

    y = conv[int8](x, W, b)                     z = conv[int8, to steps](x, W, b)
    r = relu(y)                         ->
    z = rounded(r)

    p = conv[int8, to steps](x, W, b)           z = conv[int8, to steps](x, W, b, q)
    z = rounded(relu(add(p, q)))        ->      of p and q in steps too
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sparsejit.ir.graph import Graph, Node, Value
from sparsejit.ir.ops.convolution import Convolution, Pooling, PoolingKind, RoundedResult
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.quantised_steps import QuantisedSteps
from sparsejit.ir.spec import Activation, DType
from sparsejit.passes.quantised_values import steps_of
from sparsejit.passes.rewriter import Site, rewrite

_FUSED = {"relu": Activation.RELU}


class _End(NamedTuple):
    """The steps that all read a value in, behind an activation; `last` is what it is then."""

    steps: QuantisedSteps
    activation: Activation
    last: Value


def byte_layers(graph: Graph, wins: Callable[[Node], bool]) -> Graph:
    """The graph with those convolutions to bytes that can, and for which `wins` is true."""
    found = _Regions(graph, wins)

    def rule(site: Site) -> Sequence[Value] | None:
        (output, *_), op = site.outputs, site.op
        if output in found.dropped:
            return (site.inputs[0],)
        if output in found.ends and isinstance(op, Convolution):
            end = found.ends[output]
            made = replace(op, activation=end.activation, rounding=RoundedResult(end.steps))
            return (site.one(made, *site.inputs),)
        return _with_added(site, *found.sums[output]) if output in found.sums else None

    return rewrite(graph, rule) if found.ends else graph


def _with_added(site: Site, place: int, added: QuantisedSteps, end: _End) -> Sequence[Value]:
    """A sum inside the convolution that makes the operand of this number."""
    product = site.producer(site.inputs[place])
    assert product is not None and isinstance(product.op, Convolution) and product.op.rounding
    rounding = RoundedResult(end.steps, product.op.rounding.result, added)
    x, weights, *bias = product.inputs
    if not bias:
        bias = [site.constant(np.zeros(weights.shape[0], np.float32), weights.origin)]
    made = replace(product.op, activation=end.activation, rounding=rounding)
    return (site.one(made, x, weights, *bias, site.inputs[1 - place]),)


class _Regions:
    """What a graph has: convolutions that end in steps, sums inside them, and what is left out.

    Keys are values of the graph as it was.
    """

    def __init__(self, graph: Graph, wins: Callable[[Node], bool]) -> None:
        self.graph, self.readers, self.producers = graph, graph.consumers(), graph.producers()
        self.rounded = {
            node.output: found
            for node in graph.nodes
            if len(node.outputs) == 1 and (found := steps_of(node, self._number)) is not None
        }
        self.steps = {value: steps for value, (_, steps) in self.rounded.items()}
        self.ends: dict[Value, _End] = {}
        self.sums: dict[Value, tuple[int, QuantisedSteps, _End]] = {}
        self.dropped: set[Value] = set()
        for node in graph.nodes:
            if len(node.outputs) == 1:
                self._look_at(node, wins)

    def _look_at(self, node: Node, wins: Callable[[Node], bool]) -> None:
        op, output = node.op, node.output
        if output in self.rounded:
            source, steps = self.rounded[output]
            if self._are_bytes(source) and self.steps.get(source) == steps:
                self.dropped.add(output)
        elif isinstance(op, Pooling) and op.kind is PoolingKind.MAX:
            if node.inputs[0] in self.steps:
                self.steps[output] = self.steps[node.inputs[0]]
        elif isinstance(op, Convolution) and _takes_bytes(op):
            end = self._end(output)
            if end is not None and wins(node):
                self._ends_in(output, end)
        elif isinstance(op, Pointwise) and op.kind == "add":
            self._sum(node)

    def _are_bytes(self, value: Value) -> bool:
        """Whether a value is one of those steps as it is made, not by a chain."""
        return value in self.steps and value not in self.rounded

    def _ends_in(self, output: Value, end: _End) -> None:
        self.ends[output] = end
        self.steps[end.last] = end.steps
        if end.last is not output:
            self.dropped.add(end.last)

    def _sum(self, node: Node) -> None:
        """A sum of two in steps, one of them what a convolution makes for it alone."""
        end = self._end(node.output)
        if end is None or any(value not in self.steps for value in node.inputs):
            return
        for place in (1, 0):
            value, other = node.inputs[place], node.inputs[1 - place]
            source = self.rounded[value][0] if value in self.rounded else value
            made = self.ends.get(source)
            alone = all(len(self.readers[each]) == 1 for each in {value, source})
            same = value.shape == other.shape == node.output.shape
            if made and made.activation is Activation.NONE and alone and same:
                if source in self.graph.outputs or source in self.sums:
                    continue
                self.sums[node.output] = place, self.steps[other], end
                self._ends_in(node.output, end)
                del self.ends[node.output]
                return

    def _end(self, value: Value) -> _End | None:
        """What a product's result ends in, if all that read it agree."""
        readers = self.readers[value]
        if value in self.graph.outputs or not readers:
            return None
        (first, *others) = readers
        if not others and isinstance(first.op, Pointwise) and first.op.kind in _FUSED:
            end = self._end(first.output)
            is_plain = end is not None and end.activation is Activation.NONE
            return end._replace(activation=_FUSED[first.op.kind]) if end and is_plain else None
        wanted = {self._read_in(reader, value) for reader in readers}
        if len(wanted) != 1 or None in wanted:
            return None
        (steps,) = wanted
        assert steps is not None
        return _End(steps, Activation.NONE, value)

    def _read_in(self, reader: Node, value: Value) -> QuantisedSteps | None:
        """The steps in which a node reads a value."""
        if len(reader.outputs) == 1 and reader.output in self.rounded:
            return self.rounded[reader.output][1]
        op = reader.op
        if isinstance(op, Pooling) and op.kind is PoolingKind.MAX:
            end = self._end(reader.output)
            return end.steps if end and end.activation is Activation.NONE else None
        if not isinstance(op, Convolution) or op.dtype is not DType.INT8:
            return None
        if op.input_scale is None or value in reader.inputs[1:]:
            return None
        return QuantisedSteps(op.input_scale, op.input_shift or 0)

    def _number(self, value: Value) -> float | None:
        array = self.graph.constants.get(value)
        if array is None or not array.size:
            return None
        first = array.flat[0]
        return float(first) if (array == first).all() else None


def _takes_bytes(op: Convolution) -> bool:
    is_int8 = op.dtype is DType.INT8 and op.input_scale is not None
    return is_int8 and op.rounding is None and op.activation is Activation.NONE
