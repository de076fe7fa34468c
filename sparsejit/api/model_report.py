"""Where a model's time goes, layer by layer, and why: as data, text, a table, a web page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.api.schedule_text import schedule_lines
from sparsejit.api.variant import Variant
from sparsejit.ir.graph import Array, Element, Graph, Origin, Value
from sparsejit.ir.ops.selection import Embedding, EmbeddingBag
from sparsejit.lowering.model import build_model
from sparsejit.lowering.probes import PrefixProbe, StampProbe
from sparsejit.lowering.step import Step
from sparsejit.machine.target import Target
from sparsejit.planner.limits import least_ns
from sparsejit.runtime.step_timing import ModelTimer, ProbedFunction, StepTimes, wants_prefixes

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class LayerReport:
    """Kernels of one operator of a model, mostly one.

    Times are in nanoseconds for one run of the native function. `share` is that of all measured
    times, `share_of_limit` the least time the processor could take over what is taken; both None
    where nothing was measured or nothing is computed. GFLOPS are of the measured time, else of the
    predicted; `effective_gflops` count pruned weights too.
    """

    layer: str
    kernel: str = ""
    source: str = ""
    code: str = ""
    nnz: int = 0
    weights: int = 0
    weight_bytes: int = 0
    predicted_ns: float | None = None
    measured_ns: float | None = None
    share: float | None = None
    effective_gflops: float | None = None
    real_gflops: float | None = None
    share_of_limit: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class ModelReport:
    """All kernels in order, and the whole as it was measured without time stamps in it.

    `schedule` draws which thread runs what, a line each; empty for one thread.
    """

    layers: tuple[LayerReport, ...]
    whole_ns: float | None
    samples: int
    facts: dict[str, Any]
    schedule: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON; `model` holds `CompiledModel.stats`."""
        return {
            "layers": [asdict(layer) for layer in self.layers],
            "whole_ns": self.whole_ns,
            "samples": self.samples,
            "schedule": list(self.schedule),
            "model": self.facts,
        }

    def __str__(self) -> str:
        from sparsejit.api.model_page import as_text

        return as_text(self)

    def __rich__(self) -> Table:
        from sparsejit.api.model_page import as_table

        return as_table(self)

    def html(self) -> str:
        """One self-contained page."""
        from sparsejit.api.model_page import as_page

        return as_page(self)


def report_of(variant: Variant, facts: dict[str, Any], measure: bool) -> ModelReport:
    """The report of one native function; `measure` runs it, on random inputs, for a second."""
    times = measured_times(variant) if measure else None
    target = variant.options.target
    layers = _layers(variant, times)
    if times is not None and times.call is not None:
        layers.append(_call(times.call, sum(times.steps) + times.call))
    facts = {**facts, "rates": target.core.origin, "processor": target.model}
    whole = None if times is None else times.whole
    schedule = tuple(schedule_lines(variant))
    return ModelReport(tuple(layers), whole, variant.tile or 1, facts, schedule)


def groups_of(steps: Sequence[Step]) -> list[list[int]]:
    """The places of steps of one operator, in the order of their first.

    They follow each other but where operators run in turn, band by band. Those with other weights
    are apart, such as the two products of a recurrent layer.
    """
    groups: list[list[int]] = []
    of_origin: dict[Origin, list[int]] = {}  # the latest group
    for number, step in enumerate(steps):
        group = of_origin.get(step.origin)
        if group is not None and _has_weights_of(step, [steps[place] for place in group]):
            group.append(number)
        else:
            groups.append([number])
            of_origin[step.origin] = groups[-1]
    return groups


def _has_weights_of(step: Step, others: Sequence[Step]) -> bool:
    """Whether a step has no weights, or those that the others have."""
    weights = {other.facts.zeros for other in others if other.facts.weights}
    return not step.facts.weights or not weights or step.facts.zeros in weights


def _layers(variant: Variant, times: StepTimes | None) -> list[LayerReport]:
    steps = variant.steps
    all_bytes = sum(step.facts.weight_bytes for step in steps)
    total = 0.0 if times is None else sum(times.steps) + (times.call or 0.0)
    layers = []
    for group in groups_of(steps):
        members = [steps[number] for number in group]
        ns = None if times is None else sum(times.steps[number] for number in group)
        layers.append(_layer(members, ns, total, all_bytes, variant.options.target))
    return layers


