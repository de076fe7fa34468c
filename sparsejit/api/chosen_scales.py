"""Chooses how each layer is stored: short where that is faster and outputs stay within a budget.

Each layer is calibrated alone, then as many are stored short as outputs allow, those first that
save most time for the error that they cause. What counts is what the compiled code gives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from sparsejit.api.final_graph import Dtypes, final_graph
from sparsejit.api.output_error import output_error
from sparsejit.api.scales import Scales
from sparsejit.api.seen_inputs import SeenInput, SeenValues, WatchedModel, rows_each
from sparsejit.api.steps_of_input import Forms, short_forms, steps_of_values
from sparsejit.api.variant import TiledGraph, Variant, lowered_variant
from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Array, Graph, Value
from sparsejit.ir.layer_scales import LayerKey, LayerScales, SumScales
from sparsejit.ir.spec import DType
from sparsejit.lowering.context import ModelOptions, Progress
from sparsejit.lowering.model import lower_model
from sparsejit.passes.calibrated_layers import keyed_layers, weights_of
from sparsejit.passes.default import folded
from sparsejit.passes.quantised_layers import quantised_layers

# Whether outputs are good enough: a list for each element of the data.
Judge = Callable[[list[list[Array]]], bool]
SHORT = (DType.INT8, DType.BFLOAT16, DType.FLOAT16)
# A share of a layer's time, and of the whole's: less is within the error of a prediction.
_LEAST_GAIN, _LEAST_WHOLE_GAIN = 0.05, 0.02
# What is left of the budget after layers that did not fit is given out so many times.
_MOST_ROUNDS = 3
# Taken for a layer whose error alone nobody knows, such as a recurrence.
_UNKNOWN_ERROR = {DType.INT8: 1e-2, DType.BFLOAT16: 2e-3, DType.FLOAT16: 3e-4}


class CalibrationInput(NamedTuple):
    """One element of the data: the model's graph for its shapes, and the arrays it takes."""

    graph: Graph
    inputs: Sequence[Array]


class _Change(NamedTuple):
    """The layers of one name stored in one dtype."""

    layer: str
    dtype: DType
    scales: tuple[LayerScales, ...]
    saved_ns: float

    @property
    def worth(self) -> float:
        """Time for error."""
        squares = sum(each.error**2 for each in self.scales)
        return self.saved_ns / max(squares, 1e-12)


