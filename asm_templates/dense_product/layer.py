"""A batch by a layer with few zero weights: a dense product without any transposition.

    batch-major      y (batch, out) = x W^T     W^T packed in strips of columns, a lane an output
    feature-major    y (out, batch) = W x       W packed in tiles of rows, a lane a column of x

In pairs, weights and x are bfloat16 and multiplied two at a time, summed in float32. In quads
they are int8 and multiplied four at a time, summed in int32.
"""

from dataclasses import dataclass
from functools import lru_cache, partial

from sparsejit.asm_templates.batch.lowered_batch import whole_vectors
from sparsejit.asm_templates.dense_product import pairs, quads
from sparsejit.asm_templates.dense_product.tiled_product import ADDED, emit_dense_product
from sparsejit.asm_templates.dense_product.tiling import (
    FloatArray,
    Packed,
    Tiling,
    pack_columns,
    pack_rows,
    tiling,
)
from sparsejit.asm_templates.shared.storage import rounded
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DenseProduct, Layout, MatMul
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import rdi, rdx

_QUAD = 4  # elements


@dataclass(frozen=True)
class DenseCounts:
    """Work of one call, for its price: `products` of vectors, and the expected `cycles`."""

    target: Target
    spec: MatMul
    products: int
    cycles: float
    pool_bytes: int


@dataclass(frozen=True, eq=False)
class DenseLayer:
    """A layer's product with a batch; its weights are operand A (`rows`) or B (`columns`).

    Short weights are stored as the float32 they stand for: their bytes count for little.
    """

    product: DenseProduct
    tiles: Tiling
    rows: Packed | None
    columns: Packed | None
    counts: DenseCounts


def has_room(spec: MatMul, target: Target, together: int) -> bool:
    """Whether the batch has room on the stack in pairs or quads; strips of columns always have."""
    if spec.layout is Layout.FEATURE_MAJOR:
        return True
    if together == _QUAD:
        return quads.fits_stack(spec.batch, spec.in_features)
    return pairs.fits_stack(_planned(spec, target, together)[0])


def expect(
    spec: MatMul, matrix: SparseMatrix, target: Target, together: int = 1
) -> DenseCounts:
    """Expected counts: all weights, zeros included."""
    return _counts(spec, target, *_planned(spec, target, together))


def lower(
    spec: MatMul, matrix: SparseMatrix, target: Target, together: int = 1
) -> DenseLayer:
    """Lower to a product, with weights packed for its tiling."""
    product, tiles = _planned(spec, target, together)
    weights, first, ends = _stored(spec, matrix, together)
    rows = columns = None
    if spec.layout is Layout.FEATURE_MAJOR:
        rows = pack_rows(weights, first, tiles, ends)
    else:
        columns = pack_columns(weights.T, first, tiles, target, ends)
    counts = _counts(spec, target, product, tiles)
    return DenseLayer(product, tiles, rows, columns, counts)


def _stored(
    spec: MatMul, matrix: SparseMatrix, together: int
) -> tuple[FloatArray, FloatArray | None, FloatArray | None]:
    """Return weights (out, steps), the start of sums (out,), and the ends of sums (ends, out)."""
    if together == _QUAD:
        return quads.quads(spec.each, matrix)
    if together == 2:
        return pairs.paired(matrix.dense), spec.bias, None
    return rounded(matrix.dense, spec.dtype), spec.bias, None


expect_pairs, lower_pairs = partial(expect, together=2), partial(lower, together=2)
expect_quads, lower_quads = partial(expect, together=_QUAD), partial(lower, together=_QUAD)


def emit(asm: Assembler, lowered: DenseLayer) -> None:
    """Append the kernel of a dense layer for a batch; see `batch_families` for the contract."""
    if lowered.product.added_pitch is not None:
        asm.emit("mov", ADDED, rdx)
    asm.emit("mov", rdx, rdi)  # x is B where weights are A
    each = lowered.counts.spec.each if lowered.product.quads else None
    emit_dense_product(asm, lowered.product, lowered.rows, lowered.columns, lowered.tiles, each)


def _planned(spec: MatMul, target: Target, together: int) -> tuple[DenseProduct, Tiling]:
    """Return the product, with columns padded to whole vectors if there is room, and its tiling."""
    sizes = spec.batch, spec.out_features, spec.in_features
    if spec.layout is Layout.BATCH_MAJOR:
        return _batch_major(*sizes, spec.y_features, spec.each.activation, target.alone, together)
    columns = whole_vectors(spec, target), spec.pitch, spec.added_pitch
    return _feature_major(*sizes[1:], *columns, spec.each.activation, target.alone, together)


@lru_cache(maxsize=256)  # layers are alike
def _batch_major(
    batch: int,
    outputs: int,
    depth: int,
    y_features: int,
    activation: Activation,
    target: Target,
    together: int,
) -> tuple[DenseProduct, Tiling]:
    pitches = 4 * depth, 4 * outputs, 4 * y_features
    product = DenseProduct(
        *(batch, outputs, depth), *pitches, activation=activation, together=together
    )
    return product, tiling(product, target)


@lru_cache(maxsize=256)  # layers are alike
def _feature_major(
    outputs: int,
    depth: int,
    columns: int,
    pitch: int,
    added_pitch: int | None,
    activation: Activation,
    target: Target,
    together: int,
) -> tuple[DenseProduct, Tiling]:
    pitches = 4 * depth, 4 * pitch, 4 * pitch
    added = None if added_pitch is None else 4 * added_pitch
    sizes = outputs, columns, depth
    product = DenseProduct(
        *sizes, *pitches, activation=activation, added_pitch=added, together=together
    )
    return product, tiling(product, target, packed_a=True)


def _counts(
    spec: MatMul, target: Target, product: DenseProduct, tiles: Tiling
) -> DenseCounts:
    vectors = ceil_div(product.columns, target.lanes)
    stored = product.rows if spec.layout is Layout.FEATURE_MAJOR else vectors * target.lanes
    products = product.rows * vectors * product.steps
    cycles = tiles.cycles
    if product.pairs:
        lines = vectors * product.steps
        if spec.layout is Layout.BATCH_MAJOR:
            lines = product.rows * pairs.pair_pitch(product.depth) // target.vector_bytes
        cycles += target.core.layouts.paired * lines
    if product.quads:
        each = target.core.layouts.quantised_row, target.core.layouts.quantised_vector
        per_row, per_vector = each
        if spec.layout is Layout.BATCH_MAJOR:
            cycles += product.rows * per_row
            lines = product.rows * ceil_div(product.depth, target.lanes)
        else:
            lines = vectors * product.depth
        cycles += per_vector * lines
    return DenseCounts(target, spec, products, cycles, 4 * stored * product.steps)
