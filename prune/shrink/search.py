"""The share of zeros of each layer, chosen by error and time, and trials of the choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from sparsejit.api.output_error import mean_output_error
from sparsejit.api.seen_inputs import WatchedRun
from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Array, Graph, Value
from sparsejit.lowering.context import ModelOptions, Progress
from sparsejit.prune.frontier import Frontier, LayerOptions, frontier
from sparsejit.prune.patterns import Pattern, choose_pattern
from sparsejit.prune.shrink.layers import ShrinkLayer, with_weights
from sparsejit.prune.shrink.moments import Moments, PairedMoments, rows_of
from sparsejit.prune.shrink.reaction import reactions
from sparsejit.prune.shrink.segments import SegmentedRun, stages
from sparsejit.prune.shrink.shrunk import FrontierPoint
from sparsejit.prune.shrink.times import Times, times_by_amount
from sparsejit.prune.shrink.zeros import choices_by_amount, with_zeros

Elements = Sequence[Sequence[Array]]
# Shares of zeros that are priced, and how many lie between them that layers may take.
AMOUNTS = (0.0, 0.3, 0.45, 0.55, 0.65, 0.75, 0.85, 0.92)
_STEPS = 32
_TRIED = 2  # of AMOUNTS, by which outputs' reactions are measured
# Elements that outputs' reactions are measured on; rows that a layer needs for each input.
_REACTING, _ROWS_FOR_INPUT = 16, 2
_LEAST_LOSS = 1e-12
# The share of the errors of layers before that a layer's weights are fitted to make up for.
_MENDING = 0.8
# An error this near the budget is good enough; the most that one try may change a choice's error.
_NEAR, _MOST_STEP, _LEAST_ERROR = 0.9, 8.0, 1e-9


@dataclass(frozen=True)
class Tried:
    """A choice that was carried out.

    Attributes:
        graph: the model with these zeros
        amounts: the share of zeros of each layer
        error: the root mean square of the outputs' errors over the root mean square of the outputs,
            on elements that the weights were not fitted to
        predicted_ns: the planner's time of a run
    """

    graph: Graph
    amounts: Mapping[ShrinkLayer, float]
    error: float
    predicted_ns: float


@dataclass
class ZeroSearch:
    """The choices for one model and its data.

    Attributes:
        graph: folded, for the shapes of all elements
        layers: the layers that may have zeros
        fitted: elements that weights are fitted to
        held: elements that errors are measured on
        options: of the models that are compiled
        tell: the progress
        pattern: of the zeros
        tried: the choices that were carried out
    """

    graph: Graph
    layers: Sequence[ShrinkLayer]
    fitted: Elements
    held: Elements
    options: ModelOptions
    tell: Progress
    pattern: Pattern = field(default_factory=lambda: choose_pattern("unstructured"))
    tried: list[FrontierPoint] = field(default_factory=list)

    def prepare(self) -> None:
        """Measure what each layer costs. Raises InvalidInput for NaN inside the model."""
        self._moments = self._dense_moments()
        self.layers = [
            layer
            for layer in self.layers
            if sum(each.count for each in self._moments[layer]) >= _ROWS_FOR_INPUT * layer.inputs
        ]
        if not self.layers:
            raise InvalidInput(
                "data has too few elements for the layers of this model; give more of them"
            )
        self.exact = self._outputs_of(self.graph)
        self._losses = self._losses_by_amount()
        self.tell("pricing zeros", 0.45)
        self.times: Times = times_by_amount(self.graph, self.layers, AMOUNTS, self.options)

    @property
    def dense_ns(self) -> float:
        """The planner's time of the dense model."""
        return float(self.times.layers[:, 0].sum() + self.times.others)

    @cached_property
    def choices(self) -> Frontier:
        """The choices that no other beats in predicted time and predicted squared error."""
        options = []
        for times, losses in zip(self.times.layers, self._losses, strict=True):
            between = np.exp(np.interp(self._grid, AMOUNTS[1:], np.log(losses[1:])))
            own = np.where(self._grid == 0, 0.0, between)
            options.append(LayerOptions(np.interp(self._grid, AMOUNTS, times), own))
        return frontier(options)

    def time_of(self, number: int, amount: float) -> float:
        """Predicted nanoseconds of a layer with that share of zeros."""
        return float(np.interp(amount, AMOUNTS, self.times.layers[number]))

    def error_of(self, number: int, amount: float) -> float:
        """The predicted error of the outputs where one layer alone has that share of zeros."""
        if amount == 0:
            return 0.0
        logs = np.log(self._losses[number, 1:])
        return float(np.exp(np.interp(amount, AMOUNTS[1:], logs) / 2))

    def attempt(self, state: int) -> Tried:
        """Carry out a choice: layer by layer, each on what the layers before it now give."""
        chosen = self.choices.choices[state]
        amounts = {
            layer: float(self._grid[option])
            for layer, option in zip(self.layers, chosen, strict=True)
        }
        now = self.graph
        dense, run = (SegmentedRun(self.graph, self.fitted, self.options) for _ in range(2))
        for stage in stages(self.graph, self.layers):
            dense.advance(self.graph, stage.nodes)
            run.advance(now, stage.nodes)
            changed: dict[Value, Array] = {}
            for layer in stage.layers:
                changed |= self._changed(layer, amounts[layer], dense, run)
            now = with_weights(now, changed)
        ns = float(self.choices.times[state] + self.times.others)
        error = self.error(now)
        self.tried.append(FrontierPoint(ns, error))
        return Tried(now, amounts, error, ns)

    def error(self, graph: Graph) -> float:
        """The error of a graph's outputs on the elements held back."""
        return mean_output_error(self._outputs_of(graph), self.exact)

    def _outputs_of(self, graph: Graph) -> list[list[Array]]:
        """The outputs on the elements held back."""
        run = WatchedRun(graph, (), self.options)
        return [run(inputs)[0] for inputs in self.held]

    @cached_property
    def _grid(self) -> Array:
        return np.unique([*AMOUNTS, *np.linspace(AMOUNTS[1], AMOUNTS[-1], _STEPS)])

    def _dense_moments(self) -> dict[ShrinkLayer, tuple[Moments, Moments]]:
        """Moments of the even elements and of the odd elements."""
        found = {}
        run = SegmentedRun(self.graph, self.fitted, self.options)
        for stage in stages(self.graph, self.layers):
            run.advance(self.graph, stage.nodes)
            for layer in stage.layers:
                halves = Moments(layer.inputs), Moments(layer.inputs)
                for number, values in enumerate(run.values):
                    rows = rows_of(layer, values[layer.x], number, len(self.fitted))
                    halves[number % 2].add(rows)
                found[layer] = halves
        return found

    def _losses_by_amount(self) -> Array:
        """Squared errors of the outputs (layers, amounts), as far as each layer causes them.

        They grow with the layer's own error from that at one amount, which is tried.
        """
        errors, changes = [], []
        for number, layer in enumerate(self.layers):
            self.tell(f"choosing zeros of {layer.key.layer}", 0.1 + 0.3 * number / len(self.layers))
            weight = self._weight(layer)
            seen, held = (x.hessian(layer.bias is not None) for x in self._moments[layer])
            found = choices_by_amount(weight, seen, held, self.pattern, AMOUNTS)
            errors.append([error for _, error in found])
            changes.append((found[_TRIED][0] - weight).numpy().astype(np.float32))
        self.tell("measuring the outputs' reactions", 0.4)
        reacting = self.fitted[:: max(1, len(self.fitted) // _REACTING)][:_REACTING]
        means = [
            self._moments[x][0].mean.numpy() if x.bias is not None else np.zeros(x.inputs)
            for x in self.layers
        ]
        tried = reactions(self.layers, self.graph, reacting, changes, means, self.options)
        own = np.maximum.accumulate(np.array(errors), axis=1)
        scale = np.array(tried) / np.maximum(own[:, _TRIED], 1e-30)
        return np.maximum(own * scale[:, None], _LEAST_LOSS)

    def _changed(
        self, layer: ShrinkLayer, amount: float, dense: SegmentedRun, run: SegmentedRun
    ) -> dict[Value, Array]:
        """The layer's new weights, and its bias so that the mean of its outputs stays."""
        moments = PairedMoments(layer.inputs)
        for number, pair in enumerate(zip(dense.values, run.values, strict=True)):
            x, z = (rows_of(layer, each[layer.x], number, len(run.values)) for each in pair)
            moments.add_pair(x, z)
        weight, has_bias = self._weight(layer), layer.bias is not None
        hessian = moments.hessian(has_bias)
        wanted = weight @ hessian.lerp(moments.covariance(has_bias), _MENDING)
        made = with_zeros(weight, hessian, wanted, self.pattern, amount)
        changed = {layer.weights: made.reshape(layer.shape).numpy().astype(np.float32)}
        if layer.bias is not None:
            mean = weight @ moments.dense_mean - made @ moments.mean
            bias = self.graph.constants[layer.bias]
            changed[layer.bias] = (bias + mean.numpy().reshape(bias.shape)).astype(np.float32)
        return changed

    def _weight(self, layer: ShrinkLayer) -> torch.Tensor:
        array = self.graph.constants[layer.weights]
        return torch.tensor(array.reshape(len(array), -1), dtype=torch.float64)


def within_error(search: ZeroSearch, budget: float, tries: int) -> Tried | None:
    """The fastest choice tried whose error is within the budget; None where none is.

    The first is the one that is predicted to have that error. From then on a choice lies between
    the nearest one that fits and the nearest that does not, as their errors say.
    """
    losses = np.sqrt(search.choices.losses)  # falling, by rising time
    fits: tuple[float, float, Tried] | None = None
    fails: tuple[float, float] | None = None
    wanted, tried_states = budget, set[int]()
    for number in range(tries):
        state = min(int(np.searchsorted(-losses, -wanted)), len(losses) - 1)
        if state in tried_states:
            break
        tried_states.add(state)
        search.tell(f"trying choice {number + 1}", 0.5 + 0.4 * number / tries)
        tried = search.attempt(state)
        predicted, error = float(losses[state]), max(tried.error, _LEAST_ERROR)
        if error <= budget:
            fits = predicted, error, tried
            if error > _NEAR * budget:
                break
        else:
            fails = predicted, error
        wanted = _between(budget, fits, fails)
    return None if fits is None else fits[2]


def _between(
    budget: float, fits: tuple[float, float, Tried] | None, fails: tuple[float, float] | None
) -> float:
    """The predicted error at which the measured one may be the budget."""
    if fits is None or fails is None:
        (known, error, *_) = fits or fails or (budget, budget)
        return known * float(np.clip(budget / error, 1 / _MOST_STEP, _MOST_STEP))
    low, high = np.log(fits[:2]), np.log(fails)
    share = (np.log(budget) - low[1]) / max(high[1] - low[1], 1e-9)
    return float(np.exp(low[0] + np.clip(share, 0.15, 0.85) * (high[0] - low[0])))


def within_metric(search: ZeroSearch, fits: Callable[[Tried], bool], tries: int) -> Tried | None:
    """The fastest choice tried that fits, by halving the range of times."""
    found: Tried | None = None
    times = search.choices.times + search.times.others
    low, high = float(np.log(times[0])), float(np.log(search.dense_ns))
    for number in range(tries):
        middle = (low + high) / 2
        search.tell(f"trying choice {number + 1}", 0.5 + 0.4 * number / tries)
        tried = search.attempt(search.choices.within(np.exp(middle) - search.times.others))
        if fits(tried):
            found, high = tried, middle
        else:
            low = middle
    return found
