"""The form and the share of zeros of each layer, chosen by error and time, and trials of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise, product
from math import ceil
from typing import NamedTuple

import numpy as np
import torch

from sparsejit.api.models.final_graph import Dtypes, final_graph, kept_scales
from sparsejit.api.models.predicted_times import predicted_times
from sparsejit.api.quantising.chosen_scales import SHORT
from sparsejit.api.quantising.scales import Scales
from sparsejit.api.quantising.scales_of_inputs import Forms
from sparsejit.api.quantising.seen_inputs import WatchedRun
from sparsejit.api.quantising.short_layers import (
    CalibrationInput,
    ShortLayers,
    compiled_outputs,
    outputs_of,
)
from sparsejit.api.reports.accuracy import mean_output_error
from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph
from sparsejit.ir.layer_scales import LayerKey, LayerScales
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.spec import DType
from sparsejit.ir.values import Array, Value
from sparsejit.lowering.context import ModelOptions, Progress, progress_function
from sparsejit.native.executable_memory import return_free_memory
from sparsejit.prune.budget import Frontier, LayerOptions, frontier
from sparsejit.prune.patterns import PATTERNS, on_weight
from sparsejit.prune.shrink.data import spread
from sparsejit.prune.shrink.frontier_picture import FrontierPoint
from sparsejit.prune.shrink.kept_tables import KeptTables, ShrinkTables
from sparsejit.prune.shrink.layers import DENSE, LayerForm, ShrinkLayer, with_weights
from sparsejit.prune.shrink.losses import FORBIDDEN, Elements, LossTable
from sparsejit.prune.shrink.moments import Moments, PairedMoments, count_of_rows
from sparsejit.prune.shrink.reaction import SegmentedRun, stages
from sparsejit.prune.shrink.times import LayerTimes, Times
from sparsejit.prune.shrink.zeros import with_zeros

# Shares of zeros whose errors are measured, and the number of shares that layers may take.
AMOUNTS = (0.0, 0.15, 0.3, 0.5, 0.65, 0.75, 0.85, 0.92)
_STEPS = 40
# Rows that a layer needs for each input.
_ROWS_FOR_INPUT = 2
# Elements that short dtypes are calibrated on.
_CALIBRATING = 32
# The share of earlier layers' errors that a layer's weights are fitted to make up for.
_MENDING = 0.8
# Share of the budget that is near enough; largest factor between the predicted errors of two tries;
# least error that counts.
_NEAR, _MOST_STEP, _LEAST_ERROR = 0.9, 8.0, 1e-9
_FASTER = 0.995  # largest factor of the asked time from try to try


class LayerChoice(NamedTuple):
    """The form of one layer, and its share of zeros."""

    form: LayerForm
    amount: float


@dataclass(frozen=True)
class Tried:
    """Choices that were carried out.

    Attributes:
        graph: the model with these zeros
        choices: by the layer
        scales: the storage of the layers; None where all are in float32
        error: the root mean square of the outputs' errors over the root mean square of the outputs,
            on elements that the weights were not fitted to
        predicted_ns: the planner's time of a run
    """

    graph: Graph
    choices: Mapping[ShrinkLayer, LayerChoice]
    scales: Scales | None
    error: float
    predicted_ns: float


@dataclass
class FormSearch:
    """The choices for one model and its data.

    Attributes:
        graph: folded, for the shapes of all elements
        layers: the layers that may have zeros
        fitted: elements that weights are fitted to
        held: elements that errors are measured on
        may_be_short: whether weights may be stored in short dtypes
        may_measure: whether rows of an int8 layer's x may be measured at every call
        options: of the models that are compiled
        tell: reports the progress
        kept: the file of the tables, if they are kept
        trained: trains the other weights of a graph with zeros; None where they stay as fitted
        tried: the choices that were carried out
        left_out: the layers that stay without zeros, as the data has too few rows for them
    """

    graph: Graph
    layers: Sequence[ShrinkLayer]
    fitted: Elements
    held: Elements
    may_be_short: bool
    may_measure: bool
    options: ModelOptions
    tell: Progress
    kept: KeptTables | None = None
    trained: Callable[[Graph], Graph] | None = None
    tried: list[FrontierPoint] = field(default_factory=list)
    left_out: Sequence[ShrinkLayer] = ()
    _dense_segments: dict[int, WatchedRun] = field(default_factory=dict)

    def prepare(self) -> None:
        """Measure the cost of each layer's choices. Raises InvalidInput for NaN in the model."""
        self.tell("running the data", 0.0)
        self.left_out = self._with_few_rows()
        self.exact = self.outputs(self.graph, None, self.held)
        tables = None if self.kept is None else self.kept.read(self.layers)
        if tables is None:
            tables = self._tables()
            if self.kept is not None:
                self.kept.write(self.layers, tables)
        self.layers, self.times, self.losses = tables

    def _tables(self) -> ShrinkTables:
        """The layers that may change, given the data, and the tables of their forms."""
        fitting = [layer for layer in self.layers if layer not in self.left_out]
        layers = list(self.layers) if self.may_be_short else fitting
        if not layers:
            raise InvalidInput(self._too_few())
        short = self._short_layers(self.graph) if self.may_be_short else None
        self.tell("predicting times", 0.1)
        dtypes: dict[DType, Dtypes] = {DENSE.dtype: "float32"}
        if short is not None:
            dtypes |= _short_dtypes(short, layers)
        times = LayerTimes(self.graph, layers, dtypes, self.options).by_form()
        if not fitting and all(form.dtype is DENSE.dtype for form in times.layers):
            raise InvalidInput(self._too_few())
        if short is not None:
            times = replace(times, bound=self._bound(short, layers, times))
        forms: Mapping[LayerKey, Forms] = {} if short is None else short.forms
        losses = LossTable(self.graph, list(times.layers), forms, AMOUNTS, self.options)
        self._take_layers(fitting, losses)
        self.tell("measuring the outputs' reactions", 0.4)
        return ShrinkTables(layers, times, losses.measured(layers, self.fitted))

    def _bound(
        self, short: ShortLayers, layers: Sequence[ShrinkLayer], times: Times
    ) -> tuple[int, ...]:
        """Numbers of the convolutions that are faster in int8 only if the next layer is in int8.

        Alone, such a layer may stay in float32, since readers of its result in bytes would have to
        round it.
        """
        forms = [form for form in times.layers if form.dtype is DType.INT8]

        def stays(*layers: LayerScales) -> bool:
            scales = short.scales(short.all_layers(layers))
            kept = kept_scales(self.graph, self.options, scales).layers
            return any(each.key == layers[0].key and each.dtype is DType.INT8 for each in kept)

        found = []
        for number, pair in enumerate(pairwise(layers)):
            own, following = (layer.stored(DType.INT8, short.forms) for layer in pair)
            dense = times.layers[DENSE][number]
            gains = any((times.layers[form][number] < dense).any() for form in forms)
            if not gains or own is None or not isinstance(pair[0].node.op, Convolution):
                continue
            if following is not None and not stays(own) and stays(own, following):
                found.append(number)
        return tuple(found)

    def _with_few_rows(self) -> list[ShrinkLayer]:
        count = len(self.fitted)
        return [
            layer
            for layer in self.layers
            if count_of_rows(layer, count) < _ROWS_FOR_INPUT * layer.inputs
        ]

    def _too_few(self) -> str:
        """The error message for data with too few rows for every layer."""
        elements = len(self.fitted) + len(self.held)
        factors = (
            _ROWS_FOR_INPUT * layer.inputs / count_of_rows(layer, len(self.fitted))
            for layer in self.layers
        )
        return (
            f"data has too few elements for the zeros of this model, {elements}; give "
            f"{ceil(elements * min(factors))} or more: a layer of n inputs needs 2 n rows"
        )

    def _take_layers(self, layers: Sequence[ShrinkLayer], losses: LossTable) -> None:
        """Give the table each layer's moments, of the even elements and of the odd ones."""
        run = SegmentedRun(self.graph, self.fitted, self.options)
        done = 0
        for stage in stages(self.graph, layers):
            run.advance(self.graph, stage)
            for layer in stage.layers:
                self.tell(f"choosing zeros of {layer.key.layer}", 0.2 + 0.2 * done / len(layers))
                halves = Moments(layer.inputs), Moments(layer.inputs)
                for number in range(len(self.fitted)):
                    halves[number % 2].add(run.rows_of(layer, number))
                losses.take(layer, *halves)
                done += 1
            return_free_memory()

    @property
    def dense_ns(self) -> float:
        """The planner's time of the dense model."""
        return float(self.times.layers[DENSE][:, 0].sum() + self.times.others)

    @cached_property
    def choices(self) -> Frontier:
        """The choices that no other beats in predicted time and predicted squared error."""
        return frontier([self._options_of(number) for number in range(len(self.layers))])

    def _options_of(self, number: int) -> LayerOptions:
        """The options of one layer: each form in turn, with each share of zeros."""
        forms = list(self.times.layers)
        times, losses = (
            np.concatenate([table.of(number, form, self._grid) for form in forms])
            for table in (self.times, self.losses)
        )
        in_int8 = np.repeat([form.dtype is DType.INT8 for form in forms], len(self._grid))
        is_bound, follows = number in self.times.bound, number - 1 in self.times.bound
        return LayerOptions(
            # A form that a layer may not take gains nothing.
            np.where(losses < FORBIDDEN / 2, times, times[0]),
            losses,
            needs=in_int8 if is_bound else None,
            fits=in_int8 if follows else None,
        )

    def time_of(self, number: int, choice: LayerChoice) -> float:
        """Predicted nanoseconds of a layer."""
        return float(self.times.of(number, choice.form, np.array([choice.amount]))[0])

    def error_of(self, number: int, choice: LayerChoice) -> float:
        """The predicted error of the outputs where one layer alone changes."""
        squares = self.losses.of(number, choice.form, np.array([choice.amount]))
        return float(np.sqrt(squares[0]))

    def attempt(self, state: int) -> Tried:
        """Carry out a choice: layer by layer, each on its inputs from the layers before it."""
        options = [LayerChoice(*each) for each in product(self.times.layers, self._grid)]
        chosen = {
            layer: options[number]
            for layer, number in zip(self.layers, self.choices.choices[state], strict=True)
        }
        now = self.graph
        given = self.graph, self.fitted, self.options
        dense, run = SegmentedRun(*given, self._dense_segments), SegmentedRun(*given)
        for stage in stages(self.graph, self.layers):
            dense.advance(self.graph, stage)
            run.advance(now, stage)
            changed: dict[Value, Array] = {}
            for layer in stage.layers:
                changed |= self._changed(layer, chosen[layer], dense, run)
            now = with_weights(now, changed)
            return_free_memory()
        return self._measured(now if self.trained is None else self.trained(now), chosen)

    def release(self) -> None:
        """Free the compiled segments of the dense model; another attempt compiles them again."""
        self._dense_segments.clear()

    def outputs(
        self, graph: Graph, scales: Scales | None, elements: Elements
    ) -> list[list[Array]]:
        """The outputs of the compiled code."""
        inputs = [CalibrationInput(graph, each) for each in elements]
        return outputs_of(inputs, scales or "float32", self.options)

    def _measured(self, graph: Graph, chosen: Mapping[ShrinkLayer, LayerChoice]) -> Tried:
        """The choice with its storage, its error and its time."""
        graph, scales = self._stored(graph, chosen)
        stored = {} if scales is None else {each.place: each.dtype for each in scales.layers}
        chosen = {
            layer: LayerChoice(
                LayerForm(one.form.pattern, stored.get(layer.key.place, DENSE.dtype)), one.amount
            )
            for layer, one in chosen.items()
        }
        final = final_graph(graph, self.options, scales or "float32")
        run = compiled_outputs(final, self.options)
        error = mean_output_error([run(*inputs) for inputs in self.held], self.exact)
        ns, _ = predicted_times(final, self.options)
        self.tried.append(FrontierPoint(ns, error))
        return Tried(graph, chosen, scales, error, ns)

    def _stored(
        self, graph: Graph, chosen: Mapping[ShrinkLayer, LayerChoice]
    ) -> tuple[Graph, Scales | None]:
        """The graph with biases that correct the errors of short storage, and the storage.

        Layers that short storage makes slower stay in float32; None where all do.
        """
        dtypes = {
            layer: one.form.dtype
            for layer, one in chosen.items()
            if one.form.dtype is not DENSE.dtype
        }
        if not dtypes:
            return graph, None
        short = self._short_layers(graph)
        forms = {layer: layer.stored(dtype, short.forms) for layer, dtype in dtypes.items()}
        own = [replace(form, correction=None) for form in forms.values() if form is not None]
        scales = kept_scales(graph, self.options, short.scales(short.all_layers(own)))
        kept = {each.place for each in scales.layers if each.dtype is not DENSE.dtype}
        biases = {}
        for layer, form in forms.items():
            correction = None if form is None else form.correction
            if layer.bias is not None and correction is not None and layer.key.place in kept:
                bias = graph.constants[layer.bias]
                biases[layer.bias] = bias + correction.reshape(bias.shape)
        return with_weights(graph, biases), scales if kept else None

    def _short_layers(self, graph: Graph) -> ShortLayers:
        """The short forms of all layers, calibrated on some elements."""
        inputs = [CalibrationInput(graph, each) for each in spread(self.fitted, _CALIBRATING)]
        silent = progress_function(None)
        return ShortLayers(inputs, self.options, silent, may_measure=self.may_measure)

    @cached_property
    def _grid(self) -> Array:
        return np.unique([*AMOUNTS, *np.linspace(AMOUNTS[1], AMOUNTS[-1], _STEPS)])

    def _changed(
        self, layer: ShrinkLayer, choice: LayerChoice, dense: SegmentedRun, run: SegmentedRun
    ) -> dict[Value, Array]:
        """The layer's new weights, and the bias that keeps the mean of its outputs."""
        if layer in self.left_out:
            return {}
        moments = PairedMoments(layer.inputs)
        for number in range(len(self.fitted)):
            moments.add_pair(dense.rows_of(layer, number), run.rows_of(layer, number))
        array = self.graph.constants[layer.weights]
        has_bias = layer.bias is not None
        hessian = moments.hessian(has_bias)
        weight = torch.tensor(array.reshape(len(array), -1)).to(hessian)
        wanted = weight @ hessian.lerp(moments.covariance(has_bias), _MENDING)
        pattern = on_weight(PATTERNS[choice.form.pattern], layer.shape)
        made = with_zeros(weight, hessian, wanted, pattern, choice.amount, layer.gates)
        changed = {layer.weights: made.reshape(layer.shape).float().cpu().numpy()}
        if layer.bias is not None:
            mean = weight @ moments.dense_mean - made @ moments.mean
            bias = self.graph.constants[layer.bias]
            changed[layer.bias] = (bias + mean.cpu().numpy().reshape(bias.shape)).astype(np.float32)
        return changed


