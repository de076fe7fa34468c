"""`sparsejit.shrink`: zeros in a trained model, chosen by their error and the time they save."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.api.models.compiler import AUTO, ModelCompiler
from sparsejit.api.options import ModelSettings
from sparsejit.api.quantising.quantise import ReadModel
from sparsejit.api.quantising.scales import Scales
from sparsejit.api.quantising.seen_inputs import ExampleCall, calls_of
from sparsejit.compiling import check_model, opened
from sparsejit.errors import InvalidInput, called
from sparsejit.frontends.onnx import declared_inputs, is_onnx
from sparsejit.frontends.torch_export import is_program
from sparsejit.ir.graph import Graph
from sparsejit.ir.values import Array
from sparsejit.lowering.context import Progress, progress_function
from sparsejit.machine.target import Target
from sparsejit.passes.default import folded
from sparsejit.passes.quantised_layers import quantised_layers
from sparsejit.prune.shrink.data import check_alike, read_data, split
from sparsejit.prune.shrink.distilling import Distillation
from sparsejit.prune.shrink.frontier_picture import FrontierPoint
from sparsejit.prune.shrink.kept_tables import KeptTables
from sparsejit.prune.shrink.layers import DENSE, ShrinkLayer, shrink_layers
from sparsejit.prune.shrink.layers_of_source import (
    SourceLayer,
    check_same,
    input_scales,
    source_layers,
    tensors_of,
    with_weights_of,
)
from sparsejit.prune.shrink.qdq import with_short_layers
from sparsejit.prune.shrink.search import (
    FormSearch,
    LayerChoice,
    Tried,
    within_error,
    within_metric,
    within_time,
)
from sparsejit.prune.shrink.shrunk import Shrunk, ShrunkLayer
from sparsejit.prune.shrink.sources import Source

Metric = Callable[[list[Any]], float]
# The metric's loss of a choice.
Loss = Callable[[Tried], float]

BUDGET = 0.01
_TRIES = 5
# A share of the dense time: a smaller gain is within the difference of two measurements.
_LEAST_GAIN = 0.03
_ROUNDS, _CALLS = 15, 5
_FEWEST_ROUNDS, _MOST_NS = 4, 3e9  # of slow models
# A higher speed is tried where less than this share of the asked one is measured; most tries.
_MEASURED_AS_ASKED, _MEASURED_TRIES = 0.99, 3
_POINTS = 48  # of the frontier that a result shows


@called("shrink")
def shrink(
    model: Any,
    data: Iterable[Any] | str | Path,
    *,
    budget: float | None = None,
    metric: Metric | None = None,
    speed: float | None = None,
    dtype: str = "auto",
    finetune: int = 0,
    resume: str | Path | None = None,
    constants: Mapping[str, Any] | None = None,
    target: str | Target = "native",
    threads: int = 1,
    progress: Progress | None = None,
) -> Shrunk:
    """Make a trained model faster by zeros, from samples of its inputs, without training.

    Each layer gets the share of zeros that costs the outputs least for the time that it saves:
    errors by second order on the samples, times as the planner predicts them for the very kernels,
    and the choice among all layers by dynamic programming. Zeros are then chosen layer by layer, on
    inputs from the changed layers before them, and the other weights are fitted to make up for
    them. A choice that was carried out is measured, and the next one corrected by it.

    Args:
        model: a torch module, a torch.export.ExportedProgram, or an ONNX model (the path of an
            .onnx file or a ModelProto)
        data: samples of the model's inputs, a hundred or more, of one shape, without labels: as for
            `quantise`, or the path of an .npz, an .npy or a folder of .npy (`read_data`)
        budget: the error that outputs may have, the root mean square of the difference over the
            root mean square of the outputs; by default 0.01. With a metric the loss of the metric.
        metric: a function of the list of outputs, one for each element of the data; more is better
        speed: in place of a budget, how many times as fast the model is to become at least
        dtype: "auto", which also stores weights in int8 and 16 bits where these gain more than
            zeros, or "float32"
        finetune: for a torch module, steps of training that each choice gets before it is measured,
            at most: towards the dense outputs on the same data, with the zeros fixed
        resume: a file that keeps the tables of times and errors, which take most of the work: where
            it is there, shrinking goes on from it
        constants: as for `compile`
        target: as for `compile`
        threads: as for `compile`
        progress: as for `compile`

    Returns:
        The compiled result, its source, and the cost of each layer. The result is never slower than
        the dense model: where the budget allows no gain, it is the dense model.

    Raises:
        UnsupportedOperator: the model has operators that sparsejit does not know; it lists them
        InvalidInput: an argument makes no sense, there are too few samples, they have NaN inside
            the model, the model has no weights that may become zeros, or `speed` is out of reach
    """
    model, _, _ = opened(model, None, None)
    check_model(model)
    allowed = _checked(budget, metric, speed)
    if dtype not in (DENSE.dtype.value, AUTO):
        raise InvalidInput(f"dtype={dtype!r}; give 'float32' or 'auto'")
    _check_steps(finetune, model)
    settings = ModelSettings(target, threads, tune=False, exact=False)
    compiler = ModelCompiler(model, True, False, None, constants or {}, None, "float32", settings)
    calls = calls_of(_elements(model, data, constants or {}))
    job = _ShrinkJob.of(compiler, calls, dtype == AUTO, progress_function(progress))
    if resume is not None:
        job.search.kept = job.kept_in(resume)
    if finetune:
        job.search.trained = job.training(calls, finetune)
    job.search.prepare()
    if speed is not None:
        return _at_speed(job, allowed) or job.unchanged()
    loss = None if metric is None else job.loss_by(metric)
    found = _within(job.search, allowed, loss)
    result = None if found is None else job.compared(found, loss)
    return result or job.unchanged()


@dataclass
class _ShrinkJob:
    """The work of one call of `shrink`: a model with its data, and the search."""

    compiler: ModelCompiler
    call: ExampleCall
    read: ReadModel
    elements: list[list[Array]]
    source: Source
    tied: list[SourceLayer]
    search: FormSearch

    @classmethod
    def of(
        cls,
        compiler: ModelCompiler,
        calls: Sequence[ExampleCall],
        may_be_short: bool,
        tell: Progress,
    ) -> _ShrinkJob:
        """Read the model. Raises InvalidInput for data and models that cannot be shrunk."""
        tell("reading the model", 0.0)
        read = compiler.read(calls[0])
        elements = [read.arrays(call) for call in calls]
        check_alike([[tuple(x.shape) for x in each] for each in elements])
        fitted, held = split(elements)
        graph = folded(quantised_layers(read.graph))
        source = Source(compiler.model)
        may_measure = not is_onnx(source.model)  # QDQ has fixed steps alone
        layers = shrink_layers(graph, has_int8_gates=may_measure)
        tied = source_layers(read.graph, layers, graph, source)
        if not tied:
            raise InvalidInput(
                "the model has no linear layer or convolution whose weights may become zeros; "
                "shrink takes float32 weights of 512 numbers or more, each in a tensor of its own"
            )
        layers = [each.layer for each in tied]
        given = graph, layers, fitted, held, may_be_short, may_measure
        search = FormSearch(*given, compiler.options, tell)
        return cls(compiler, calls[0], read, elements, source, tied, search)

    def compared(self, found: Tried, loss: Loss | None) -> Shrunk | None:
        """Compile a choice, and time it beside the dense model; None where it is not faster."""
        self.search.release()
        self.search.tell("compiling the result", 0.92)
        dense = self.search.graph
        own = self.source.written(tensors_of(self.tied, dense, found.graph))
        check_same(self.tied, self._read_again(own), found.graph)
        fast = self._compiled(own, found.scales)
        self.search.tell("measuring", 0.96)
        dense_ns, ns = _times([self._dense, fast], self.call, self.search.options.threads)
        if ns > (1 - _LEAST_GAIN) * dense_ns:
            return None
        return Shrunk(
            fast,
            self._source_of(own, found),
            self._layers(found.graph, found.choices),
            *(found.error, None if loss is None else loss(found), dense_ns, ns),
            is_dense=False,
            frontier=self._frontier(),
            tried=self._tried(found),
            scales=found.scales,
            left_out=self._left_out,
        )

    def kept_in(self, path: str | Path) -> KeptTables:
        """The file of the tables of times and losses. Raises InvalidInput if it is not writable."""
        search = self.search
        flags = search.may_be_short, search.may_measure
        return KeptTables.at(path, search.graph, self.elements, search.options, *flags)

    def training(self, calls: Sequence[ExampleCall], steps: int) -> Callable[[Graph], Graph]:
        """A function that trains a graph's layers in the source, and returns the trained graph."""
        search = self.search
        distillation = Distillation(self.source.model, calls, steps, search.tell)
        names = [name for each in self.tied for name in each.names]

        def trained(graph: Graph) -> Graph:
            made = self.source.written(tensors_of(self.tied, search.graph, graph))
            made = distillation.trained(made, names)
            return with_weights_of(self.tied, self._read_again(made), graph)

        return trained

    def _read_again(self, model: Any) -> Graph:
        """The folded graph of `model`, a copy of the source with other weights."""
        read = replace(self.compiler, model=model, name="").read(self.call)
        return folded(quantised_layers(read.graph))

    def _source_of(self, made: Any, found: Tried) -> Any:
        """The source to return and to write: `made`, in ONNX with its short layers rounded."""
        if found.scales is None or not is_onnx(made):
            return made
        by_place = {each.place: each for each in found.scales.layers}
        layers = {each: by_place[each.layer.key.place] for each in self.tied}
        given = self.read.graph, self.search.graph, self.elements[0], self.search.options
        return with_short_layers(made, found.graph, layers, input_scales(self.tied, *given))

    def unchanged(self) -> Shrunk:
        """The result that is the dense model, where no choice gains anything."""
        layers = self._layers(
            self.search.graph, dict.fromkeys(self.search.layers, LayerChoice(DENSE, 0.0))
        )
        (ns,) = _times([self._dense], self.call, self.search.options.threads)
        return Shrunk(
            self._dense,
            self.source.model,
            layers,
            *(0.0, None, ns, ns),
            is_dense=True,
            frontier=self._frontier(),
            tried=tuple(self.search.tried),
            left_out=self._left_out,
        )

    @property
    def _left_out(self) -> tuple[str, ...]:
        return tuple(layer.key.layer for layer in self.search.left_out)

    def _frontier(self) -> tuple[FrontierPoint, ...]:
        """Some points of the predicted frontier: the least error for each time of a call."""
        choices = self.search.choices
        times, errors = choices.times + self.search.times.others, np.sqrt(choices.losses)
        some = np.unique(np.linspace(0, len(times) - 1, _POINTS).round().astype(int))
        return tuple(FrontierPoint(float(times[n]), float(errors[n])) for n in some)

    def _tried(self, found: Tried) -> tuple[FrontierPoint, ...]:
        """The choices that were tried, the one `found` last."""
        own = FrontierPoint(found.predicted_ns, found.error)
        return *(one for one in self.search.tried if one != own), own

    @cached_property
    def _dense(self) -> CompiledModel:
        return self._compiled(self.compiler.model)

    def loss_by(self, metric: Metric) -> Loss:
        """The loss of a choice: the dense model's metric less the metric of the choice."""
        exact = self._score(metric, self.search.graph, None)
        return lambda tried: exact - self._score(metric, tried.graph, tried.scales)

    def _score(self, metric: Metric, graph: Graph, scales: Scales | None) -> float:
        """The metric of a graph's outputs on all the data."""
        outputs = self.search.outputs(graph, scales, self.elements)
        value = metric([self.read.returned(each) for each in outputs])
        if not _is_number(value) or value != value:
            raise InvalidInput(f"metric returned {value!r}; return a number, more is better")
        return float(value)

    def _compiled(self, model: Any, scales: Scales | None = None) -> CompiledModel:
        """A model for any batch, as the compiler's settings have it."""
        compiler = replace(self.compiler, model=model, name="", dtype=scales or "float32")
        args, silent = self.call.args, progress_function(None)
        made = compiler.compiled_or_cached(args, self.call.kwargs, silent)
        assert isinstance(made, CompiledModel)
        return made

    def _layers(
        self, graph: Graph, choices: Mapping[ShrinkLayer, LayerChoice]
    ) -> tuple[ShrunkLayer, ...]:
        return tuple(
            ShrunkLayer(
                layer.key.layer,
                layer.shape,
                float(np.mean(graph.constants[layer.weights] == 0)),
                choices[layer].form.pattern,
                choices[layer].form.dtype.value,
                self.search.error_of(number, choices[layer]),
                self.search.time_of(number, LayerChoice(DENSE, 0.0)),
                self.search.time_of(number, choices[layer]),
            )
            for number, layer in enumerate(self.search.layers)
        )


