"""Lower a graph to its schedule: a kernel for every node, a place for every buffer.

    lower_model       the kernels, their waves, and their memory
    is_empty          nodes without elements, which have no kernel
    first_of_turns    the step from which on samples take turns
    joint_end         the last layers of a model of one sample, for several samples

Samples take turns so that weights are read from memory once. A model whose code and weights exceed
L3 reads them from memory for every sample. Its last layers often have most of the weights and small
activations: there, samples take turns with each step. Layers whose weights are data gain nothing:
their weights are prefetched in order.

    sample 0: step 0, step 1, step 2      sample 1: step 0, step 1, step 2
    step 3: sample 0, sample 1            step 4: sample 0, sample 1 ...

A sample runs the same code whichever samples take turns with it, so its bits do not depend on them.

The joint end runs once for several samples, where a batch has several:

    sample 0: trunk, copies of the end's inputs      sample 1: trunk, copies of the end's inputs ...
    the end, for all samples

The end's inputs of all samples lie side by side; copies of the last one stand in for missing
samples. A single sample runs steps of its own for its last layers, as without an end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.lowering.context import (
    CommonMatrices,
    Lowering,
    ModelOptions,
    Progress,
    lowerings,
)
from sparsejit.lowering.kept_weights import KeptWeights
from sparsejit.lowering.memory.storage import OutputBuffer, View
from sparsejit.lowering.memory_plan import live_bytes, plan_memory, plan_regions
from sparsejit.lowering.model_schedule import JointEnd, ModelSchedule, header_bytes
from sparsejit.lowering.selection import unread_bytes
from sparsejit.lowering.step import Step
from sparsejit.lowering.threads.waves import schedule
from sparsejit.lowering.tiles import ENOUGH_ROWS
from sparsejit.passes.last_layers import LastLayers, last_layers, weights_behind
from sparsejit.planner.cheapest_row import about, record_all, recording
from sparsejit.planner.layer_planner import weight_bytes
from sparsejit.planner.sample_plan import EndTimes, plan_end
from sparsejit.planner.sharing import WavePrices

_MOST_IN_TURN = 8
_FEWEST_IN_TURN = 4
# Share of a process's part of L3 that activations may take: weights pass through L3 too.
_SHARE = 0.5

# The rows below which layers are shared, and the samples that share them.
_NARROW = ENOUGH_ROWS, ENOUGH_ROWS
# Code from memory is shared by several samples for images with fewer positions than this.
# More samples would exceed L2.
_FAR = 256, 4


def lower_model(
    graph: Graph,
    options: ModelOptions,
    progress: Progress = lambda stage, share: None,
    tile: int | None = None,
    kept: KeptWeights | None = None,
    joins: bool = False,
    common: CommonMatrices | None = None,
) -> ModelSchedule:
    """Choose a kernel for every node and a place for every buffer.

    The graph is of `tile` samples where the batch is free; `kept` holds weights as other code of
    the model prepared them. If `joins`, a function of one sample also gets last layers for several
    samples, if these gain; both share the matrices in `common`. Raises InvalidInput or CompileError
    for a node that no kernel can compute.
    """
    if not options.weight_bytes:
        matrices = [array for array in graph.constants.values() if array.ndim > 1]
        found = sum(weight_bytes(int(np.count_nonzero(each)), each.nbytes) for each in matrices)
        options = replace(options, weight_bytes=found - unread_bytes(graph))
    same_bits = options.exact or options.same_bits
    joins = joins and tile == 1 and not same_bits and options.threads == 1
    common = _common_matrices(graph, options) if joins else common
    low = Lowering(graph, options, kept, common)
    with recording() as record:
        record_all(graph.decisions)
        _append_steps(low, progress)
        about("")
        waves = schedule(low.steps, options.threads_a_tile, WavePrices.on(options.target))
        end = joint_end(low) if joins else None
    steps, run = low.taken_steps(), [[[t.step for t in each] for each in w.threads] for w in waves]
    first = first_of_turns(steps, options) if tile == 1 else None
    made = partial(ModelSchedule, graph, options, steps, waves, decisions=record.decisions)
    if first is None or (end is not None and end.first < first):
        return made(plan_memory(run), tile or 1, None, end)
    own_bytes, most_bytes = header_bytes(graph, waves, end), _bytes_of_turns(options)
    memory, turns = plan_regions(run, first, own_bytes, most_bytes, _MOST_IN_TURN)
    return made(memory, 1, turns, end)


def _append_steps(low: Lowering, progress: Progress) -> None:
    """Append the steps of all nodes, and the copies to the caller's arrays for outputs."""
    graph = low.graph
    for number, node in enumerate(graph.nodes):
        progress(f"choosing a kernel for {node.outputs[0].origin.name}", number / len(graph.nodes))
        about(node.outputs[0].origin.layer)
        if node in low.feature_major.between:
            if not low.is_open(node.output):  # the result of an attention of columns is
                low.bind_later(node.output, partial(_view_of, low, node))
        elif not is_empty(low, node):
            lowerings()[type(node.op)](low, node)
    for number, value in enumerate(graph.outputs):
        if not value.type.size:
            continue
        view = low.view(value)
        if not _is_there(view, number):
            wanted = View.whole(OutputBuffer(value.type.bytes, number), value.type)
            low.copy(view, wanted, value.origin)