def _short_dtypes(
    short: ShortLayers, layers: Sequence[ShrinkLayer]
) -> dict[DType, Scales]:
    """The storage of the layers in each short dtype that all layers which may have it can take."""
    found = {}
    for dtype in SHORT:
        own = [each.stored(dtype, short.forms) for each in layers if dtype in each.dtypes]
        held = [each for each in own if each is not None]
        if held and len(held) == len(own):
            found[dtype] = short.scales(held)
    return found


def within_error(search: FormSearch, budget: float, tries: int) -> Tried | None:
    """The fastest choice tried whose error is within the budget; None where none is.

    The first choice is the one predicted to have that error. Each further choice is interpolated by
    error between the nearest one that fits and the nearest that does not. An interrupt ends the
    search where one fits already.
    """
    losses = np.sqrt(search.choices.losses)  # falling, by rising time
    changing = losses[losses > 0]  # the dense model is no choice to try
    fits: tuple[float, float, Tried] | None = None
    fails: tuple[float, float] | None = None
    wanted, tried_states = budget, set[int]()
    for number in range(tries if len(changing) else 0):
        state = min(int(np.searchsorted(-changing, -wanted)), len(changing) - 1)
        if state in tried_states:
            break
        tried_states.add(state)
        tried = _tried(search, state, number / tries, fits is not None)
        if tried is None:
            break
        predicted, error = float(changing[state]), max(tried.error, _LEAST_ERROR)
        if error <= budget:
            fits = predicted, error, tried
            if error > _NEAR * budget:
                break
        else:
            fails = predicted, error
        wanted = _between(budget, fits, fails)
    return None if fits is None else fits[2]