def _checked(budget: Any, metric: Any, speed: Any) -> float:
    if speed is not None and (budget is not None or metric is not None):
        raise InvalidInput("speed and a budget are both given; give one, the other is optimised")
    if metric is not None and (not callable(metric) or budget is None):
        raise InvalidInput(
            "metric needs a budget: give a function of a list of outputs, and its largest loss"
        )
    if speed is not None:
        if not _is_number(speed) or not 1 < speed <= 100:
            raise InvalidInput(f"speed={speed!r}; give the speed over the dense model, such as 2.0")
        return float(speed)
    value = BUDGET if budget is None else budget
    if not _is_number(value) or not value > 0 or (metric is None and value >= 1):
        raise InvalidInput(
            f"budget={budget!r}; give the error that outputs may have, above 0 and below 1, such "
            "as 0.01, or with a metric its largest loss"
        )
    return float(value)


def _check_steps(steps: Any, model: Any) -> None:
    """Raise InvalidInput for steps that are no number, and for a model that cannot be trained."""
    if isinstance(steps, bool) or not isinstance(steps, Integral) or steps < 0:
        raise InvalidInput(f"finetune={steps!r}; give a number of steps, such as 200")
    if steps and (is_onnx(model) or is_program(model)):
        raise InvalidInput("finetune trains torch modules; leave it out for files and programs")


