"""Reports of layers, from the facts of their kernels and their measured times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sparsejit.api.models.variant import Variant
from sparsejit.api.reports.accuracy import Accuracy
from sparsejit.api.reports.report import LayerReport, Report, layer_report
from sparsejit.api.reports.schedule_text import schedule_lines
from sparsejit.api.reports.shown import counted
from sparsejit.errors import check_flags
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.selection import Embedding, EmbeddingBag
from sparsejit.ir.values import Array, Decision, Element, Origin, Value
from sparsejit.lowering.model_code import build_model
from sparsejit.lowering.model_schedule import ModelSchedule
from sparsejit.lowering.probes import PrefixProbe, StampProbe
from sparsejit.lowering.step import Step
from sparsejit.machine.target import Target
from sparsejit.runtime.step_timing import ModelTimer, ProbedFunction, StepTimes, wants_prefixes

# The report names a layer that takes more than this multiple of its predicted time, if it takes at
# least this share of the whole.
_MOST_TIMES_PREDICTED, _LEAST_SHARE = 1.5, 0.01


def report_of(
    variant: Variant,
    title: str,
    facts: dict[str, Any],
    measure: bool,
    accuracy: Accuracy | None = None,
    notes: Sequence[str] = (),
    outputs: Sequence[str] = (),
) -> Report:
    """Return the report of one native function; `measure` runs it, on random inputs, for 1 s.

    `notes` are lines beside the graph's own, `outputs` the names of the model's outputs.
    """
    check_flags(measure=measure)
    times = measured_times(variant) if measure else None
    target = variant.options.target
    layers = layers_of(variant.steps, target, times, variant.planned.decisions)
    if accuracy is not None:
        layers = list(_with_errors(layers, accuracy))
    if times is not None and times.call is not None:
        layers.append(_call(times.call, sum(times.steps) + times.call))
    notes = [*variant.graph.notes, *notes]
    facts = {**facts, "rates": target.core.origin, "processor": target.model, "notes": notes}
    outputs = outputs or [value.origin.name for value in variant.outputs]
    whole, samples = None if times is None else times.whole, variant.tile or 1
    lines = [*_lines(facts), *_batch_lines(variant, outputs), *notes]
    lines += [str(each) for each in variant.planned.decisions if not each.layer]
    lines += _measured_lines(whole, samples, layers)
    lines += [accuracy.line] if accuracy is not None else []
    schedule = tuple(schedule_lines(variant))
    return Report(title, tuple(lines), tuple(layers), facts, whole, samples, schedule)


def _with_errors(layers: Iterable[LayerReport], accuracy: Accuracy) -> Iterator[LayerReport]:
    """Add the error of each layer; layers with the same name share the largest."""
    errors: dict[str, float] = {}
    for each in accuracy.layers:
        errors[each.name] = max(each.largest, errors.get(each.name, 0.0))
    for layer in layers:
        error = errors.get(layer.layer) if layer.weights else None
        yield replace(layer, error=error)


def _lines(facts: dict[str, Any]) -> list[str]:
    return [
        f"{facts['code_bytes']:,} bytes of code, {facts['pool_bytes']:,} of literals; workspace "
        f"{facts['workspace_bytes']:,} bytes (buffers apart would take {facts['buffer_bytes']:,})",
        f"compiled in {facts['compile_ms']:.0f} ms for {facts['processor']}; "
        f"rates: {facts['rates']}",
    ]


def _batch_lines(variant: Variant, outputs: Sequence[str]) -> list[str]:
    """Return a line about batch axes, if the batch is not axis 0 of all inputs and outputs."""
    if variant.axes is None:
        return []
    names = (*(value.origin.name for value in variant.inputs), *outputs)
    pairs = zip(names, (*variant.axes.inputs, *variant.axes.outputs), strict=True)
    sides = ["input"] * len(variant.inputs) + ["output"] * len(variant.outputs)
    words = [
        f"{side} {name} {'has none' if axis is None else f'on axis {axis}'}"
        for side, (name, axis) in zip(sides, pairs, strict=True)
        if axis != 0
    ]
    return [f"batch: {', '.join(words)}; on axis 0 of all others"]


def _measured_lines(ns: float | None, samples: int, layers: Sequence[LayerReport]) -> list[str]:
    if ns is None:
        return []
    parts = sum(layer.measured_ns or 0 for layer in layers)
    return [
        f"measured: {ns:,.0f} ns for {counted(samples, 'sample')} at a time; "
        f"the layers add up to {parts:,.0f}",
        *unexpected_lines(ns, layers),
    ]


def unexpected_lines(whole_ns: float, layers: Sequence[LayerReport]) -> Iterator[str]:
    """Yield a line for each layer that matters and takes clearly longer than predicted."""
    for layer in layers:
        measured, predicted = layer.measured_ns or 0.0, layer.predicted_ns or 0.0
        times = measured / predicted if predicted else 0.0
        if times > _MOST_TIMES_PREDICTED and measured >= _LEAST_SHARE * whole_ns:
            yield f"layer {layer.layer} takes {times:.1f} times its predicted {predicted:,.0f} ns"


def groups_of(steps: Sequence[Step]) -> list[list[int]]:
    """Group the indices of steps by operator, in the order of their first steps.

    The steps of an operator are consecutive, except where operators run in turn, band by band.
    Steps with other weights are a group of their own, such as the two products of a recurrent
    layer.
    """
    groups: list[list[int]] = []
    of_origin: dict[Origin, list[int]] = {}  # the latest group of each operator
    for number, step in enumerate(steps):
        group = of_origin.get(step.origin)
        if group is not None and _has_weights_of(step, [steps[place] for place in group]):
            group.append(number)
        else:
            groups.append([number])
            of_origin[step.origin] = groups[-1]
    return groups


def _has_weights_of(step: Step, others: Sequence[Step]) -> bool:
    """Whether a step has no weights, or the same weights as the others."""
    weights = {other.facts.zeros for other in others if other.facts.weights}
    return not step.facts.weights or not weights or step.facts.zeros in weights


def layers_of(
    steps: Sequence[Step],
    target: Target,
    times: StepTimes | None = None,
    decisions: Sequence[Decision] = (),
) -> list[LayerReport]:
    """Return a report for each operator that these steps compute, in their order.

    The first report of a layer has its `decisions`.
    """
    all_bytes = sum(step.facts.weight_bytes for step in steps)
    total = 0.0 if times is None else sum(times.steps) + (times.call or 0.0)
    layers = []
    for group in groups_of(steps):
        members = [steps[number] for number in group]
        ns = None if times is None else sum(times.steps[number] for number in group)
        names, facts = [step.kernel for step in members], [step.facts for step in members]
        others = all_bytes - sum(each.weight_bytes for each in facts)
        origin = members[0].origin
        layers.append(layer_report(origin, names, facts, target, others, ns, total))
    by_layer: dict[str, list[Decision]] = defaultdict(list)
    for each in decisions:
        by_layer[each.layer].append(each)
    return [replace(one, decisions=tuple(by_layer.pop(one.layer, ()))) for one in layers]


def _call(ns: float, total: float) -> LayerReport:
    """Return the report of the call itself: registers saved and restored, arguments fetched."""
    return LayerReport(
        layer="(call)",
        reason="entering and leaving the function",
        measured_ns=ns,
        share=ns / total if total else None,
    )


def measured_times(variant: Variant) -> StepTimes:
    """Measure the times of steps; takes about a second, with this thread pinned to one core.

    The inputs are random. The time of a wave is divided among its steps in proportion to their
    predicted times.
    """
    arrays = example_arrays(variant.graph)
    samples = variant.tile or 1
    timer = ModelTimer(variant.program.memory, variant.workspace_bytes, arrays, samples)
    times = times_of_waves(timer, variant.lowered_again(), variant.program.name)
    return replace(times, steps=_by_step(variant, times.steps))


def times_of_waves(timer: ModelTimer, lowered: ModelSchedule, name: str) -> StepTimes:
    """Measure a schedule's waves as `steps`, by a version of its function with probes."""
    prefixes = wants_prefixes(timer.whole().median_ns, len(lowered.waves))
    probe = (PrefixProbe if prefixes else StampProbe)(lowered.probe_offset)
    program = build_model(lowered, f"{name}-timed", probe)
    size, first, waves = lowered.workspace_bytes, lowered.probe_offset, len(lowered.waves)
    function = ProbedFunction(program.memory, size, first, waves)
    return timer.by_prefixes(function) if prefixes else timer.by_stamps(function)


