"""Convolutions: by channel, over a padded image, or as products of gathered columns.

Columns hold the taps that meet each position:

    y (out, positions) = W (out, channels * taps) x columns (channels * taps, positions)

Columns are feature-major, so that positions are lanes. Groups make W block-diagonal, and its zeros
cost nothing. A kernel of one tap reads the image itself. A transposed convolution is a convolution
of stride 1 over the image with zeros between its elements (Dumoulin and Visin, "A guide to
convolution arithmetic for deep learning", 4.6).
"""

from dataclasses import replace
from math import prod

import numpy as np

from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution, adds_operand
from sparsejit.ir.ops.pointwise import write_activation
from sparsejit.ir.ops.row_chains import ChainWriter
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, Layout, MatMul, MatVec
from sparsejit.ir.values import TensorType, Value
from sparsejit.lowering.context import Lowering, lowers
from sparsejit.lowering.convolution.bands import lower_bands
from sparsejit.lowering.convolution.depthwise import is_depthwise, lower_depthwise
from sparsejit.lowering.convolution.filters import filter_matrix
from sparsejit.lowering.convolution.images import (
    as_matrix,
    channel_rows,
    image_result,
    is_padded,
    is_pointwise,
    padded_pitch,
)
from sparsejit.lowering.convolution.int8_convolutions import lower_byte_convolution
from sparsejit.lowering.convolution.joined_columns import joined_layer, lower_joined, taps
from sparsejit.lowering.convolution.windows import lower_windows
from sparsejit.lowering.memory.storage import ConstantBuffer, View
from sparsejit.lowering.products.linear import steps_of_product
from sparsejit.whole_numbers import ceil_div


@lowers(Convolution)
def lower_convolution(low: Lowering, node: Node) -> None:
    """Append the steps of any convolution.

    In bytes where its result is rounded, in bands, by channel if each has its own filter, else over
    windows of a padded image, or as products of gathered columns.
    """
    op = node.op
    assert isinstance(op, Convolution)
    if op.rounding is not None:
        lower_byte_convolution(low, node)
        return
    if node in low.lowered or lower_bands(low, node):
        return
    if is_depthwise(node):
        lower_depthwise(low, node)
        return
    matrix, each = filter_matrix(low, node)
    if lower_windows(low, node, matrix, each):
        return
    if adds_operand(node) and not _products_add(low, node, matrix, each):
        _add_afterwards(low, node)
    else:
        _lower_products(low, node, matrix, each)


def _products_add(low: Lowering, node: Node, matrix: SparseMatrix, each: MatVec) -> bool:
    """Whether the products of columns can add the convolution's fourth operand as they write y.

    There must be several columns, and the operand must lie in rows of columns, padded if y is. A
    sum of joined samples that has a destination is written by a kernel of its own, because samples
    do not lie side by side there.
    """
    added, positions = low.view(node.inputs[3]), prod(node.output.shape[2:])
    if each.dtype is DType.INT8 or positions == 1:
        return False
    in_rows, layer = _added_rows(low, node), _layer(low, node, each)
    if joined_layer(low, node, matrix, each, layer) is not None:
        return node.output not in low.wanted
    if in_rows is None:
        return False
    pitch = _common_pitch(low, node)
    return pitch is None or in_rows[1] != pitch or padded_pitch(added) == pitch


def _lower_products(low: Lowering, node: Node, matrix: SparseMatrix, each: MatVec) -> None:
    """Append one product of columns for all samples, or one for each sample, with shared code."""
    layer = _layer(low, node, each)
    joined = joined_layer(low, node, matrix, each, layer)
    if joined is not None:
        lower_joined(low, node, matrix, joined)
        return
    pitch, added = _common_pitch(low, node), _added_rows(low, node)
    destination = image_result(low, node) if pitch else low.dense_result(node.output)
    x = low.view(node.inputs[0])
    product = steps_of_product(node, layer, matrix, low.options)
    for sample in range(x.shape[0]):
        image, place = (view.sliced(0, sample, sample + 1) for view in (x, destination))
        columns = as_matrix(image) if pitch else _columns(low, node, image, place)
        operand = None if added is None else as_matrix(added[0].sliced(0, sample, sample + 1))
        low.add(product(columns, as_matrix(place), operand))


