"""A batch by a layer with few zero weights: a dense product without any transposition.

    batch-major      y (batch, out) = x W^T     W^T packed in strips of columns, a lane an output
    feature-major    y (out, batch) = W x       W packed in tiles of rows, a lane a column of x

In pairs, weights and x are bfloat16 and multiplied two at a time, summed in float32.
"""

from dataclasses import dataclass
from functools import lru_cache, partial

from sparsejit.asm_templates.batch.lowered_batch import whole_vectors
from sparsejit.asm_templates.dense_product.pairs import fits_stack, pair_pitch, paired
from sparsejit.asm_templates.dense_product.tiled_product import ADDED, emit_dense_product
from sparsejit.asm_templates.dense_product.tiling import (
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


def can_pair(spec: MatMul, target: Target) -> bool:
    """Whether the batch has room on the stack in pairs; strips of columns always have."""
    return spec.layout is Layout.FEATURE_MAJOR or fits_stack(_planned(spec, target, True)[0])


def expect(
    spec: MatMul, matrix: SparseMatrix, target: Target, pairs: bool = False
) -> DenseCounts:
    """Expected counts: all weights, zeros included."""
    return _counts(spec, target, *_planned(spec, target, pairs))


def lower(
    spec: MatMul, matrix: SparseMatrix, target: Target, pairs: bool = False
) -> DenseLayer:
    """Lower to a product, with weights packed for its tiling."""
    product, tiles = _planned(spec, target, pairs)
    weights = paired(matrix.dense) if pairs else rounded(matrix.dense, spec.dtype)
    rows = columns = None
    if spec.layout is Layout.FEATURE_MAJOR:
        rows = pack_rows(weights, spec.bias, tiles)
    else:
        columns = pack_columns(weights.T, spec.bias, tiles, target)
    counts = _counts(spec, target, product, tiles)
    return DenseLayer(product, tiles, rows, columns, counts)


expect_pairs, lower_pairs = partial(expect, pairs=True), partial(lower, pairs=True)


def emit(asm: Assembler, lowered: DenseLayer) -> None:
    """Append the kernel of a dense layer for a batch; see `batch_families` for the contract."""
    if lowered.product.added_pitch is not None:
        asm.emit("mov", ADDED, rdx)
    asm.emit("mov", rdx, rdi)  # x is B where weights are A
    emit_dense_product(asm, lowered.product, lowered.rows, lowered.columns, lowered.tiles)


def _planned(spec: MatMul, target: Target, pairs: bool) -> tuple[DenseProduct, Tiling]:
    """Return the product, with columns padded to whole vectors if there is room, and its tiling."""
    sizes = spec.batch, spec.out_features, spec.in_features
    if spec.layout is Layout.BATCH_MAJOR:
        return _batch_major(*sizes, spec.y_features, spec.each.activation, target.alone, pairs)
    columns = whole_vectors(spec, target), spec.pitch, spec.added_pitch
    return _feature_major(*sizes[1:], *columns, spec.each.activation, target.alone, pairs)


@lru_cache(maxsize=256)  # layers are alike
def _batch_major(
    batch: int,
    outputs: int,
    depth: int,
    y_features: int,
    activation: Activation,
    target: Target,
    pairs: bool,
) -> tuple[DenseProduct, Tiling]:
    pitches = 4 * depth, 4 * outputs, 4 * y_features
    product = DenseProduct(batch, outputs, depth, *pitches, activation=activation, pairs=pairs)
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
    pairs: bool,
) -> tuple[DenseProduct, Tiling]:
    pitches = 4 * depth, 4 * pitch, 4 * pitch
    added = None if added_pitch is None else 4 * added_pitch
    sizes = outputs, columns, depth
    product = DenseProduct(
        *sizes, *pitches, activation=activation, added_pitch=added, pairs=pairs
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
            lines = product.rows * pair_pitch(product.depth) // target.vector_bytes
        cycles += target.core.layouts.paired * lines
    return DenseCounts(target, spec, products, cycles, 4 * stored * product.steps)
