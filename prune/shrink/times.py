"""Predicted times of a model's layers, by the share of zeros."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sparsejit.api.final_graph import final_graph
from sparsejit.ir.graph import Array, Graph
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.model import lower_model
from sparsejit.prune.shrink.layers import ShrinkLayer, with_weights


class Times(NamedTuple):
    """Nanoseconds: of each layer at each amount (layers, amounts), and of all else."""

    layers: Array
    others: float


def times_by_amount(
    graph: Graph, layers: Sequence[ShrinkLayer], amounts: Sequence[float], options: ModelOptions
) -> Times:
    """The planner's prices of the kernels that layers get with that share of zeros, by magnitude.

    A layer never becomes slower by more zeros: it may keep the kernel that it had before.
    """
    found = np.zeros((len(layers), len(amounts)))
    others = []
    for number, amount in enumerate(amounts):
        weights = {
            layer.weights: _by_magnitude(graph.constants[layer.weights], amount)
            for layer in layers
        }
        lowered = lower_model(
            final_graph(with_weights(graph, weights), options, "float32"), options
        )
        by_layer: dict[str, float] = defaultdict(float)
        for step in lowered.steps:
            by_layer[step.origin.layer] += step.ns
        found[:, number] = [by_layer[layer.key.layer] for layer in layers]
        others.append(lowered.ns - found[:, number].sum())
    return Times(np.minimum.accumulate(found, axis=1), float(np.mean(others)))


def _by_magnitude(weights: Array, amount: float) -> Array:
    count = int(amount * weights.size)
    if not count:
        return weights
    sizes = np.abs(weights)
    least = np.partition(sizes.reshape(-1), count - 1)[count - 1]
    return np.where(sizes <= least, 0, weights).astype(np.float32)