def _layer(
    steps: list[Step], ns: float | None, total: float, all_bytes: int, target: Target
) -> LayerReport:
    origin, facts = steps[0].origin, [step.facts for step in steps]
    main = max(facts, key=lambda each: (each.weights, each.predicted_ns or 0.0))
    kernels = Counter(step.kernel for step in steps)
    predicted = [each.predicted_ns for each in facts if each.predicted_ns is not None]
    predicted_ns = sum(predicted) if len(predicted) == len(facts) else None
    flops = sum(each.flops for each in facts)
    effective_flops = sum(each.effective_flops for each in facts)
    limit = sum(
        least_ns(
            each.flops,
            each.weight_bytes + each.moved_bytes,
            all_bytes - each.weight_bytes,
            target,
        )
        for each in facts
    )
    time = ns if ns is not None else predicted_ns
    return LayerReport(
        layer=origin.layer,
        kernel=", ".join(f"{n} x {kernel}" if n > 1 else kernel for kernel, n in kernels.items()),
        source=origin.source,
        code=origin.code,
        nnz=main.nnz,
        weights=main.weights,
        weight_bytes=main.weight_bytes,
        predicted_ns=predicted_ns,
        measured_ns=ns,
        share=ns / total if ns is not None and total else None,
        effective_gflops=effective_flops / time if time and effective_flops else None,
        real_gflops=flops / time if time and flops else None,
        share_of_limit=limit / ns if ns and flops else None,
        reason=main.reason,
    )


def _call(ns: float, total: float) -> LayerReport:
    """What is no operator's: registers saved and restored, arguments fetched."""
    return LayerReport(
        layer="(call)",
        reason="entering and leaving the function",
        measured_ns=ns,
        share=ns / total if total else None,
    )


def measured_times(variant: Variant) -> StepTimes:
    """Runs the model on random inputs for about a second, the caller's thread pinned to one core.

    The time of a wave that threads share is divided among its steps as predicted.
    """
    arrays = example_arrays(variant.graph)
    timer = ModelTimer(variant.program.memory, variant.workspace_bytes, arrays)
    lowered = variant.lowered_again()
    prefixes = wants_prefixes(timer.whole_ns(), len(lowered.waves))
    probe = (PrefixProbe if prefixes else StampProbe)(lowered.probe_offset)
    program = build_model(lowered, f"{variant.program.name}-timed", probe)
    size, first, waves = lowered.workspace_bytes, lowered.probe_offset, len(lowered.waves)
    function = ProbedFunction(program.memory, size, first, waves)
    times = timer.by_prefixes(function) if prefixes else timer.by_stamps(function)
    return replace(times, steps=_by_step(variant, times.steps))


def _by_step(variant: Variant, wave_ns: list[float]) -> list[float]:
    """Times of steps from those of waves."""
    times = [0.0] * len(variant.steps)
    for wave, ns in zip(variant.waves, wave_ns, strict=True):
        predicted = sum(each.step.ns for each in wave.steps)
        for number, step in wave.steps:
            share = step.ns / predicted if predicted else 1 / len(wave.steps)
            times[number] += ns * share
    return times


def example_arrays(graph: Graph) -> tuple[list[Array], list[Array]]:
    """Random inputs that the graph takes, and arrays for its outputs."""
    rng = np.random.default_rng(0)
    inputs = [_random(value, graph, rng) for value in graph.inputs]
    return inputs, [np.zeros(v.shape, v.type.element.value) for v in graph.outputs]


def _random(value: Value, graph: Graph, rng: np.random.Generator) -> Array:
    if value.type.element is Element.FLOAT32:
        return rng.standard_normal(value.shape, np.float32)
    if value.type.element is Element.BOOL:
        return rng.random(value.shape) < 0.5
    if _is_offsets(value, graph):
        return np.zeros(value.shape, np.int64)
    return rng.integers(0, _rows_of_tables(value, graph), value.shape)


def _is_offsets(value: Value, graph: Graph) -> bool:
    """Whether a value says where bags begin."""
    bags = (node for node in graph.nodes if isinstance(node.op, EmbeddingBag))
    return any(value in node.inputs[2:] for node in bags)


def _rows_of_tables(value: Value, graph: Graph) -> int:
    """How many rows the smallest table has that a value may index, through views too."""
    reached, rows = {value}, []
    for node in graph.nodes:
        if not reached.intersection(node.inputs):
            continue
        if isinstance(node.op, Embedding | EmbeddingBag):
            if node.inputs[0] in reached:
                rows.append(node.inputs[1].shape[0])
        else:
            reached.update(node.outputs)
    return min(rows, default=2)
