"""Batches by a loop over compressed rows: what their weights become, and how their batch is cut."""

from functools import partial

import numpy as np
import pytest
from guard import EDGES, run_in_child
from hypothesis import given, settings
from hypothesis import strategies as st
from matvec_checks import block_weights
from test_batch import RUNNABLE, check, compiled, spec_of

from sparsejit.asm_templates.batch.csr_shape import csr_counts, csr_shape
from sparsejit.asm_templates.batch.csr_stream import MOST, QUAD, CsrBlocks, csr_stream
from sparsejit.asm_templates.batch_table import MatMulTemplate
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, Layout, MatMul, MatVec
from sparsejit.machine.target import ISA_LEVELS, Target

ROWS = [row for row in RUNNABLE if row.family == "csr" and row.dtype is DType.FLOAT32]


def by_rows(matrix: SparseMatrix, blocks: CsrBlocks) -> np.ndarray:
    """The matrix that a stream stands for, read as the code reads it."""
    stream = csr_stream(matrix, blocks)
    found = np.zeros(matrix.dense.shape, np.float32)
    groups, rows, quads = iter(stream.groups), iter(stream.rows), 0
    for row_place, column_place in blocks.places():
        part = found[row_place, column_place]
        while (group := next(groups))[1]:
            length, segments, size = group
            assert 0 < length <= MOST and size % QUAD.itemsize == 0
            for _ in range(segments):
                row = next(rows)
                mine = stream.quads[quads : quads + size // QUAD.itemsize]
                quads += len(mine)
                offsets, weights = (mine[name].ravel()[-length:] for name in QUAD.names)
                np.add.at(part[row], offsets, weights)
    assert next(groups, None) is None and next(rows, None) is None and quads == len(stream.quads)
    return found


@settings(max_examples=40, deadline=None, database=None, derandomize=True)
@given(
    shape=st.tuples(st.integers(1, 90), st.integers(1, 300)),
    density=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    rows=st.sampled_from([16, 48, 96]),
    inputs=st.sampled_from([16, 80, 304]),
)
def test_the_stream_is_the_matrix(
    shape: tuple[int, int], density: float, rows: int, inputs: int
) -> None:
    matrix = SparseMatrix(block_weights(shape, density))
    found = by_rows(matrix, CsrBlocks(*shape, rows, inputs))
    np.testing.assert_array_equal(found, matrix.dense)


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_passes_cover_every_batch_and_are_nearly_equally_wide(isa: str) -> None:
    matrix, target = SparseMatrix(np.eye(30)), Target.named(isa)
    for batch in range(2, 700):
        shape = csr_shape(MatMul(MatVec(30, 30), batch), matrix, target)
        columns = sum(part.times * part.vectors for part in shape.passes) * target.lanes
        assert columns - sum(part.shift for part in shape.passes) in (batch, target.lanes)
        assert max(shape.widths) - min(shape.widths) <= 1
        assert all(part.times == 1 for part in shape.passes if part.shift)


def test_rows_beyond_the_workspace_are_cut_into_blocks() -> None:
    matrix, target = SparseMatrix(np.ones((9000, 3))), Target.named("avx512")
    shape = csr_shape(MatMul(MatVec(9000, 3), 64), matrix, target)
    assert shape.blocks.rows < 9000 and shape.workspace_bytes < 2 << 20


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_blocks_of_rows_and_inputs(row: MatMulTemplate, layout: Layout) -> None:
    """Several of each, the last ones smaller; two passes; rows cut into segments; activation."""
    random = np.random.default_rng(2)
    tall = np.where(random.random((4500, 40)) < 0.05, 1.0, 0.0).astype(np.float32)
    wide = np.where(random.random((19, 1500)) < 0.4, 0.1, 0.0).astype(np.float32)
    checks = []
    for weights, batch in ((tall, 67), (wide, 67), (wide, 5), (wide, 21)):
        matrix = SparseMatrix(weights)
        spec = spec_of(row, matrix, batch, layout, Activation.SIGMOID)
        kernel = compiled(row, spec, matrix)
        name = f"{weights.shape} batch {batch}"
        checks += [(f"{name} {e}", partial(check, kernel, spec, matrix, e)) for e in EDGES]
    run_in_child(checks).assert_clean()


@pytest.mark.parametrize("batch", [9, 30, 64, 75, 140])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_column_has_the_same_bits_wherever_it_lies(row: MatMulTemplate, batch: int) -> None:
    matrix = SparseMatrix(block_weights((50, 400), 0.2, 1))
    spec = spec_of(row, matrix, batch, Layout.FEATURE_MAJOR, Activation.TANH)
    column = np.random.default_rng(4).standard_normal((400, 1), np.float32)
    x, y = np.repeat(column, batch, axis=1), np.empty(spec.y_shape, np.float32)
    compiled(row, spec, matrix).function(2)(x.ctypes.data, y.ctypes.data)
    np.testing.assert_array_equal(y, np.repeat(y[:, :1], batch, axis=1))


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_what_is_expected_is_what_is_made(isa: str) -> None:
    matrix, target = SparseMatrix(block_weights((70, 900), 0.3, 1)), Target.named(isa)
    spec = MatMul(MatVec(70, 900), 40)
    counts = csr_counts(spec, matrix, target)
    stream = csr_stream(matrix, counts.shape.blocks)
    assert counts.segments == len(stream.rows) and counts.quads >= len(stream.quads) - 70
    assert np.count_nonzero(stream.quads["weight"]) == counts.weights
