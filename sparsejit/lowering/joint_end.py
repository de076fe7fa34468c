"""The last layers of a model of one sample, run once for several samples where a batch has several.

    sample 0: trunk, copies of the end's inputs      sample 1: trunk, copies of the end's inputs ...
    the end, for all samples

The end's inputs of all samples lie side by side; copies of the last one stand in for missing
samples. A single sample runs steps of its own for its last layers, as without an end.
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
from sparsejit.planner.sample_plan import EndTimes, TileTime, plan_end

# Lowers a graph of a given number of samples.
LowerSeveral = Callable[[Graph, int], LoweredModel]


class EndSize(NamedTuple):
    """Number of `samples` that share the layers in which a sample has fewer than `rows` rows."""

    rows: int
    samples: int


_NARROW = EndSize(ENOUGH_ROWS, ENOUGH_ROWS)
# Code from memory is shared by several samples for images with fewer positions than this.
# More samples would exceed L2.
_FAR = EndSize(256, 4)


def _sizes(options: ModelOptions) -> list[EndSize]:
    """The sizes that are worth a try."""
    is_far = options.weight_bytes > options.planner.l3_bytes
    return [_NARROW, _FAR] if is_far else [_NARROW]


def common_matrices(graph: Graph, options: ModelOptions) -> CommonMatrices:
    """Entries, still None, for the matrices of all layers that an end may have."""
    rows = max(size.rows for size in _sizes(options))
    return dict.fromkeys(weights_behind(graph, rows))


def joint_end(low: Lowering, lower: LowerSeveral) -> JointEnd | None:
    """The end of a model whose steps are lowered; None if it has none, or one that saves little."""
    sizes = _sizes(low.options)
    ends = {
        f"{size.samples} samples together": end
        for size in sizes
        if (end := _end(low, lower, size)) is not None
    }
    times = {name: _times(low, end.first, end.lowered) for name, end in ends.items()}
    name = plan_end(times, sum(step.ns for step in low.steps)) if times else None
    return None if name is None else ends[name]


def _times(low: Lowering, first: int, lowered: LoweredModel) -> EndTimes:
    """Times of an end, and of a sample's steps from `first` on."""
    alone_ns = sum(step.ns for step in low.steps[first:])
    return EndTimes(TileTime(lowered.tile, lowered.ns), alone_ns)


def _end(low: Lowering, lower: LowerSeveral, size: EndSize) -> JointEnd | None:
    """The end of a given size; None where the graph has none."""
    found = last_layers(low.graph, size.samples, size.rows)
    views = None if found is None else _views(low, found)
    if found is None or views is None:
        return None
    first = _first(low.steps, views, found, len(low.graph.outputs))
    if not _are_read(views, low.steps[first:]):
        return None
    lowered = lower(found.graph, size.samples)
    fewest = _times(low, first, lowered).fewest
    return JointEnd(first, fewest, _copies(low, found, views), lowered, found.outputs)


def _views(low: Lowering, found: LastLayers) -> list[View] | None:
    """Views of the end's inputs; None if one of them is not written until it is read."""
    if any(low.is_open(value) for value in found.read):
        return None
    return [low.view(value) for value in found.read]


def _are_read(views: Sequence[View], steps: Sequence[Step]) -> bool:
    """Whether all inputs of the end still exist where its steps begin: these steps read them."""
    read = {view.buffer for step in steps for view in step.reads}
    return all(view.buffer in read for view in views)


def _first(steps: Sequence[Step], views: Sequence[View], found: LastLayers, outputs: int) -> int:
    """Number of the step after the last that the end's inputs or the trunk's outputs depend on."""
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
    """Steps that copy the end's inputs, to pointers behind the pointers of the model's outputs."""
    own = len(low.steps)
    for number, (value, view) in enumerate(zip(found.read, views, strict=True)):
        place = OutputBuffer(value.type.bytes, len(low.graph.outputs) + number)
        low.copy(view, View.whole(place, value.type), value.origin)
    copies = tuple(low.steps[own:])
    del low.steps[own:]
    return copies
