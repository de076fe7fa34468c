"""Short images of several samples: their columns side by side, in one product for all.

    y (out, samples * positions) = W (out, channels * taps) x columns (.., samples * positions)

A product of few positions leaves lanes empty and reads all weights for each sample.
"""

from dataclasses import replace
from math import prod

from sparsejit.ir.graph import Node, Origin
from sparsejit.ir.ops.convolution import Convolution, adds_operand
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, Layer, Layout, MatMul, MatVec
from sparsejit.lowering.context import Lowering
from sparsejit.lowering.memory.storage import View
from sparsejit.lowering.products.linear import steps_of_product

# Positions from which a sample's product gains little by those of others: a vector's lanes.
_ENOUGH_POSITIONS = 16
# Columns gathered for each sample by itself cost code and time beside the product's.
_MOST_TIMES = 1.25
# What lies sample by sample is copied to where columns of all samples lie, and back.
_MOST_OF_LONG = 0.97


def joined_layer(
    low: Lowering, node: Node, matrix: SparseMatrix, each: MatVec, alone: Layer
) -> MatMul | None:
    """One product for all samples; None where one for each, `alone`, should be cheaper."""
    op, weights, y = node.op, node.inputs[1], node.output
    assert isinstance(op, Convolution)
    samples, _, *positions = y.shape
    is_long = prod(positions) >= _ENOUGH_POSITIONS
    # int8 has a scale for all columns of a product, which would depend on other samples.
    if samples == 1 or op.transposed or op.dtype is DType.INT8:
        return None
    if is_long and prod(weights.shape[2:]) > 1:
        return None
    many = samples * prod(positions)
    added_pitch = many if adds_operand(node) else None
    joined = MatMul(each, many, Layout.FEATURE_MAJOR, added_pitch=added_pitch)
    planner = low.options.planner
    apart_ns = samples * planner.expected_ns(alone, matrix)
    most_times = _MOST_OF_LONG if is_long else _MOST_TIMES
    return joined if planner.expected_ns(joined, matrix) < most_times * apart_ns else None


def lower_joined(low: Lowering, node: Node, matrix: SparseMatrix, joined: MatMul) -> None:
    """Append it; what it adds is copied where it does not lie side by side."""
    weights, y, added = node.inputs[1], node.output, None
    columns = _columns(low, node, weights.shape[2:], y.shape[2:])
    if adds_operand(node):
        images = low.view(node.inputs[3]).swapped()
        added = _side_by_side(_in_order(low, images, node.output.origin))
    result = _side_by_side(low.result_side_by_side(y))
    low.add(steps_of_product(node, joined, matrix, low.options)(columns, result, added))


def _side_by_side(images: View) -> View:
    """Images (channels, samples, *positions), row-major, as (channels, samples * positions)."""
    channels, *others = images.shape
    rows = images.reshaped((channels, prod(others)))
    assert rows is not None
    return rows


def _columns(
    low: Lowering, node: Node, kernel: tuple[int, ...], positions: tuple[int, ...]
) -> View:
    """(channels * taps, samples * positions), row-major."""
    op, origin, images = node.op, node.output.origin, low.view(node.inputs[0])
    assert isinstance(op, Convolution)
    if any(op.padding):
        around = ((0, 0), (0, 0), *((p, p) for p in op.padding))
        images = low.padded(images, around, 0.0, origin)
    view = _in_order(low, taps(images, kernel, positions, op.stride, op.dilation), origin)
    channels, samples = images.shape[1], images.shape[0]
    matrix = view.reshaped((channels * prod(kernel), samples * prod(positions)))
    assert matrix is not None
    return matrix


def _in_order(low: Lowering, view: View, origin: Origin) -> View:
    """A view in row-major order, copied if need be."""
    if view.is_contiguous:
        return view
    gathered = low.temporary(view.type)
    low.copy(view, gathered, origin)
    return gathered


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
