"""The look-up loop against the float64 oracle, its schedule, and what it promises."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matvec_checks import check, compile_kernel, scattered, templates_of

from sparsejit.asm_templates.gather.lookup import (
    LANES,
    LINE,
    SLIDE,
    STEPS,
    WINDOW,
    Format,
    chunks_of,
    paired_order,
    stored,
)
from sparsejit.asm_templates.gather.permute_layout import with_index
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, MatVec
from sparsejit.machine.microarchitecture import core_named
from sparsejit.machine.target import Target

every_template = pytest.mark.parametrize("row", templates_of("lookup"))


@every_template
def test_more_rows_than_sums_fit_the_stack(row):
    bias = np.linspace(-1, 1, 8200, dtype=np.float32)
    check(row, scattered((8200, 70), 0.2), bias, Activation.RELU)


@every_template
@pytest.mark.parametrize("shape", [(1100, 1000), (2000, 1500)], ids=["half of L2", "beyond L2"])
def test_more_weights_than_are_padded(row, shape):
    check(row, scattered(shape, 0.12 if shape[0] == 1100 else 0.25))


@settings(max_examples=30, deadline=None)
@given(
    out_features=st.integers(1, 100),
    in_features=st.integers(1, 600),
    density=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_chunks_hold_every_weight_once_within_the_window(
    out_features, in_features, density, seed
):
    matrix = SparseMatrix(scattered((out_features, in_features), density, seed))
    order = paired_order(matrix)
    chunks = chunks_of(matrix, order)
    end = (chunks.position[:, None, None] + 1) * SLIDE
    first_window_end = min(WINDOW, -(-in_features // SLIDE) * SLIDE)
    assert np.all((chunks.inputs < end) & (chunks.inputs >= end - WINDOW))
    assert np.all(end >= first_window_end) and np.all(np.diff(chunks.position) >= 0)
    rebuilt = np.zeros((len(order), -(-in_features // SLIDE) * SLIDE), np.float32)
    lanes = order.reshape(-1, LANES)[chunks.group][:, None, :]
    lanes, inputs = np.broadcast_arrays(lanes, chunks.inputs)
    np.add.at(rebuilt, (lanes, inputs), chunks.weights)
    np.testing.assert_array_equal(rebuilt[:out_features, :in_features], matrix.dense)
    assert np.count_nonzero(chunks.weights) == matrix.nnz


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
def test_a_padding_line_follows_each_chunk(dtype):
    matrix = SparseMatrix(scattered((100, 300), 0.3))
    chunks = chunks_of(matrix, paired_order(matrix))
    form = Format(dtype, padded=True)
    lines = stored(chunks, form)
    assert lines.shape[1] * LINE == form.chunk_bytes
    np.testing.assert_array_equal(lines[:, :-1], stored(chunks, Format(dtype)))
    assert not lines[:, -1].any()


def test_only_float32_chunks_in_half_of_the_second_cache_are_padded():
    target = Target.named("avx512")
    most = target.l2_bytes // 2 // Format(DType.FLOAT32).chunk_bytes
    assert Format.fitting(DType.FLOAT32, most, target).padded
    assert Format.fitting(DType.FLOAT32, most + 1, target) == Format(DType.FLOAT32)
    assert Format.fitting(DType.FLOAT32, 2 * most + 1, target).far
    assert Format.fitting(DType.BFLOAT16, most, target) == Format(DType.BFLOAT16)
    elsewhere = replace(target, core=core_named("golden_cove"))
    assert Format.fitting(DType.FLOAT32, most, elsewhere) == Format(DType.FLOAT32)


@pytest.mark.parametrize(("density", "least_busy"), [(0.05, 0.69), (0.1, 0.82), (0.2, 0.88)])
def test_most_lanes_are_busy(density, least_busy):
    matrix = SparseMatrix(scattered((512, 1024), density))
    chunks = chunks_of(matrix, paired_order(matrix))
    assert matrix.nnz / (LANES * STEPS * len(chunks.group)) > least_busy


def test_the_index_in_a_weight_changes_it_by_half_a_window_of_last_places():
    random = np.random.default_rng(0)
    weights = random.standard_normal(10_000).astype(np.float32)
    weights[:4] = 0, np.finfo(np.float32).max, -np.finfo(np.float32).max, 1e-39
    index = random.integers(0, WINDOW, len(weights)).astype(np.uint8)
    words = with_index(weights, index, 7)
    stored = words.view(np.float32)
    assert stored[0] == stored[3] == 0 and np.all(np.isfinite(stored))
    assert np.array_equal(words[4:] % WINDOW, index[4:])
    np.testing.assert_allclose(stored[4:], weights[4:], rtol=WINDOW / 2 * 2.0**-23)


@every_template
def test_code_does_not_grow_with_the_weights(row):
    sparse, dense = (
        compile_kernel(row, MatVec(256, 512, dtype=row.dtype), SparseMatrix(weights))
        for weights in (scattered((256, 512), 0.05), scattered((256, 512), 0.5))
    )
    assert dense.code_bytes - sparse.code_bytes < 64
    assert dense.pool_bytes > 5 * sparse.pool_bytes
