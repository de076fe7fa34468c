"""`sparsejit.shrink`: zeros where a trained model misses them least, by error and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from sparsejit.api.example_calls import ExampleCall, calls_of
from sparsejit.api.model import CompiledModel
from sparsejit.api.model_compiler import ModelCompiler
from sparsejit.api.model_kinds import check_model
from sparsejit.api.options import ModelSettings
from sparsejit.api.quantise import ReadModel
from sparsejit.api.seen_inputs import WatchedRun
from sparsejit.errors import InvalidInput
from sparsejit.frontends.onnx import declared_inputs, is_onnx
from sparsejit.frontends.torch_export import is_program
from sparsejit.ir.graph import Array, Graph
from sparsejit.lowering.context import Progress, told
from sparsejit.machine.target import Target
from sparsejit.passes.default import folded
from sparsejit.passes.quantised_layers import quantised_layers
from sparsejit.prune.shrink.data import check_alike, read_data, split
from sparsejit.prune.shrink.layers import ShrinkLayer, shrink_layers
from sparsejit.prune.shrink.layers_of_source import (
    SourceLayer,
    check_same,
    source_layers,
    tensors_of,
)
from sparsejit.prune.shrink.search import Tried, ZeroSearch, within_error, within_metric
from sparsejit.prune.shrink.shrunk import FrontierPoint, Shrunk, ShrunkLayer
from sparsejit.prune.shrink.sources import Source

Metric = Callable[[list[Any]], float]

BUDGET = 0.01
_TRIES = 5
# A share of the dense time: less is within what two measurements differ by.
_LEAST_GAIN = 0.03
_ROUNDS, _CALLS = 15, 5
_POINTS = 48  # of the frontier that a result shows


def shrink(
    model: Any,
    data: Iterable[Any] | str | Path,
    *,
    budget: float | None = None,
    metric: Metric | None = None,
    speed: float | None = None,
    constants: Mapping[str, Any] | None = None,
    target: str | Target = "native",
    threads: int = 1,
    progress: Progress | None = None,
) -> Shrunk:
    """Make a trained model faster by zeros, from samples of its inputs, without training.

    Each layer gets the share of zeros that costs the outputs least for the time that it saves:
    errors by second order on the samples, times as the planner predicts them for the very kernels,
    and the choice among all layers by dynamic programming. Zeros are then chosen layer by layer, on
    inputs that the layers before them give by now, and the other weights are fitted to make up for
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
    check_model(model)
    allowed = _checked(budget, metric, speed)
    settings = ModelSettings(target, threads, tune=False, exact=False)
    compiler = ModelCompiler(model, True, False, None, constants or {}, None, "float32", settings)
    job = _ShrinkJob.of(compiler, calls_of(_elements(model, data, constants or {})), told(progress))
    job.search.prepare()
    score = None if metric is None else _score(metric, job.read, job.elements, compiler)
    found = _found(job.search, allowed, score, speed)
    result = None if found is None else job.compared(found, score)
    return result or job.unchanged()


@dataclass
class _ShrinkJob:
    """A model with its data, on the way to a result."""

    compiler: ModelCompiler
    call: ExampleCall
    read: ReadModel
    elements: list[list[Array]]
    source: Source
    tied: list[SourceLayer]
    search: ZeroSearch

    @classmethod
    def of(
        cls, compiler: ModelCompiler, calls: Sequence[ExampleCall], tell: Progress
    ) -> _ShrinkJob:
        """Read the model. Raises InvalidInput for data and models that cannot be shrunk."""
        tell("reading the model", 0.0)
        read = compiler.read(calls[0])
        elements = [read.arrays(call) for call in calls]
        check_alike([[tuple(x.shape) for x in each] for each in elements])
        fitted, held = split(elements)
        graph = folded(quantised_layers(read.graph))
        source = Source(compiler.model)
        tied = source_layers(read.graph, shrink_layers(graph), graph, source)
        if not tied:
            raise InvalidInput(
                "the model has no linear layer or convolution whose weights may become zeros; "
                "shrink takes float32 weights of 512 numbers or more, each in a tensor of its own"
            )
        layers = [each.layer for each in tied]
        search = ZeroSearch(graph, layers, fitted, held, compiler.options, tell)
        return cls(compiler, calls[0], read, elements, source, tied, search)

    def compared(self, found: Tried, score: Callable[[Any], float] | None) -> Shrunk | None:
        """The choice as a compiled model; None where it is not faster than the dense one."""
        self.search.tell("compiling the result", 0.92)
        dense = self.search.graph
        made = self.source.written(tensors_of(self.tied, dense, found.graph))
        again = replace(self.compiler, model=made, name="").read(self.call)
        check_same(self.tied, folded(quantised_layers(again.graph)), found.graph)
        fast = self._compiled(made)
        self.search.tell("measuring", 0.96)
        dense_ns, ns = _times([self._dense, fast], self.call)
        if ns > (1 - _LEAST_GAIN) * dense_ns:
            return None
        loss = None if score is None else score(dense) - score(found.graph)
        layers = self._layers(found.graph, found.amounts)
        given = found.error, loss, dense_ns, ns, False, *self._points(found)
        return Shrunk(fast, made, layers, *given)

    def unchanged(self) -> Shrunk:
        """The dense model."""
        layers = self._layers(self.search.graph, dict.fromkeys(self.search.layers, 0.0))
        (ns,) = _times([self._dense], self.call)
        given = 0.0, None, ns, ns, True, *self._points(None)
        return Shrunk(self._dense, self.source.model, layers, *given)

    def _points(
        self, found: Tried | None
    ) -> tuple[tuple[FrontierPoint, ...], tuple[FrontierPoint, ...]]:
        """The frontier, thinned out, and the choices that were tried, the one `found` last."""
        search = self.search
        times = search.choices.times + search.times.others
        some = np.unique(np.linspace(0, len(times) - 1, _POINTS).round().astype(int))
        frontier = [FrontierPoint(float(times[n]), search.choices.losses[n] ** 0.5) for n in some]
        own = None if found is None else FrontierPoint(found.predicted_ns, found.error)
        tried = [one for one in search.tried if one != own]
        return tuple(frontier), (*tried, *([own] if own else []))

    @cached_property
    def _dense(self) -> CompiledModel:
        return self._compiled(self.compiler.model)

    def _compiled(self, model: Any) -> CompiledModel:
        """A model for any batch, as the compiler's settings have it."""
        compiler = replace(self.compiler, model=model, name="")
        made = compiler.once(self.call.args, self.call.kwargs, told(None))
        assert isinstance(made, CompiledModel)
        return made

    def _layers(
        self, graph: Graph, amounts: Mapping[ShrinkLayer, float]
    ) -> tuple[ShrunkLayer, ...]:
        return tuple(
            ShrunkLayer(
                layer.key.layer,
                layer.shape,
                float(np.mean(graph.constants[layer.weights] == 0)),
                self.search.pattern.name,
                "float32",
                self.search.error_of(number, amounts[layer]),
                self.search.time_of(number, 0.0),
                self.search.time_of(number, amounts[layer]),
            )
            for number, layer in enumerate(self.search.layers)
        )


