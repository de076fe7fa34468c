"""Predicted times of a model's layers."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.values import Value
from sparsejit.lowering.context import CommonMatrices, ModelOptions
from sparsejit.lowering.lower_graph import lower_model


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
