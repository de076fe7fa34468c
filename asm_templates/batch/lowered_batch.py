"""What lowering makes of a batch: tiles of rows for panels, and the kernel of a column."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from sparsejit.asm_templates.batch.csr_shape import Arithmetic
from sparsejit.asm_templates.batch.panel_sums import PanelSums, panel_products
from sparsejit.asm_templates.batch.panels import RESERVED
from sparsejit.asm_templates.batch.row_tiles import Products, inputs_by_tile
from sparsejit.asm_templates.batch.workspace import LARGEST_WORKSPACE
from sparsejit.asm_templates.lowered import Counts, Stages
from sparsejit.asm_templates.shared.padding import CACHE_LINE_BYTES
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, Layout, MatMul
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler

_WAY_BYTES = 4096  # of L1, whose sets repeat after so many bytes


@dataclass(frozen=True)
class BatchCounts:
    """What one call of a batch kernel does, for its price.

    `in_panels` columns, padding included, are computed in panels, each of which loads `inputs`
    vectors of x for `nnz` weights, or words of int8; the others one by one, by what `each` counts.
    """

    target: Target
    spec: MatMul
    nnz: int
    in_panels: int
    inputs: int
    each: Counts | None
    arithmetic: Arithmetic = Arithmetic.FLOATS

    @property
    def repeats(self) -> int:
        """Columns that are computed one by one."""
        return max(0, self.spec.batch - self.in_panels)

    @property
    def x_stays(self) -> bool:
        """Whether panels take a feature-major x where it lies.

        It is float32, each of its rows has whole vectors, and the sets of L1 that the lines of a
        panel fall into hold these lines so nearly that a copy would gain less than it takes
        (`LayoutPrices.panels_spread`).
        """
        target, row_bytes = self.target, 4 * self.spec.pitch
        whole = self.in_panels > 0 and (self.in_panels | self.spec.pitch) % target.lanes == 0
        lines_to_next_set = max(1, math.gcd(row_bytes, _WAY_BYTES) // CACHE_LINE_BYTES)
        spread_bytes = self.spec.in_features * lines_to_next_set * CACHE_LINE_BYTES
        most = target.core.layouts.panels_spread[target.isa] * target.l1d_bytes
        possible = self.spec.layout is Layout.FEATURE_MAJOR and self.spec.dtype is not DType.INT8
        return possible and whole and spread_bytes < most

    @property
    def copies_unaligned(self) -> bool:
        """Whether an x that stays, but turns out not to be aligned, is copied after all.

        The workspace must hold all of it. AVX2 needs no copy: half of its loads stay within a line.
        """
        fits = 4 * self.spec.pitch * self.spec.in_features <= LARGEST_WORKSPACE
        return fits and self.target.isa == "avx512"


@dataclass(frozen=True, eq=False)
class LoweredBatch:
    """`tiles` of rows for panels, and their `sums`; what appends the kernel of a column, if any."""

    spec: MatMul
    tiles: list[Products]
    sums: PanelSums | None
    each: Callable[[Assembler], None] | None
    counts: BatchCounts


def columns_in_panels(family: str, spec: MatMul, target: Target) -> int:
    """Columns in panels: all, with what pads the last panel; none; or those that fill panels."""
    whole = spec.batch - spec.batch % target.lanes
    return {"panels": whole_vectors(spec, target), "rows": 0, "mixed": whole}[family]


def whole_vectors(spec: MatMul, target: Target) -> int:
    """The batch, and as much padding as fills its last vector, if there is so much."""
    columns = -(-spec.batch // target.lanes) * target.lanes
    return columns if columns <= spec.added_room else spec.batch


def spread_pitch(batch: int) -> int:
    """The least pitch of whole cache lines, an odd number, which all sets of L1 share."""
    line = CACHE_LINE_BYTES // 4
    return line * (-(-batch // line) | 1)


def expect(
    arithmetic: Arithmetic,
    family: str,
    each: Stages | None,
    spec: MatMul,
    matrix: SparseMatrix,
    target: Target,
) -> BatchCounts:
    """As if tiles were of consecutive rows, and no int8 weight became 0."""
    in_panels, nnz, inputs = columns_in_panels(family, spec, target), matrix.nnz, 0
    if in_panels:
        together, registers = arithmetic.together, target.vector_registers - RESERVED
        key = "panels", together, registers
        nnz, inputs = matrix.once(key, lambda: _in_tiles(matrix.words(together), registers))
    of_each = None
    if each is not None:
        expected = partial(each.expect, spec.each, matrix, target)
        of_each = matrix.once((each, spec.each.case, target), expected)
    return BatchCounts(target, spec, nnz, in_panels, inputs, of_each, arithmetic)


def _in_tiles(words: SparseMatrix, registers: int) -> tuple[int, int]:
    """Words that are not zero, and how many are loaded for tiles of so many rows."""
    return words.nnz, inputs_by_tile(words, registers)


def lower(
    arithmetic: Arithmetic,
    family: str,
    each: Stages | None,
    spec: MatMul,
    matrix: SparseMatrix,
    target: Target,
) -> LoweredBatch:
    """Rows in tiles for the panels, and the kernel `each` for columns outside.

    Short weights in panels are stored as the float32 they stand for: one is read for 16 columns, so
    their bytes count for nothing.
    """
    in_panels, nnz = columns_in_panels(family, spec, target), matrix.nnz
    tiles: list[Products] = []
    sums = None
    if in_panels:
        accumulators = target.vector_registers - RESERVED
        tiles, sums = panel_products(arithmetic, spec.each, matrix, accumulators)
        nnz = sum(len(tile) for tile in tiles) if sums.ends is not None else nnz
    inputs = sum(int(np.count_nonzero(tile.first)) for tile in tiles)
    column = each.lower(spec.each, matrix, target) if each else None
    of_each = column.counts if column else None
    counts = BatchCounts(target, spec, nnz, in_panels, inputs, of_each, arithmetic)
    emit_each = None if each is None else lambda asm: each.emit(asm, column)
    return LoweredBatch(spec, tiles, sums, emit_each, counts)
