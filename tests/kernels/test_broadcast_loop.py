"""The broadcast family in loops against the float64 oracle, and the size of its code."""

import numpy as np
import pytest
from matvec_checks import block_weights, check, templates_of

from sparsejit.asm_templates.broadcast.loop import loop_shapes
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType

every_row = pytest.mark.parametrize("row", templates_of("broadcast-loop"))


@every_row
def test_strips_as_different_as_can_be(row):
    """Block row i has 3 i blocks, in an order that sorting must undo."""
    generator = np.random.default_rng(3)
    weights = np.zeros((37 * 8 + 5, 150), np.float32)
    for block_row, count in enumerate(generator.permutation(38)):
        columns = generator.permutation(150)[: 3 * count]
        weights[8 * block_row : 8 * block_row + 8, columns] = 1.5
    image = check(row, weights, np.arange(len(weights), dtype=np.float32))
    weight_bytes = 4 if row.dtype is DType.FLOAT32 else 2
    blocks = SparseMatrix(weights).block_mask(8).sum()
    assert image.pool_bytes < 1.25 * blocks * (8 * weight_bytes + 2) + 4 * len(weights)


def test_loops_are_cut_where_that_wastes_least():
    """Ten long block rows and six short ones: no loop mixes them."""
    shapes = loop_shapes(np.array([100] * 10 + [4] * 6), ends=20)
    assert sorted(shape.accumulators for shape in shapes) == [2, 6, 8]
    assert sum(shape.vectors for shape in shapes) == 10 * 100 + 6 * 4


@every_row
def test_columns_beyond_sixteen_bits(row):
    weights = np.zeros((20, 70_000), np.float32)
    weights[3, 69_999] = weights[19, 65_536] = weights[8, 1] = 2.0
    check(row, weights)


@every_row
def test_code_does_not_grow_with_inputs(row):
    few, many = (check(row, block_weights((64, size), 1.0, 16)) for size in (64, 1024))
    assert many.code_bytes == few.code_bytes
