"""Rows shared among threads: the same layer, even parts, and only where it pays."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matvec_checks import block_weights

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.ir import reference
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType
from sparsejit.machine.price_records import SharingPrices
from sparsejit.machine.target import Target
from sparsejit.planner import sharing, split
from sparsejit.runtime.workers import MAX_THREADS, available_cores

DEAR = SharingPrices(barrier_ns=200.0, crossing_bytes=10.0)

pytestmark = [pytest.mark.plans, pytest.mark.usefixtures("barriers_are_free")]


@settings(max_examples=40)
@given(
    out_features=st.integers(1, 200),
    in_features=st.integers(1, 100),
    threads=st.integers(1, 6),
    density=st.sampled_from([0.0, 0.05, 0.4, 1.0]),
    activation=st.sampled_from(["none", "tanh"]),
    with_bias=st.booleans(),
)
def test_parts_together_compute_the_layer(
    out_features: int,
    in_features: int,
    threads: int,
    density: float,
    activation: str,
    with_bias: bool,
) -> None:
    random = np.random.default_rng(out_features)
    weights = block_weights((out_features, in_features), density, 1)
    bias = random.standard_normal(out_features).astype(np.float32) if with_bias else None
    kernel = sparsejit.compile_matrix(weights, bias, activation=activation, threads=threads)
    assert len(kernel.split.parts) == min(threads, -(-out_features // 16))
    x = random.standard_normal(in_features).astype(np.float32)
    matrix = SparseMatrix(weights)
    error = np.abs(kernel(x) - reference.matvec(kernel.spec, matrix, x))
    scale = np.maximum(reference.error_scale(kernel.spec, matrix, x), 1.0)
    assert np.max(error / scale) < 1e-5


@pytest.mark.parametrize("dtype", DType)
def test_a_part_gives_the_bits_of_its_rows_compiled_alone(dtype: DType) -> None:
    weights = block_weights((200, 64), 0.4, 1)
    kernel = sparsejit.compile_matrix(weights, dtype=dtype, threads=4)
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    y = kernel(x)
    for part in kernel.split.parts:
        rows = slice(part.first_row, part.end_row)
        alone = sparsejit.compile_matrix(weights[rows], dtype=dtype)
        np.testing.assert_array_equal(y[rows], alone(x))


@pytest.mark.parametrize("threads", [0, -1, MAX_THREADS + 1, True, 1.5, "two", None])
def test_bad_numbers_of_threads_are_refused(threads: object) -> None:
    with pytest.raises(InvalidInput, match="threads="):
        sparsejit.compile_matrix(np.ones((64, 64)), threads=threads)  # type: ignore[arg-type]


def test_auto_is_one_thread_a_core() -> None:
    assert split.parse_threads("auto") == len(os.sched_getaffinity(0))


def test_explain_tells_the_rows_and_the_lack_of_cores() -> None:
    threads = available_cores() + 1
    kernel = sparsejit.compile_matrix(np.ones((16 * threads, 8)), threads=threads)
    text = str(kernel.explain())
    assert f"threads: {threads}" in text
    assert "rows 0 to 15: " in text and f"to {16 * threads - 1}: " in text
    assert f"{threads - 1} cores only" in text
    assert kernel.stats["threads"] == threads


def test_parts_begin_at_whole_vectors_and_weigh_alike() -> None:
    """All the work is in the first quarter of the rows."""
    weights = np.vstack([block_weights((256, 400), 0.4, 1), block_weights((768, 400), 0.02, 1)])
    kernel = sparsejit.compile_matrix(weights, threads=4)
    parts = kernel.split.parts
    assert [part.first_row % 16 for part in parts] == [0] * 4
    assert [part.end_row for part in parts] == [*(p.first_row for p in parts[1:]), 1024]
    weight = [part.plan.chosen.cost.ns for part in parts]
    assert max(weight) < 1.3 * sum(weight) / 4


def test_a_layer_too_small_to_gain_stays_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "sharing_prices", lambda target: DEAR)
    small = sparsejit.compile_matrix(block_weights((64, 64), 0.1, 1), threads=2)
    assert len(small.split.parts) == 1
    assert "too little to share" in str(small.explain())
    large = sparsejit.compile_matrix(block_weights((512, 512), 0.3, 1), threads=2)
    assert len(large.split.parts) == 2


@given(ns=st.floats(1, 1e6), most=st.integers(1, 64))
def test_more_work_never_takes_fewer_threads(ns: float, most: int) -> None:
    target = Target.detect()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "sharing_prices", lambda target: DEAR)
        threads = sharing.worthwhile_threads(ns, most, target)
        assert 1 <= threads <= most
        assert sharing.worthwhile_threads(2 * ns, most, target) >= threads
        if threads > 1:
            assert sharing.parallel_ns(ns, threads, target) * DEAR.least_gain <= ns


def test_the_cost_of_a_group_of_rows_does_not_hide_the_place_of_weights() -> None:
    """int8 pays for the scale of x in every group that is counted, and once in a part."""
    weights = block_weights((256, 2048), 0.01, 1)
    weights[:128] = block_weights((128, 2048), 0.2, 1)
    # With AVX2 the work of the cheapest kernel, `int8-dense`, does not follow the zeros.
    strategy = "auto" if Target.detect().isa == "avx512" else "int8-pairs"
    kernel = sparsejit.compile_matrix(weights, dtype="int8", strategy=strategy, threads=2)
    first, second = (part.matrix.nnz for part in kernel.split.parts)
    assert 0.5 < first / second < 2
