"""Operators between quantised layers, whose features are channels in bytes.

    lower_norm              layer norms: bytes for readers that take quantised values, floats for
                            all others
    lower_byte_attention    attention
    lower_channel_means     means of channels of byte images
    lower_scaled_channels   channels multiplied by a number each
"""

from collections.abc import Sequence
from dataclasses import replace

from sparsejit.asm_templates.convolution.int8_attention import (
    KEY,
    MASK,
    QUERY,
    RESULT,
    SCRATCH,
    VALUE,
    AttentionSteps,
    ByteHeads,
    emit_byte_attention,
    heads_form,
)
from sparsejit.asm_templates.convolution.int8_channel_means import (
    SCALES,
    ByteScaling,
    emit_channel_means,
    emit_scaled_channels,
)
from sparsejit.asm_templates.convolution.int8_conversions import fill_planes
from sparsejit.asm_templates.convolution.int8_norm import (
    ADDED,
    RESULTS,
    ByteNorm,
    NormOperand,
    emit_byte_norm,
)
from sparsejit.asm_templates.convolution.int8_norm import SCRATCH as NORM_SCRATCH
from sparsejit.asm_templates.convolution.int8_planes import BytePlanes
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.int8_columns import (
    ByteAttention,
    ChannelMeans,
    NormalisedColumns,
    ScaledChannels,
)
from sparsejit.ir.spec import Quantisation
from sparsejit.ir.values import Value
from sparsejit.lowering.context import ByteImage, Lowering, lowers
from sparsejit.lowering.convolution.int8_images import (
    ZERO,
    bind_image,
    byte_view,
    bytes_of,
    check_bytes,
    copy_step,
    in_bytes,
)
from sparsejit.lowering.memory.storage import View, cut
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.planner.int8_plan import attention_cost, byte_scaling_cost, norm_cost
from sparsejit.planner.kernels import kernel_name
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import rsi


@lowers(NormalisedColumns)
def lower_norm(low: Lowering, node: Node) -> None:
    """Append a norm over channels. Raises CompileError if the target has no code for it."""
    op, (*added, parameters) = node.op, node.inputs
    assert isinstance(op, NormalisedColumns)
    check_bytes(low, node, "byte-norm")
    reads = [_operand(low, *each) for each in zip(added, op.steps, strict=True)]
    value = node.output
    wanted = [_read_in(reader, value) for reader in low.readers[value]]
    in_steps = next((each for each in wanted if each is not None), None)
    results, writes = list[NormOperand](), list[View]()
    if in_steps is None or value in low.graph.outputs or {*wanted} != {in_steps}:
        writes.append(low.dense_result(value))
        results.append(NormOperand(writes[-1].strides[1], None))
    planes = BytePlanes.plain(value.shape)
    if in_steps is not None:
        image = ByteImage(byte_view(planes), planes, in_steps)
        low.byte_images[value, in_steps] = image
        writes.append(image.view)
        results.append(NormOperand(planes.channel, in_bytes(in_steps)))
    channels, columns = value.shape[1:]
    operands = tuple(each for _, each in reads)
    numbers = low.constant(parameters)
    norm = ByteNorm(channels, columns, op.epsilon, operands, tuple(results), numbers)
    fills = None if in_steps is None or not _has_taps(low, value) else in_steps.zero_point + ZERO
    low.add(_norm_step(low, node, norm, [view for view, _ in reads], writes, planes, fills))


def _norm_step(
    low: Lowering,
    node: Node,
    norm: ByteNorm,
    reads: Sequence[View],
    writes: Sequence[View],
    planes: BytePlanes,
    fills: int | None,
) -> Step:
    """The step of a norm; `fills`: the byte around the result's bytes, None if nothing reads it."""

    def emit(asm: Assembler, at: Locations) -> None:
        if fills is not None:
            at.writes[-1].point(asm, rsi)
            fill_planes(asm, planes, fills)
        for places, registers in ((at.reads, ADDED), (at.writes, RESULTS)):
            for place, register in zip(places, registers, strict=False):
                place.point(asm, register)
        at.scratch.point(asm, NORM_SCRATCH)
        emit_byte_norm(asm, norm)

    cost = norm_cost(norm, low.target)
    facts = Facts(
        "a norm over channels",
        predicted_ns=cost.ns,
        bound=cost.bound,
        moved_bytes=cost.data_bytes,
    )
    name, origin = kernel_name("byte-norm", low.target), node.output.origin
    scratch = norm.scratch_bytes(low.target)
    return Step(name, origin, tuple(reads), tuple(writes), emit, facts, scratch)


