"""Errors of a model's layers and outputs in short dtypes, from examples of its inputs.

Each layer is calibrated alone; outputs are computed by the compiled code.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sparsejit.api.models.final_graph import Dtypes, final_graph
from sparsejit.api.models.variant import TiledGraph, lowered_variant
from sparsejit.api.quantising.scales import Scales
from sparsejit.api.quantising.scales_of_inputs import Forms, short_forms, steps_of_values
from sparsejit.api.quantising.seen_inputs import SeenInput, SeenValues, WatchedModel, rows_each
from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph
from sparsejit.ir.layer_scales import LayerKey, LayerScales, SumScales
from sparsejit.ir.spec import DType
from sparsejit.ir.values import Array, Value
from sparsejit.lowering.context import ModelOptions, Progress
from sparsejit.passes.calibrated_layers import keyed_layers, weights_of
from sparsejit.passes.default import folded
from sparsejit.passes.quantised_layers import quantised_layers

# A function from a model's inputs to its outputs.
OutputsOf = Callable[..., list[Array]]


class CalibrationInput(NamedTuple):
    """One element of the data: the model's graph for its shapes, and the arrays it takes."""

    graph: Graph
    inputs: Sequence[Array]


@dataclass
class ShortLayers:
    """The layers of one model, calibrated on its data.

    Attributes:
        elements: the data
        options: options of the compiled code
        tell: the progress callback
        may_equalise: whether channels of x may be scaled before they are rounded
        may_measure: whether each row of x may be measured at every call
        forms: the best form in each short dtype of each layer whose x may have steps
        exact: the outputs in float32, for each element
        sums: scales and zero points for the operands of each elementwise addition of two images
    """

    elements: Sequence[CalibrationInput]
    options: ModelOptions
    tell: Progress
    may_equalise: bool = True
    may_measure: bool = True
    forms: dict[LayerKey, Forms] = field(init=False)
    exact: list[list[Array]] = field(init=False)
    sums: tuple[SumScales, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Run the data. Raises InvalidInput for NaN inside the model."""
        self.exact = []
        layers, sums = self._seen()
        self.tell("calibrating layers", 0.2)
        self.sums = tuple(
            SumScales(name, *map(steps_of_values, pair)) for name, pair in sums.items()
        )
        self.forms = {}
        alone = self._first.alone
        for group in self._of_one_x(layers):
            may_equalise = self.may_equalise and alone.issuperset(group)
            self.forms.update(short_forms(group, may_equalise, self.may_measure))

    @property
    def graph(self) -> Graph:
        """The folded graph of the first element, which has all layers."""
        return self._first.graph

    def scales(self, layers: Iterable[LayerScales]) -> Scales:
        """Return Scales of these layers and of sums, without error and times."""
        return Scales(tuple(layers), 0.0, None, 0.0, 0.0, self.sums)

    def all_layers(self, short: Iterable[LayerScales]) -> tuple[LayerScales, ...]:
        """Return a record for each layer with weights: from `short`, or else in float32."""
        by_place = {each.place: each for each in short}
        return tuple(
            replace(
                by_place.get(key.place) or LayerScales(*key, DType.FLOAT32),
                shape=weights_of(node).shape,
            )
            for key, node in keyed_layers(self.graph).items()
        )

    def outputs(self, scales: Dtypes) -> list[list[Array]]:
        """Return the outputs of the compiled code for each element, with layers in these dtypes."""
        return outputs_of(self.elements, scales, self.options)

    def _seen(
        self,
    ) -> tuple[dict[LayerKey, SeenInput], dict[str, tuple[SeenValues, SeenValues]]]:
        """Run the data; return the inputs of layers, and the operands of sums."""
        layers: dict[LayerKey, SeenInput] = {}
        sums: dict[str, tuple[SeenValues, SeenValues]] = {}
        most = rows_each(len(self.elements))
        for number, (graph, inputs) in enumerate(self.elements):
            self.tell("running the data", 0.2 * number / len(self.elements))
            watched = self._watched[id(graph)]
            outputs, found = watched.run(inputs)
            self.exact.append(outputs)
            for key, node in watched.layers.items():
                if (x := found.get(node.inputs[0])) is not None:
                    _check_finite(key.layer, x)
                    if key not in layers:
                        weights = watched.graph.constants[node.inputs[1]]
                        layers[key] = SeenInput(node, weights, len(layers))
                    layers[key].add(x, most)
            for name, node in watched.sums.items():
                pair = sums.setdefault(name, (SeenValues(0), SeenValues(1)))
                for seen, value in zip(pair, node.inputs, strict=True):
                    seen.add(found[value], most)
        return layers, sums

    @cached_property
    def _watched(self) -> dict[int, WatchedModel]:
        """Watched models by the id of the graph; elements of the same shapes share a graph."""
        graphs = {id(each.graph): each.graph for each in self.elements}
        return {
            key: WatchedModel(folded(quantised_layers(graph)), self.options)
            for key, graph in graphs.items()
        }

    @property
    def _first(self) -> WatchedModel:
        return self._watched[id(self.elements[0].graph)]

    def _of_one_x(
        self, layers: Mapping[LayerKey, SeenInput]
    ) -> Iterable[dict[LayerKey, SeenInput]]:
        """Group the layers by the value that they read."""
        groups: dict[Value, dict[LayerKey, SeenInput]] = defaultdict(dict)
        for key, node in self._first.layers.items():
            if key in layers:
                groups[node.inputs[0]][key] = layers[key]
        return groups.values()


def outputs_of(
    elements: Sequence[CalibrationInput], dtypes: Dtypes, options: ModelOptions
) -> list[list[Array]]:
    """Return the outputs of the compiled code for each element, with layers in these dtypes."""
    calls: dict[int, OutputsOf] = {}
    results = []
    for graph, inputs in elements:
        if id(graph) not in calls:
            calls[id(graph)] = compiled_outputs(final_graph(graph, options, dtypes), options)
        results.append(calls[id(graph)](*inputs))
    return results


def compiled_outputs(final: Graph, options: ModelOptions) -> OutputsOf:
    """Return the compiled function of a graph from `final_graph`, for its own batch alone."""
    made = [TiledGraph(replace(final, batch_axes=None), None)]
    call = lowered_variant(made, options, "tried", is_cached=False).call
    return lambda *inputs: call.run(*inputs)


def _check_finite(layer: str, x: Array) -> None:
    if not np.isfinite(x).all():
        raise InvalidInput(f"{layer} meets NaN or infinite values on the data")