def _checked(budget: Any, metric: Any, speed: Any) -> float:
    if speed is not None and (budget is not None or metric is not None):
        raise InvalidInput("speed and a budget are both given; give one, the other is optimised")
    if metric is not None and (not callable(metric) or budget is None):
        raise InvalidInput(
            "metric goes with budget: give a function of a list of outputs, and what it may lose"
        )
    if speed is not None:
        if not _is_number(speed) or not 1 < speed <= 100:
            raise InvalidInput(f"speed={speed!r}; give how many times as fast, such as 2.0")
        return float(speed)
    value = BUDGET if budget is None else budget
    if not _is_number(value) or not value > 0 or (metric is None and value >= 1):
        raise InvalidInput(
            f"budget={budget!r}; give the error that outputs may have, above 0 and below 1, such "
            "as 0.01, or with a metric what it may lose"
        )
    return float(value)


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
        raise InvalidInput("data is a file, whose arrays the model does not name; give a list")
    return [
        name
        for name, each in signature(forward).parameters.items()
        if each.kind == each.POSITIONAL_OR_KEYWORD and each.default is each.empty
    ]


def _score(
    metric: Metric, read: ReadModel, elements: Sequence[Sequence[Array]], compiler: ModelCompiler
) -> Callable[[Any], float]:
    """The metric of a graph's outputs on all the data."""
    known: dict[int, float] = {}

    def score(graph: Any) -> float:
        if id(graph) not in known:
            run = WatchedRun(graph, (), compiler.options)
            value = metric([read.returned(run(each)[0]) for each in elements])
            if not _is_number(value) or value != value:
                raise InvalidInput(f"metric returned {value!r}; return a number, more is better")
            known[id(graph)] = float(value)
        return known[id(graph)]

    return score


def _found(
    search: ZeroSearch, allowed: float, score: Callable[[Any], float] | None, speed: float | None
) -> Tried | None:
    """The best choice. Raises InvalidInput for a speed that is out of reach."""
    if speed is not None:
        return _at_speed(search, speed)
    if score is None:
        return within_error(search, allowed, _TRIES)
    exact = score(search.graph)
    return within_metric(search, lambda one: exact - score(one.graph) <= allowed, _TRIES)


def _at_speed(search: ZeroSearch, speed: float) -> Tried:
    wanted = search.dense_ns / speed - search.times.others
    least = float(search.choices.times[0] + search.times.others)
    if wanted < search.choices.times[0]:
        raise InvalidInput(
            f"speed={speed:g} is out of reach: with zeros wherever they may be this model becomes "
            f"{search.dense_ns / least:.3g} times as fast; ask for less"
        )
    search.tell("carrying out the choice", 0.5)
    return search.attempt(search.choices.within(wanted))


def _times(models: Sequence[CompiledModel], call: ExampleCall) -> list[float]:
    """The least nanoseconds of a call of each, in rounds that take turns."""
    best = [float("inf")] * len(models)
    for _ in range(_ROUNDS):
        for number, model in enumerate(models):
            model(*call.args, **call.kwargs)
            for _ in range(_CALLS):
                start = time.perf_counter_ns()
                model(*call.args, **call.kwargs)
                best[number] = min(best[number], time.perf_counter_ns() - start)
    return best