@dataclass
class ChosenScales:
    """The choice for one model and its data; `priced` is the graph of what calls will run."""

    elements: Sequence[CalibrationInput]
    priced: Graph
    budget: float | Callable[[list[Any]], bool]
    options: ModelOptions
    as_called: Callable[[list[Array]], Any]  # outputs as the model returns them
    tell: Progress

    def made(self) -> Scales:
        """What is best within the budget. Raises InvalidInput as `_checked` does."""
        forms = self._calibrated()
        exact = self.exact
        if not self._fits(exact):
            raise InvalidInput("budget: outputs in float32 are not good enough either")
        self.tell("choosing dtypes", 0.4)
        changes = list(self._changes(forms))
        chosen: dict[str, _Change] = {}
        for among in (SHORT[:1], SHORT[1:]):
            some = [each for each in changes if each.dtype in among]
            chosen = self._filled(chosen, some)
        return self._record(chosen)

    @cached_property
    def _watched(self) -> dict[int, WatchedModel]:
        """By the graph, of which elements of the same shapes have the same one."""
        graphs = {id(each.graph): each.graph for each in self.elements}
        return {
            key: WatchedModel(folded(quantised_layers(graph)), self.options)
            for key, graph in graphs.items()
        }

    def _calibrated(self) -> dict[LayerKey, Forms]:
        """What each short dtype can do for each layer that may have steps; and sums' steps."""
        layers: dict[LayerKey, SeenInput] = {}
        sums: dict[str, tuple[SeenValues, SeenValues]] = {}
        self.exact: list[list[Array]] = []
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
        self.tell("calibrating layers", 0.2)
        self._sums = tuple(
            SumScales(name, *map(steps_of_values, pair)) for name, pair in sums.items()
        )
        forms: dict[LayerKey, Forms] = {}
        alone = self._watched[id(self.elements[0].graph)].alone
        for group in self._of_one_x(layers):
            forms.update(short_forms(group, alone.issuperset(group)))
        return forms

    def _of_one_x(
        self, layers: Mapping[LayerKey, SeenInput]
    ) -> Iterable[dict[LayerKey, SeenInput]]:
        """Layers that read the same value, together."""
        groups: dict[Value, dict[LayerKey, SeenInput]] = defaultdict(dict)
        for key, node in self._watched[id(self.elements[0].graph)].layers.items():
            if key in layers:
                groups[node.inputs[0]][key] = layers[key]
        return groups.values()

    def _changes(
        self, forms: Mapping[LayerKey, Forms]
    ) -> Iterator[_Change]:
        """Those that are predicted to save time."""
        self._float32_ns, floats = self._times("float32")
        keys = [key for key, node in keyed_layers(self._folded).items() if _is_plain(node.op)]
        for dtype in SHORT:
            stored = [_form(forms, key, dtype) for key in keys]
            found = [each for each in stored if each is not None]
            try:
                _, times = self._times(self._scales(found))
            except InvalidInput:  # weights beyond the dtype
                continue
            by_layer: dict[str, list[LayerScales]] = defaultdict(list)
            for each in found:
                by_layer[each.layer].append(each)
            for layer, group in by_layer.items():
                saved = floats.get(layer, 0.0) - times.get(layer, 0.0)
                if saved > _LEAST_GAIN * floats.get(layer, 0.0):
                    scales = tuple(replace(each, saved_ns=saved) for each in group)
                    yield _Change(layer, dtype, scales, saved)

    @cached_property
    def _folded(self) -> Graph:
        return folded(quantised_layers(self.elements[0].graph))

    def _times(self, dtypes: Dtypes) -> tuple[float, dict[str, float]]:
        """Predicted nanoseconds of a run, and of the steps of each layer."""
        lowered = lower_model(final_graph(self.priced, self.options, dtypes), self.options)
        times: dict[str, float] = defaultdict(float)
        for step in lowered.steps:
            times[step.origin.layer] += step.ns
        return lowered.ns, times

    def _filled(
        self, chosen: dict[str, _Change], changes: Iterable[_Change]
    ) -> dict[str, _Change]:
        """With as many of the changes as fit, of layers that have none yet."""
        best = {}
        for each in sorted(changes, key=lambda one: one.worth):
            best[each.layer] = each  # the worthier one of two dtypes comes last
        left = [each for each in best.values() if each.layer not in chosen]
        left.sort(key=lambda one: -one.worth)
        for _ in range(_MOST_ROUNDS):
            if not left:
                break
            count = self._most(chosen, left)
            chosen = {**chosen, **{each.layer: each for each in left[:count]}}
            left = left[count + 1 :]
        return chosen

    def _most(self, chosen: Mapping[str, _Change], left: Sequence[_Change]) -> int:
        """How many of the first changes fit beside those that are chosen."""
        fits, fails = 0, len(left) + 1
        count = len(left)  # often all of them do
        while fits + 1 < fails:
            self.tell(f"trying {len(chosen) + count} short layers", 0.5)
            tried = [*chosen.values(), *left[:count]]
            if self._fits(self._outputs(self._scales(_layers(tried)))):
                fits = count
            else:
                fails = count
            count = (fits + fails) // 2
        return fits

    def _outputs(self, scales: Scales) -> list[list[Array]]:
        """What the compiled code gives for the data."""
        variants: dict[int, Variant] = {}
        results = []
        for graph, inputs in self.elements:
            if id(graph) not in variants:
                final = replace(final_graph(graph, self.options, scales), batch_axes=None)
                made = [TiledGraph(final, None)]
                variants[id(graph)] = lowered_variant(
                    made, self.options, "tried", is_cached=False
                )
            results.append(variants[id(graph)].call.run(*inputs))
        return results

    def _scales(self, layers: Iterable[LayerScales]) -> Scales:
        return Scales(tuple(layers), 0.0, None, 0.0, 0.0, self._sums)

    def _fits(self, outputs: list[list[Array]]) -> bool:
        if callable(self.budget):
            return bool(self.budget([self.as_called(each) for each in outputs]))
        return output_error(outputs, self.exact) <= self.budget

    def _record(self, chosen: Mapping[str, _Change]) -> Scales:
        """The choice; none at all where it is not predicted to be faster."""
        short = _layers(chosen.values())
        ns, _ = self._times(self._scales(short)) if short else (self._float32_ns, {})
        if ns > (1 - _LEAST_WHOLE_GAIN) * self._float32_ns:
            short, ns = [], self._float32_ns
        by_place = {each.place: each for each in short}
        layers = [
            replace(
                by_place.get(key.place) or LayerScales(*key, DType.FLOAT32),
                shape=weights_of(node).shape,
            )
            for key, node in keyed_layers(self._folded).items()
        ]
        error = output_error(self._outputs(self._scales(short)), self.exact) if short else 0.0
        budget = None if callable(self.budget) else float(self.budget)
        sums = self._sums if short else ()
        return Scales(tuple(layers), error, budget, ns, self._float32_ns, sums)


def _is_plain(op: Any) -> bool:
    return op.dtype is DType.FLOAT32


def _form(
    forms: Mapping[LayerKey, Forms], key: LayerKey, dtype: DType
) -> LayerScales | None:
    """As calibrated; a layer whose x has no steps, such as a recurrence, by its dtype alone."""
    if key in forms:
        return forms[key].get(dtype)
    how = "each row" if dtype is DType.INT8 else ""
    return LayerScales(*key, dtype, how=how, error=_UNKNOWN_ERROR[dtype])


def _layers(changes: Iterable[_Change]) -> list[LayerScales]:
    return [one for each in changes for one in each.scales]


def _check_finite(layer: str, x: Array) -> None:
    if not np.isfinite(x).all():
        raise InvalidInput(f"{layer} meets NaN or infinite values on the data")
