"""Predicted times of a model's layers, by the form of their weights and the share of zeros."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from sparsejit.api.models.final_graph import Dtypes, final_graph
from sparsejit.api.models.predicted_times import matrices_by_zeros, predicted_times
from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph
from sparsejit.ir.spec import DType
from sparsejit.ir.values import Array, Value
from sparsejit.lowering.context import ModelOptions
from sparsejit.native.executable_memory import return_free_memory
from sparsejit.prune.allocation import choose_least
from sparsejit.prune.patterns import PATTERNS, on_weight
from sparsejit.prune.shrink.layers import DENSE, FINEST, FORMS, LayerForm, ShrinkLayer, with_weights
from sparsejit.prune.shrink.zeros import block_counts

# Shares of zeros whose times are predicted; between them times are nearly straight lines.
AMOUNTS = (0.0, 0.15, 0.3, 0.6, 0.75, 0.92)
# A form that saves less of the layers' time, at this share of zeros, is left out.
_LEAST_GAIN, _TRIED = 0.02, AMOUNTS[3]
# Layers are of one kind where the spreads of their magnitudes agree to about a tenth of the mean.
_FINENESS = 10


@dataclass(frozen=True, eq=False)
class Times:
    """Predicted nanoseconds.

    Attributes:
        layers: times of each layer at each of AMOUNTS (layers, amounts), by the form
        others: time of all else
        bound: numbers of the layers that are faster in int8 only if the next layer is in int8
    """

    layers: Mapping[LayerForm, Array]
    others: float
    bound: tuple[int, ...] = ()

    def of(self, number: int, form: LayerForm, amounts: Array) -> Array:
        """The times of one layer in a form, at some shares of zeros.

        A form that was left out takes as long as the finest one of its dtype.
        """
        own = form if form in self.layers else LayerForm(FINEST, form.dtype)
        return np.interp(amounts, AMOUNTS, self.layers[own][number])


@dataclass(frozen=True, eq=False)
class LayerTimes:
    """The planner's times of layers with zeros, which are chosen by magnitude.

    Attributes:
        graph: the dense model
        layers: the layers that may have zeros
        dtypes: the storage of all layers in a dtype, by that dtype; some dtypes may be missing
        options: options of the compiled code
    """

    graph: Graph
    layers: Sequence[ShrinkLayer]
    dtypes: Mapping[DType, Dtypes]
    options: ModelOptions
    _known: dict[tuple[LayerForm, float], tuple[Array, float]] = field(default_factory=dict)

    def by_form(self) -> Times:
        """The times of the forms that gain something over finer ones.

        A layer never becomes slower by more zeros: it may keep the kernel that it had before.
        """
        made: dict[LayerForm, Array] = {}
        others = []
        for form in self._useful():
            times = [self._times(form, amount) for amount in AMOUNTS]
            made[form] = np.minimum.accumulate([own for own, _ in times], axis=0).T
            if form.dtype is DENSE.dtype:
                others += [rest for _, rest in times]
        return Times(made, float(np.mean(others)))

    def total(self, form: LayerForm, amount: float) -> float:
        """Nanoseconds of the model whose layers have that form and share of zeros."""
        own, others = self._times(form, amount)
        return float(own.sum()) + others

    def _useful(self) -> list[LayerForm]:
        """The forms that are clearly faster than all finer ones, with some zeros or without."""
        found: list[LayerForm] = []
        for form in FORMS:
            if form.dtype not in self.dtypes:
                continue
            amounts = (0.0, _TRIED) if form.pattern == FINEST else (_TRIED,)
            finer = [other for other in found if other.is_finer(form)]
            with suppress(InvalidInput):  # for weights beyond the dtype's range
                if any(self._gains(form, finer, amount) for amount in amounts):
                    found.append(form)
        return found

    def _gains(self, form: LayerForm, finer: Sequence[LayerForm], amount: float) -> bool:
        times, _ = self._times(form, amount)
        if not finer:
            return True
        least = np.min([self._times(other, amount)[0] for other in finer], axis=0)
        return float(np.maximum(least - times, 0).sum()) > _LEAST_GAIN * float(least.sum())

    def _times(self, form: LayerForm, amount: float) -> tuple[Array, float]:
        """Nanoseconds of each layer (layers,), and of all else."""
        if (form, amount) in self._known:
            return self._known[form, amount]
        graph = with_weights(self.graph, self._pruned(form, amount))
        final = final_graph(graph, self.options, self.dtypes[form.dtype])
        ns, by_layer = predicted_times(final, self.options, matrices_by_zeros(final))
        own = np.array([self._own_time(layer, by_layer) for layer in self.layers])
        self._known[form, amount] = own, ns - float(own.sum())
        del graph, final
        return_free_memory()
        return self._known[form, amount]

    def _pruned(self, form: LayerForm, amount: float) -> dict[Value, Array]:
        """The weights of all layers, with zeros at the same places in all layers of a kind."""
        first: dict[Hashable, Array] = {}
        pruned = {}
        for layer, kind in zip(self.layers, self._kinds, strict=True):
            own = self.graph.constants[layer.weights]
            if kind not in first:
                first[kind] = by_magnitude(layer, own, form, amount)
            made = first[kind]
            pruned[layer.weights] = own if made is own else np.where(made == 0, made, own)
        return pruned

    def _own_time(self, layer: ShrinkLayer, by_layer: Mapping[str, Mapping[str, float]]) -> float:
        """Nanoseconds of a layer: of its weights, and its share of the rest of its module."""
        module, own = by_layer.get(layer.key.layer, {}), layer.key.weights
        alike = [each.key.weights for each in self._by_module[layer.key.layer]]
        rest = sum(ns for weights, ns in module.items() if weights not in alike)
        return module.get(own, 0.0) / alike.count(own) + rest / len(alike)

    @cached_property
    def _kinds(self) -> list[Hashable]:
        return [kind_of(layer, self.graph.constants[layer.weights]) for layer in self.layers]

    @cached_property
    def _by_module(self) -> dict[str, list[ShrinkLayer]]:
        found: dict[str, list[ShrinkLayer]] = defaultdict(list)
        for layer in self.layers:
            found[layer.key.layer].append(layer)
        return found


def kind_of(layer: ShrinkLayer, weights: Array) -> Hashable:
    """A key that layers share whose least weights lie about alike, so that zeros take equal times.

    Zeros are chosen by magnitude, so that they lie as the magnitudes of rows, inputs and taps do.
    A layer that has zeros already is alone.
    """
    if not weights.all():
        return layer
    squares, axes = np.square(weights), range(weights.ndim)
    by_axis = [np.sqrt(squares.mean(axis=(*axes[:n], *axes[n + 1 :]))) for n in axes]
    spreads = tuple(round(float(_FINENESS * each.std() / each.mean())) for each in by_axis)
    return layer.shape, layer.gates, spreads


def by_magnitude(layer: ShrinkLayer, weights: Array, form: LayerForm, amount: float) -> Array:
    """Weights (out, in, *kernel) whose least ones, in the form's pattern, are zeros."""
    matrix = torch.tensor(weights.reshape(len(weights), -1))
    pattern = on_weight(PATTERNS[form.pattern], weights.shape)
    counts = block_counts(matrix, pattern, amount, layer.gates)
    if not any(counts):
        return weights
    pruned = choose_least(matrix.square(), pattern, counts)
    return matrix.masked_fill(pruned, 0).reshape(weights.shape).numpy()