def _is_number(x: Any) -> bool:
    return isinstance(x, Real) and not isinstance(x, bool)


def _elements(model: Any, data: Any, constants: Mapping[str, Any]) -> Any:
    if not isinstance(data, str | Path):
        return data
    return read_data(data, input_names(model, constants))


def input_names(model: Any, constants: Mapping[str, Any]) -> list[str]:
    """The names of the model's inputs, for files of data."""
    if is_onnx(model):
        return [each.name for each in declared_inputs(model) if each.name not in constants]
    if is_program(model):
        return [name for name in model.graph_signature.user_inputs if isinstance(name, str)]
    from inspect import signature

    forward = getattr(model, "forward", None)
    if forward is None:
        raise InvalidInput("data is a file, and the model has no names for its arrays; give a list")
    return [
        name
        for name, each in signature(forward).parameters.items()
        if each.kind == each.POSITIONAL_OR_KEYWORD and each.default is each.empty
    ]


def _within(search: FormSearch, allowed: float, loss: Loss | None) -> Tried | None:
    """The fastest choice found within an error, or a metric's loss."""
    if loss is None:
        return within_error(search, allowed, _TRIES)
    return within_metric(search, lambda tried: loss(tried) <= allowed, _TRIES)


def _at_speed(job: _ShrinkJob, speed: float) -> Shrunk | None:
    """The choice of least error whose measured speed is as asked, or the fastest measured.

    Raises InvalidInput for a speed that is out of reach.
    """
    search = job.search
    least = float(search.choices.times[0] + search.times.others)
    if search.dense_ns / speed < least:
        raise InvalidInput(
            f"speed={speed:g} is out of reach: with all zeros that it may have this model "
            f"becomes {search.dense_ns / least:.3g} times as fast; ask for less"
        )
    best: Tried | None = None
    made: Shrunk | None = None
    fastest, wanted_ns = 0.0, search.dense_ns / speed
    for _ in range(_MEASURED_TRIES):
        made = None  # its memory is free while the next one is made
        tried = within_time(search, wanted_ns, _TRIES)
        made = job.compared(tried, None)
        if made is None or made.speed <= fastest:
            made = None
            return None if best is None else job.compared(best, None)
        if made.speed >= speed * _MEASURED_AS_ASKED:
            break
        best, fastest = tried, made.speed
        wanted_ns = max(wanted_ns * fastest / speed, least)
    return made


def _times(models: Sequence[CompiledModel], call: ExampleCall, threads: int) -> list[float]:
    """The least nanoseconds of a call of each, in rounds that take turns.

    One thread is timed by its own clock, which stops while others have the core.
    """
    clock = time.thread_time_ns if threads == 1 else time.perf_counter_ns
    best = [float("inf")] * len(models)
    for number in range(_ROUNDS):
        if number >= _FEWEST_ROUNDS and sum(best) * _CALLS * number > _MOST_NS:
            break
        for place, model in enumerate(models):
            model(*call.args, **call.kwargs)
            for _ in range(_CALLS):
                start = clock()
                model(*call.args, **call.kwargs)
                best[place] = min(best[place], clock() - start)
    return best
