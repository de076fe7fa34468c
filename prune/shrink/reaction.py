"""Reactions of a model's outputs to changed weights of each layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sparsejit.api.output_error import OutputErrors
from sparsejit.api.seen_inputs import WatchedRun
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.values import Array, Origin, Value
from sparsejit.lowering.context import ModelOptions
from sparsejit.prune.shrink.layers import ShrinkLayer, with_weights

# A function from a layer's x to the change of its y, or new constants where y feeds back.
Change = Callable[[Array], Array] | Mapping[Value, Array]


def reactions(
    graph: Graph,
    elements: Sequence[Sequence[Array]],
    trials: Sequence[tuple[ShrinkLayer, Change]],
    options: ModelOptions,
) -> list[float]:
    """Squared relative error of the outputs when one layer's products change, for each trial.

    The change of a layer's y is an input, added after the layer, so that one function serves all
    trials except trials of recurrent layers.
    """
    layers = list(dict.fromkeys(layer for layer, change in trials if callable(change)))
    run = WatchedRun(graph, [value for layer in layers for value in layer.reads], options)
    noisy = WatchedRun(with_noise(graph, layers), (), options)
    silent = {layer: np.zeros(layer.y.shape, np.float32) for layer in layers}
    others = {
        number: WatchedRun(with_weights(graph, change), (), options)
        for number, (_, change) in enumerate(trials)
        if not callable(change)
    }
    errors = [OutputErrors() for _ in trials]
    for inputs in elements:
        exact, seen = run(inputs)
        for number, (layer, change) in enumerate(trials):
            if callable(change):
                own = {**silent, layer: change(layer.multiplied(seen))}
                made, _ = noisy([*inputs, *own.values()])
            else:
                made, _ = others[number](inputs)
            errors[number].add(made, exact)
    return [error.mean**2 for error in errors]


def with_noise(graph: Graph, layers: Sequence[ShrinkLayer]) -> Graph:
    """The graph with one more input for each layer, which is added to the layer's y."""
    noise = {layer.y: Value(layer.y.type, Origin(f"noise {n}")) for n, layer in enumerate(layers)}
    now: dict[Value, Value] = {}
    nodes = []
    for node in graph.nodes:
        nodes.append(Node(node.op, tuple(now.get(v, v) for v in node.inputs), node.outputs))
        for value in node.outputs:
            if value in noise:
                now[value] = Value(value.type, value.origin)
                nodes.append(Node(Pointwise("add"), (value, noise[value]), (now[value],)))
    outputs = tuple(now.get(value, value) for value in graph.outputs)
    inputs = (*graph.inputs, *noise.values())
    return Graph(inputs, outputs, tuple(nodes), graph.constants, graph.notes)
