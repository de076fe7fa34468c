"""The rivals for a batch compute the right thing, and so do the problems they run on."""

import numpy as np
import pytest
from fake_clock import FakeClock

from sparsejit.ir.spec import DType, Layout
from sparsejit.machine.target import Target
from sparsejit.perf import batch_sweep
from sparsejit.perf.batch_sweep import cliffs, sweep
from sparsejit.perf.kernels import exact_product
from sparsejit.perf.peers.batch_peers import batch_peers_for
from sparsejit.perf.peers.peers import single_threaded
from sparsejit.perf.problems import BATCH_PROBLEMS, PROBLEMS
from sparsejit.planner.kernels import families_for
from sparsejit.runtime.native_timing import aligned


@pytest.mark.parametrize("layout", Layout)
def test_every_peer_computes_the_product_again_and_again(layout: Layout) -> None:
    """Also after the output was spoilt: a peer must write it on every call."""
    weights = PROBLEMS["B"].weights()[:, :200].copy()
    shape = (200, 7) if layout is Layout.FEATURE_MAJOR else (7, 200)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    exact = exact_product(weights, x, layout)
    with single_threaded():
        found, skipped = batch_peers_for(weights, x, layout)
        for peer in found:
            for _ in range(2):
                y = peer.output()
                np.testing.assert_allclose(y, exact, atol=1e-4)
                if y.flags.writeable:
                    y[:] = np.nan
    assert len(found) >= 3 and set(skipped) <= {"MKL CSR", "MKL sgemm", "OpenBLAS sgemm"}


def test_the_exact_product_is_that_of_each_column() -> None:
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    expected = np.stack([weights @ one for one in x])
    np.testing.assert_array_equal(exact_product(weights, x, Layout.BATCH_MAJOR), expected)
    np.testing.assert_array_equal(exact_product(weights, x.T, Layout.FEATURE_MAJOR), expected.T)
    np.testing.assert_array_equal(exact_product(weights, x[0], Layout.BATCH_MAJOR), expected[0])


def test_batch_problems_are_a_with_more_columns() -> None:
    for problem in BATCH_PROBLEMS.values():
        np.testing.assert_array_equal(problem.weights(), PROBLEMS["A"].weights())
        assert problem.input().shape == (256, problem.batch)


def test_strategies_of_a_batch_are_its_own() -> None:
    found = families_for(Target.detect(), DType.FLOAT32, 16)
    assert found == ["panels", "csr", "dense", "rows", "mixed"]


def test_aligned_copies_begin_with_a_cache_line() -> None:
    values = np.arange(35, dtype=np.float32).reshape(5, 7)
    copies = [aligned(values) for _ in range(5)]
    assert all(copy.ctypes.data % 64 == 0 for copy in copies)
    np.testing.assert_array_equal(copies[0], values)


def test_a_sweep_relates_each_batch_to_the_longest_before(
    steady_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches in ascending order, of which the second takes longest."""
    times = iter((100.0, 400.0, 200.0))
    monkeypatch.setattr(batch_sweep, "median_of_least", lambda timings: next(times))
    rows = sweep(PROBLEMS["B"], (40, 2, 1))
    assert [row.batch for row in rows] == [1, 2, 40]
    assert [row.ns for row in rows] == [100.0, 400.0, 200.0]
    assert [row.growth for row in rows] == [1.0, 4.0, 0.5]
    assert [row.column_step for row in rows] == [1.0, 2.0, 0.025]
    least, worst = cliffs(rows)
    assert "0.50, at batch 40" in least and "2.00, at batch 2" in worst
