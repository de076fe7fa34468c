"""Predicted times of a model's layers."""

from __future__ import annotations

from collections import defaultdict

from sparsejit.api.final_graph import Dtypes, final_graph
from sparsejit.ir.graph import Graph
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model


def predicted_times(
    graph: Graph, dtypes: Dtypes, options: ModelOptions
) -> tuple[float, dict[str, dict[str, float]]]:
    """Predict the nanoseconds of a run, and of each layer's steps by the name of their weights.

    The name is "" for steps without weights. Raises the errors of `final_graph`.
    """
    lowered = lower_model(final_graph(graph, options, dtypes), options)
    times: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for step in lowered.steps:
        times[step.origin.layer][step.facts.parameter] += step.ns
    return lowered.ns, times
