"""Layout of images between convolutions: a channel takes an odd number of whole cache lines.

    channel 0   x x x x ... x x . . | channel 1   x x x x ...     . is padding

So products of positions read and write whole aligned vectors, and copy nothing; the first lines of
channels fall into all sets of L1.
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod

from sparsejit.asm_templates.batch.lowered_batch import spread_pitch
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution, Pooling, adds_operand
from sparsejit.ir.spec import DType
from sparsejit.ir.values import Origin, TensorType, Value
from sparsejit.lowering.context import Lowering
from sparsejit.lowering.memory.storage import View
from sparsejit.planner.convolution_plan import fills_spread
from sparsejit.whole_numbers import round_up


def image_result(
    low: Lowering, node: Node, fits: Callable[[View], bool] = lambda view: True
) -> View:
    """View that a convolution or pooling writes: with padded channels if all readers take them."""
    value = node.output
    if not is_padded(low, value):
        return low.result(value, fits)
    readers = low.readers[value]
    fills = not _is_product(node) and any(map(_is_product, readers))
    view = padded_image(low, value.type, value.origin, fills)
    low.bind(value, view)
    return view


def padded_image(low: Lowering, kind: TensorType, origin: Origin, fills: bool) -> View:
    """A new image (samples, channels, *spatial) with padded channels; `fills` zeroes the padding.

    Otherwise the padding may hold subnormal numbers, which slow products down a hundred times.
    """
    samples, channels, *spatial = kind.shape
    places = prod(spatial)
    pitch = spread_pitch(places)
    whole = low.temporary(replace(kind, shape=(samples, channels, pitch)))
    read = round_up(places, low.target.lanes)
    if fills and read > places:
        low.fill(whole.sliced(2, places, read), 0.0, origin)
    view = whole.sliced(2, 0, places).reshaped(kind.shape)
    assert view is not None
    return view


def padded_pitch(view: View) -> int | None:
    """Elements from one channel to the next in an image of `padded_image`; None for other views."""
    samples, channels, *spatial = view.shape
    pitch = spread_pitch(prod(spatial))
    size = view.type.element.bytes
    is_all = view.offset == 0 and view.buffer.bytes == size * samples * channels * pitch
    return pitch if is_all and view.strides[1] == size * pitch else None


def is_padded(low: Lowering, value: Value) -> bool:
    """Whether channels are to be padded: all readers accept any distance between channels."""
    places = prod(value.shape[2:])
    if value in low.wanted or value in low.graph.outputs or places == 1:
        return False
    if not fills_spread(places, spread_pitch(places)):
        return False
    readers = low.readers.get(value, [])
    return bool(readers) and all(_takes_padding(low, reader, value) for reader in readers)


def _takes_padding(low: Lowering, reader: Node, value: Value) -> bool:
    if isinstance(reader.op, Pooling):
        return True
    if not isinstance(reader.op, Convolution) or value in reader.inputs[1:3]:
        return False
    if reader.op.transposed or reader.op.dtype is DType.INT8:
        return False
    if adds_operand(reader) and value is reader.inputs[3] and prod(reader.inputs[1].shape[2:]) > 1:
        return False  # windows add row-major operands only
    # A product's result has the channel pitch of its image.
    is_image = value is reader.inputs[0]
    return not (is_image and is_pointwise(reader)) or is_padded(low, reader.output)


def _is_product(node: Node) -> bool:
    return isinstance(node.op, Convolution) and is_pointwise(node)


def is_pointwise(node: Node) -> bool:
    """Whether a convolution is a product of the image's own positions."""
    op, (x, weights, *_) = node.op, node.inputs
    assert isinstance(op, Convolution)
    plain = not any(op.padding) and set(op.stride) == {1} and not op.transposed
    by_channel = op.groups == x.shape[1] > 1
    return plain and prod(weights.shape[2:]) == 1 and not by_channel


def channel_rows(image: View) -> tuple[View, int] | None:
    """(samples, channels, positions) of an image, and elements from one channel to the next.

    None if the positions of a channel are not contiguous, or if channels overlap.
    """
    samples, channels, *spatial = image.shape
    rows = image.reshaped((samples, channels, prod(spatial)))
    if rows is None or (rows.shape[2] > 1 and rows.strides[2] != rows.type.element.bytes):
        return None
    pitch = rows.strides[1] // rows.type.element.bytes if channels > 1 else rows.shape[2]
    return (rows, pitch) if pitch >= rows.shape[2] else None


def as_matrix(image: View) -> View:
    """The matrix (channels, positions) of an image (1, channels, *spatial) with contiguous rows."""
    _, channels, *spatial = image.shape
    matrix = image.reshaped((channels, prod(spatial)))
    assert matrix is not None
    return matrix
