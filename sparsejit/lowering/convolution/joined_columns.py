"""Short images of several samples: their columns side by side, in one product for all.

    y (out, positions * samples) = W (out, channels * taps) x columns (.., positions * samples)

A product of few positions leaves lanes empty and reads all weights for each sample. Where there are
more samples than positions in a row, the samples of a position lie side by side, so that vectors
copy the elements that a tap meets. In int8 each column has its own scale, so that a sample has the
bits of a product of its own.
"""

from dataclasses import replace
from math import prod

from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution, adds_operand
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Layer, Layout, MatMul, MatVec
from sparsejit.ir.values import Origin
from sparsejit.lowering.context import Lowering
from sparsejit.lowering.memory.storage import View
from sparsejit.lowering.products.linear import steps_of_product
from sparsejit.planner.convolution_plan import JoinedSamples, joins_samples

# Number of positions beyond which joining samples gains little: a vector's lanes.
_ENOUGH_POSITIONS = 16
# Greatest time of a joined product relative to separate ones: gathering columns for each sample
# takes code and time that the product's prediction does not include.
_MOST_TIMES = 1.25
# The same for long images, which are copied from sample-by-sample order to joined columns and back.
_MOST_OF_LONG = 0.97


def joined_layer(
    low: Lowering, node: Node, matrix: SparseMatrix, each: MatVec, alone: Layer
) -> MatMul | None:
    """One product for all samples; None if one for each sample, `alone`, should be faster."""
    op, weights, y = node.op, node.inputs[1], node.output
    assert isinstance(op, Convolution)
    samples, _, *positions = y.shape
    is_long = prod(positions) >= _ENOUGH_POSITIONS
    if samples == 1 or op.transposed:
        return None
    if is_long and prod(weights.shape[2:]) > 1:
        return None
    many = samples * prod(positions)
    added_pitch = many if adds_operand(node) else None
    joined = MatMul(each, many, Layout.FEATURE_MAJOR, added_pitch=added_pitch)
    work = JoinedSamples(joined, alone, samples, matrix, low.options.planner)
    return joined if joins_samples(work, _MOST_OF_LONG if is_long else _MOST_TIMES) else None


def lower_joined(low: Lowering, node: Node, matrix: SparseMatrix, joined: MatMul) -> None:
    """Append a joined product; copy its added operand if samples do not lie side by side."""
    y, order, added = node.output, _order(node.output.shape), None
    columns = _columns(low, node, order)
    if adds_operand(node):
        images = low.view(node.inputs[3]).permuted(order)
        added = _as_matrix(_in_order(low, images, y.origin), 1)
    result = _as_matrix(low.result_in_order(y, order), 1)
    low.add(steps_of_product(node, joined, matrix, low.options)(columns, result, added))


def _order(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of images (samples, channels, *positions) in order of memory: channels first."""
    samples, _, *positions = shape
    spatial = range(2, len(shape))
    is_short = prod(positions) < _ENOUGH_POSITIONS and samples >= positions[-1]
    return (1, *spatial, 0) if is_short else (1, 0, *spatial)


def _as_matrix(view: View, rows: int) -> View:
    """The matrix of a row-major view: its first `rows` axes are rows, the others columns."""
    matrix = view.reshaped((prod(view.shape[:rows]), prod(view.shape[rows:])))
    assert matrix is not None
    return matrix


def _columns(low: Lowering, node: Node, order: tuple[int, ...]) -> View:
    """(channels * taps, positions of all samples), row-major, columns in the order of images."""
    op, origin = node.op, node.output.origin
    kernel, positions = node.inputs[1].shape[2:], node.output.shape[2:]
    assert isinstance(op, Convolution)
    images = low.view(node.inputs[0]).permuted(order)
    if any(op.padding):
        around = (0, 0), (0, 0), *((p, p) for p in op.padding)
        images = low.padded(images, tuple(around[axis] for axis in order), 0.0, origin)
    elif prod(kernel) * prod(positions) > prod(node.inputs[0].shape[2:]):
        images = _in_order(low, images, origin)  # each element is read several times
    met = taps(images.permuted_back(order), kernel, positions, op.stride, op.dilation)
    rows = 1 + len(kernel)
    columns = (len(kernel) + max(1, axis) for axis in order[1:])
    return _as_matrix(_in_order(low, met.permuted((*range(rows), *columns)), origin), rows)


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
    """View (channels, *kernel, samples, *positions) of the elements that every tap meets."""
    sample, channel, *spatial = images.strides
    by_tap = [step * d for step, d in zip(spatial, dilation, strict=True)]
    by_position = [step * s for step, s in zip(spatial, stride, strict=True)]
    samples, channels = images.shape[:2]
    kind = replace(images.type, shape=(channels, *kernel, samples, *positions))
    strides = (channel, *by_tap, sample, *by_position)
    return View(images.buffer, kind, strides, images.offset)