def _add_afterwards(low: Lowering, node: Node) -> None:
    """Append the convolution alone, then one kernel for the sum and the activation."""
    op, (*operands, added), y = node.op, node.inputs, node.output
    assert isinstance(op, Convolution)
    alone = Value(y.type, y.origin)
    plain = replace(op, activation=Activation.NONE)
    product = Node(plain, tuple(operands), (alone,))
    _lower_products(low, product, *filter_matrix(low, product))
    write = ChainWriter(y.shape, 3)
    total = write.step("add", 0, 1)
    # An activation takes at most one number, which is the third operand.
    total = write_activation(op.activation, total, write.step, lambda number: 2)
    six = np.array(6.0, np.float32)
    limit = View.whole(ConstantBuffer.of(six), TensorType(()))
    reads = [low.view(alone), low.view(added), limit]
    result = low.result(y)
    low.add_chain(write.finish(total), reads, [None, None, 6.0], [result], y.origin)


def _common_pitch(low: Lowering, node: Node) -> int | None:
    """The pitch of a product's image and of its result if their channels are padded, else None."""
    if not is_pointwise(node) or not is_padded(low, node.output):
        return None
    return padded_pitch(low.view(node.inputs[0]))


def _added_rows(low: Lowering, node: Node) -> tuple[View, int] | None:
    """The operand that a convolution adds as (samples, channels, positions), and its channel pitch.

    The pitch is in floats. None without such an operand, or if its positions are not contiguous.
    """
    return channel_rows(low.view(node.inputs[3])) if adds_operand(node) else None


def _layer(low: Lowering, node: Node, each: MatVec) -> MatVec | MatMul:
    """The spec of one sample's product: `each` for one position, else for a batch of positions."""
    positions, added = prod(node.output.shape[2:]), _added_rows(low, node)
    if positions == 1:
        return each
    pitch, added_pitch = _common_pitch(low, node), None if added is None else added[1]
    return MatMul(each, positions, Layout.FEATURE_MAJOR, pitch, added_pitch=added_pitch)


def _columns(low: Lowering, node: Node, sample: View, result: View) -> View:
    """Matrix (channels * taps, positions), row-major: the image itself if it is one already."""
    op, origin, image = node.op, node.output.origin, sample
    assert isinstance(op, Convolution)
    kernel, positions = node.inputs[1].shape[2:], result.shape[2:]
    stride = (1,) * len(kernel) if op.transposed else op.stride
    if op.transposed:
        image = _spread(low, node, image, kernel, positions)
    else:
        around = ((0, 0), (0, 0), *((p, p) for p in op.padding))
        image = low.padded(image, around, 0.0, origin) if any(op.padding) else image
    view = taps(image, kernel, positions, stride, op.dilation)
    shape = (prod(view.shape[: 1 + len(kernel)]), prod(positions))
    if not view.is_contiguous:
        gathered = low.temporary(view.type)
        low.copy(view, gathered, origin)
        view = gathered
    matrix = view.reshaped(shape)
    assert matrix is not None
    return matrix


def _spread(
    low: Lowering, node: Node, image: View, kernel: tuple[int, ...], positions: tuple[int, ...]
) -> View:
    """The image of a transposed convolution: zeros between its elements and around them."""
    op, origin = node.op, node.output.origin
    assert isinstance(op, Convolution)
    reach = [(k - 1) * d for k, d in zip(kernel, op.dilation, strict=True)]
    shape = tuple(n + r for n, r in zip(positions, reach, strict=True))
    whole = low.temporary(TensorType((*image.shape[:2], *shape), image.type.element))
    low.fill(whole, 0.0, origin)
    inner, source = whole, image
    for axis in range(len(kernel)):
        step, first = op.stride[axis], reach[axis] - op.padding[axis]
        # Elements that the padding crops from the spread image meet no position.
        skipped = max(0, ceil_div(-first, step)) if first < 0 else 0
        first += skipped * step
        count = min(image.shape[axis + 2] - skipped, (shape[axis] - first - 1) // step + 1)
        source = source.sliced(axis + 2, skipped, skipped + count)
        inner = inner.sliced(axis + 2, first, first + (count - 1) * step + 1, step)
    low.copy(source, inner, origin)
    return whole
