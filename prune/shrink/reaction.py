"""Reactions of a model's outputs to changed weights of each layer.

    SegmentedRun   a run in segments: each layer may change before the nodes behind it run
    reactions      the error of the outputs for each change of one layer
    LevelledRun    a run from behind a layer, for one element of the data

`SegmentedRun`:

    segment 0: nodes before the first layers       live values of each element of the data
               the layers change                   go on from segment to segment
    segment 1: these layers and the nodes behind them

A recurrent layer runs in two segments: its rows are its own states, until it changes.

`LevelledRun`:

    level 0: the nodes before the first layers, and these layers     live values of one element
             one of these layers' y changes
    level 1: the nodes behind them, and the next layers              runs for each change
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sparsejit.api.quantising.seen_inputs import WatchedRun
from sparsejit.api.reports.accuracy import OutputErrors
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.values import Array, Value
from sparsejit.lowering.context import ModelOptions
from sparsejit.passes.rewriter import remove_dead_code
from sparsejit.prune.shrink.layers import ShrinkLayer, with_weights
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


# A function from a layer's x to the array added to its y, or new constants where y feeds back.
Change = Callable[[Array], Array] | Mapping[Value, Array]


def reactions(
    graph: Graph,
    elements: Sequence[Sequence[Array]],
    trials: Sequence[tuple[ShrinkLayer, Change]],
    options: ModelOptions,
) -> list[float]:
    """Squared relative error of the outputs for each trial, which changes one layer.

    A change that is a function is added to the layer's y, and only the nodes behind the layer run
    again. A change that is new constants takes the place of the old ones, and the whole model runs.
    """
    run = LevelledRun(graph, [layer for layer, change in trials if callable(change)], options)
    others = {
        number: WatchedRun(with_weights(graph, change), (), options)
        for number, (_, change) in enumerate(trials)
        if not callable(change)
    }
    errors = [OutputErrors() for _ in trials]
    for inputs in elements:
        dense = run.dense(inputs)
        exact = run.outputs(len(dense) - 1, dense[-1])
        for number, (layer, change) in enumerate(trials):
            if callable(change):
                level = run.level_of[layer]
                values = dense[level]
                y = values[layer.y] + change(layer.multiplied(values))
                made = run.outputs(level, {**values, layer.y: y})
            else:
                made, _ = others[number](inputs)
            errors[number].add(made, exact)
    return [error.mean**2 for error in errors]


class LevelledRun:
    """A graph that may run from behind each of its layers.

    Attributes:
        level_of: the number of the level that each layer is in
    """

    def __init__(
        self, graph: Graph, layers: Iterable[ShrinkLayer], options: ModelOptions
    ) -> None:
        self._graph = graph
        by_node = {id(layer.node): layer for layer in layers}
        self.level_of: dict[ShrinkLayer, int] = {}
        self._runs: list[tuple[Graph, WatchedRun] | None] = []
        self._kept: list[set[Value]] = []  # values of each level that something reads behind it
        levels = _levels(graph, by_node.keys())
        later = set(graph.outputs)
        for number, nodes in reversed([*enumerate(levels)]):
            own = [by_node[id(node)] for node in nodes if id(node) in by_node]
            self.level_of |= dict.fromkeys(own, number)
            kept = later | {value for layer in own for value in (*layer.reads, layer.y)}
            part = part_of(graph, nodes, kept)
            self._kept.insert(0, kept)
            self._runs.insert(0, None if part is None else (part, WatchedRun(part, (), options)))
            later = later | {value for node in nodes for value in node.inputs}

    def dense(self, inputs: Sequence[Array]) -> list[dict[Value, Array]]:
        """The values that are read behind each level, for one element of the data."""
        values = dict(zip(self._graph.inputs, inputs, strict=True))
        found = []
        for number in range(len(self._runs)):
            values = self._advanced(number, values)
            found.append(values)
        return found

    def outputs(self, level: int, values: Mapping[Value, Array]) -> list[Array]:
        """The outputs of the graph from the values behind a level."""
        for number in range(level + 1, len(self._runs)):
            values = self._advanced(number, values)
        known = {**self._graph.constants, **values}
        return [known[value] for value in self._graph.outputs]

    def _advanced(self, number: int, values: Mapping[Value, Array]) -> dict[Value, Array]:
        run = self._runs[number]
        made: dict[Value, Array] = {}
        if run is not None:
            part, call = run
            outputs, _ = call([values[value] for value in part.inputs])
            made = dict(zip(part.outputs, outputs, strict=True))
        return {value: x for value, x in {**values, **made}.items() if value in self._kept[number]}


def _levels(graph: Graph, ends: Iterable[int]) -> list[list[Node]]:
    """The nodes in levels: no node reads values that depend on an end of its own level.

    `ends` are the ids of nodes.
    """
    found, left, last = [], list(graph.nodes), set(ends)
    while left:
        level, later, behind = list[Node](), list[Node](), set[Value]()
        for node in left:
            is_behind = not behind.isdisjoint(node.inputs)
            (later if is_behind else level).append(node)
            if is_behind or id(node) in last:
                behind.update(node.outputs)
        found.append(level)
        left = later
    return found
