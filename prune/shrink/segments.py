"""A graph run in segments: each layer may change before the nodes behind it run.

segment 0: nodes before the first layers       live values of each element of the data
           the layers change                   go on from segment to segment
segment 1: these layers and the nodes behind them

A recurrent layer runs in two segments: its rows are its own states, until it changes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sparsejit.api.seen_inputs import WatchedRun
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.values import Array, Value
from sparsejit.lowering.context import ModelOptions
from sparsejit.passes.dead_code import remove_dead_code
from sparsejit.prune.shrink.layers import ShrinkLayer
from sparsejit.prune.shrink.moments import rows_of


@dataclass(frozen=True, eq=False)
class Stage:
    """Layers that do not depend on each other, and the nodes that make their rows.

    Attributes:
        layers: the layers
        nodes: the segment that runs before they change
        then: the first node of the next segment
    """

    layers: list[ShrinkLayer]
    nodes: slice
    then: int


def stages(graph: Graph, layers: Sequence[ShrinkLayer]) -> list[Stage]:
    """The layers in order, in stages."""
    place = {id(node): number for number, node in enumerate(graph.nodes)}
    made_at = {value: place[id(node)] for node in graph.nodes for value in node.outputs}
    found: list[Stage] = []
    first, left = 0, list(layers)
    while left:
        then = place[id(left[0].node)]
        group = [
            layer
            for layer in left
            if layer is left[0]
            or (not layer.is_recurrent and made_at.get(layer.node.inputs[0], -1) < then)
        ]
        stop = then + 1 if left[0].is_recurrent else then
        found.append(Stage(group, slice(first, stop), then))
        first, left = then, [layer for layer in left if layer not in group]
    return found


class SegmentedRun:
    """The values that the rest of the model still reads, of every element of the data.

    `known` keeps functions of segments that are the same in every run, by their first nodes.
    """

    def __init__(
        self,
        graph: Graph,
        elements: Sequence[Sequence[Array]],
        options: ModelOptions,
        known: dict[int, WatchedRun] | None = None,
    ) -> None:
        self._graph, self._options, self._known = graph, options, known
        self.values = [dict(zip(graph.inputs, inputs, strict=True)) for inputs in elements]

    def rows_of(self, layer: ShrinkLayer, number: int) -> Array:
        """Rows (n, in) that a layer multiplies on the element of this number.

        Raises InvalidInput for NaN and infinite values.
        """
        values = {**self._graph.constants, **self.values[number]}
        return rows_of(layer, layer.multiplied(values), number, len(self.values))

    def advance(self, now: Graph, stage: Stage) -> None:
        """Run the nodes of a stage, with the constants of `now`."""
        nodes = stage.nodes
        later = self._read_from(stage.then) | {v for each in stage.layers for v in each.reads}
        made = part_of(now, now.nodes[nodes], later)
        if made is None:
            return
        known = {} if self._known is None else self._known
        run = known.get(nodes.start) or WatchedRun(made, (), self._options)
        known[nodes.start] = run
        for values in self.values:
            outputs, _ = run([values[value] for value in made.inputs])
            values.update(zip(made.outputs, outputs, strict=True))
            for value in [value for value in values if value not in later]:
                del values[value]

    def _read_from(self, first: int) -> set[Value]:
        """The values that nodes from number `first` on read, and the model's outputs."""
        return {v for node in self._graph.nodes[first:] for v in node.inputs} | {
            *self._graph.outputs
        }


def part_of(graph: Graph, nodes: Sequence[Node], later: Collection[Value]) -> Graph | None:
    """Some nodes as a graph whose outputs are the values read `later`; None without any."""
    made = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in node.inputs)
    outputs = tuple(v for node in nodes for v in node.outputs if v in later)
    inputs = tuple(v for v in read if v not in made and v not in graph.constants)
    constants = {value: graph.constants[value] for value in read if value in graph.constants}
    whole = Graph(inputs, outputs, tuple(nodes), constants)
    return remove_dead_code(whole) if outputs else None
