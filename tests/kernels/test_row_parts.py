"""Parts of a layer by rows, for several x one after the other."""

import numpy as np
import pytest

from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.planner.kernel_choice import plan
from sparsejit.planner.split import row_parts


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT8])
@pytest.mark.parametrize("rows", [1, 128, 129, 400, 984])
def test_parts_cover_all_rows_in_whole_batches(dtype: DType, rows: int) -> None:
    weights = np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)
    spec, matrix = MatVec(rows, 64, dtype=dtype), SparseMatrix(weights)
    target = Target.named("avx512")
    parts = row_parts(spec, matrix, plan(spec, matrix, target), target, part_bytes=9000)
    assert [part.first_row for part in parts[1:]] == [part.end_row for part in parts[:-1]]
    assert parts[0].first_row == 0 and parts[-1].end_row == rows
    assert all(part.first_row % 128 == 0 for part in parts)
    assert (len(parts) > 1) == (rows > 128)


def test_parts_of_a_layer_in_loops_are_in_loops() -> None:
    """Straight-line code of all parts would come from L2 for one x alone."""
    blocks = np.random.default_rng(0).random((192, 1024)) < 0.04
    weights = np.kron(blocks, np.ones((16, 1))).astype(np.float32)
    spec, matrix = MatVec(*weights.shape, dtype=DType.BFLOAT16), SparseMatrix(weights)
    target = Target.named("avx512")
    whole = plan(spec, matrix, target, "broadcast-loop")
    parts = row_parts(spec, matrix, whole, target, part_bytes=32_768)
    assert len(parts) > 4
    assert {part.plan.chosen.template.family for part in parts} == {"broadcast-loop"}
