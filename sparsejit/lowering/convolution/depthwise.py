"""Convolutions by channel: one kernel for all channels, which reads the image in place.

Lanes are positions, or, for images with one axis, channels.
"""

from dataclasses import replace

import numpy as np

from sparsejit.asm_templates.convolution.geometry import Axis
from sparsejit.asm_templates.convolution.window_rows import (
    Depthwise,
    DirectCounts,
    WindowLoop,
    can_lie_in_lanes,
    can_run,
    count_lanes,
    count_windows,
    emit_depthwise,
)
from sparsejit.asm_templates.shared.storage import rounded
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution, adds_operand
from sparsejit.ir.spec import DType
from sparsejit.lowering.context import Lowering
from sparsejit.lowering.convolution.images import image_result
from sparsejit.lowering.memory.storage import View, cut
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.machine.target import Target
from sparsejit.planner.convolution_plan import (
    CHANNELS,
    POSITIONS,
    ChannelWork,
    channel_windows_cost,
    plan_channels,
)
from sparsejit.planner.kernels import kernel_name
from sparsejit.x86.assembler import Assembler


def is_depthwise(node: Node) -> bool:
    """Whether a convolution has one filter per channel, and there is code for its windows.

    The code adds no operand.
    """
    op, x = node.op, node.inputs[0]
    assert isinstance(op, Convolution)
    if op.transposed or op.groups == 1 or op.groups != x.shape[1] or op.dtype is DType.INT8:
        return False
    if adds_operand(node):
        return False
    return can_run(*node_axes(node))


def lower_depthwise(low: Lowering, node: Node) -> None:
    """Append one step for all samples and channels."""
    over, x, value = node_axes(node), low.view(node.inputs[0]), node.output
    wanted = low.wanted.get(value)
    there = wanted is not None and lies_by_channel(wanted)
    turned = 0 if wanted is None or there else value.type.bytes
    copied = 0 if has_whole_rows(x) else x.type.bytes
    may_lie = lies_by_channel(x) and (copied > 0 or not turned)  # no copy instead of none
    if may_lie and lies_in_lanes(node, copied, turned, low.target):
        if not there:
            low.result_in_order(value, (0, 2, 1))
        y = low.result(value) if there else low.view(value)
        depthwise_step(low, node, x, y, over, in_lanes=True)
        return
    x = with_whole_rows(low, node)
    y = image_result(low, node, has_whole_rows)
    depthwise_step(low, node, x, y, over)


def lies_in_lanes(node: Node, of_positions: int, of_channels: int, target: Target) -> bool:
    """Whether channels should be the lanes of a depthwise convolution whose x lies so, or shall.

    `of_positions`, `of_channels`: bytes of x and of y that are copied for either order.
    """
    loop, x = _loop_of(node), node.inputs[0]
    is_line = len(x.shape) == 3
    fits = is_line and can_lie_in_lanes(loop.rows, loop.columns, loop.multiplier)
    work = ChannelWork(loop, fits, of_positions, of_channels, target)
    return plan_channels(work) == CHANNELS


def sample_counts(node: Node, target: Target) -> DirectCounts:
    """Work of a sample of a depthwise convolution with positions in the lanes."""
    return count_windows(replace(_loop_of(node), samples=1), target)


def _loop_of(node: Node) -> WindowLoop:
    """The windows of a depthwise convolution, without pitches."""
    x, y = node.inputs[0], node.output
    multiplier = y.shape[1] // x.shape[1]
    samples, channels = x.shape[:2]
    rows, columns = node_axes(node)
    return WindowLoop(samples, channels, multiplier, rows, columns, (0, 0, 0), (0, 0, 0))


def lies_by_channel(view: View) -> bool:
    """Whether the channels of each position of an image lie side by side."""
    return view.strides[1] == view.type.element.bytes and view.shape[1] > 1


def depthwise_step(
    low: Lowering,
    node: Node,
    x: View,
    y: View,
    over: tuple[Axis, Axis],
    in_lanes: bool = False,
) -> None:
    """Append a step from x to y, with a filter per channel, over the rows and columns `over`.

    `in_lanes`: channels lie side by side, and are the lanes.
    """
    (rows, columns), op, (_, weights, *bias) = over, node.op, node.inputs
    assert isinstance(op, Convolution)
    filters = rounded(low.constant(weights), op.dtype)
    multiplier = len(filters) // op.groups
    of_x, of_y = ((v.strides[0], 0, v.strides[2]) if in_lanes else pitches(v) for v in (x, y))
    loop = WindowLoop(x.shape[0], op.groups, multiplier, rows, columns, of_x, of_y)
    taps = filters.reshape(len(filters), rows.kernel, columns.kernel)
    biases = low.constant(bias[0]) if bias else None
    spec = Depthwise(loop, taps, biases, op.activation, in_lanes)

    low.add(_step(low, node, spec, x, y))


