"""Images in bytes between layers: convert floats to bytes, and bytes back to floats."""

from collections.abc import Callable
from typing import TypeAlias

from sparsejit.asm_templates.convolution.int8_conversions import (
    ByteQuantisation,
    CallSteps,
    FloatRows,
    emit_phases,
    emit_to_bytes,
    emit_to_floats,
)
from sparsejit.asm_templates.convolution.int8_planes import (
    BytePlanes,
    ByteWindows,
    ChannelFours,
    Gap,
    emit_fours,
)
from sparsejit.asm_templates.convolution.int8_taps import TapFours, emit_tap_fours
from sparsejit.errors import CompileError
from sparsejit.ir.operator import Node
from sparsejit.ir.spec import DType, Quantisation
from sparsejit.ir.values import Element, Origin, TensorType, Value
from sparsejit.lowering.context import ByteImage, Lowering
from sparsejit.lowering.convolution.depthwise import has_whole_rows, pitches
from sparsejit.lowering.memory.storage import Buffer, View
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.planner.int8_plan import copy_cost, fours_cost
from sparsejit.planner.kernels import OTHER_KERNELS, kernel_name
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, rcx, rdx

# The element type of bytes in the memory plan: it has one byte.
_BYTE = Element.BOOL
ZERO = 128  # the byte that stands for the integer 0


def check_bytes(low: Lowering, node: Node, kernel: str) -> None:
    """Raise CompileError on processors for which a kernel of images in bytes has no code."""
    row = OTHER_KERNELS[kernel]
    if not row.made_for(low.target, DType.INT8):
        raise CompileError(
            f"{node.output.origin.name} is stored in bytes, for which {kernel} needs "
            f"{row.needs}; this processor has {low.target.isa}; use dtype='float32'"
        )


def byte_view(planes: BytePlanes) -> View:
    """A new buffer for planes in the workspace; the view begins at the first position."""
    shape = planes.samples, planes.channels, planes.rows, planes.columns
    return View(Buffer(planes.bytes), TensorType(shape, _BYTE), planes.strides, planes.before)


# A byte around images: a number, or the view of a number that a call computes.
ViewedGap: TypeAlias = int | View


def _reads(x: View, gap: ViewedGap) -> tuple[View, ...]:
    return (x,) if isinstance(gap, int) else (x, gap)


def _pointed(asm: Assembler, at: Locations, gap: ViewedGap) -> Gap:
    """The gap as templates take it, after code that points rdx at it where it is a view."""
    if isinstance(gap, int):
        return gap
    at.reads[1].point(asm, rdx)
    return Memory(rdx)


def by_fours(
    low: Lowering, x: View, fours: ChannelFours, gap: ViewedGap, origin: Origin
) -> View:
    """A copy of byte planes with channels interleaved by four; made once for all readers.

    Bytes around the image are `gap`.
    """
    if x not in low.byte_fours:

        def emit(asm: Assembler, at: Locations) -> None:
            at.point(asm)
            emit_fours(asm, fours, _pointed(asm, at, gap))

        low.byte_fours[x] = _fours_step(low, _reads(x, gap), fours, origin, emit)
    return low.byte_fours[x]


def by_taps(low: Lowering, x: View, taps: TapFours, origin: Origin) -> View:
    """A copy of the inputs of windows over byte planes, side by side by four."""

    def emit(asm: Assembler, at: Locations) -> None:
        at.point(asm)
        emit_tap_fours(asm, taps)

    return _fours_step(low, (x,), taps.y, origin, emit)


def _fours_step(
    low: Lowering,
    reads: tuple[View, ...],
    fours: ChannelFours,
    origin: Origin,
    emit: Callable[[Assembler, Locations], None],
) -> View:
    """Append the step that copies the first view to fours; return the view that it writes."""
    planes, each = fours.planes, fours.four
    shape = planes.samples, fours.sample // each, each
    into = View(
        Buffer(fours.bytes), TensorType(shape, _BYTE), (fours.sample, each, 1), fours.before
    )
    cost = fours_cost(planes, low.target)
    moved = planes.bytes + fours.bytes
    facts = Facts("fours", predicted_ns=cost.ns, bound=cost.bound, moved_bytes=moved)
    low.add(Step(kernel_name("fours", low.target), origin, reads, (into,), emit, facts))
    return into