def _by_step(variant: Variant, wave_ns: list[float]) -> list[float]:
    """Divide the times of waves among their steps."""
    times = [0.0] * len(variant.steps)
    for wave, ns in zip(variant.waves, wave_ns, strict=True):
        predicted = sum(each.step.ns for each in wave.steps)
        for number, step in wave.steps:
            share = step.ns / predicted if predicted else 1 / len(wave.steps)
            times[number] += ns * share
    return times


def example_arrays(graph: Graph) -> tuple[list[Array], list[Array]]:
    """Return random inputs that fit the graph, and arrays for its outputs."""
    rng = np.random.default_rng(0)
    inputs = [_random(value, graph, rng) for value in graph.inputs]
    return inputs, [np.zeros(v.shape, v.type.element.value) for v in graph.outputs]


def _random(value: Value, graph: Graph, rng: np.random.Generator) -> Array:
    if value.type.element in (Element.FLOAT32, Element.FLOAT64):
        return rng.standard_normal(value.shape).astype(value.type.element.value)
    if value.type.element is Element.BOOL:
        return rng.random(value.shape) < 0.5
    if _is_offsets(value, graph):
        return np.zeros(value.shape, np.int64)
    return rng.integers(0, _rows_of_tables(value, graph), value.shape)


def _is_offsets(value: Value, graph: Graph) -> bool:
    """Whether an EmbeddingBag reads a value as the offsets of its bags."""
    bags = (node for node in graph.nodes if isinstance(node.op, EmbeddingBag))
    return any(value in node.inputs[2:] for node in bags)


def _rows_of_tables(value: Value, graph: Graph) -> int:
    """Return the least number of rows of the tables that a value may index, through views too."""
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
