"""The last layers of a model of one sample, run for several samples at once where there are some.

    sample 0: trunk, what the end reads      sample 1: trunk, what the end reads ...
    the end of all samples

What the end reads of each sample is copied side by side; what samples lack is copies of the last
one. A sample alone has steps of its own for its last layers, as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparsejit.ir.graph import Graph
from sparsejit.lowering.context import Lowering
from sparsejit.lowering.lowered_model import JointEnd, LoweredModel
from sparsejit.lowering.memory.storage import Buffer, OutputBuffer, View
from sparsejit.lowering.step import Step
from sparsejit.lowering.tiles import ENOUGH_ROWS
from sparsejit.passes.last_layers import LastLayers, last_layers

SAMPLES = ENOUGH_ROWS
# The share of a sample's time that must be saved: the end is there twice, code and weights.
_LEAST_SAVED = 0.02

# Lowers the graph of so many samples.
LowerSeveral = Callable[[Graph, int], LoweredModel]


def joint_end(low: Lowering, lower: LowerSeveral) -> JointEnd | None:
    """The end of a model whose steps are lowered; None where that is not to be, or gains little."""
    found = last_layers(low.graph, SAMPLES, ENOUGH_ROWS)
    views = None if found is None else _views(low, found)
    if found is None or views is None:
        return None
    first = _first(low.steps, views, found, len(low.graph.outputs))
    if not _are_read(views, low.steps[first:]):
        return None
    lowered = lower(found.graph, SAMPLES)
    alone_ns = sum(step.ns for step in low.steps[first:])
    whole_ns = sum(step.ns for step in low.steps)
    if alone_ns - lowered.ns / SAMPLES < _LEAST_SAVED * whole_ns:
        return None
    fewest = min(int(lowered.ns / alone_ns) + 1, SAMPLES)
    return JointEnd(first, fewest, _copies(low, found, views), lowered, found.outputs)


def _views(low: Lowering, found: LastLayers) -> list[View] | None:
    """Where the trunk leaves what the end reads; None where it leaves that to its readers."""
    if any(low.is_open(value) for value in found.read):
        return None
    return [low.view(value) for value in found.read]


def _are_read(views: Sequence[View], steps: Sequence[Step]) -> bool:
    """Whether all that the end reads is still there where its steps begin."""
    read = {view.buffer for step in steps for view in step.reads}
    return all(view.buffer in read for view in views)


def _first(steps: Sequence[Step], views: Sequence[View], found: LastLayers, outputs: int) -> int:
    """The step behind the last that the end's inputs, or outputs of the trunk, depend on."""
    needed = {view.buffer for view in views}
    own = set(range(outputs)) - set(found.outputs)
    first = 0
    for number in reversed(range(len(steps))):
        step = steps[number]
        if any(_is_needed(view.buffer, needed, own) for view in step.writes):
            needed |= {view.buffer for view in step.reads}
            first = first or number + 1
    return first


def _is_needed(buffer: Buffer, needed: set[Buffer], outputs: set[int]) -> bool:
    return buffer in needed or (isinstance(buffer, OutputBuffer) and buffer.number in outputs)


def _copies(low: Lowering, found: LastLayers, views: Sequence[View]) -> tuple[Step, ...]:
    """Pointers of the end's inputs follow those of the model's outputs."""
    own = len(low.steps)
    for number, (value, view) in enumerate(zip(found.read, views, strict=True)):
        place = OutputBuffer(value.type.bytes, len(low.graph.outputs) + number)
        low.copy(view, View.whole(place, value.type), value.origin)
    copies = tuple(low.steps[own:])
    del low.steps[own:]
    return copies
