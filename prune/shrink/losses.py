"""Squared errors of a model's outputs that zeros and short dtypes of one layer cause."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sparsejit.api.steps_of_input import Forms, stored_product
from sparsejit.ir.graph import Array, Graph
from sparsejit.ir.layer_scales import LayerKey, LayerScales
from sparsejit.ir.spec import DType
from sparsejit.lowering.context import ModelOptions, Progress
from sparsejit.prune.patterns import PATTERNS, on_weight
from sparsejit.prune.shrink.forms import DENSE, FINEST, LayerForm
from sparsejit.prune.shrink.layers import ShrinkLayer
from sparsejit.prune.shrink.moments import Moments
from sparsejit.prune.shrink.reaction import RowChange, reactions
from sparsejit.prune.shrink.zeros import choices_by_amount, sampled_rows, squared_error

Elements = Sequence[Sequence[Array]]
# Elements that outputs' reactions are measured on.
_REACTING = 16
_TRIED = 2  # of the amounts, by which outputs' reactions to zeros are measured
_LEAST_CHANGE = 1e-6  # of the products' squares: less is rounding
_LEAST_LOSS = 1e-12


@dataclass(frozen=True, eq=False)
class Losses:
    """Squared relative errors of the outputs, as far as each layer causes them.

    Attributes:
        amounts: shares of zeros, the first of which is 0
        zeros: those of zeros (layers, amounts), by the pattern
        storage: those of the storage (layers,), by the dtype
    """

    amounts: Sequence[float]
    zeros: Mapping[str, Array]
    storage: Mapping[DType, Array]

    def of(self, number: int, form: LayerForm, amounts: Array) -> Array:
        """The losses of one layer in a form, at some amounts."""
        logs = np.log(self.zeros[form.pattern][number, 1:])
        between = np.exp(np.interp(amounts, self.amounts[1:], logs))
        return np.where(amounts == 0, 0.0, between) + self.storage[form.dtype][number]


@dataclass(frozen=True, eq=False)
class LossTable:
    """Measures the losses of one model's layers.

    Attributes:
        graph: the dense model
        layers: the layers that may change
        moments: of the rows that each layer multiplies, on the even elements and on the odd ones
        forms: the short forms of each layer
        elements: of the data
    """

    graph: Graph
    layers: Sequence[ShrinkLayer]
    moments: Mapping[ShrinkLayer, tuple[Moments, Moments]]
    forms: Mapping[LayerKey, Forms]
    elements: Elements
    options: ModelOptions
    tell: Progress

    def measured(self, forms: Sequence[LayerForm], amounts: Sequence[float]) -> Losses:
        """The losses of these forms.

        The losses of zeros grow with the layer's own error from the loss at one amount, which is
        tried.
        """
        patterns = list(dict.fromkeys((FINEST, *(form.pattern for form in forms))))
        own: dict[str, list[list[float]]] = {name: [] for name in patterns}
        trials: list[tuple[ShrinkLayer, RowChange]] = []
        tried_errors = []
        for number, layer in enumerate(self.layers):
            self.tell(f"choosing zeros of {layer.key.layer}", 0.2 + 0.2 * number / len(self.layers))
            for name in patterns:
                found = self._choices(layer, name, amounts)
                own[name].append([error for _, error in found])
                if name == FINEST:
                    made, error = self._to_try(layer, found)
                    trials.append((layer, self._change_by_zeros(layer, made)))
                    tried_errors.append(error)
        dtypes = list(dict.fromkeys(form.dtype for form in forms if form.dtype is not DENSE.dtype))
        trials += [
            (layer, _change_by_storage(self.forms[layer.key][dtype], self._weights(layer)))
            for dtype in dtypes
            for layer in self.layers
        ]
        self.tell("measuring the outputs' reactions", 0.4)
        reacting = self.elements[:: max(1, len(self.elements) // _REACTING)][:_REACTING]
        tried = np.array(reactions(self.graph, reacting, trials, self.options))
        by_zeros, *by_storage = tried.reshape(-1, len(self.layers))
        grown = {name: np.maximum.accumulate(np.array(each), axis=1) for name, each in own.items()}
        scale = by_zeros / np.maximum(tried_errors, 1e-30)
        zeros = {
            name: np.maximum(each * scale[:, None], _LEAST_LOSS) for name, each in grown.items()
        }
        nothing = np.zeros(len(self.layers))
        storage = {DENSE.dtype: nothing, **dict(zip(dtypes, by_storage, strict=True))}
        return Losses(amounts, zeros, storage)

    def _choices(
        self, layer: ShrinkLayer, pattern: str, amounts: Sequence[float]
    ) -> list[tuple[torch.Tensor, float]]:
        """Some rows of weights with each share of zeros, and the errors of all rows."""
        weight = torch.tensor(self._weights(layer), dtype=torch.float64)
        seen, held = (x.hessian(layer.bias is not None) for x in self.moments[layer])
        lying = on_weight(PATTERNS[pattern], layer.shape)
        rows = sampled_rows(len(weight), lying)
        times = len(weight) / len(rows)
        found = choices_by_amount(weight[rows], seen, held, lying, amounts)
        return [(made, times * error) for made, error in found]

    def _to_try(
        self, layer: ShrinkLayer, found: Sequence[tuple[torch.Tensor, float]]
    ) -> tuple[torch.Tensor, float]:
        """The first choice, from the usual one on, that changes the products; and its own error."""
        rows = sampled_rows(layer.shape[0], PATTERNS[FINEST])
        weight = torch.tensor(self._weights(layer), dtype=torch.float64)[rows]
        _, held = (x.hessian(layer.bias is not None) for x in self.moments[layer])
        least = _LEAST_CHANGE * squared_error(weight, torch.zeros_like(weight), held)
        for made, _ in found[_TRIED:]:
            error = squared_error(weight, made, held)
            if error > least:
                break
        return made, error

    def _change_by_zeros(self, layer: ShrinkLayer, made: torch.Tensor) -> RowChange:
        """The change by other rows of weights, less that of the mean x where a bias mends it."""
        rows = sampled_rows(layer.shape[0], PATTERNS[FINEST]).numpy()
        change = np.zeros_like(self._weights(layer))
        change[rows] = made.numpy().astype(np.float32) - self._weights(layer)[rows]
        mean = self.moments[layer][0].mean.numpy() if layer.bias is not None else 0 * change[0]
        constant = (change @ mean).astype(np.float32)
        return lambda x: x @ change.T - constant

    def _weights(self, layer: ShrinkLayer) -> Array:
        """Float32 (out, in)."""
        return self.graph.constants[layer.weights].reshape(layer.shape[0], -1)


def _change_by_storage(form: LayerScales, weights: Array) -> Callable[[Array], Array]:
    return lambda rows: stored_product(form, weights, rows) - rows @ weights.T
