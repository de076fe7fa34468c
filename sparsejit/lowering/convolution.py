"""Convolutions: by channel, over a padded image, or as products of gathered columns.

Columns hold the taps that meet each position:

    y (out, positions) = W (out, channels * taps) x columns (channels * taps, positions)

Columns are feature-major, so that positions are lanes. Groups make W block-diagonal, and its zeros
cost nothing. A kernel of one tap reads the image itself. A transposed convolution is one of stride
1 over the image with zeros between its elements (Dumoulin and Visin, "A guide to convolution
arithmetic for deep learning", 4.6).
"""

from dataclasses import replace
from math import prod

from sparsejit.ir.graph import Node, TensorType
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.spec import Layout, MatMul, MatVec
from sparsejit.lowering.bands import lower_bands
from sparsejit.lowering.context import Lowering
from sparsejit.lowering.depthwise import is_depthwise, lower_depthwise
from sparsejit.lowering.filters import filter_matrix
from sparsejit.lowering.products import product_step
from sparsejit.lowering.storage import View
from sparsejit.lowering.windows import lower_windows


def lower_convolution(low: Lowering, node: Node) -> None:
    """By channel where each has a kernel of its own, else one product a sample."""
    op = node.op
    assert isinstance(op, Convolution)
    if node in low.lowered or lower_bands(low, node):
        return
    if is_depthwise(node):
        lower_depthwise(low, node)
        return
    matrix, each = filter_matrix(low, node)
    if lower_windows(low, node, matrix, each):
        return
    destination = low.dense_result(node.output)
    for source, result in _samples(low, node, node.inputs[1].shape[2:], destination):
        low.add(product_step(node, _layer(each, result), matrix, source, result, low.options))


def _layer(each: MatVec, result: View) -> MatVec | MatMul:
    positions = result.shape[1]
    return each if positions == 1 else MatMul(each, positions, Layout.FEATURE_MAJOR)


def _samples(
    low: Lowering, node: Node, kernel: tuple[int, ...], destination: View
) -> list[tuple[View, View]]:
    """The columns of each sample, and its part of the result, as matrices."""
    x, result = low.view(node.inputs[0]), []
    for sample in range(x.shape[0]):
        image = _without_batch(x.sliced(0, sample, sample + 1))
        place = _without_batch(destination.sliced(0, sample, sample + 1))
        out = place.reshaped((place.shape[0], prod(place.shape[1:])))
        assert out is not None
        result.append((_columns(low, node, image, kernel, place.shape[1:]), out))
    return result


def _without_batch(view: View) -> View:
    shape = view.shape[1:]
    return replace(view, type=replace(view.type, shape=shape), strides=view.strides[1:])


def _columns(
    low: Lowering, node: Node, image: View, kernel: tuple[int, ...], positions: tuple[int, ...]
) -> View:
    """(channels * taps, positions), row-major: the image itself where that is what it is."""
    op, origin = node.op, node.output.origin
    assert isinstance(op, Convolution)
    stride = (1,) * len(kernel) if op.transposed else op.stride
    if op.transposed:
        image = _spread(low, node, image, kernel, positions)
    else:
        around = ((0, 0), *((p, p) for p in op.padding))
        image = low.padded(image, around, 0.0, origin) if any(op.padding) else image
    view = _taps(image, kernel, positions, stride, op.dilation)
    shape = (prod(view.shape[: 1 + len(kernel)]), prod(positions))
    if not view.is_contiguous:
        gathered = low.temporary(view.type)
        low.copy(view, gathered, origin)
        view = gathered
    matrix = view.reshaped(shape)
    assert matrix is not None
    return matrix


def _taps(
    image: View,
    kernel: tuple[int, ...],
    positions: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> View:
    """What every tap meets, as strides: (channels, *kernel, *positions)."""
    channel, *spatial = image.strides
    by_tap = [step * d for step, d in zip(spatial, dilation, strict=True)]
    by_position = [step * s for step, s in zip(spatial, stride, strict=True)]
    kind = replace(image.type, shape=(image.shape[0], *kernel, *positions))
    return View(image.buffer, kind, (channel, *by_tap, *by_position), image.offset)


def _spread(
    low: Lowering, node: Node, image: View, kernel: tuple[int, ...], positions: tuple[int, ...]
) -> View:
    """The image of a transposed convolution: zeros between its elements and around them."""
    op, origin = node.op, node.output.origin
    assert isinstance(op, Convolution)
    reach = [(k - 1) * d for k, d in zip(kernel, op.dilation, strict=True)]
    shape = tuple(n + r for n, r in zip(positions, reach, strict=True))
    whole = low.temporary(TensorType((image.shape[0], *shape), image.type.element))
    low.fill(whole, 0.0, origin)
    inner, source = whole, image
    for axis in range(len(kernel)):
        step, first = op.stride[axis], reach[axis] - op.padding[axis]
        # What lies outside the spread image, where the padding crops, meets no position.
        skipped = max(0, -(first // step)) if first < 0 else 0
        first += skipped * step
        count = min(image.shape[axis + 1] - skipped, (shape[axis] - first - 1) // step + 1)
        source = source.sliced(axis + 1, skipped, skipped + count)
        inner = inner.sliced(axis + 1, first, first + (count - 1) * step + 1, step)
    low.copy(source, inner, origin)
    return whole
