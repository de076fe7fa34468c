"""Predicted cost of a graph's convolution with other zeros: lowered alone, never emitted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph, GraphBuilder
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.values import Array, Origin, TensorType
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.planner.alternatives import random_zeros


@dataclass(frozen=True)
class ConvolutionPrice:
    """Predicted nanoseconds of all kernels for one run, copies included, and the main kernel."""

    ns: float
    kernel: str


def convolution_graph(op: Convolution, x: TensorType, weights: Array) -> Graph:
    """Return a graph of the convolution alone, with constant weights and without a bias.

    The cost of a bias is negligible.
    """
    build = GraphBuilder()
    image = build.input(x, Origin("x"))
    filters = build.constant(weights, Origin("weight"))
    return build.finish([build.one(op, image, filters, origin=Origin("y", "convolution"))])


class ConvolutionPrices:
    """Predicted costs of convolutions with other weights; each is computed once."""

    def __init__(self, options: ModelOptions) -> None:
        self._options = replace(options, threads=1, tune=False)
        self._known: dict[object, ConvolutionPrice | None] = {}

    def with_zeros(self, node: Node, pattern: str, density: float) -> ConvolutionPrice | None:
        """Return the cost with random zeros of a pattern, drawn over (out, everything else).

        It is None where no kernel exists.
        """
        x, weights = node.inputs[0].shape, node.inputs[1].shape
        question = node.op, x, weights, pattern, f"{density:.2g}"
        if question not in self._known:
            shape = weights[0], prod(weights[1:])
            matrix = random_zeros(pattern, shape, density)
            self._known[question] = self.of(node, matrix.dense.reshape(weights))
        return self._known[question]

    def of(self, node: Node, weights: Array) -> ConvolutionPrice | None:
        """Return the cost with these weights; None where no kernel exists."""
        assert isinstance(node.op, Convolution)
        try:
            graph = convolution_graph(node.op, node.inputs[0].type, weights)
            steps = lower_model(graph, self._options).steps
        except InvalidInput:
            return None
        main = max(steps, key=lambda step: step.facts.weights)
        return ConvolutionPrice(sum(s.facts.predicted_ns or 0.0 for s in steps), main.kernel)