@lowers(ByteAttention)
def lower_byte_attention(low: Lowering, node: Node) -> None:
    """Append an attention of bytes. Raises CompileError if the target has no code for it."""
    op, value = node.op, node.output
    assert isinstance(op, ByteAttention)
    check_bytes(low, node, "byte-attention")
    images = [bytes_of(low, *each) for each in zip(node.inputs, op.steps, strict=False)]
    masks = [low.contiguous(mask) for mask in node.inputs[len(images) :]]
    planes = BytePlanes.plain(value.shape)
    result = byte_view(planes)
    all_planes = (*(image.planes for image in images), planes)
    sizes = op.heads, op.length, bool(masks), heads_form(low.target)
    heads = ByteHeads(all_planes, *sizes)  # type: ignore[arg-type]
    numbers = (*op.steps, op.scores, op.shares, op.result)
    query, key, values, scores, shares, made = map(in_bytes, numbers)
    steps = AttentionSteps(query, key, values, scores, shares, made, op.scale)
    fills = op.result.zero_point + ZERO if _has_taps(low, value) else None
    views = [*(image.view for image in images), *masks]
    low.add(_attention_step(low, node, heads, steps, views, result, fills))
    bind_image(low, value, ByteImage(result, planes, op.result))


def _attention_step(
    low: Lowering,
    node: Node,
    heads: ByteHeads,
    steps: AttentionSteps,
    reads: Sequence[View],
    result: View,
    fills: int | None,
) -> Step:
    def emit(asm: Assembler, at: Locations) -> None:
        at.writes[0].point(asm, RESULT)
        if fills is not None:
            fill_planes(asm, heads.planes[3], fills)
        for place, register in zip(at.reads, (QUERY, KEY, VALUE, MASK), strict=False):
            place.point(asm, register)
        at.scratch.point(asm, SCRATCH)
        emit_byte_attention(asm, heads, steps)

    def divide(threads: int) -> list[list[Step]]:
        return [] if fills is not None else [[part(*some) for some in cut(heads.heads, threads)]]

    def part(first: int, end: int) -> Step:
        some = first * heads.features, end * heads.features
        q, k, v, y = (replace(each, channels=some[1] - some[0]) for each in heads.planes)
        fewer = replace(heads, planes=(q, k, v, y), heads=end - first)
        views = [*(view.sliced(1, *some) for view in reads[:3]), *reads[3:]]
        made = _attention_step(low, node, fewer, steps, views, result.sliced(1, *some), None)
        return replace(made, share=f"heads {first} to {end - 1}")

    cost = attention_cost(heads, low.target)
    facts = Facts(
        f"bytes to bytes, {heads.heads} heads of {heads.features} features, {heads.length} tokens",
        predicted_ns=cost.ns,
        bound=cost.bound,
    )
    return Step(
        kernel_name("byte-attention", low.target),
        node.output.origin,
        tuple(reads),
        (result,),
        emit,
        facts,
        scratch_bytes=heads.places["end"],
        divide=divide,
    )


def _operand(
    low: Lowering, value: Value, steps: Quantisation | None
) -> tuple[View, NormOperand]:
    if steps is not None:
        image = bytes_of(low, value, steps)
        return image.view, NormOperand(image.planes.channel, in_bytes(steps))
    view = low.contiguous(value)
    return view, NormOperand(view.strides[1], None)


def _read_in(reader: Node, value: Value) -> Quantisation | None:
    """Scale and zero point with which a node reads a value in bytes; None if it reads floats."""
    op = reader.op
    if isinstance(op, NormalisedColumns | ByteAttention):
        wanted = {s for v, s in zip(reader.inputs, op.steps, strict=False) if v is value}
        return wanted.pop() if len(wanted) == 1 else None
    if not isinstance(op, Convolution) or op.rounding is None or value is not reader.inputs[0]:
        return None
    assert op.x_steps is not None
    return op.x_steps


def _has_taps(low: Lowering, value: Value) -> bool:
    """Whether a convolution of several taps reads a value, and so the bytes around its image."""
    readers = low.readers[value]
    return any(isinstance(r.op, Convolution) and r.inputs[1].shape[2:] != (1,) for r in readers)


@lowers(ChannelMeans)
def lower_channel_means(low: Lowering, node: Node) -> None:
    """Append a kernel for channel means. Raises CompileError if the target has no code for it."""
    op = node.op
    assert isinstance(op, ChannelMeans)
    check_bytes(low, node, "byte-means")
    image = bytes_of(low, node.inputs[0], op.steps)
    y = low.dense_result(node.output)

    def emit(asm: Assembler, at: Locations) -> None:
        at.point(asm)
        emit_channel_means(asm, image.planes, in_bytes(op.steps))

    moved = image.planes.bytes
    low.add(copy_step(low, "byte-means", node.output.origin, ((image.view,), y), moved, emit))


@lowers(ScaledChannels)
def lower_scaled_channels(low: Lowering, node: Node) -> None:
    """Append a kernel that scales channels. Raises CompileError if the target has no code."""
    op = node.op
    assert isinstance(op, ScaledChannels)
    check_bytes(low, node, "byte-scale")
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