def _step(low: Lowering, node: Node, spec: Depthwise, x: View, y: View) -> Step:
    """The step from all channels of x to all channels of y."""

    def emit(asm: Assembler, at: Locations) -> None:
        at.point(asm)
        emit_depthwise(asm, spec)

    def divide(threads: int) -> list[list[Step]]:
        lengths = {_some_channels: spec.loop.channels}
        if not spec.in_lanes:
            lengths[_some_rows] = spec.loop.rows.positions
        return [
            [some(low, node, spec, x, y, *part) for part in cut(length, threads)]
            for some, length in lengths.items()
            if length >= threads
        ]

    facts = _facts(low, spec, node.inputs[1].origin.name)
    name = kernel_name("depthwise", low.target)
    return Step(name, node.output.origin, (x,), (y,), emit, facts, divide=divide)


def _some_channels(
    low: Lowering, node: Node, spec: Depthwise, x: View, y: View, first: int, end: int
) -> Step:
    outputs = slice(first * spec.loop.multiplier, end * spec.loop.multiplier)
    some = replace(
        spec,
        loop=replace(spec.loop, channels=end - first),
        taps=spec.taps[outputs],
        bias=None if spec.bias is None else spec.bias[outputs],
    )
    into = y.sliced(1, outputs.start, outputs.stop)
    made = _step(low, node, some, x.sliced(1, first, end), into)
    return replace(made, share=f"channels {first} to {end - 1}")


def _some_rows(
    low: Lowering, node: Node, spec: Depthwise, x: View, y: View, first: int, end: int
) -> Step:
    rows, start, stop = spec.loop.rows.part(first, end)
    some = replace(spec, loop=replace(spec.loop, rows=rows))
    made = _step(low, node, some, x.sliced(2, start, stop), y.sliced(2, first, end))
    return replace(made, share=f"rows {first} to {end - 1}")


def node_axes(node: Node) -> tuple[Axis, Axis]:
    """Rows and columns of a convolution's windows."""
    op, sizes = node.op, (node.inputs[0].shape, node.output.shape, node.inputs[1].shape)
    assert isinstance(op, Convolution)
    return axes(*(shape[2:] for shape in sizes), op.stride, op.padding, op.dilation)


def axes(*numbers: tuple[int, ...]) -> tuple[Axis, Axis]:
    """Rows and columns, from each field's values by axis; one spatial axis gives a single row."""
    found = [Axis(*each) for each in zip(*numbers, strict=True)]
    return found[-2] if len(found) == 2 else Axis(1, 1, 1, 1, 0, 1), found[-1]


def with_whole_rows(low: Lowering, node: Node) -> View:
    """The view from which to read a node's image: each row is contiguous."""
    view = low.view(node.inputs[0])
    return view if has_whole_rows(view) else low.contiguous(node.inputs[0])


def has_whole_rows(view: View) -> bool:
    """Whether the elements of a row are contiguous."""
    return view.shape[-1] == 1 or view.strides[-1] == view.type.element.bytes


def pitches(view: View) -> tuple[int, int, int]:
    """Bytes from one sample, channel and row to the next."""
    sample, channel, *rows = view.strides[:-1]
    return sample, channel, rows[0] if rows else 0


def _facts(low: Lowering, spec: Depthwise, parameter: str) -> Facts:
    counts = (count_lanes if spec.in_lanes else count_windows)(spec.loop, low.target)
    cost = channel_windows_cost(counts, low.target)
    loop = spec.loop
    places = loop.samples * loop.rows.positions * loop.columns.positions
    nnz = int(np.count_nonzero(spec.taps))
    reason = (
        f"one kernel for each channel, {CHANNELS if spec.in_lanes else POSITIONS} as lanes: "
        f"{counts.products:,} products of vectors, "
        f"{counts.moved_bytes:,} bytes read and written, bound by {cost.bound}"
    )
    return Facts(
        reason,
        predicted_ns=cost.ns,
        nnz=nnz,
        weights=spec.taps.size,
        weight_bytes=spec.taps.nbytes,
        effective_flops=2 * spec.taps.size * places,
        flops=2 * nnz * places,
        bound=cost.bound,
        zeros=np.packbits(spec.taps == 0).tobytes(),
        parameter=parameter,
        moved_bytes=counts.moved_bytes,
    )
