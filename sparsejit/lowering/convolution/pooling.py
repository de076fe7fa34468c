"""Pooling: one kernel over windows, or chains over the taps of one axis after another."""

from dataclasses import replace
from math import prod

import numpy as np

from sparsejit.asm_templates.convolution.geometry import Axis
from sparsejit.asm_templates.convolution.window_rows import (
    WindowLoop,
    WindowPooling,
    can_run,
    count_windows,
    emit_pooling,
)
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Pooling, PoolingKind
from sparsejit.ir.ops.row_chains import ChainWriter
from sparsejit.ir.values import Array, TensorType
from sparsejit.lowering.context import Lowering, lowers
from sparsejit.lowering.convolution.depthwise import axes, has_whole_rows, pitches
from sparsejit.lowering.convolution.images import image_result
from sparsejit.lowering.convolution.int8_convolutions import lower_byte_pooling
from sparsejit.lowering.memory.storage import ConstantBuffer, View, cut
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.planner.convolution_plan import channel_windows_cost, pools_by_windows
from sparsejit.planner.kernels import kernel_name
from sparsejit.x86.assembler import Assembler

_TAPS_A_CHAIN = 6


@lowers(Pooling)
def lower_pooling(low: Lowering, node: Node) -> None:
    """Append steps for all samples and channels."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Pooling)
    if _lower_bytes(low, node) or _lower_windows(low, node):
        return
    destination, is_max = low.result(node.output), op.kind is PoolingKind.MAX
    around = ((0, 0), (0, 0), *op.padding)
    image = low.view(x)
    if any(map(any, op.padding)):
        image = low.padded(image, around, -np.inf if is_max else 0.0, node.output.origin)
    *first_axes, last_axis = range(len(op.kernel))
    for axis in first_axes:
        image = _along(low, node, image, axis, None)
    if is_max:
        _along(low, node, image, last_axis, destination)
        return
    sums = _along(low, node, image, last_axis, None)
    _divide(low, node, sums, _shares(op, x.shape[2:], node.output.shape[2:]), destination)


def _axes(node: Node) -> tuple[Axis, Axis]:
    """Rows and columns of a pooling's windows."""
    op, value = node.op, node.inputs[0]
    assert isinstance(op, Pooling)
    before = tuple(first for first, _ in op.padding)
    sizes = value.shape[2:], node.output.shape[2:], op.kernel, op.stride, before, op.dilation
    return axes(*sizes)


def _lower_bytes(low: Lowering, node: Node) -> bool:
    assert isinstance(node.op, Pooling)
    return node.op.kind is PoolingKind.MAX and lower_byte_pooling(low, node, *_axes(node))


def _lower_windows(low: Lowering, node: Node) -> bool:
    """Append one kernel for all taps of a pooling; return False if such windows have none."""
    op, value = node.op, node.inputs[0]
    assert isinstance(op, Pooling)
    rows, columns = _axes(node)
    counts_all = op.kind is PoolingKind.MAX or op.counts_padding or not any(map(any, op.padding))
    if not counts_all or not can_run(rows, columns) or not pools_by_windows(columns.positions):
        return False
    x = low.view(value)
    if not has_whole_rows(x):
        return False
    destination = image_result(low, node, has_whole_rows)
    pitch_pair = pitches(x), pitches(destination)
    loop = WindowLoop(x.shape[0], x.shape[1], 1, rows, columns, *pitch_pair)
    share = None if op.kind is PoolingKind.MAX else 1.0 / prod(op.kernel)
    low.add(_window_step(low, node, WindowPooling(loop, share), x, destination))
    return True


def _window_step(low: Lowering, node: Node, spec: WindowPooling, x: View, y: View) -> Step:
    op = node.op
    assert isinstance(op, Pooling)

    def emit(asm: Assembler, at: Locations) -> None:
        at.point(asm)
        emit_pooling(asm, spec)

    def divide(threads: int) -> list[list[Step]]:
        return [[some_channels(*part) for part in cut(spec.loop.channels, threads)]]

    def some_channels(first: int, end: int) -> Step:
        some = replace(spec, loop=replace(spec.loop, channels=end - first))
        made = _window_step(low, node, some, x.sliced(1, first, end), y.sliced(1, first, end))
        return replace(made, share=f"channels {first} to {end - 1}")

    cost = channel_windows_cost(count_windows(spec.loop, low.target), low.target)
    facts = Facts(
        f"{op.kind.value} of windows of {list(op.kernel)}, bound by {cost.bound}",
        predicted_ns=cost.ns,
        bound=cost.bound,
        moved_bytes=cost.data_bytes,
    )
    name, origin = kernel_name("pooling", low.target), node.output.origin
    return Step(name, origin, (x,), (y,), emit, facts, divide=divide)


def _along(low: Lowering, node: Node, image: View, axis: int, last: View | None) -> View:
    """Append the maximum or sum of windows along a spatial axis, to `last` or to new memory."""
    op = node.op
    assert isinstance(op, Pooling)
    count = node.output.shape[axis + 2]
    reach = (count - 1) * op.stride[axis] + 1
    firsts = (number * op.dilation[axis] for number in range(op.kernel[axis]))
    views = [image.sliced(axis + 2, n, n + reach, op.stride[axis]) for n in firsts]
    shape, origin = views[0].shape, node.output.origin
    kind = "maximum" if op.kind is PoolingKind.MAX else "add"
    while len(views) > 1 or last is not None:
        some, views = views[:_TAPS_A_CHAIN], views[_TAPS_A_CHAIN:]
        is_end = not views and last is not None
        result = last if is_end and last else low.temporary(replace(image.type, shape=shape))
        write, total = ChainWriter(shape, len(some)), 0
        for operand in range(1, len(some)):
            total = write.step(kind, total, operand)
        chain = write.finish(total, title="pooling")
        low.add_chain(chain, some, [None] * len(some), [result], origin)
        if is_end:
            return result
        views.insert(0, result)
    return views[0]


def _divide(low: Lowering, node: Node, sums: View, shares: Array, to: View) -> None:
    """Append the product of sums and the reciprocals of their counts."""
    factor = View.whole(ConstantBuffer.of(shares), TensorType(shares.shape))
    write = ChainWriter(to.shape, 2)
    chain = write.finish(write.step("mul", 0, 1), title="pooling")
    number = shares.item() if shares.size == 1 else None
    low.add_chain(chain, [sums, factor], [None, number], [to], node.output.origin)


def _shares(op: Pooling, size: tuple[int, ...], positions: tuple[int, ...]) -> Array:
    """Reciprocals of the windows' counts: one number, or one per position."""
    if op.counts_padding or not any(map(any, op.padding)):
        return np.array(1.0 / prod(op.kernel), np.float32)
    total = np.ones((), np.int64)
    for axis, count in enumerate(positions):
        first = np.arange(count)[:, None] * op.stride[axis] - op.padding[axis][0]
        place = first + np.arange(op.kernel[axis]) * op.dilation[axis]
        total = total[..., None] * ((place >= 0) & (place < size[axis])).sum(axis=1)
    return (1.0 / np.maximum(total, 1)).astype(np.float32)
