"""Graphs written by hand in few words, for tests of passes."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsejit.ir.graph import Graph, GraphBuilder
from sparsejit.ir.operator import Node, Operator
from sparsejit.ir.ops.pointwise import Chain, Pointwise
from sparsejit.ir.values import Array, Origin, TensorType, Value
from sparsejit.passes.default import Pass


class Sketch:
    """A builder whose operators are calls: `s("relu", x)`, `s(Reshape((4,)), x)`."""

    def __init__(self) -> None:
        self.builder = GraphBuilder()
        self.random = np.random.default_rng(0)

    def input(self, *shape: int, **kind: Any) -> Value:
        return self.builder.input(TensorType(shape, **kind), Origin("x"))

    def weight(self, *shape: int) -> Value:
        """A random constant."""
        return self.constant(self.random.standard_normal(shape))

    def constant(self, array: Any) -> Value:
        return self.builder.constant(np.asarray(array), Origin("constant"))

    def __call__(self, op: Operator | str, *inputs: Value) -> Value:
        """The first result."""
        return self.all(op, *inputs)[0]

    def all(self, op: Operator | str, *inputs: Value) -> tuple[Value, ...]:
        """Every result."""
        op = Pointwise(op) if isinstance(op, str) else op
        return self.builder.add(op, *inputs, origin=Origin(names([op])[0], "layer"))

    def finish(self, *outputs: Value) -> Graph:
        return self.builder.finish(outputs)


def names(operators: list[Operator]) -> list[str]:
    """Each operator's name, Pointwise by function, chains by title."""
    special = {Pointwise: "kind", Chain: "title"}
    return [getattr(op, special.get(type(op), ""), type(op).__name__) for op in operators]


def kinds(graph: Graph) -> list[str]:
    """The names of the graph's operators, in order."""
    return names([node.op for node in graph.nodes])


def node_of(graph: Graph, kind: type[Operator]) -> Node:
    """The only node with an operator of that class."""
    (node,) = (node for node in graph.nodes if isinstance(node.op, kind))
    return node


def applied(step: Pass, graph: Graph) -> Graph:
    """The graph that a pass makes, checked to compute the same."""
    after = step(graph)
    random = np.random.default_rng(1)
    inputs = [_random_input(random, value) for value in graph.inputs]
    for wanted, found in zip(graph.evaluate(inputs), after.evaluate(inputs), strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6 * abs(wanted).max())
    return after


def _random_input(random: np.random.Generator, value: Value) -> Array:
    array = random.standard_normal(value.shape)
    return array.astype(value.type.element.value)
