"""Time of each part of a sample, by stamps inside the running loop, and bytes that it touches.

Stamps (`lowering.probes.StampProbe`) share caches with the steps that they time; their own cost is
subtracted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparsejit.ir.values import Array
from sparsejit.lowering.probes import SLOT_BYTES, StampProbe
from sparsejit.lowering.sample_loop import Role
from sparsejit.lowering.step import Step
from sparsejit.machine.target import Target
from sparsejit.perf.voice.synthesis import sample_us
from sparsejit.planner.calibration import calibrated
from sparsejit.voice.spec.sample_graph import SampleGraph
from sparsejit.voice.spec.sample_loop import LoopArrays, SampleLoop, Sampler, compile_sample_loop

ROUNDS = 9
PRODUCTS, GATES, DRAW, ROWS, SIGNAL = "products", "gates", "draw", "input rows", "signal"

# The part of each kernel of a sample. Steps with a plan are products, all others belong to the
# signal. Gates add input rows themselves where they can.
_PARTS = {
    "sum-of-rows": ROWS,
    "gru-step": GATES,
    "uniform": DRAW,
    "draw": DRAW,
    "tree-draw": DRAW,
}
_READS_ROWS = ("sum-of-rows", "gru-step")
# Origins of other steps that belong to a draw if they follow one of its steps.
_DRAWN = ("sample", "bit", "component", "mixture", "parameter", "counter")


@dataclass(frozen=True)
class SamplePart:
    """Nanoseconds a sample of one part, measured, and predicted where the planner predicts it.

    group: `PRODUCTS` for the products of all layers, else the part's own name.
    """

    name: str
    group: str
    ns: float
    predicted_ns: float | None
    share: float


@dataclass(frozen=True)
class TouchedBytes:
    """Bytes of memory that a sample reads; each byte counts once.

    weights: values, with the zeros that a pattern pads; indices: the inputs of weights, constants
    and tables of the draw; code: all instructions of the loop; rows: rows of input tables;
    conditioning: values of this frame or sample. States and values between steps are not counted:
    they stay in L1.
    """

    weights: int
    indices: int
    code: int
    rows: int
    conditioning: int

    @property
    def total(self) -> int:
        return self.weights + self.indices + self.code + self.rows + self.conditioning


def touched_bytes(graph: SampleGraph, loop: SampleLoop) -> TouchedBytes:
    """Bytes that a sample of a loop compiled from `graph` reads."""
    image = loop.program.image
    rows = sum(s.facts.weight_bytes for s in loop.steps if s.kernel in _READS_ROWS)
    weights = sum(s.facts.weight_bytes for s in loop.steps if s.facts.plan is not None)
    operands = zip(loop.loop.inputs, graph.graph.inputs, strict=True)
    conditioning = sum(
        value.type.bytes for role, value in operands if role in (Role.FRAME, Role.SAMPLE)
    )
    rest = image.pool_bytes - weights - _table_bytes(graph, rows)
    return TouchedBytes(weights, rest, image.code_bytes, rows, conditioning)


def _table_bytes(graph: SampleGraph, row_bytes: int) -> int:
    """Bytes of all input tables as they are stored, where a sample reads rows of `row_bytes`."""
    read = held = 0
    for node in graph.graph.nodes:
        if type(node.op).__name__ == "SumOfRows":
            tables = node.inputs[len(node.inputs) // 2 : -1]
            read += sum(table.type.bytes // table.shape[0] for table in tables)
            held += sum(table.type.bytes for table in tables)
    return held * row_bytes // read if read else 0


def timed_parts(
    graph: SampleGraph, inputs: LoopArrays, dtype: str, rounds: int = ROUNDS
) -> tuple[SamplePart, ...]:
    """Times of the parts, from the least time of each step over all rounds."""
    loop = compile_sample_loop(graph, calibrated(Target.detect()), dtype, StampProbe)
    measured = [_stamped_ns(Sampler(loop, seed), loop, inputs) for seed in range(rounds)]
    stamp, *least = np.min(measured, axis=0).tolist()
    return sample_parts(loop.steps, [max(ns - stamp, 0.0) for ns in least])


def _stamped_ns(sampler: Sampler, loop: SampleLoop, inputs: LoopArrays) -> list[float]:
    """Nanoseconds a sample: overhead of an empty stamp, then each step with its stamp, in order."""
    slots = slice(loop.probe_offset, loop.probe_offset + SLOT_BYTES * (len(loop.steps) + 2))
    ticks: Array = sampler.workspace[slots].view(np.int64)
    ticks[:] = 0
    us = sample_us(sampler, inputs)
    _, *stamped = ticks.tolist()
    # The ticks of all stamps add up to the time of all samples.
    return [1e3 * us * each / max(sum(stamped), 1) for each in stamped]


def sample_parts(steps: Sequence[Step], ns: Sequence[float]) -> tuple[SamplePart, ...]:
    """Times `ns` of steps summed by part; each product is a part under its layer's name.

    A layer's elementwise kernels, such as its activation, count to the product.
    """
    found: dict[str, float] = {}
    predicted: dict[str, float] = {}
    layers = {step.origin.name for step in steps if step.facts.plan is not None}
    drawing = False
    for step, taken in zip(steps, ns, strict=True):
        name = _part_of(step, layers, drawing)
        drawing = name == DRAW
        found[name] = found.get(name, 0.0) + taken
        if step.facts.plan is not None and step.facts.predicted_ns is not None:
            predicted[name] = predicted.get(name, 0.0) + step.facts.predicted_ns
    return _as_parts(found, predicted, layers)


def _part_of(step: Step, layers: set[str], drawing: bool) -> str:
    name = step.origin.name
    if step.facts.plan is not None:
        return name
    if step.kernel in _PARTS:
        return _PARTS[step.kernel]
    if drawing and name in _DRAWN:
        return DRAW
    if name in layers:
        return name
    return GATES if name.endswith((".input", ".term")) else SIGNAL


def _as_parts(
    found: Mapping[str, float], predicted: Mapping[str, float], layers: set[str]
) -> tuple[SamplePart, ...]:
    total = sum(found.values())
    return tuple(
        SamplePart(
            name,
            PRODUCTS if name in layers else name,
            ns,
            predicted.get(name),
            ns / total if total else 0.0,
        )
        for name, ns in found.items()
    )
