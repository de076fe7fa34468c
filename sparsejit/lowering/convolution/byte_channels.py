"""Means of channels of byte images, and channels multiplied by a number each."""

from collections.abc import Sequence
from dataclasses import replace

from sparsejit.asm_templates.convolution.byte_channels import (
    SCALES,
    ByteScaling,
    emit_channel_means,
    emit_scaled_channels,
)
from sparsejit.asm_templates.convolution.byte_planes import BytePlanes
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.byte_channels import ChannelMeans, ScaledChannels
from sparsejit.lowering.context import ByteImage, Lowering, lowers
from sparsejit.lowering.convolution.byte_images import (
    bind_image,
    byte_view,
    bytes_of,
    check_bytes,
    copy_step,
    in_bytes,
)
from sparsejit.lowering.memory.shape_parts import cut
from sparsejit.lowering.memory.storage import View
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.planner.byte_plan import byte_scaling_cost
from sparsejit.planner.kernels import kernel_name
from sparsejit.x86.assembler import Assembler


@lowers(ChannelMeans)
def lower_channel_means(low: Lowering, node: Node) -> None:
    """Append a kernel for channel means. Raises CompileError without AVX-512 VNNI."""
    op = node.op
    assert isinstance(op, ChannelMeans)
    check_bytes(low, node)
    image = bytes_of(low, node.inputs[0], op.steps)
    y = low.dense_result(node.output)

    def emit(asm: Assembler, at: Locations) -> None:
        at.point(asm)
        emit_channel_means(asm, image.planes, in_bytes(op.steps))

    moved = image.planes.bytes
    low.add(copy_step(low, "byte-means", node.output.origin, (image.view, y), moved, emit))


@lowers(ScaledChannels)
def lower_scaled_channels(low: Lowering, node: Node) -> None:
    """Append a kernel that scales channels. Raises CompileError without AVX-512 VNNI."""
    op = node.op
    assert isinstance(op, ScaledChannels)
    check_bytes(low, node)
    image = bytes_of(low, node.inputs[0], op.steps)
    planes = BytePlanes.plain(node.output.shape, image.planes.pitch)
    scaling = ByteScaling(image.planes, planes, in_bytes(op.steps), in_bytes(op.result))
    result = byte_view(planes)
    reads = image.view, low.contiguous(node.inputs[1])
    low.add(_step(low, node, scaling, reads, result))
    bind_image(low, node.output, ByteImage(result, planes, op.result))


def _step(
    low: Lowering, node: Node, scaling: ByteScaling, reads: Sequence[View], result: View
) -> Step:
    def emit(asm: Assembler, at: Locations) -> None:
        at.point(asm)
        at.reads[1].point(asm, SCALES)
        emit_scaled_channels(asm, scaling)

    def divide(threads: int) -> list[list[Step]]:
        if scaling.y.samples > 1:
            return []
        return [[part(*some) for some in cut(scaling.y.channels, threads)]]

    def part(first: int, end: int) -> Step:
        x, y = (replace(each, channels=end - first) for each in (scaling.x, scaling.y))
        fewer = replace(scaling, x=x, y=y, is_first=first == 0)
        views = [view.sliced(1, first, end) for view in reads]
        made = _step(low, node, fewer, views, result.sliced(1, first, end))
        return replace(made, share=f"channels {first} to {end - 1}")

    cost = byte_scaling_cost(scaling.y, low.target)
    facts = Facts(
        "bytes to bytes, one factor for each channel",
        predicted_ns=cost.ns,
        bound=cost.bound,
        moved_bytes=scaling.x.bytes + scaling.y.bytes,
    )
    name, writes = kernel_name("byte-scale", low.target), (result,)
    return Step(name, node.output.origin, tuple(reads), writes, emit, facts, divide=divide)
