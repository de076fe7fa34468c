"""The last layers of a model of one sample, run for several samples at once where there are some.

    sample 0: trunk, what the end reads      sample 1: trunk, what the end reads ...
    the end of all samples

What the end reads of each sample is copied side by side; what samples lack is copies of the last
one. A sample alone has steps of its own for its last layers, as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sparsejit.ir.graph import Graph
from sparsejit.lowering.context import CommonMatrices, Lowering, ModelOptions
from sparsejit.lowering.lowered_model import JointEnd, LoweredModel
from sparsejit.lowering.memory.storage import Buffer, OutputBuffer, View
from sparsejit.lowering.step import Step
from sparsejit.lowering.tiles import ENOUGH_ROWS
from sparsejit.passes.last_layers import LastLayers, last_layers, weights_behind

# The share of a sample's time that must be saved: the end is there twice, but for weights as data.
_LEAST_SAVED = 0.02

# Lowers the graph of so many samples.
LowerSeveral = Callable[[Graph, int], LoweredModel]


class EndSize(NamedTuple):
    """How many samples share layers in which a sample has fewer rows than these."""

    rows: int
    samples: int


_NARROW = EndSize(ENOUGH_ROWS, ENOUGH_ROWS)
# Where code comes from memory, images of so few positions need it for several samples. More of
# these would exceed L2.
_FAR = EndSize(256, 4)


def _sizes(options: ModelOptions) -> list[EndSize]:
    """Those worth a try."""
    is_far = options.weight_bytes > options.planner.l3_bytes
    return [_NARROW, _FAR] if is_far else [_NARROW]


def common_matrices(graph: Graph, options: ModelOptions) -> CommonMatrices:
    """Room for the matrices of all layers that an end may have."""
    rows = max(size.rows for size in _sizes(options))
    return dict.fromkeys(weights_behind(graph, rows))


def joint_end(low: Lowering, lower: LowerSeveral) -> JointEnd | None:
    """The end of a model whose steps are lowered; None where that is not to be, or gains little."""
    found = [end for size in _sizes(low.options) if (end := _end(low, lower, size)) is not None]
    best = max(found, key=lambda end: _saved_ns(low, end), default=None)
    whole_ns = sum(step.ns for step in low.steps)
    if best is None or _saved_ns(low, best) < _LEAST_SAVED * whole_ns:
        return None
    return best


def _saved_ns(low: Lowering, end: JointEnd) -> float:
    """What a sample gains."""
    return _alone_ns(low, end.first) - end.lowered.ns / end.samples


def _alone_ns(low: Lowering, first: int) -> float:
    return sum(step.ns for step in low.steps[first:])


def _end(low: Lowering, lower: LowerSeveral, size: EndSize) -> JointEnd | None:
    """None where the graph has no such end."""
    found = last_layers(low.graph, size.samples, size.rows)
    views = None if found is None else _views(low, found)
    if found is None or views is None:
        return None
    first = _first(low.steps, views, found, len(low.graph.outputs))
    if not _are_read(views, low.steps[first:]):
        return None
    lowered = lower(found.graph, size.samples)
    fewest = min(int(lowered.ns / _alone_ns(low, first)) + 1, size.samples)
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
