"""Lowering of a batch: tiles of rows for panels, and the kernel of a column."""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from sparsejit.asm_templates.batch.csr_shape import Arithmetic
from sparsejit.asm_templates.batch.panels import RESERVED, PanelSums, panel_sums, panel_tiles
from sparsejit.asm_templates.batch.row_tiles import Products, inputs_by_tile
from sparsejit.asm_templates.lowered import Counts, Stages
from sparsejit.asm_templates.shared.padding import CACHE_LINE_BYTES
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, Layout, MatMul, MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div, round_up
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.routines import LARGEST_WORKSPACE

_WAY_BYTES = 4096  # of L1: addresses this far apart fall into the same set
# Columns at once: 64 take 256 KiB for 1024 features, a share of L2. With 16, code is fetched anew
# for every panel; 128 gain no more.
_CHUNK_COLUMNS = 64


@dataclass(frozen=True)
class BatchCounts:
    """Work of one call of a batch kernel, for its price.

    `in_panels` columns, padding included, are computed in panels, each of which loads `inputs`
    vectors of x for `nnz` weights, or words of int8. The other columns are computed one by one;
    `each` counts the work of one.
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
        """Whether panels read a feature-major x without a copy.

        It must be float32, with rows of whole vectors, and the sets of L1 that the lines of a panel
        fall into must hold nearly all of these lines, so that a copy would gain less than it takes
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
        """Whether an x that panels read without a copy is copied after all when it is not aligned.

        The workspace must hold all of it. AVX2 needs no copy: half of its loads stay within a line.
        """
        fits = 4 * self.spec.pitch * self.spec.in_features <= LARGEST_WORKSPACE
        return fits and self.target.isa == "avx512"


@dataclass(frozen=True, eq=False)
class LoweredBatch:
    """A lowered batch.

    `tiles` returns the tiles of rows for panels; `sums` has their start values and ends. `each`
    appends the kernel of a column, if there is one. `weights` is a key of the weights, if other
    code may share them.
    """

    spec: MatMul
    tiles: Callable[[], list[Products]]
    sums: PanelSums | None
    each: Callable[[Assembler], None] | None
    counts: BatchCounts
    weights: Hashable = None


def columns_in_panels(family: str, spec: MatMul, target: Target) -> int:
    """Return the number of the batch's columns that are computed in panels, by the family's name.

    "panels": all, with the last panel's padding; "rows": none; "mixed": as many as fill panels.
    """
    whole = spec.batch - spec.batch % target.lanes
    return {"panels": whole_vectors(spec, target), "rows": 0, "mixed": whole}[family]


def whole_vectors(spec: MatMul, target: Target) -> int:
    """Return the batch's length, rounded up to whole vectors if rows have room for the padding."""
    columns = round_up(spec.batch, target.lanes)
    return columns if columns <= spec.added_room else spec.batch


def chunk_columns(spec: MatMul, lanes: int) -> int:
    """Return the columns of a chunk of panels; 0 if the workspace cannot hold one panel."""
    fitting = LARGEST_WORKSPACE // _bytes_a_column(spec)
    return min(_CHUNK_COLUMNS, fitting // lanes * lanes)


def _bytes_a_column(spec: MatMul) -> int:
    """Return the workspace for one column of x and of y, each rounded up to vectors."""
    return 4 * (spec.each.in_features + spec.each.out_features + 2 * 16)


def writes_to_y(spec: MatMul, target: Target) -> bool:
    """Whether panels store their results in y itself, not in a workspace that is copied to y."""
    masks = target.isa == "avx512"
    return spec.y_layout is Layout.FEATURE_MAJOR and (
        masks or whole_vectors(spec, target) >= target.lanes
    )


def spread_pitch(batch: int) -> int:
    """Return the least pitch, in floats, that holds a batch in an odd number of cache lines.

    Rows at that pitch use all sets of L1.
    """
    line = CACHE_LINE_BYTES // 4
    return line * (ceil_div(batch, line) | 1)


def pitch_of_lengths(batch: int) -> int:
    """Return the least pitch, in floats, that holds a batch in 1, 3, 7, 15 ... cache lines.

    With few different pitches, batches of many lengths share their code.
    """
    line = CACHE_LINE_BYTES // 4
    return line * ((1 << ceil_div(batch, line).bit_length()) - 1)


def expect(
    arithmetic: Arithmetic,
    family: str,
    each: Stages | None,
    spec: MatMul,
    matrix: SparseMatrix,
    target: Target,
) -> BatchCounts:
    """Return the expected counts, as if tiles had consecutive rows and no int8 weight became 0."""
    in_panels, nnz, inputs = columns_in_panels(family, spec, target), matrix.nnz, 0
    if in_panels:
        together, registers = arithmetic.together, target.vector_registers - RESERVED
        key = "panels", together, registers
        nnz, inputs = matrix.memoised(key, lambda: _in_tiles(matrix.words(together), registers))
    of_each = None
    if each is not None:
        expected = partial(each.expect, spec.each, matrix, target)
        of_each = matrix.memoised((each, spec.each.case, target), expected)
    return BatchCounts(target, spec, nnz, in_panels, inputs, of_each, arithmetic)


def _in_tiles(words: SparseMatrix, registers: int) -> tuple[int, int]:
    """Return the number of nonzero words, and of loads of inputs, for tiles of `registers` rows."""
    return words.nnz, inputs_by_tile(words, registers)


def lower(
    arithmetic: Arithmetic,
    family: str,
    each: Stages | None,
    spec: MatMul,
    matrix: SparseMatrix,
    target: Target,
) -> LoweredBatch:
    """Lower to tiles of rows for the panels, and to the kernel `each` for other columns.

    bfloat16 and float16 weights in panels are stored as float32: each is read for 16 columns, so
    their bytes do not matter.
    """
    in_panels, nnz, inputs = columns_in_panels(family, spec, target), matrix.nnz, 0
    stored = arithmetic, spec.dtype, matrix, target.vector_registers - RESERVED
    tiles = cache(partial(panel_tiles, *stored))
    sums = panel_sums(arithmetic, spec.each, matrix) if in_panels else None
    if in_panels:
        key = "panel counts", arithmetic, spec.dtype, target.vector_registers
        words, inputs = matrix.memoised(key, lambda: _counted(tiles()))
        nnz = words if spec.dtype is DType.INT8 else nnz
    column = each.lower(spec.each, matrix, target) if each else None
    of_each = column.counts if column else None
    counts = BatchCounts(target, spec, nnz, in_panels, inputs, of_each, arithmetic)
    emit_each = None if each is None else lambda asm: each.emit(asm, column)
    weights = (matrix, arithmetic, *_values_of(spec.each)) if matrix.stays else None
    return LoweredBatch(spec, tiles, sums, emit_each, counts, weights)


def _values_of(each: MatVec) -> tuple[Hashable, ...]:
    """Return the properties that code depends on besides the weights and the layout of x and y."""
    return each.case, None if each.bias is None else each.bias.tobytes()


def _counted(tiles: list[Products]) -> tuple[int, int]:
    """Return the number of weights (words) of all tiles, and of their loads of inputs."""
    loaded = sum(int(np.count_nonzero(tile.first)) for tile in tiles)
    return sum(map(len, tiles)), loaded
