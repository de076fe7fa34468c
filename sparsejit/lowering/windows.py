"""Convolutions over a padded copy of the image: no columns are gathered."""

from math import prod

from sparsejit.asm_templates.convolution.dense_windows import (
    emit_dense_windows,
    lower_dense_windows,
)
from sparsejit.asm_templates.convolution.padded_image import PaddedImage, can_pad, emit_padding
from sparsejit.asm_templates.convolution.sparse_windows import (
    emit_sparse_windows,
    lower_sparse_windows,
)
from sparsejit.asm_templates.convolution.window_panels import window_panels
from sparsejit.ir.graph import Element, Node, TensorType
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.lowering.context import Lowering
from sparsejit.lowering.depthwise import axes, has_whole_rows, pitches
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.lowering.storage import View
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import rdi, rsi

_LEAST_FILLED = 0.4  # of the lanes


def padded_image(low: Lowering, node: Node, x: View) -> PaddedImage | None:
    """The planes that a convolution would read; None where its columns are gathered instead."""
    op, weights = node.op, node.inputs[1]
    assert isinstance(op, Convolution)
    if op.transposed or op.dtype is DType.INT8 or prod(weights.shape[2:]) == 1:
        return None
    rows, columns = axes(op, x.shape[2:], node.output.shape[2:], weights.shape[2:])
    if not can_pad(rows, columns):
        return None
    image = PaddedImage(x.shape[0], x.shape[1], rows, columns, pitches(x))
    lanes = window_panels(image, low.target).count * low.target.lanes
    return image if rows.positions * columns.positions >= _LEAST_FILLED * lanes else None


def lower_windows(
    low: Lowering, node: Node, x: View, image: PaddedImage, matrix: SparseMatrix, each: MatVec
) -> None:
    """The copy, then the products of all samples."""
    origin = node.output.origin
    planes = low.temporary(TensorType((image.floats,), Element.FLOAT32))

    def emit_copy(asm: Assembler, at: Locations) -> None:
        at.reads[0].point(asm, rdi)
        at.writes[0].point(asm, rsi)
        emit_padding(asm, image)

    low.add(Step("padding", origin, (x,), (planes,), emit_copy, Facts("")))
    y = low.dense_result(node.output)
    y_pitches = y.strides[0], y.strides[1]
    if matrix.nnz > 0.5 * matrix.dense.size:
        dense = lower_dense_windows(image, each, matrix.dense, y_pitches, low.target)

        def emit_dense(asm: Assembler, at: Locations) -> None:
            at.reads[0].point(asm, rdi)
            at.writes[0].point(asm, rsi)
            emit_dense_windows(asm, dense)

        name = f"dense-windows-{low.target.isa}"
        low.add(Step(name, origin, (planes,), (y,), emit_dense, Facts("")))
        return
    lowered = lower_sparse_windows(image, each, matrix, y_pitches, low.target)

    def emit(asm: Assembler, at: Locations) -> None:
        at.reads[0].point(asm, rdi)
        at.writes[0].point(asm, rsi)
        emit_sparse_windows(asm, lowered, at.scratch)

    name, scratch = f"windows-{low.target.isa}", lowered.scratch_bytes
    low.add(Step(name, origin, (planes,), (y,), emit, Facts(""), scratch))