def _tried(search: FormSearch, state: int, share: float, may_stop: bool) -> Tried | None:
    """A choice that was carried out; None at an interrupt, where the search may stop."""
    search.tell(f"trying choice {len(search.tried) + 1}", 0.5 + 0.4 * share)
    try:
        return search.attempt(state)
    except KeyboardInterrupt:
        if not may_stop:
            raise
        return None


def _between(
    budget: float, fits: tuple[float, float, Tried] | None, fails: tuple[float, float] | None
) -> float:
    """The predicted error at which the measured error should equal the budget."""
    if fits is None or fails is None:
        (known, error, *_) = fits or fails or (budget, budget)
        return known * float(np.clip(budget / error, 1 / _MOST_STEP, _MOST_STEP))
    low, high = np.log(fits[:2]), np.log(fails)
    share = (np.log(budget) - low[1]) / max(high[1] - low[1], 1e-9)
    return float(np.exp(low[0] + np.clip(share, 0.15, 0.85) * (high[0] - low[0])))


def within_metric(search: FormSearch, fits: Callable[[Tried], bool], tries: int) -> Tried | None:
    """The fastest choice tried that fits, by halving the range of times.

    An interrupt ends the search where one fits already.
    """
    found: Tried | None = None
    times = search.choices.times + search.times.others
    low, high = float(np.log(times[0])), float(np.log(search.dense_ns))
    for number in range(tries):
        middle = (low + high) / 2
        state = search.choices.within(np.exp(middle) - search.times.others)
        tried = _tried(search, state, number / tries, found is not None)
        if tried is None:
            break
        if fits(tried):
            found, high = tried, middle
        else:
            low = middle
    return found


def within_time(search: FormSearch, wanted_ns: float, tries: int) -> Tried:
    """The choice of least error whose predicted time is at most `wanted_ns`, else the fastest.

    The time of a choice may be above the sum of its layers' times, where an int8 layer does not
    read the bytes of another.
    """
    fastest: Tried | None = None
    asked = wanted_ns
    for number in range(tries):
        search.tell(f"trying choice {number + 1}", 0.5 + 0.4 * number / tries)
        one = search.attempt(search.choices.within(asked - search.times.others))
        if one.predicted_ns <= wanted_ns:
            return one
        if fastest is None or one.predicted_ns < fastest.predicted_ns:
            fastest = one
        asked *= min(_FASTER, wanted_ns / one.predicted_ns) ** (number + 1)
    assert fastest is not None
    return fastest
