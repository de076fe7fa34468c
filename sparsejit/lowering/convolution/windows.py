"""Convolutions over a padded copy of the image: no columns are gathered.

The fastest is chosen by predicted time: weights as code, a loop over channels with all weights,
Winograd's algorithm, or, where code is too long for near caches, gathered columns after all.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

from sparsejit.asm_templates.convolution.dense_windows import (
    emit_dense_windows,
    lower_dense_windows,
)
from sparsejit.asm_templates.convolution.geometry import Axis
from sparsejit.asm_templates.convolution.padded_image import (
    AddedOperand,
    PaddedImage,
    can_pad,
    emit_padding,
)
from sparsejit.asm_templates.convolution.sparse_windows import (
    emit_sparse_windows,
    lower_sparse_windows,
)
from sparsejit.asm_templates.convolution.winograd import (
    U_A_WEIGHT,
    emit_winograd,
    lower_winograd,
    winograd_image,
)
from sparsejit.asm_templates.shared.location import InRegister
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution, adds_operand
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.ir.values import Element, TensorType
from sparsejit.lowering.context import Lowering
from sparsejit.lowering.convolution.depthwise import node_axes, pitches, with_whole_rows
from sparsejit.lowering.convolution.filters import filter_matrix
from sparsejit.lowering.convolution.images import image_result
from sparsejit.lowering.memory.storage import View, cut
from sparsejit.lowering.step import Body, Facts, Locations, Step, between
from sparsejit.machine.target import Target
from sparsejit.planner.convolution_plan import (
    DENSE_WINDOWS,
    SPARSE_WINDOWS,
    WINOGRAD,
    cheapest_planes,
    fills_windows,
    gathers_columns,
    padding_cost,
    plan_windows,
)
from sparsejit.planner.cost import Cost
from sparsejit.planner.kernels import kernel_name
from sparsejit.planner.split import some_rows
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import rdx

_ROW_STEP = 8  # channels: parts of a layer begin at multiples of it, where a block of sums may
# For each kernel, the function that lowers its windows, and the function that appends its code.
_KERNELS: dict[str, tuple[Callable[..., Any], Callable[..., None]]] = {
    DENSE_WINDOWS: (lower_dense_windows, emit_dense_windows),
    SPARSE_WINDOWS: (lower_sparse_windows, emit_sparse_windows),
    WINOGRAD: (lower_winograd, emit_winograd),
}


def lower_windows(low: Lowering, node: Node, matrix: SparseMatrix, each: MatVec) -> bool:
    """Append the padded copy and the products; return False if columns should be gathered."""
    image = window_image(low, node)
    if image is None:
        return False
    made = matrix.memoised_families if image.samples > 1 else frozenset()
    if "csr" in made and SPARSE_WINDOWS not in made:
        return False  # code for one sample gathers columns: its prepared weights exist already
    image = cheapest_planes(image, matrix, each, low.options.planner)
    choice = plan_windows(image, matrix, each, low.options.planner)
    if gathers_columns(choice):
        return False
    x, adds = with_whole_rows(low, node), adds_operand(node)
    in_order = low.dense_result(node.output) if adds else None
    y = in_order or image_result(low, node, lambda view: view.is_contiguous)
    _add_steps(low, node, x, y, image, matrix, each, choice.name, choice.price)
    return True


def window_steps(low: Lowering, node: Node, x: View, y: View, over: tuple[Axis, Axis]) -> None:
    """Append the fastest steps from x to a row-major y, for the rows and columns in `over`."""
    image = PaddedImage(x.shape[0], x.shape[1], *over, pitches(x))
    matrix, each = filter_matrix(low, node)
    image = cheapest_planes(image, matrix, each, low.options.planner)
    choice = plan_windows(image, matrix, each, low.options.planner)
    _add_steps(low, node, x, y, image, matrix, each, choice.name, choice.price)


def _add_steps(
    low: Lowering,
    node: Node,
    x: View,
    y: View,
    image: PaddedImage,
    matrix: SparseMatrix,
    each: MatVec,
    name: str,
    cost: Cost,
) -> None:
    image = replace(image, x_pitches=pitches(x))
    read = winograd_image(image) if name == WINOGRAD else image
    planes = low.temporary(TensorType((read.floats,), Element.FLOAT32))
    low.add(_padding_step(low, node, read, x, planes))
    reads = (planes, low.contiguous(node.inputs[3])) if adds_operand(node) else (planes,)
    is_there = name == SPARSE_WINDOWS and matrix.has_memoised(_code_key(image, y))
    if adds_operand(node) or not is_there:
        low.add(_product_step(low, node, image, matrix, each, reads, y, name, cost))
        return
    one, size = replace(image, samples=1), image.channels * image.channel
    alone = replace(cost, ns=cost.ns / image.samples)  # the code is fetched once for all
    for sample in range(image.samples):
        plane = planes.sliced(0, sample * size, (sample + 1) * size)
        place = y.sliced(0, sample, sample + 1)
        low.add(_product_step(low, node, one, matrix, each, (plane,), place, name, alone))


def _padding_step(low: Lowering, node: Node, image: PaddedImage, x: View, planes: View) -> Step:
    def emit(asm: Assembler, at: Locations) -> None:
        at.point(asm)
        emit_padding(asm, image)

    def divide(threads: int) -> list[list[Step]]:
        if image.samples > 1:
            return []
        return [[some_channels(*part) for part in cut(image.channels, threads)]]

    def some_channels(first: int, end: int) -> Step:
        some = replace(image, channels=end - first)
        into = planes.sliced(0, first * image.channel, end * image.channel)
        made = _padding_step(low, node, some, x.sliced(1, first, end), into)
        return replace(made, share=f"channels {first} to {end - 1}")

    facts = _copy_facts(image, low)
    return Step("padding", node.output.origin, (x,), (planes,), emit, facts, divide=divide)


def _product_step(
    low: Lowering,
    node: Node,
    image: PaddedImage,
    matrix: SparseMatrix,
    each: MatVec,
    reads: tuple[View, ...],
    y: View,
    name: str,
    cost: Cost,
) -> Step:
    """The step that multiplies planes, and adds an operand if there is one."""

    def divide(threads: int) -> list[list[Step]]:
        return [[some_rows_of(*part) for part in cut(each.out_features, threads, _ROW_STEP)]]

    def some_rows_of(first: int, end: int) -> Step:
        rows, some = matrix.rows(first, end), some_rows(each, first, end)
        own = plan_windows(image, rows, some, low.options.planner, name).price
        from_channels = reads[0], *(added.sliced(1, first, end) for added in reads[1:])
        into = y.sliced(1, first, end)
        made = _product_step(low, node, image, rows, some, from_channels, into, name, own)
        return replace(made, share=f"channels {first} to {end - 1}")

    code = _code(image, matrix, each, y, name, low.target, adds=len(reads) > 1)
    facts = _facts(matrix, name, cost, image, node.inputs[1].origin.name)
    kernel, origin = kernel_name(name, low.target), node.output.origin
    made = Step(kernel, origin, reads, (y,), code.emit, facts, code.scratch_bytes, divide=divide)
    return replace(made, body=code.body)


def window_image(low: Lowering, node: Node) -> PaddedImage | None:
    """The planes that a convolution would read; None if there is no code for such windows.

    Also None if few lanes would be positions, or if windows would save nothing but the copy.
    """
    op, x, weights = node.op, node.inputs[0], node.inputs[1]
    assert isinstance(op, Convolution)
    if op.transposed or op.dtype is DType.INT8 or prod(weights.shape[2:]) == 1:
        return None
    rows, columns = node_axes(node)
    if not can_pad(rows, columns):
        return None
    image = PaddedImage(x.shape[0], x.shape[1], rows, columns, (0, 0, 0))
    return image if fills_windows(image, low.target) else None


@dataclass(frozen=True, eq=False)
class _WindowCode:
    """Code of a kernel, and its bytes of scratch memory; `emit`, `body` are as in `Step`."""

    emit: Callable[[Assembler, Locations], None]
    scratch_bytes: int
    body: Body | None = None


def _code(
    image: PaddedImage,
    matrix: SparseMatrix,
    each: MatVec,
    y: View,
    name: str,
    target: Target,
    adds: bool,
) -> _WindowCode:
    """The code of a kernel; weights as code for one sample are made once for all equal keys."""
    lower, append = _KERNELS[name]

    def made() -> _WindowCode:
        lowered = lower(image, each, matrix, (y.strides[0], y.strides[1]), target)
        if name == SPARSE_WINDOWS and image.samples == 1 and not adds:
            body = partial(append, lowered=lowered, scratch=InRegister(rdx))
            scratch = lowered.scratch_bytes
            return _WindowCode(between(body, scratch > 0), scratch, body)

        def emit(asm: Assembler, at: Locations) -> None:
            at.point(asm)
            added = AddedOperand(at.reads[1], at.writes[0]) if adds else None
            append(asm, lowered, at.scratch, added)

        return _WindowCode(emit, lowered.scratch_bytes)

    if name == SPARSE_WINDOWS and image.samples == 1 and not adds:
        return matrix.memoised(_code_key(image, y), made)
    return made()


def _code_key(image: PaddedImage, y: View) -> Hashable:
    """Key of the code for one sample: everything it depends on except weights and bias."""
    return SPARSE_WINDOWS, replace(image, samples=1, x_pitches=(0, 0, 0)), y.strides[1]


def _copy_facts(image: PaddedImage, low: Lowering) -> Facts:
    cost = padding_cost(image, low.target)
    return Facts("padding", predicted_ns=cost.ns, bound=cost.bound, moved_bytes=cost.data_bytes)


def _facts(
    matrix: SparseMatrix,
    name: str,
    cost: Cost,
    image: PaddedImage,
    parameter: str,
) -> Facts:
    positions = image.samples * image.rows.positions * image.columns.positions
    weights = matrix.out_features * matrix.in_features
    held = {SPARSE_WINDOWS: matrix.nnz, WINOGRAD: U_A_WEIGHT * weights}.get(name, weights)
    return Facts(
        f"{name} over a padded image, bound by {cost.bound}",
        predicted_ns=cost.ns,
        nnz=matrix.nnz,
        weights=weights,
        weight_bytes=round(4 * held),
        code_bytes=cost.code_bytes,
        effective_flops=2 * weights * positions,
        flops=2 * matrix.nnz * positions,
        bound=cost.bound,
        zeros=matrix.zero_bits(),
        parameter=parameter,
    )
