"""Batches by a loop over compressed rows: what their weights become, and how their batch is cut."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from guard import EDGES, run_in_child
from hypothesis import given, settings
from hypothesis import strategies as st
from matvec_checks import block_weights
from test_batch import RUNNABLE, check, compiled, spec_of, x_for

from sparsejit.asm_templates.batch.csr_shape import (
    MOST,
    OFFSET_UNIT,
    QUAD,
    Arithmetic,
    CsrBlocks,
    csr_shape,
    csr_stream,
    float_words,
    short_words,
)
from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.asm_templates.families import Template
from sparsejit.ir import reference
from sparsejit.ir.compressed_rows import CompressedRows
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, Layout, MatMul, MatVec, Quantisation
from sparsejit.machine.target import ISA_LEVELS, Target
from sparsejit.x86.routines import LARGEST_WORKSPACE

INT8_ROWS = [
    row for row in RUNNABLE if row.family in ("csr", "panels") and row.dtype is DType.INT8
]
ROWS = [row for row in RUNNABLE if row.family == "csr" and row.dtype is DType.FLOAT32]


def by_rows(matrix: SparseMatrix, blocks: CsrBlocks) -> np.ndarray:
    """The matrix that a stream stands for, read as the code reads it."""
    stream = csr_stream(float_words(matrix.nonzeros), blocks)
    found = np.zeros(matrix.dense.shape, np.float32)
    groups, rows, quads = iter(stream.groups), iter(stream.rows), 0
    firsts = product(
        range(0, blocks.out_features, blocks.rows), range(0, blocks.columns, blocks.width)
    )
    for first, column in firsts:
        part = found[first : first + blocks.rows, column : column + blocks.width]
        while (group := next(groups))[1]:
            length, segments, size = group
            assert 0 < length <= MOST and size % QUAD.itemsize == 0
            for _ in range(segments):
                row = next(rows) // OFFSET_UNIT
                mine = stream.quads[quads : quads + size // QUAD.itemsize]
                quads += len(mine)
                offsets, weights = (mine[name].ravel()[-length:] for name in QUAD.names)
                np.add.at(part[row], offsets // OFFSET_UNIT, weights.view(np.float32))
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
        shape = csr_shape(Arithmetic.FLOATS, MatMul(MatVec(30, 30), batch), matrix, target)
        columns = sum(part.times * part.vectors for part in shape.passes) * target.lanes
        assert columns - sum(part.shift for part in shape.passes) in (batch, target.lanes)
        assert max(shape.widths) - min(shape.widths) <= 1
        assert all(part.times == 1 for part in shape.passes if part.shift)


def test_rows_beyond_the_workspace_are_cut_into_blocks() -> None:
    matrix, target = SparseMatrix(np.ones((9000, 3))), Target.named("avx512")
    for arithmetic in (Arithmetic.FLOATS, Arithmetic.BYTES):
        shape = csr_shape(arithmetic, MatMul(MatVec(9000, 3), 64), matrix, target)
        assert shape.blocks.rows < 9000 and shape.workspace_bytes <= LARGEST_WORKSPACE


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_blocks_of_rows_and_inputs(row: Template, layout: Layout) -> None:
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
def test_a_column_has_the_same_bits_wherever_it_lies(row: Template, batch: int) -> None:
    matrix = SparseMatrix(block_weights((50, 400), 0.2, 1))
    spec = spec_of(row, matrix, batch, Layout.FEATURE_MAJOR, Activation.TANH)
    column = np.random.default_rng(4).standard_normal((400, 1), np.float32)
    x, y = np.repeat(column, batch, axis=1), np.empty(spec.y_shape, np.float32)
    compiled(row, spec, matrix).function(2)(x.ctypes.data, y.ctypes.data)
    np.testing.assert_array_equal(y, np.repeat(y[:, :1], batch, axis=1))


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_expected_counts_are_the_counts_made(isa: str) -> None:
    matrix, target = SparseMatrix(block_weights((70, 900), 0.3, 1)), Target.named(isa)
    row = next(row for row in MATMUL_TEMPLATES if row.name == f"f32-csr-{isa}")
    spec = MatMul(MatVec(70, 900), 40)
    lowered = row.lower(spec, matrix, target)
    assert row.expect(spec, matrix, target) == lowered.counts
    assert lowered.counts.segments == len(lowered.stream.rows)
    assert np.count_nonzero(lowered.stream.quads["word"]) == lowered.counts.weights


def test_a_word_has_the_weights_of_four_inputs_or_two() -> None:
    integers = np.array([[1, -2, 3, 0, 0, 0], [0, 0, 0, 0, 0, -1]], np.int8)
    words = short_words(CompressedRows.of(integers), np.int8)
    assert words.dense().tolist() == [[0x0003FE01, 0], [0, 0xFF00]]
    pairs = short_words(CompressedRows.of(integers), np.int16)
    assert pairs.dense().tolist() == [[0xFFFE0001, 3, 0], [0, 0, 0xFFFF0000]]


STEPS = (
    None,
    Quantisation(0.02, 0, symmetric=True),
    Quantisation(0.02, -128),
    Quantisation(0.02, 41),
)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("row", INT8_ROWS, ids=lambda row: row.name)
def test_int8_sums_are_exact(
    row: Template, steps: Quantisation | None, layout: Layout
) -> None:
    """Batches of one vector and of several, every column with a scale of its own."""
    random = np.random.default_rng(6)
    weights = np.where(random.random((70, 1030)) < 0.3, random.integers(-127, 128, (70, 1030)), 0)
    weights[:, 5] = 127  # so that the scale of a row is 1
    matrix = SparseMatrix(weights.astype(np.float32))
    for batch in (5, 23, 75, 140):
        each = MatVec(70, 1030, None, Activation.NONE, DType.INT8, steps)
        spec = MatMul(each, batch, layout)
        x = random.standard_normal((1030, batch), np.float32) * np.linspace(0.1, 3, batch)
        x = (x if layout is Layout.FEATURE_MAJOR else x.T).astype(np.float32, order="C")
        y = np.empty(spec.y_shape, np.float32)
        compiled(row, spec, matrix).function(2)(x.ctypes.data, y.ctypes.data)
        np.testing.assert_allclose(y, reference.matmul(spec, matrix, x), rtol=5e-7)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_int8_panels_the_loop_and_single_columns_agree_to_the_bit(
    isa: str, steps: Quantisation | None, layout: Layout
) -> None:
    alike = [*INT8_ROWS, *(row for row in RUNNABLE if row.name == f"int8-rows-pairs-{isa}")]
    matrix, bias = SparseMatrix(block_weights((70, 131), 0.2, 1)), np.linspace(-1, 1, 70)
    each = MatVec(70, 131, bias.astype(np.float32), Activation.RELU, DType.INT8, steps)
    for batch in (5, 16, 77):
        spec = MatMul(each, batch, layout)
        x, outputs = x_for(spec, 3), []
        for row in (row for row in alike if row.isa == isa):
            outputs.append(np.empty(spec.y_shape, np.float32))
            compiled(row, spec, matrix).function(2)(x.ctypes.data, outputs[-1].ctypes.data)
        for other in outputs[1:]:
            np.testing.assert_array_equal(outputs[0], other)