def _view_of(low: Lowering, node: Node) -> View:
    """Lower a view operator that was skipped, now that its result is read; return its view."""
    lowerings()[type(node.op)](low, node)
    return low.view(node.output)


def _is_there(view: View, number: int) -> bool:
    """Whether a view is already the whole array of the caller for output `number`, row-major."""
    buffer = view.buffer
    return isinstance(buffer, OutputBuffer) and buffer.number == number and view.is_whole


def is_empty(low: Lowering, node: Node) -> bool:
    """Whether a node's results have no elements, so that it needs no step; binds them to views.

    Raises InvalidInput for an operator that makes elements but does not take empty operands.
    """
    if all(0 in value.type.shape for value in node.outputs):
        for value in node.outputs:
            low.bind(value, low.temporary(value.type))
        return True
    for value in node.inputs:
        if 0 in value.type.shape and not node.op.takes_empty:
            raise InvalidInput(
                f"{node.outputs[0].origin.name} reads {value.origin.name}, which has shape "
                f"{value.shape} and no elements; give it elements, or leave out the operator"
            )
    return False


def _bytes_of_turns(options: ModelOptions) -> int:
    """Most bytes that the regions of all samples in turn may take."""
    return int(_SHARE * options.planner.l3_bytes)


def first_of_turns(steps: Sequence[Step], options: ModelOptions) -> int | None:
    """The step from which on samples take turns (each step runs for all of them), or None.

    From there on, live buffers must be small, and code must exceed L2.
    """
    if options.threads > 1 or options.weight_bytes <= options.planner.l3_bytes:
        return None
    if sum(step.facts.code_bytes for step in steps) <= options.target.l2_bytes:
        return None
    most = _bytes_of_turns(options) // _FEWEST_IN_TURN
    live = live_bytes(steps)
    first = next((n + 1 for n in reversed(range(len(live))) if live[n] > most), 0)
    code = sum(step.facts.code_bytes for step in steps[first:])
    return first if code > options.target.l2_bytes else None


def _sizes(options: ModelOptions) -> list[tuple[int, int]]:
    """(rows, samples) of each joint end to try: layers below `rows` rows, for `samples` at once."""
    is_far = options.weight_bytes > options.planner.l3_bytes
    return [_NARROW, _FAR] if is_far else [_NARROW]


def _common_matrices(graph: Graph, options: ModelOptions) -> CommonMatrices:
    """The weights of all layers that a joint end may have; None stands for matrices to come."""
    rows = max(rows for rows, _ in _sizes(options))
    return dict.fromkeys(weights_behind(graph, rows))


def joint_end(low: Lowering) -> JointEnd | None:
    """The end of a model whose steps are lowered; None if it has none, or one that saves little."""
    ends = {
        f"{samples} samples together": end
        for rows, samples in _sizes(low.options)
        if (end := _end(low, rows, samples)) is not None
    }
    times = {name: _times(low, end.first, end.lowered) for name, end in ends.items()}
    name = plan_end(times, sum(step.ns for step in low.steps)) if times else None
    return None if name is None else ends[name]


def _times(low: Lowering, first: int, lowered: ModelSchedule) -> EndTimes:
    """Times of a joint end, and of the steps of one sample that it replaces, from `first` on."""
    return EndTimes(lowered.time, sum(step.ns for step in low.steps[first:]))


def _end(low: Lowering, rows: int, samples: int) -> JointEnd | None:
    """The joint end of layers below `rows` rows for `samples` samples; None where there is none."""
    found = last_layers(low.graph, samples, rows)
    views = None if found is None else _views(low, found)
    if found is None or views is None:
        return None
    first = _first(low.steps, views, found, len(low.graph.outputs))
    if not _are_read(views, low.steps[first:]):
        return None
    several = lower_model(
        found.graph, low.options, tile=samples, kept=low.kept, common=low.common
    )
    fewest = _times(low, first, several).fewest
    return JointEnd(first, fewest, _copies(low, found, views), several, found.outputs)


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
    """Number of the first step that a joint end can replace, with all steps after it.

    Neither the end's inputs nor the outputs that it does not compute depend on these.
    """
    needed = {view.buffer for view in views}
    own = set(range(outputs)) - set(found.outputs)
    first = 0
    for number in reversed(range(len(steps))):
        step = steps[number]
        written = [view.buffer for view in step.writes]
        if any(b in needed or (isinstance(b, OutputBuffer) and b.number in own) for b in written):
            needed |= {view.buffer for view in step.reads}
            first = first or number + 1
    return first


def _copies(low: Lowering, found: LastLayers, views: Sequence[View]) -> tuple[Step, ...]:
    """Steps that copy the end's inputs, to pointers behind the pointers of the model's outputs."""
    own = len(low.steps)
    for number, (value, view) in enumerate(zip(found.read, views, strict=True)):
        place = OutputBuffer(value.type.bytes, len(low.graph.outputs) + number)
        low.copy(view, View.whole(place, value.type), value.origin)
    copies = tuple(low.steps[own:])
    del low.steps[own:]
    return copies
