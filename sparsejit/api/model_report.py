"""Where a model's time goes, layer by layer, and why: as data, text, a table, a web page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.api.variant import Variant
from sparsejit.ir.graph import Array, Element, Graph, Value
from sparsejit.ir.ops.selection import Embedding, EmbeddingBag
from sparsejit.lowering.model import build_model
from sparsejit.lowering.step import Facts
from sparsejit.planner.calibration import known_rates, rates_origin
from sparsejit.planner.limits import least_ns
from sparsejit.runtime.step_timing import StampedFunction, time_steps, time_whole

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class LayerReport:
    """One kernel of a model. Times in nanoseconds for one run of the native function.

    `share` is that of the whole's measured time, `share_of_limit` the least time the processor
    could take over what is taken; both None where nothing was measured or multiplied.
    """

    layer: str
    kernel: str
    source: str
    code: str
    nnz: int
    weights: int
    weight_bytes: int
    predicted_ns: float | None
    measured_ns: float | None
    share: float | None
    effective_gflops: float | None
    real_gflops: float | None
    share_of_limit: float | None
    reason: str


@dataclass(frozen=True)
class ModelReport:
    """All kernels in order, and the whole as it was measured without time stamps in it."""

    layers: tuple[LayerReport, ...]
    whole_ns: float | None
    samples: int
    facts: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        layers = [asdict(layer) for layer in self.layers]
        return {
            "layers": layers,
            "whole_ns": self.whole_ns,
            "samples": self.samples,
            **self.facts,
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
    steps = variant.steps
    times: Sequence[float | None] = [None] * len(steps)
    whole = None
    if measure:
        inputs, outputs = example_arrays(variant.graph)
        whole = _whole_ns(variant, inputs, outputs)
        times = _step_times(variant, inputs, outputs)
    target = variant.options.target
    rates = known_rates(target)
    all_bytes = sum(step.facts.weight_bytes for step in steps)
    total = sum(ns for ns in times if ns is not None)
    layers = []
    for step, ns in zip(steps, times, strict=True):
        known = step.facts
        rest = all_bytes - known.weight_bytes
        limit = least_ns(known.flops, known.weight_bytes, rest, target, rates)
        layers.append(
            LayerReport(
                step.origin.module or step.origin.name,
                step.kernel,
                step.origin.source,
                step.origin.code,
                known.nnz,
                known.weights,
                known.weight_bytes,
                known.predicted_ns,
                ns,
                None if ns is None or not total else ns / total,
                _rate(known.effective_flops, known, ns),
                _rate(known.flops, known, ns),
                limit / ns if ns and known.flops else None,
                known.reason,
            )
        )
    facts = {**facts, "rates": rates_origin(target), "processor": target.model}
    return ModelReport(tuple(layers), whole, variant.tile or 1, facts)


def _rate(flops: int, facts: Facts, ns: float | None) -> float | None:
    """Operations a nanosecond, as measured or else as predicted."""
    time = ns if ns is not None else facts.predicted_ns
    return flops / time if time and flops else None


def _whole_ns(variant: Variant, inputs: list[Array], outputs: list[Array]) -> float:
    return time_whole(variant.program.memory, variant.workspace_bytes, inputs, outputs).median_ns


def _step_times(variant: Variant, inputs: list[Array], outputs: list[Array]) -> list[float]:
    lowered = variant.lowered_again()
    program = build_model(lowered, f"{variant.program.name}-timed", timed=True)
    function = StampedFunction(
        program.memory, lowered.workspace_bytes, lowered.stamps_offset, len(lowered.steps)
    )
    return time_steps(function, inputs, outputs)


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
    reached, rows = {value}, [2] if not graph.nodes else []
    for node in graph.nodes:
        if not reached.intersection(node.inputs):
            continue
        if isinstance(node.op, Embedding | EmbeddingBag):
            if node.inputs[0] in reached:
                rows.append(node.inputs[1].shape[0])
        else:
            reached.update(node.outputs)
    return min(rows, default=2)
