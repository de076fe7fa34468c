"""Convolutions by channel of bytes to bytes."""

from dataclasses import replace

import numpy as np

from sparsejit.asm_templates.convolution.byte_depthwise import (
    LoweredByteDepthwise,
    byte_channel_windows,
    emit_byte_depthwise,
    gaps_for,
)
from sparsejit.asm_templates.convolution.byte_planes import BytePhase, ByteWindows
from sparsejit.asm_templates.gather.int8_weights import quantised_nonzeros
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.lowering.context import ByteImage, Lowering
from sparsejit.lowering.convolution.byte_ends import ends_of
from sparsejit.lowering.convolution.byte_images import ZERO, bind_image, byte_view, copied
from sparsejit.lowering.convolution.depthwise import node_axes
from sparsejit.lowering.memory.shape_parts import cut
from sparsejit.lowering.memory.storage import View
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.planner.byte_plan import byte_depthwise_cost
from sparsejit.planner.kernels import kernel_name
from sparsejit.x86.assembler import Assembler


def lower_byte_depthwise(low: Lowering, node: Node, image: ByteImage) -> None:
    """Append a convolution for which `byte_convolution_ns` is finite."""
    op = node.op
    assert isinstance(op, Convolution) and op.rounding is not None
    axes, shape = node_axes(node), node.output.shape
    windows, x = byte_channel_windows(image.planes, shape, *axes), image.view
    if windows is None:
        planes = gaps_for(*axes, image.planes)
        rows, columns = (BytePhase(0, 1, count) for count in (planes.rows, planes.columns))
        whole = ByteWindows(planes, (rows,), (columns,), (0,))
        x = copied(low, node, image, whole, image.steps.shift + ZERO)
        windows = byte_channel_windows(planes, shape, *axes)
    assert windows is not None
    matrix = _taps(low, node)
    integers, _ = quantised_nonzeros(matrix)
    bias = low.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    epilogue, ends = ends_of(matrix, bias, op, image.steps)
    weights = np.zeros(integers.shape, np.int8)
    weights[integers.rows, integers.columns] = integers.values
    lowered = LoweredByteDepthwise(windows, weights, ends, epilogue)
    result = byte_view(windows.y)
    low.add(_step(low, node, lowered, x, result))
    bind_image(low, node.output, ByteImage(result, windows.y, op.rounding.result))


def _taps(low: Lowering, node: Node) -> SparseMatrix:
    """The matrix of weights (channels, taps)."""
    filters = low.constant(node.inputs[1])
    return SparseMatrix(filters.reshape(len(filters), -1))


def _step(
    low: Lowering, node: Node, lowered: LoweredByteDepthwise, x: View, result: View
) -> Step:
    def emit(asm: Assembler, at: Locations) -> None:
        at.point(asm)
        emit_byte_depthwise(asm, lowered)

    def divide(threads: int) -> list[list[Step]]:
        if lowered.windows.y.samples > 1:
            return []
        return [[part(*some) for some in cut(lowered.windows.y.channels, threads)]]

    def part(first: int, end: int) -> Step:
        windows, some = lowered.windows, slice(first, end)
        planes = (replace(each, channels=end - first) for each in (windows.x, windows.y))
        x_planes, y_planes = planes
        fewer = replace(
            lowered,
            windows=replace(windows, x=x_planes, y=y_planes, is_first=first == 0),
            weights=lowered.weights[some],
            ends=lowered.ends[some],
        )
        made = _step(low, node, fewer, x.sliced(1, first, end), result.sliced(1, first, end))
        return replace(made, share=f"channels {first} to {end - 1}")

    windows = lowered.windows
    cost, weights = byte_depthwise_cost(windows, low.target), lowered.weights.size
    operations = 2 * weights * windows.y.samples * windows.y.rows * windows.y.columns
    facts = Facts(
        f"bytes to bytes by channel, four taps at a time, bound by {cost.bound}",
        predicted_ns=cost.ns,
        nnz=int(np.count_nonzero(lowered.weights)),
        weights=weights,
        weight_bytes=lowered.channels.nbytes,
        effective_flops=operations,
        flops=operations * int(np.count_nonzero(lowered.weights)) // max(1, weights),
        bound=cost.bound,
        parameter=node.inputs[1].origin.name,
    )
    name = kernel_name("byte-depthwise", low.target)
    return Step(name, node.output.origin, (x,), (result,), emit, facts, divide=divide)
