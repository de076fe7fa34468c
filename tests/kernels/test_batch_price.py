"""Costs of a batch, from counts: caches and kernels that transpose; no clock."""

from dataclasses import replace

import numpy as np
import pytest

from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, Layout, MatMul, MatVec
from sparsejit.machine.core import Core
from sparsejit.machine.microarchitecture import core_named
from sparsejit.machine.target import ISA_LEVELS, Target
from sparsejit.planner.batch_plan import plan_batch, prefers_panels, price_batch
from sparsejit.planner.kernel_choice import HARDLY_MORE

GOLDEN_COVE = core_named("golden_cove")


def target(isa: str = "avx512", core: Core = GOLDEN_COVE) -> Target:
    sizes = {"l1d_bytes": 48 << 10, "l1i_bytes": 32 << 10, "l2_bytes": 2 << 20}
    return replace(Target.named(isa), core=core, **sizes)


def cycles(
    family: str,
    shape: tuple[int, int],
    share: float,
    layout: Layout = Layout.FEATURE_MAJOR,
    batch: int = 16,
    on: Target | None = None,
) -> float:
    """The clock ticks that the cheapest kernel of that family should take in float32."""
    on = on or target()
    random = np.random.default_rng(1)
    weights = np.where(random.random(shape) < share, 1, 0).astype(np.float32)
    spec = MatMul(MatVec(*shape, None, Activation.NONE, DType.FLOAT32, None), batch, layout)
    matrix = SparseMatrix(weights)
    ns = [
        price_batch(row.expect(spec, matrix, on)).ns
        for row in MATMUL_TEMPLATES
        if row.family == family and row.dtype is DType.FLOAT32 and row.made_for(on)
    ]
    return min(ns) * on.core.rates.cycles_per_ns


ON_ZEN_4 = replace(target(core=core_named("zen4")), l2_bytes=1 << 20, l3_bytes=32 << 20)
UNSHARED = target(core=replace(GOLDEN_COVE, l2_ways=0))  # L2 misses nothing until it is full


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_a_panel_in_l1_costs_no_more_than_its_products_and_stores(isa: str) -> None:
    """64x64 at 20 %, 16 columns, took 492 cycles with AVX-512 and 1417 with AVX2."""
    measured = {"avx512": 492, "avx2": 1417}[isa]
    found = cycles("panels", (64, 64), 0.2, on=target(isa))
    assert found == pytest.approx(measured, rel=0.3)


def test_outputs_beyond_l1_cost_their_way() -> None:
    """256x256 with hardly a weight, 64 columns, took 5085 cycles, 16 columns 269."""
    beyond = cycles("panels", (256, 256), 0.0001, batch=64)
    assert beyond == pytest.approx(5085, rel=0.3)
    assert cycles("panels", (256, 256), 0.0001) == pytest.approx(269, rel=0.3)


def test_squares_beyond_l1_take_longer() -> None:
    """Four rows of squares each way within L1; 256x256 exceeds it."""
    near, far = (
        cycles("panels", (size, size), 0.01, Layout.BATCH_MAJOR)
        - cycles("panels", (size, size), 0.01)
        for size in (64, 256)
    )
    assert near / 8 == pytest.approx(66, rel=0.1)
    assert far / 32 == pytest.approx(109, rel=0.1)


def test_code_that_nearly_fills_l2_comes_from_l3_in_part() -> None:
    """1024x512, 16 columns: at 20 % 103 thousand cycles, at 30 % 238; no cliff between."""
    half, most = (cycles("panels", (1024, 512), share) for share in (0.2, 0.3))
    assert half == pytest.approx(103_000, rel=0.2)
    assert most == pytest.approx(238_000, rel=0.2)
    assert half > 1.1 * cycles("panels", (1024, 512), 0.2, on=UNSHARED)


@pytest.mark.parametrize("name", ["zen4", "zen5", "golden_cove"])
def test_panels_from_memory_drive_x_from_l2(name: str) -> None:
    """Data from L3 drive out nothing that was counted."""
    core = core_named(name)
    plain = replace(core, batch=replace(core.batch, from_memory=0.0))
    dearer = {
        between: cycles("panels", (768, 768), 0.1, batch=128, on=replace(target(core=core), **at))
        - cycles("panels", (768, 768), 0.1, batch=128, on=replace(target(core=plain), **at))
        for between in (0, 4 << 20, 1 << 30)
        for at in ({"between_bytes": between, "l3_bytes": 32 << 20},)
    }
    assert dearer[0] == dearer[4 << 20] == 0.0
    a_megabyte = core.batch.from_memory * (1 << 20)
    assert 0.5 * a_megabyte < dearer[1 << 30] < 2 * a_megabyte


@pytest.mark.parametrize("shape", [(768, 768), (3072, 768), (768, 3072)])
def test_layers_of_a_large_model_are_data_on_zen_4(shape: tuple[int, int]) -> None:
    """BERT-base at 128 tokens is faster so, and panels are where a layer is alone."""
    weights = (np.random.default_rng(1).random(shape) < 0.1).astype(np.float32)
    spec, matrix = MatMul(MatVec(*shape), 128, Layout.FEATURE_MAJOR), SparseMatrix(weights)
    among = replace(ON_ZEN_4, between_bytes=100 << 20)
    assert plan_batch(spec, matrix, among).chosen.template.family == "csr"
    if shape == (768, 768):
        assert plan_batch(spec, matrix, ON_ZEN_4).chosen.template.family == "panels"


