"""Several convolutions over a band of rows, then over the next: images between them stay in L2.

    for each band of rows of the last convolution's output:
        compute the rows that it needs of every convolution, from the first to the last

Rows at borders of bands are computed for both bands (Alwani et al., "Fused-layer CNN accelerators",
2016). Bands pay where whole images between layers exceed L2, and where code is short, because each
band has its own code.
"""

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import prod

import numpy as np

from sparsejit.asm_templates.convolution.geometry import Axis
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution, adds_operand
from sparsejit.ir.spec import DType, Layout, MatMul
from sparsejit.lowering.context import Lowering
from sparsejit.lowering.convolution.depthwise import (
    depthwise_step,
    has_whole_rows,
    is_depthwise,
    node_axes,
    with_whole_rows,
)
from sparsejit.lowering.convolution.filters import filter_matrix
from sparsejit.lowering.convolution.images import (
    as_matrix,
    image_result,
    is_pointwise,
    padded_image,
    padded_pitch,
)
from sparsejit.lowering.convolution.windows import window_image, window_steps
from sparsejit.lowering.memory.storage import View, cut
from sparsejit.lowering.products.linear import product_step
from sparsejit.planner.convolution_plan import band_count, gains_by_bands, repeats_in_bands


@dataclass(frozen=True)
class Band:
    """Rows `first` up to `end` of an image."""

    first: int
    end: int


def lower_bands(low: Lowering, node: Node) -> bool:
    """Lower a convolution and the convolutions after it, if they should run in bands."""
    chain = _chain(low, node)
    if len(chain) < 2:
        return False
    rows, threads = chain[-1].output.shape[2], low.options.threads_a_tile
    count = band_count(rows, threads, partial(_live_bytes, chain, rows), low.target)
    if count is None or count < 2:
        return False
    x, y = with_whole_rows(low, node), image_result(low, chain[-1], has_whole_rows)
    for band in _thread_by_thread(_cut_rows(rows, count), threads):
        image, known = x, Band(0, x.shape[2])
        readers = [*chain[1:], None]
        for one, wanted, reader in zip(chain, _needed(chain, band), readers, strict=True):
            into = _new_rows(low, one, wanted, reader) if reader else _rows(y, wanted)
            _compute(low, one, image, known, into, wanted)
            image, known = into, wanted
    low.lowered.update(chain[1:])
    return True


def _chain(low: Lowering, node: Node) -> list[Node]:
    """`node` and the convolutions after it with large images between them, which bands may compute.

    The last is depthwise, since it must write into any view. The first is not pointwise: it would
    read rows of whole images. [] if no convolutions fit.
    """
    chain = [node] if _kind(low, node) in ("depthwise", "windows") else []
    readers = low.readers if chain else {}
    while chain:
        value = chain[-1].output
        is_kept = value in low.wanted or value in low.graph.outputs
        pays = gains_by_bands(value.type.bytes, low.target)
        if is_kept or not pays or len(readers[value]) != 1:
            break
        (reader,) = readers[value]
        if reader.inputs[0] is not value or _kind(low, reader) is None:
            break
        chain.append(reader)
    while chain and not is_depthwise(chain[-1]):
        chain.pop()
    return chain


def _kind(low: Lowering, node: Node) -> str | None:
    """The steps that compute a band: "depthwise", "pointwise" or "windows"; None if none can."""
    op = node.op
    if not isinstance(op, Convolution) or len(op.stride) != 2 or node.output.shape[0] != 1:
        return None
    if op.transposed or op.dtype is DType.INT8 or adds_operand(node):
        return None
    if is_depthwise(node):
        return "depthwise"
    weights = low.graph.constants.get(node.inputs[1])
    if weights is None or op.groups > 1 or not repeats_in_bands(int(np.count_nonzero(weights))):
        return None
    if prod(weights.shape[2:]) == 1:
        plain = op.stride == (1, 1) and op.padding == (0, 0)
        return "pointwise" if plain else None
    return "windows" if window_image(low, node) is not None else None


def _thread_by_thread(bands: list[Band], threads: int) -> list[Band]:
    """Bands in the order in which they run: the first of each thread, then the second, and so on.

    The bands of a thread lie side by side.
    """
    each = len(bands) // threads
    return [band for first in range(each) for band in bands[first::each]]


def _cut_rows(rows: int, count: int) -> list[Band]:
    """Cut rows into `count` bands, as equal as possible."""
    return [Band(*part) for part in cut(rows, count)]


def _live_bytes(chain: list[Node], rows: int, count: int) -> int:
    """Most bytes of two consecutive images of a band, if rows are cut into `count` bands."""
    return max(map(partial(_band_bytes, chain), _cut_rows(rows, count)))


def _band_bytes(chain: list[Node], band: Band) -> int:
    """Most bytes of two consecutive images of a band."""
    shapes = [node.output.shape for node in chain]
    sizes = [
        4 * shape[1] * (rows.end - rows.first) * shape[3]
        for shape, rows in zip(shapes, _needed(chain, band), strict=True)
    ]
    return max(map(sum, pairwise(sizes)))


def _needed(chain: list[Node], band: Band) -> list[Band]:
    """The rows of every output that a band of the last one needs."""
    needed = [band]
    for node in reversed(chain[1:]):
        needed.append(_met(node_axes(node)[0], needed[-1]))
    return needed[::-1]


def _met(rows: Axis, band: Band) -> Band:
    """The rows of the input that a band of the output needs."""
    _, first, end = rows.part(band.first, band.end)
    return Band(first, end)


def _rows(y: View, wanted: Band) -> View:
    return y.sliced(2, wanted.first, wanted.end)


def _new_rows(low: Lowering, node: Node, wanted: Band, reader: Node) -> View:
    """A new image for the rows of a convolution that another one reads."""
    _, channels, _, width = node.output.shape
    kind = replace(node.output.type, shape=(1, channels, wanted.end - wanted.first, width))
    fills = is_pointwise(reader) and not is_pointwise(node)
    return padded_image(low, kind, node.output.origin, fills)


def _compute(low: Lowering, node: Node, image: View, known: Band, y: View, wanted: Band) -> None:
    """Append steps that compute rows `wanted` of a convolution from rows `known` of its input."""
    rows, columns = node_axes(node)
    own, first, end = rows.part(wanted.first, wanted.end)
    x = image.sliced(2, first - known.first, end - known.first)
    if is_depthwise(node):
        depthwise_step(low, node, x, y, (own, columns))
    elif is_pointwise(node):
        _pointwise_step(low, node, x, y)
    else:
        window_steps(low, node, x, y, (own, columns))


def _pointwise_step(low: Lowering, node: Node, x: View, y: View) -> None:
    """Append one product of row-major matrices, whose columns are positions."""
    matrix, each = filter_matrix(low, node)
    source, result = as_matrix(x), as_matrix(y)
    layer = MatMul(each, result.shape[1], Layout.FEATURE_MAJOR, padded_pitch(y))
    low.add(product_step(node, layer, matrix, source, result, low.options))
