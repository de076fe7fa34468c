"""Short images of several samples: their columns side by side, in one product for all.

    y (out, samples * positions) = W (out, channels * taps) x columns (.., samples * positions)

A product of few positions leaves lanes empty and reads all weights for each sample.
"""

from dataclasses import replace
from math import prod

from sparsejit.ir.graph import Node
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, Layer, Layout, MatMul, MatVec
from sparsejit.lowering.context import Lowering
from sparsejit.lowering.memory.storage import View
from sparsejit.lowering.products.linear import product_step

# Positions from which a sample's product gains little by those of others: a vector's lanes.
_ENOUGH_POSITIONS = 16
# Columns gathered for each sample by itself cost code and time beside the product's.
_MOST_TIMES = 1.25
# What lies sample by sample is copied to where columns of all samples lie, and back.
_MOST_OF_LONG = 0.97


def lower_joined(
    low: Lowering, node: Node, matrix: SparseMatrix, each: MatVec, alone: Layer
) -> bool:
    """One product for all samples; False where one for each, `alone`, is expected to be cheaper."""
    op, weights, y = node.op, node.inputs[1], node.output
    assert isinstance(op, Convolution)
    samples, outputs, *positions = y.shape
    is_long = prod(positions) >= _ENOUGH_POSITIONS
    # int8 has a scale for all columns of a product, which would depend on other samples.
    if samples == 1 or op.transposed or op.dtype is DType.INT8:
        return False
    if is_long and prod(weights.shape[2:]) > 1:
        return False
    joined = MatMul(each, samples * prod(positions), Layout.FEATURE_MAJOR)
    planner = low.options.planner
    apart_ns = samples * planner.expected_ns(alone, matrix)
    most_times = _MOST_OF_LONG if is_long else _MOST_TIMES
    if planner.expected_ns(joined, matrix) >= most_times * apart_ns:
        return False
    columns = _columns(low, node, weights.shape[2:], tuple(positions))
    result = low.result_side_by_side(y).reshaped((outputs, samples * prod(positions)))
    assert result is not None
    low.add(product_step(node, joined, matrix, columns, result, low.options))
    return True


def _columns(
    low: Lowering, node: Node, kernel: tuple[int, ...], positions: tuple[int, ...]
) -> View:
    """(channels * taps, samples * positions), row-major."""
    op, origin, images = node.op, node.output.origin, low.view(node.inputs[0])
    assert isinstance(op, Convolution)
    if any(op.padding):
        around = ((0, 0), (0, 0), *((p, p) for p in op.padding))
        images = low.padded(images, around, 0.0, origin)
    view = taps(images, kernel, positions, op.stride, op.dilation)
    if not view.is_contiguous:
        gathered = low.temporary(view.type)
        low.copy(view, gathered, origin)
        view = gathered
    channels, samples = images.shape[1], images.shape[0]
    matrix = view.reshaped((channels * prod(kernel), samples * prod(positions)))
    assert matrix is not None
    return matrix


def taps(
    images: View,
    kernel: tuple[int, ...],
    positions: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> View:
    """What every tap meets, as strides: (channels, *kernel, samples, *positions)."""
    sample, channel, *spatial = images.strides
    by_tap = [step * d for step, d in zip(spatial, dilation, strict=True)]
    by_position = [step * s for step, s in zip(spatial, stride, strict=True)]
    samples, channels = images.shape[:2]
    kind = replace(images.type, shape=(channels, *kernel, samples, *positions))
    strides = (channel, *by_tap, sample, *by_position)
    return View(images.buffer, kind, strides, images.offset)
