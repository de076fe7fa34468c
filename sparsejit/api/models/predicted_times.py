"""Predicted times of a model's layers, and of one convolution with other zeros.

    predicted_times     nanoseconds of a run and of each layer
    ConvolutionPrices   a graph's convolution with other zeros: lowered alone, never emitted
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph, GraphBuilder
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.values import Array, Origin, TensorType, Value
from sparsejit.lowering.context import CommonMatrices, ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.planner.alternatives import random_zeros


def predicted_times(
    final: Graph, options: ModelOptions, common: CommonMatrices | None = None
) -> tuple[float, dict[str, dict[str, float]]]:
    """Predict the nanoseconds of a run, and of each layer's steps by the name of their weights.

    The graph is from `final_graph`, `common` as in `lower_model`. The name is "" for steps without
    weights.
    """
    lowered = lower_model(final, options, common=common)
    times: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for step in lowered.steps:
        times[step.origin.layer][step.facts.parameter] += step.ns
    return lowered.ns, times


def matrices_by_zeros(graph: Graph) -> CommonMatrices:
    """One matrix for all linear layers of a shape whose zeros lie at the same places.

    It is for prices alone: it has the weights of one of the layers, and their statistics.
    The arrays stay constants of their own: equal ones would become one constant of the model, whose
    weights would then seem to fit in nearer caches.
    """
    alike: dict[tuple[tuple[int, ...], bytes], list[Value]] = defaultdict(list)
    weights = (node.inputs[1] for node in graph.nodes if isinstance(node.op, Linear))
    for value in dict.fromkeys(weights):
        if value in graph.constants and value.type.size:
            zeros = np.packbits(graph.constants[value] == 0).tobytes()
            alike[value.shape, zeros].append(value)
    found: CommonMatrices = {}
    for values in alike.values():
        if len(values) > 1:
            found |= dict.fromkeys(values, SparseMatrix(graph.constants[values[0]]))
    return found


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
    """Predicted costs of convolutions with other weights; `with_zeros` keeps its results."""

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
