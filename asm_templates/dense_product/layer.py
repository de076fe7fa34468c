"""A batch by a layer of which few weights are zero: a dense product without any transposition.

    batch-major      y (batch, out) = x W^T     W^T packed in strips of columns, a lane an output
    feature-major    y (out, batch) = W x       W packed in tiles of rows, a lane a column of x
"""

from dataclasses import dataclass

from sparsejit.asm_templates.batch.lowered_batch import whole_vectors
from sparsejit.asm_templates.dense_product.packing import Packed, pack_columns, pack_rows
from sparsejit.asm_templates.dense_product.tiled_product import ADDED, emit_dense_product
from sparsejit.asm_templates.dense_product.tiling import Tiling, tiling
from sparsejit.asm_templates.shared.storage import rounded
from sparsejit.ir.dense_product import DenseProduct
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Layout, MatMul
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import rdi, rdx


@dataclass(frozen=True)
class DenseCounts:
    """What one call does: `cycles` that its instructions should take, `products` of vectors."""

    target: Target
    spec: MatMul
    products: int
    cycles: float
    pool_bytes: int


@dataclass(frozen=True, eq=False)
class DenseLayer:
    """A batch as a dense product, and its weights as either operand.

    Short weights are stored as the float32 they stand for: their bytes count for little.
    """

    product: DenseProduct
    tiles: Tiling
    rows: Packed | None
    columns: Packed | None
    counts: DenseCounts


def expect(spec: MatMul, matrix: SparseMatrix, target: Target) -> DenseCounts:
    """All weights, zeros included."""
    return _counts(spec, target, _tiling(spec, target))


def lower(spec: MatMul, matrix: SparseMatrix, target: Target) -> DenseLayer:
    """Weights packed for the tiling."""
    tiles, weights = _tiling(spec, target), rounded(matrix.dense, spec.dtype)
    rows = columns = None
    if spec.layout is Layout.FEATURE_MAJOR:
        rows = pack_rows(weights, spec.bias, tiles)
    else:
        columns = pack_columns(weights.T, spec.bias, tiles, target)
    return DenseLayer(_product(spec, target), tiles, rows, columns, _counts(spec, target, tiles))


def emit(asm: Assembler, lowered: DenseLayer) -> None:
    """Append the kernel; see `batch_families` for the contract."""
    if lowered.product.added_pitch is not None:
        asm.emit("mov", ADDED, rdx)
    asm.emit("mov", rdx, rdi)  # x is B where weights are A
    emit_dense_product(asm, lowered.product, lowered.rows, lowered.columns, lowered.tiles)


def _product(spec: MatMul, target: Target) -> DenseProduct:
    """The product with its padding, as many columns as spare masks."""
    depth, activation = spec.in_features, spec.each.activation
    if spec.layout is Layout.BATCH_MAJOR:
        sizes, pitches = (spec.batch, spec.out_features), (4 * depth, 4 * spec.out_features)
        y_pitch = 4 * spec.y_features
        return DenseProduct(*sizes, depth, *pitches, y_pitch, activation=activation)
    pitch = 4 * spec.pitch
    return DenseProduct(
        *(spec.out_features, whole_vectors(spec, target), depth),
        *(4 * depth, pitch, pitch),
        activation=activation,
        added_pitch=None if spec.added_pitch is None else 4 * spec.added_pitch,
    )


def _tiling(spec: MatMul, target: Target) -> Tiling:
    return tiling(_product(spec, target), target, spec.layout is Layout.FEATURE_MAJOR)


def _counts(spec: MatMul, target: Target, tiles: Tiling) -> DenseCounts:
    product = _product(spec, target)
    vectors = -(-product.columns // target.lanes)
    stored = product.rows if spec.layout is Layout.FEATURE_MAJOR else vectors * target.lanes
    products = product.rows * vectors * product.depth
    return DenseCounts(target, spec, products, tiles.cycles, 4 * stored * product.depth)
