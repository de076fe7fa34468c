"""What lowering makes of a batch: tiles of rows for panels, and the kernel of a column."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.batch.panels import RESERVED
from sparsejit.asm_templates.batch.row_tiles import Products, products, tile_rows
from sparsejit.asm_templates.lowered import Counts, Stages
from sparsejit.asm_templates.shared.storage import rounded
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatMul
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler


@dataclass(frozen=True)
class BatchCounts:
    """What one call of a batch kernel does, for its price.

    `in_panels` columns are computed in panels, each of which loads `inputs` vectors of x for `nnz`
    weights; the others one by one, by what `each` counts.
    """

    target: Target
    spec: MatMul
    nnz: int
    in_panels: int
    inputs: int
    each: Counts | None

    @property
    def repeats(self) -> int:
        """Columns that are computed one by one."""
        return self.spec.batch - self.in_panels


@dataclass(frozen=True, eq=False)
class LoweredBatch:
    """`tiles` of rows for panels; what appends the kernel of one column, if there is one."""

    spec: MatMul
    tiles: list[Products]
    each: Callable[[Assembler], None] | None
    counts: BatchCounts


def columns_in_panels(family: str, spec: MatMul, target: Target) -> int:
    """Of the batch: all, none, or as many as fill panels."""
    whole = spec.batch - spec.batch % target.lanes
    return {"panels": spec.batch, "rows": 0, "mixed": whole}[family]


def expect(
    family: str, each: Stages | None, spec: MatMul, matrix: SparseMatrix, target: Target
) -> BatchCounts:
    """As if tiles were of consecutive rows."""
    used = matrix.dense != 0
    starts = [int(rows[0]) for rows in tile_rows(len(used), target.vector_registers - RESERVED)]
    inputs = int(np.count_nonzero(np.logical_or.reduceat(used, starts, axis=0)))
    of_each = each.expect(spec.each, matrix, target) if each else None
    in_panels = columns_in_panels(family, spec, target)
    return BatchCounts(target, spec, matrix.nnz, in_panels, inputs, of_each)


def lower(
    family: str, each: Stages | None, spec: MatMul, matrix: SparseMatrix, target: Target
) -> LoweredBatch:
    """Rows in tiles for the panels, and the kernel `each` for columns outside.

    Short weights in panels are stored as the float32 they stand for: one is read for 16 columns, so
    their bytes count for nothing.
    """
    in_panels = columns_in_panels(family, spec, target)
    tiles: list[Products] = []
    if in_panels:
        rounded_weights = SparseMatrix(rounded(matrix.dense, spec.dtype))
        tiles = products(rounded_weights, target.vector_registers - RESERVED)
    inputs = sum(int(np.count_nonzero(tile.first)) for tile in tiles)
    if each is None:
        counts = BatchCounts(target, spec, matrix.nnz, in_panels, inputs, None)
        return LoweredBatch(spec, tiles, None, counts)
    column = each.lower(spec.each, matrix, target)
    counts = BatchCounts(target, spec, matrix.nnz, in_panels, inputs, column.counts)
    return LoweredBatch(spec, tiles, lambda asm: each.emit(asm, column), counts)