@pytest.mark.parametrize("name", ["zen5", "zen4", "golden_cove"])
def test_weights_that_serve_all_lengths_cost_little_more(name: str) -> None:
    """Panels are hardly faster than csr at some numbers of columns, and csr is taken there."""
    on = replace(target(core=core_named(name)), between_bytes=100 << 20)
    taken = set()
    for share in (0.02, 0.1, 0.5):
        weights = (np.random.default_rng(1).random((768, 768)) < share).astype(np.float32)
        matrix = SparseMatrix(weights)
        for batch in (4, 16, 64, 300, 512):
            spec = MatMul(MatVec(768, 768), batch)
            best, found = (
                plan_batch(spec, matrix, on, any_length=each).chosen for each in (False, True)
            )
            ratio = found.cost.ns / best.cost.ns
            assert ratio <= HARDLY_MORE
            if found.template.family != "csr":
                assert found.template is best.template
            taken.add((best.template.family, found.template.family))
    assert ("panels", "csr") in taken


def test_layouts_change_for_panels_only_where_these_are_taken() -> None:
    weights = (np.random.default_rng(1).random((768, 768)) < 0.05).astype(np.float32)
    spec, matrix = MatMul(MatVec(768, 768), 512), SparseMatrix(weights)
    on = replace(ON_ZEN_4, between_bytes=100 << 20)
    assert prefers_panels(spec, matrix, on, exact=False)
    assert not prefers_panels(spec, matrix, on, exact=False, any_length=True)


@pytest.mark.parametrize(
    ("size", "columns", "share", "panels_us", "csr_us", "dense_us"),
    [
        (256, 16, 0.6, 11.2, 17.4, 18.0),
        (512, 16, 0.6, 55.4, 67.8, 71.6),
        (512, 16, 1.0, 98.5, 106.7, 71.7),
        (512, 64, 0.3, 91.3, 115.0, 286.8),
        (512, 64, 1.0, 314.7, 372.4, 286.5),
        (1024, 16, 0.3, 126.7, 140.2, 286.1),
        (1024, 16, 1.0, 437.7, 439.3, 290.7),
        (1024, 32, 0.6, 438.1, 481.1, 577.1),
        (1024, 64, 0.1, 141.8, 177.7, 1159.0),
        (1024, 64, 0.6, 842.1, 931.7, 1167.2),
    ],
)
def test_prices_of_zen_4_are_near_its_times(
    size: int, columns: int, share: float, panels_us: float, csr_us: float, dense_us: float
) -> None:
    """Feature-major, code from beyond L2 asked for ahead; the planner takes one of the fastest."""
    took = {"panels": panels_us, "csr": csr_us, "dense": dense_us}
    for family, within in (("panels", 0.2), ("csr", 0.35), ("dense", 0.06)):
        found = cycles(family, (size, size), share, batch=columns, on=ON_ZEN_4)
        assert found / 3700 == pytest.approx(took[family], rel=within), family
    weights = (np.random.default_rng(1).random((size, size)) < share).astype(np.float32)
    spec = MatMul(MatVec(size, size), columns, Layout.FEATURE_MAJOR)
    chosen = plan_batch(spec, SparseMatrix(weights), ON_ZEN_4).chosen.template.family
    assert took[chosen] <= 1.05 * min(took.values())


def test_kernels_that_never_win_large_batches_are_made_only_when_asked_for() -> None:
    """Kernels repeated by the column, and dense code of few weights; int8's may win."""
    few = SparseMatrix(np.eye(64, dtype=np.float32))
    many = SparseMatrix(np.ones((128, 128), np.float32))

    def families(
        batch: int, dtype: DType, strategy: str = "auto", matrix: SparseMatrix = few
    ) -> set[str]:
        spec = MatMul(MatVec(matrix.out_features, matrix.in_features, dtype=dtype), batch)
        found = plan_batch(spec, matrix, target(), strategy).candidates
        return {candidate.template.family for candidate in found}

    sparse = np.zeros((640, 128), np.float32)
    sparse[::5] = 1
    assert "rows" not in families(9, DType.FLOAT32, matrix=many)
    assert "rows" in families(8, DType.FLOAT32, matrix=many)
    assert "dense" in families(9, DType.FLOAT32, matrix=many)
    assert "dense" not in families(9, DType.FLOAT32, matrix=SparseMatrix(sparse))
    assert "dense" in families(9, DType.FLOAT32, "dense", SparseMatrix(sparse))
    assert "rows" not in families(64, DType.FLOAT32)
    assert "rows" in families(63, DType.FLOAT32)
    assert "rows" in families(64, DType.INT8)
    assert "rows" in families(64, DType.FLOAT32, "rows")


def test_a_repeated_kernel_that_nearly_fills_l2_comes_from_l3_in_part() -> None:
    shape, share = (2048, 2048), 0.05
    edge = cycles("rows", shape, share, Layout.BATCH_MAJOR)
    assert edge > 1.1 * cycles("rows", shape, share, Layout.BATCH_MAJOR, on=UNSHARED)
    small = cycles("rows", (256, 256), 0.05, Layout.BATCH_MAJOR)
    assert small == cycles("rows", (256, 256), 0.05, Layout.BATCH_MAJOR, on=UNSHARED)


def test_zen5_has_no_edge_and_no_late_inputs() -> None:
    """Times recorded there are predicted as before."""
    batch = core_named("zen5").batch
    assert (batch.late_inputs, batch.late_stores, batch.l3_code) == (0, 0, 1)
    assert core_named("zen5").l2_ways == 0
    assert not any(batch.spreading.values())
