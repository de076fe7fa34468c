"""Squared errors of a model's outputs that zeros and short dtypes of one layer cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from sparsejit.api.quantising.scales_of_inputs import Forms, stored_matrix, stored_x
from sparsejit.ir.graph import Graph
from sparsejit.ir.layer_scales import LayerKey, LayerScales
from sparsejit.ir.spec import DType
from sparsejit.ir.values import Array
from sparsejit.lowering.context import ModelOptions
from sparsejit.prune.patterns import PATTERNS, on_weight
from sparsejit.prune.shrink.data import spread
from sparsejit.prune.shrink.layers import DENSE, FINEST, LayerForm, ShrinkLayer
from sparsejit.prune.shrink.moments import Moments
from sparsejit.prune.shrink.reaction import Change, reactions
from sparsejit.prune.shrink.zeros import (
    choices_by_amount,
    factors_by_window,
    sampled_rows,
    squared_error,
)

Elements = Sequence[Sequence[Array]]
# Most and fewest elements that reactions are measured on, and about the runs of the model in all.
_MOST_REACTING, _FEWEST_REACTING, _RUNS = 16, 4, 1000
_TRIED = 3  # number of the first amount at which reactions to zeros are measured
_LEAST_CHANGE = 1e-6  # of the products' squares: less is rounding
_LEAST_LOSS, FORBIDDEN = 1e-12, 1e12  # the loss of forms that a layer may not take


@dataclass(frozen=True, eq=False)
class Losses:
    """Squared relative errors of the outputs, by the layer that causes them.

    Attributes:
        amounts: shares of zeros, the first of which is 0
        zeros: the errors that zeros cause (layers, amounts), by the pattern
        storage: the errors that storage causes (layers,), by the dtype
    """

    amounts: Sequence[float]
    zeros: Mapping[str, Array]
    storage: Mapping[DType, Array]

    def of(self, number: int, form: LayerForm, amounts: Array) -> Array:
        """The losses of one layer in a form, at some amounts."""
        logs = np.log(self.zeros[form.pattern][number, 1:])
        between = np.exp(np.interp(amounts, self.amounts[1:], logs))
        return np.where(amounts == 0, 0.0, between) + self.storage[form.dtype][number]


@dataclass(eq=False)
class LossTable:
    """Measures the losses of one model's layers, which are taken in one after the other.

    Attributes:
        graph: the dense model
        forms: the forms that layers may take
        short: the short forms of each layer
        amounts: shares of zeros, the first of which is 0
        options: options of the compiled code
    """

    graph: Graph
    forms: Sequence[LayerForm]
    short: Mapping[LayerKey, Forms]
    amounts: Sequence[float]
    options: ModelOptions
    _own: dict[ShrinkLayer, dict[str, list[float]]] = field(default_factory=dict)
    _trials: dict[ShrinkLayer, tuple[Change, float]] = field(default_factory=dict)

    def take(self, layer: ShrinkLayer, some: Moments, others: Moments) -> None:
        """Choose zeros of a layer by the moments of some rows; measure them by the others' moments.

        A layer whose rows are zeros in all the data, such as the first state of a recurrent layer,
        is not taken in: on other data its weights may matter.
        """
        if some.are_zeros:
            return
        has_bias = layer.bias is not None
        seen, held = some.hessian(has_bias), others.hessian(has_bias)
        weight = torch.tensor(self._weights(layer)).to(seen)
        self._own[layer] = {}
        patterns = {name: on_weight(PATTERNS[name], layer.shape) for name in self._patterns}
        for factor, alike in factors_by_window(seen, patterns):
            for name, lying in alike.items():
                rows = sampled_rows(len(weight), lying, layer.gates)
                given = weight[rows], factor, held, lying
                found = choices_by_amount(*given, self.amounts, layer.gates)
                times = len(weight) / len(rows)
                self._own[layer][name] = [times * error for _, error in found]
                if name == FINEST:
                    made, error = _to_try(weight[rows], held, found)
                    mean = some.mean if has_bias else torch.zeros_like(some.mean)
                    self._trials[layer] = self._change_by_zeros(layer, rows, made, mean), error

    def measured(self, layers: Sequence[ShrinkLayer], elements: Elements) -> Losses:
        """The losses of the layers, by the outputs on some of these elements.

        The losses of zeros are the loss at one amount, which is tried, scaled by the layer's own
        error at each amount. A layer that was not taken in may have no zeros.
        """
        trials: dict[tuple[ShrinkLayer, DType], Change] = {
            (layer, DENSE.dtype): change for layer, (change, _) in self._trials.items()
        }
        short = dict.fromkeys(each.dtype for each in self.forms if each.dtype is not DENSE.dtype)
        for dtype in short:
            for layer in layers:
                form = layer.stored(dtype, self.short)
                if form is not None:
                    trials[layer, dtype] = self._change_by_storage(layer, form)
        most = min(max(_RUNS // max(len(trials), 1), _FEWEST_REACTING), _MOST_REACTING)
        given = [(layer, change) for (layer, _), change in trials.items()]
        measured = reactions(self.graph, spread(elements, most), given, self.options)
        tried = dict(zip(trials, measured, strict=True))
        zeros = {
            name: np.array([self._by_zeros(layer, name, tried) for layer in layers])
            for name in self._patterns
        }
        storage = {
            dtype: np.array([tried.get((layer, dtype), FORBIDDEN) for layer in layers])
            for dtype in short
        }
        return Losses(self.amounts, zeros, {DENSE.dtype: np.zeros(len(layers)), **storage})

    @property
    def _patterns(self) -> list[str]:
        return list(dict.fromkeys((FINEST, *(form.pattern for form in self.forms))))

    def _by_zeros(
        self, layer: ShrinkLayer, pattern: str, tried: Mapping[tuple[ShrinkLayer, DType], float]
    ) -> Array:
        """The losses of one layer's zeros, by the amount."""
        if layer not in self._trials:
            return np.array([_LEAST_LOSS, *[FORBIDDEN] * (len(self.amounts) - 1)])
        scale = tried[layer, DENSE.dtype] / max(self._trials[layer][1], 1e-30)
        own = np.maximum.accumulate(self._own[layer][pattern])
        return np.asarray(np.maximum(own * scale, _LEAST_LOSS))

    def _change_by_zeros(
        self, layer: ShrinkLayer, rows: torch.Tensor, made: torch.Tensor, mean: torch.Tensor
    ) -> Change:
        """The change by other rows of weights, less the change for a mean x, which a bias mends."""
        change = torch.zeros(layer.shape[0], layer.inputs, dtype=torch.float64)
        change[rows] = made.cpu() - torch.tensor(self._weights(layer))[rows]
        means = (change @ mean.cpu()).float().numpy()
        weights = change.float().numpy().reshape(layer.shape)
        if layer.is_recurrent:
            changes = {layer.weights: weights}
            if layer.bias is not None:
                changes[layer.bias] = -means
            return {value: self.graph.constants[value] + each for value, each in changes.items()}
        shift = layer.along_channels(means)
        return lambda x: layer.product(x, weights) - shift

    def _change_by_storage(self, layer: ShrinkLayer, form: LayerScales) -> Change:
        """The change by rounded weights and a rounded x."""
        own = self.graph.constants[layer.weights]
        stored = stored_matrix(form, own)
        if layer.is_recurrent:
            return {layer.weights: stored}
        correction = np.zeros(len(own), np.float32) if form.correction is None else form.correction
        shift, axis = layer.along_channels(correction), layer.channel_axis

        def change(x: Array) -> Array:
            rounded = layer.product(stored_x(form, x, axis), stored)
            return rounded + shift - layer.product(x, own)

        return change

    def _weights(self, layer: ShrinkLayer) -> Array:
        """Float32 (out, in)."""
        return self.graph.constants[layer.weights].reshape(layer.shape[0], -1)


def _to_try(
    weight: torch.Tensor, held: torch.Tensor, found: Sequence[tuple[torch.Tensor, float]]
) -> tuple[torch.Tensor, float]:
    """The first choice from `_TRIED` on that changes the products, and its error."""
    least = _LEAST_CHANGE * squared_error(weight, torch.zeros_like(weight), held)
    some = found[_TRIED:]
    return next((each for each in some if each[1] > least), some[-1])
