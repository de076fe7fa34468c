"""A batch shared among threads: the same numbers, by columns or rows as prices say."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from guard import EDGES, Edge, GuardedArray, run_in_child
from hypothesis import given, settings
from hypothesis import strategies as st
from matvec_checks import block_weights
from runnable import LEVELS

import sparsejit
from sparsejit.ir import reference
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, Layout
from sparsejit.machine.price_records import SharingPrices
from sparsejit.machine.target import Target
from sparsejit.planner import batch_split, sharing

pytestmark = pytest.mark.usefixtures("barriers_are_free")

FEATURE_MAJOR = Layout.FEATURE_MAJOR.value
LANES = Target.detect().lanes


def columns_of(kernel: sparsejit.Kernel) -> list[int]:
    return [part.columns for part in kernel.split.parts]


def x_for(kernel: sparsejit.Kernel) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(kernel.spec.x_shape).astype(np.float32)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 90), st.integers(1, 70)),
    batch=st.integers(2, 70),
    layout=st.sampled_from(Layout),
    padding=st.sampled_from([None, 0, 3, 16, 40]),
    strategy=st.sampled_from(["auto", "panels", "rows", "dense", "csr"]),
    threads=st.integers(2, 6),
    density=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
def test_parts_together_compute_the_batch(
    shape: tuple[int, int],
    batch: int,
    layout: Layout,
    padding: int | None,
    strategy: str,
    threads: int,
    density: float,
) -> None:
    weights = block_weights(shape, density, 1)
    padded = layout is Layout.FEATURE_MAJOR and padding is not None
    pitch = batch + padding if padded and padding is not None else None
    bias = np.linspace(-1, 1, shape[0], dtype=np.float32)
    kernel = sparsejit.compile_matrix(
        weights, bias, batch=batch, layout=layout, pitch=pitch, strategy=strategy, threads=threads
    )
    x, matrix = x_for(kernel), SparseMatrix(weights)
    expected = reference.product(kernel.spec, matrix, x)
    known = ~np.isnan(expected)  # all but padding
    np.testing.assert_allclose(kernel(x)[known], expected[known], atol=1e-4)


# The loop over compressed rows cuts its passes and inputs by the batch and the level.
DIVIDED = [
    *((family, DType.FLOAT32, "native") for family in ("panels", "rows", "mixed", "dense")),
    ("panels", DType.INT8, "native"),
    *(("csr", dtype, isa) for dtype in (DType.FLOAT32, DType.INT8) for isa in LEVELS),
]


@pytest.mark.parametrize("batch", [48, 63, 70, 144])
@pytest.mark.parametrize(("strategy", "dtype", "isa"), DIVIDED)
@pytest.mark.parametrize("layout", Layout)
def test_columns_have_the_same_bits_on_any_number_of_threads(
    layout: Layout, strategy: str, dtype: DType, isa: str, batch: int
) -> None:
    """Sixteen rows cannot be divided, so columns are. Equal columns have equal bits too."""
    if strategy == "mixed" and batch % 16 == 0:
        pytest.skip("no columns remain")
    weights = block_weights((16, 1500 if strategy == "csr" else 60), 0.4, 1)

    def kernel_on(threads: int) -> sparsejit.Kernel:
        return sparsejit.compile_matrix(
            weights,
            batch=batch,
            layout=layout,
            strategy=strategy,
            dtype=dtype,
            target=isa,
            threads=threads,
        )

    alone = kernel_on(1)
    x = x_for(alone)
    axis = alone.spec.x_shape.index(batch)
    equal = np.repeat(x.take([0], axis), batch, axis)
    expected, same = alone(x), alone(equal)
    if strategy != "mixed":  # which computes its last columns otherwise
        np.testing.assert_array_equal(same, np.repeat(same.take([0], axis), batch, axis))
    for threads in (2, 3):
        shared = kernel_on(threads)
        parts = columns_of(shared)
        assert len(parts) > 1 and sum(parts) == batch
        np.testing.assert_array_equal(shared(x), expected)
        np.testing.assert_array_equal(shared(equal), same)


def test_equal_parts_are_the_same_code() -> None:
    weights = block_weights((16, 256), 0.5, 1)
    sizes = {
        batch: sparsejit.compile_matrix(
            weights, batch=batch, layout=FEATURE_MAJOR, strategy="panels", threads=2
        ).image.code_bytes
        for batch in (4 * LANES, 5 * LANES)  # two panels each; three and two
    }
    assert sizes[5 * LANES] > 1.5 * sizes[4 * LANES]


def priced(monkeypatch: pytest.MonkeyPatch, ns: Callable[[Any], float]) -> None:
    """Have parts of a batch cost what `ns` says of their spec."""
    real = batch_split.price_batch
    monkeypatch.setattr(
        batch_split, "price_batch", lambda counts: replace(real(counts), ns=ns(counts.spec))
    )


def shared(batch: int, threads: int = 2, layout: str = FEATURE_MAJOR) -> sparsejit.Kernel:
    weights = block_weights((128, 64), 0.3, 1)
    return sparsejit.compile_matrix(weights, batch=batch, layout=layout, threads=threads)


def test_prices_choose_between_columns_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    priced(monkeypatch, lambda spec: spec.batch)
    by_columns = shared(64)
    assert columns_of(by_columns) == [32, 32]
    assert "columns 32 to 63: " in str(by_columns.explain())
    priced(monkeypatch, lambda spec: spec.out_features)
    by_rows = shared(64)
    assert columns_of(by_rows) == [64, 64]
    assert "rows 64 to 127: " in str(by_rows.explain())
    assert [part["first_row"] for part in by_rows.explain().facts["parts"]] == [0, 64]


def test_fewer_threads_are_used_where_more_gain_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    priced(monkeypatch, lambda spec: max(spec.batch, 32))
    assert columns_of(shared(64, threads=4)) == [32, 32]
    priced(monkeypatch, lambda spec: 1.0)
    kernel = shared(64, threads=4)
    assert columns_of(kernel) == [64] and "too little to share" in str(kernel.explain())


def test_a_barrier_that_costs_more_than_it_saves_is_not_paid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sharing, "sharing_prices", lambda target: SharingPrices(1e6, 1.0))
    assert columns_of(shared(64)) == [64]


def test_one_panel_is_shared_by_rows() -> None:
    for layout in Layout:
        assert columns_of(shared(LANES, layout=layout.value)) == [LANES, LANES]


def test_parts_begin_at_whole_panels() -> None:
    weights = block_weights((16, 64), 0.5, 1)
    kernel = sparsejit.compile_matrix(
        weights, batch=4 * LANES + 6, layout=FEATURE_MAJOR, strategy="panels", threads=2
    )
    assert columns_of(kernel) == [3 * LANES, LANES + 6]


def make_batch(
    layout: Layout, by_columns: bool, threads: int = 3
) -> tuple[sparsejit.Kernel, np.ndarray, np.ndarray]:
    """A kernel in parts, an input, and what it gives for it."""
    shape, batch = ((16, 50), 60) if by_columns else ((80, 50), LANES)
    weights, pitch = block_weights(shape, 0.3, 1), 80 if layout is Layout.FEATURE_MAJOR else None
    kernel = sparsejit.compile_matrix(
        weights, batch=batch, layout=layout, pitch=pitch, threads=threads, strategy="panels"
    )
    assert any(part.first_column for part in kernel.split.parts) is by_columns
    x = np.random.default_rng(0).standard_normal(kernel.spec.x_shape).astype(np.float32)
    # Columns of padding, which no kernel writes, hold zeros as in the arrays to compare.
    return kernel, x, np.nan_to_num(kernel(x, out=np.zeros(kernel.spec.y_shape, np.float32)))


@pytest.mark.parametrize("by_columns", [True, False])
@pytest.mark.parametrize("layout", Layout)
def test_two_python_threads_may_call_kernels_of_batches(layout: Layout, by_columns: bool) -> None:
    kernels = [make_batch(layout, by_columns, threads) for threads in (2, 3)]
    wrong = []

    def call(kernel: sparsejit.Kernel, x: np.ndarray, expected: np.ndarray) -> None:
        y = np.zeros_like(expected)
        for _ in range(500):
            if not np.array_equal(np.nan_to_num(kernel(x, out=y)), expected):
                wrong.append(kernel)

    callers = [threading.Thread(target=call, args=made) for made in kernels]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("by_columns", [True, False])
@pytest.mark.parametrize("layout", Layout)
def test_parts_of_a_batch_stay_inside_the_arrays(
    layout: Layout, by_columns: bool, edge: Edge
) -> None:
    kernel, x, expected = make_batch(layout, by_columns)
    source = GuardedArray(x.ravel(), edge)
    destination = GuardedArray(np.zeros_like(expected).ravel(), edge)
    native = kernel.program.memory.function(2)

    def check() -> None:
        native(source.address, destination.address)
        np.testing.assert_array_equal(destination.values, expected.ravel())
        assert source.surroundings_intact() and destination.surroundings_intact()

    check()  # with workers
    run_in_child([("in a fork", check)]).assert_clean()
