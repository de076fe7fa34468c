"""Batches that add an operand before the activation: next to y, and where y itself lies."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from guard import EDGES, Edge, GuardedArray, run_in_child
from hypothesis import given, settings
from hypothesis import strategies as st
from matvec_checks import TOLERANCE, block_weights, target_of
from runnable import LEVELS
from test_batch import KINDS, compiled, spec_of, x_for

from sparsejit.asm_templates.families import Template
from sparsejit.errors import InvalidInput
from sparsejit.ir import reference
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, Layout, MatMul, MatVec
from sparsejit.machine.target import ISA_LEVELS, Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.planner.batch_plan import adds_in_place, can_add, plan_batch
from sparsejit.planner.layer_planner import LayerPlanner
from sparsejit.planner.split import Part
from sparsejit.x86.assembler import Assembler

PLAIN = MatMul(MatVec(4, 4), 40, Layout.FEATURE_MAJOR, added_pitch=40)
ADDING = [
    row
    for row in KINDS
    if can_add(row, replace(PLAIN, each=MatVec(4, 4, dtype=row.dtype)), target_of(row))
]


def operand_for(spec: MatMul) -> np.ndarray:
    """Random numbers, and nan as padding."""
    assert spec.added_pitch is not None
    shape = spec.out_features, spec.added_pitch
    added = np.random.default_rng(6).standard_normal(shape, np.float32)
    added[:, spec.batch :] = np.nan
    return added


def check(kernel: ExecutableMemory, spec: MatMul, matrix: SparseMatrix, edge: Edge) -> None:
    """Compute between inaccessible pages and compare; then into the operand, to the same bits."""
    values, operand = x_for(spec, 5), operand_for(spec)
    empty = np.full(spec.y_shape, np.nan, np.float32)
    x, added, y = (GuardedArray(each.ravel(), edge) for each in (values, operand, empty))
    kernel.function(3)(x.address, y.address, added.address)
    assert all(array.surroundings_intact() for array in (x, added, y))
    np.testing.assert_array_equal(x.values, values.ravel())
    np.testing.assert_array_equal(added.values, operand.ravel())
    found = y.values.reshape(spec.y_shape)[:, : spec.batch]
    expected = reference.matmul(spec, matrix, values, operand)[:, : spec.batch]
    scale = reference.batch_error_scale(spec, matrix, values)[:, : spec.batch]
    scale = scale + np.abs(operand[:, : spec.batch])
    assert np.max(np.abs(found - expected) / np.maximum(scale, 1.0)) < TOLERANCE


def check_in_place(kernel: ExecutableMemory, spec: MatMul, edge: Edge) -> None:
    """The added array lies where y does: the same bits."""
    values, operand = x_for(spec, 5), operand_for(spec)
    empty = np.full(spec.y_shape, np.nan, np.float32)
    x, apart, both, y = (
        GuardedArray(each.ravel(), edge) for each in (values, operand, operand, empty)
    )
    kernel.function(3)(x.address, y.address, apart.address)
    kernel.function(3)(x.address, both.address, both.address)
    assert both.surroundings_intact()
    found, expected = (each.values.reshape(spec.y_shape)[:, : spec.batch] for each in (both, y))
    np.testing.assert_array_equal(found, expected)


def test_panels_loops_and_dense_code_add() -> None:
    levels = {"panels", "csr", "dense"}
    assert {row.family for row in ADDING} == levels and DType.INT8 not in {r.dtype for r in ADDING}


@pytest.mark.parametrize("row", ADDING, ids=lambda row: row.name)
def test_any_shape_and_pitch_inside_guard_pages(row: Template) -> None:
    checks = []

    @settings(max_examples=30, deadline=None, database=None, derandomize=True)
    @given(
        shape=st.tuples(st.integers(1, 90), st.integers(1, 90)),
        batch=st.integers(2, 300),
        more=st.sampled_from([None, 0, 3, 16, 40]),
        further=st.sampled_from([0, 5, 16, 40]),
        whole=st.sampled_from([1, 8, 16]),
        activation=st.sampled_from(Activation),
        density=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
        edge=st.sampled_from(EDGES),
    )
    def collect(
        shape: tuple[int, int],
        batch: int,
        more: int | None,
        further: int,
        whole: int,
        activation: Activation,
        density: float,
        edge: Edge,
    ) -> None:
        matrix = SparseMatrix(block_weights(shape, density, 1))
        pitch = None if more is None else -(-(batch + more) // whole) * whole
        spec = spec_of(row, matrix, batch, Layout.FEATURE_MAJOR, activation, pitch)
        spec = replace(spec, added_pitch=-(-(batch + further) // whole) * whole)
        if not can_add(row, spec, target_of(row)):
            return
        kernel, name = compiled(row, spec, matrix), f"{shape}, {spec.case}, {density}, {edge}"
        checks.append((name, partial(check, kernel, spec, matrix, edge)))
        if adds_in_place(row, spec, target_of(row)):
            spec = replace(spec, added_pitch=spec.pitch)
            kernel = compiled(row, spec, matrix)
            checks.append((f"{name} in place", partial(check_in_place, kernel, spec, edge)))

    collect()
    assert any("in place" in name for name, _ in checks)
    run_in_child(checks).assert_clean()


@pytest.mark.parametrize("isa", LEVELS)
def test_far_outputs_are_asked_for_ahead(isa: str) -> None:
    """Panels ask for more lines of y beyond L2, tiles with hardly a weight do not."""
    target = replace(Target.named(isa), l2_bytes=1 << 14)
    row = next(row for row in ADDING if row.name == f"f32-panels-{isa}")
    weights = block_weights((90, 40), 0.3, 1)
    weights[10:60] = 0
    matrix = SparseMatrix(weights)
    spec = spec_of(row, matrix, 160, Layout.FEATURE_MAJOR, Activation.RELU)
    spec = replace(spec, added_pitch=spec.pitch)
    asm = Assembler(target)
    row.emit(asm, row.lower(spec, matrix, target))
    asm.emit("vzeroupper")
    asm.emit("ret")
    kernel = ExecutableMemory(asm.finish().data)
    near = Assembler(replace(target, l2_bytes=1 << 30))
    row.emit(near, row.lower(spec, matrix, near.target))
    assert len(near.finish().data) < kernel.size
    checks = [(edge, partial(check, kernel, spec, matrix, edge)) for edge in EDGES]
    run_in_child(checks).assert_clean()


@pytest.mark.parametrize("strategy", ["panels", "csr", "dense"])
@pytest.mark.parametrize("isa", LEVELS)
def test_parts_of_a_batch_add_their_share(isa: str, strategy: str) -> None:
    """By columns, to the same bits, and by rows; what is added lies at another pitch."""
    matrix = SparseMatrix(block_weights((70, 40), 0.3, 1))
    bias = np.linspace(-1, 1, 70, dtype=np.float32)
    each = MatVec(70, 40, bias, Activation.RELU)
    spec = MatMul(each, 100, Layout.FEATURE_MAJOR, 112, added_pitch=120)
    planner = LayerPlanner(Target.named(isa), strategy)
    whole = planner.plan(spec, matrix)
    values, added = x_for(spec, 1), operand_for(spec)
    expected = _run([Part(0, spec, matrix, whole)], values, added)
    for parts in planner.ways_to_split(spec, matrix, whole, 3):
        assert len(parts) == 3
        found = _run(parts, values, added)
        if parts[0].columns < spec.batch:
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def _run(parts: list[Part], x: np.ndarray, added: np.ndarray) -> np.ndarray:
    """Results that parts write one after the other, without the padding."""
    spec = parts[0].spec
    assert isinstance(spec, MatMul)
    y = np.full((added.shape[0], spec.pitch), np.nan, np.float32)
    for part in parts:
        asm = Assembler(Target.named(part.plan.chosen.template.isa))
        part.plan.chosen.template.emit(asm, part.plan.lowered)
        asm.emit("vzeroupper")
        asm.emit("ret")
        kernel = ExecutableMemory(asm.finish().data).function(3)
        operand = added.ctypes.data + part.added_bytes
        kernel(x.ctypes.data + part.x_bytes, y.ctypes.data + part.y_bytes, operand)
    return y[:, : max(part.first_column + part.columns for part in parts)]


@pytest.mark.parametrize("row", ADDING, ids=lambda row: row.name)
def test_nan_and_infinity_are_added(row: Template) -> None:
    matrix = SparseMatrix(block_weights((20, 30), 0.3, 1))
    spec = spec_of(row, matrix, 40, Layout.FEATURE_MAJOR, Activation.RELU)
    spec = replace(spec, added_pitch=40)
    x, added = x_for(spec, 1), operand_for(spec)
    added[3, 5], added[4, 6], added[19, 39] = np.inf, -np.inf, np.nan
    y = np.empty(spec.y_shape, np.float32)
    compiled(row, spec, matrix).function(3)(x.ctypes.data, y.ctypes.data, added.ctypes.data)
    assert y[3, 5] == np.inf and y[4, 6] == 0 and np.isnan(y[19, 39])
    assert np.isfinite(y).sum() == y.size - 2


@pytest.mark.plans
@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_a_sum_costs_little_and_saves_nothing_in_any_family(isa: str) -> None:
    matrix, target = SparseMatrix(block_weights((256, 64), 0.3, 1)), Target.named(isa)
    alone = MatMul(MatVec(256, 64), 784, Layout.FEATURE_MAJOR)
    for strategy in ("panels", "csr", "dense"):
        costs = [
            plan_batch(spec, matrix, target, strategy).chosen.cost.ns
            for spec in (alone, replace(alone, added_pitch=784))
        ]
        assert costs[0] <= costs[1] < 1.5 * costs[0]


@pytest.mark.plans
@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_other_families_are_not_asked(isa: str) -> None:
    matrix, target = SparseMatrix(block_weights((32, 64), 0.3, 1)), Target.named(isa)
    spec = MatMul(MatVec(32, 64), 5, Layout.FEATURE_MAJOR, added_pitch=5)
    for candidate in plan_batch(spec, matrix, target).candidates:
        assert can_add(candidate.template, spec, target)
    mixed = replace(spec, layout=Layout.BATCH_MAJOR, result_layout=Layout.FEATURE_MAJOR)
    assert not any(can_add(row, mixed, target) for row in ADDING)


def test_measured_kernels_add(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    matrix = SparseMatrix(block_weights((32, 64), 0.3, 1))
    spec = MatMul(MatVec(32, 64), 40, Layout.FEATURE_MAJOR, added_pitch=48)
    plan = LayerPlanner(Target.detect(), tune=True).plan(spec, matrix)
    assert len(plan.measured_ns) > 1 and "measured" in plan.reason


def test_a_pitch_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidInput, match="added_pitch=39 for a batch of 40"):
        replace(PLAIN, added_pitch=39)
    with pytest.raises(InvalidInput, match="added_pitch=40 with layout='batch-major'"):
        replace(PLAIN, layout=Layout.BATCH_MAJOR)