def bytes_of(low: Lowering, value: Value, steps: Quantisation) -> ByteImage:
    """The image of a value in bytes with this scale and zero point, rounded now if need be."""
    found = low.byte_images.get((value, steps))
    if found is not None:
        return found
    x = low.view(value)
    x = x if has_whole_rows(x) else low.contiguous(value)
    planes = BytePlanes.plain(value.shape)
    image = ByteImage(byte_view(planes), planes, steps)
    rows = FloatRows(*pitches(x))

    def emit(asm: Assembler, at: Locations) -> None:
        at.point(asm)
        emit_to_bytes(asm, rows, planes, in_bytes(steps))

    moved = value.type.bytes + 2 * planes.bytes
    is_far = value in low.graph.inputs
    low.add(copy_step(low, "to-bytes", value.origin, ((x,), image.view), moved, emit, is_far))
    low.byte_images[value, steps] = image
    return image


def call_bytes(low: Lowering, x: Value, steps: tuple[Value, Value]) -> tuple[View, BytePlanes]:
    """The image of x in bytes by the scale and zero point of the call, rounded now if need be."""
    if (x, *steps) not in low.call_images:
        floats = low.view(x)
        floats = floats if has_whole_rows(floats) else low.contiguous(x)
        planes, rows = BytePlanes.plain(x.shape), FloatRows(*pitches(floats))
        image = byte_view(planes)

        def emit(asm: Assembler, at: Locations) -> None:
            at.point(asm)
            for place, register in zip(at.reads[1:], (rdx, rcx), strict=True):
                place.point(asm, register)
            emit_to_bytes(asm, rows, planes, CallSteps(Memory(rdx), Memory(rcx)))

        moved, reads = x.type.bytes + 2 * planes.bytes, (floats, *map(low.view, steps))
        is_far = x in low.graph.inputs
        low.add(copy_step(low, "to-bytes", x.origin, (reads, image), moved, emit, is_far))
        low.call_images[(x, *steps)] = image, planes
    return low.call_images[(x, *steps)]


def bind_image(low: Lowering, value: Value, image: ByteImage) -> None:
    """Record that a value lies in bytes; it is converted to floats when these are read."""
    low.byte_images[value, image.steps] = image

    def make() -> View:
        y = low.result(value, has_whole_rows)
        rows = FloatRows(*pitches(y))

        def emit(asm: Assembler, at: Locations) -> None:
            at.point(asm)
            emit_to_floats(asm, image.planes, rows, in_bytes(image.steps))

        moved = value.type.bytes + image.planes.bytes
        low.add(copy_step(low, "to-floats", value.origin, ((image.view,), y), moved, emit))
        return y

    low.bind_later(value, make)


def in_bytes(steps: Quantisation) -> ByteQuantisation:
    """The same scale, and the zero point for unsigned bytes: 0 to 255 in place of -128 to 127."""
    return ByteQuantisation(steps.scale, steps.zero_point + ZERO)


def copy_step(
    low: Lowering,
    kernel: str,
    origin: Origin,
    between: tuple[tuple[View, ...], View],
    moved_bytes: int,
    emit: Callable[[Assembler, Locations], None],
    is_far: bool = False,
) -> Step:
    """A step that writes a view, element by element, from the first of the views that it reads.

    is_far: whether that view comes from beyond L2.
    """
    reads, y = between
    cost = copy_cost(moved_bytes, low.target, is_far)
    facts = Facts(kernel, predicted_ns=cost.ns, bound=cost.bound, moved_bytes=moved_bytes)
    return Step(kernel_name(kernel, low.target), origin, reads, (y,), emit, facts)


def copied(
    low: Lowering,
    node: Node,
    image: tuple[View, BytePlanes],
    windows: ByteWindows,
    gap: ViewedGap,
) -> View:
    """Append a copy of an image to the planes that windows read; bytes around them are `gap`."""
    x, planes = image
    into = byte_view(windows.planes)

    def emit(asm: Assembler, at: Locations) -> None:
        at.point(asm)
        emit_phases(asm, planes, windows, _pointed(asm, at, gap))

    moved, between = planes.bytes + 2 * windows.planes.bytes, (_reads(x, gap), into)
    low.add(copy_step(low, "phases", node.output.origin, between, moved, emit))
    return into
