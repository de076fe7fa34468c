"""Batch kernels against the float64 oracle, flush against inaccessible memory, and their plan."""

from dataclasses import replace
from functools import partial
from itertools import combinations, product

import numpy as np
import pytest
from guard import EDGES, Edge, GuardedArray, run_in_child
from hypothesis import given, settings
from hypothesis import strategies as st
from matvec_checks import TOLERANCE, block_weights, target_of
from runnable import runnable

from sparsejit.asm_templates.batch.lowered_batch import spread_pitch
from sparsejit.asm_templates.batch.row_tiles import products, tile_rows
from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.asm_templates.families import Template
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.ir import reference
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, Layout, MatMul, MatVec
from sparsejit.machine.target import ISA_LEVELS, Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.planner.batch_plan import plan_batch
from sparsejit.x86.assembler import Assembler

RUNNABLE = runnable(MATMUL_TEMPLATES)
# The repeated kernel is tested elsewhere: here one of each kind will do.
REPEATED = {"f32-permute-avx512", "f32-permute-avx2"}
ALONE = {"halves"}  # sums of float16, which `test_halves` compares
KINDS = [
    row
    for row in RUNNABLE
    if row.family not in ALONE and (row.each is None or row.each.name in REPEATED)
]
PANELS = [row for row in KINDS if row.family == "panels"]
WITH_PANELS = [row for row in KINDS if row.family != "rows"]


def compiled(row: Template, spec: MatMul, matrix: SparseMatrix) -> ExecutableMemory:
    asm = Assembler(target_of(row))
    row.emit(asm, row.lower(spec, matrix, asm.target))
    asm.emit("vzeroupper")
    asm.emit("ret")
    return ExecutableMemory(asm.finish().data)


def spec_of(
    row: Template,
    matrix: SparseMatrix,
    batch: int,
    layout: Layout,
    activation: Activation,
    pitch: int | None = None,
) -> MatMul:
    bias = np.linspace(-1, 1, matrix.out_features, dtype=np.float32)
    each = MatVec(matrix.out_features, matrix.in_features, bias, activation, row.dtype)
    return MatMul(each, batch, layout, pitch)


def x_for(spec: MatMul, seed: int) -> np.ndarray:
    """Random numbers, and nan as padding; for weights in bfloat16, numbers that bfloat16 holds."""
    x = np.random.default_rng(seed).standard_normal(spec.x_shape, np.float32)
    if spec.dtype is DType.BFLOAT16:
        x = reference.round_to_bfloat16(x)
    if spec.layout is Layout.FEATURE_MAJOR:
        x[:, spec.batch :] = np.nan
    return x


def check(kernel: ExecutableMemory, spec: MatMul, matrix: SparseMatrix, edge: Edge) -> None:
    """Compute between inaccessible pages and compare."""
    values = x_for(spec, 5)
    x = GuardedArray(values.ravel(), edge)
    y = GuardedArray(np.full(spec.y_shape, np.nan, np.float32).ravel(), edge)
    kernel.function(2)(x.address, y.address)
    assert x.surroundings_intact() and y.surroundings_intact()
    np.testing.assert_array_equal(x.values, values.ravel())
    found, scale = y.values.reshape(spec.y_shape), reference.batch_error_scale(spec, matrix, values)
    relative = np.abs(found - reference.matmul(spec, matrix, values)) / np.maximum(scale, 1.0)
    assert np.max(columns(spec, relative)) < TOLERANCE


def columns(spec: MatMul, y: np.ndarray) -> np.ndarray:
    """Without the padding."""
    return y[:, : spec.batch] if spec.y_layout is Layout.FEATURE_MAJOR else y


@pytest.mark.parametrize("row", KINDS, ids=lambda row: row.name)
def test_any_shape_and_batch_inside_guard_pages(row: Template) -> None:
    checks = []

    @settings(max_examples=30, deadline=None, database=None, derandomize=True)
    @given(
        shape=st.tuples(st.integers(1, 90), st.integers(1, 90)),
        batch=st.integers(2, 70),
        layout=st.sampled_from(Layout),
        activation=st.sampled_from(Activation),
        density=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
        block_rows=st.sampled_from([1, 8]),
        edge=st.sampled_from(EDGES),
    )
    def collect(
        shape: tuple[int, int],
        batch: int,
        layout: Layout,
        activation: Activation,
        density: float,
        block_rows: int,
        edge: Edge,
    ) -> None:
        matrix = SparseMatrix(block_weights(shape, density, block_rows))
        spec = spec_of(row, matrix, batch, layout, activation)
        check_one = partial(check, compiled(row, spec, matrix), spec, matrix, edge)
        name = f"{shape} x {batch}, {layout.value}, {activation.value}, {density}, {edge}"
        checks.append((name, check_one))

    collect()
    run_in_child(checks).assert_clean()


@pytest.mark.parametrize("row", KINDS, ids=lambda row: row.name)
def test_any_pitch_inside_guard_pages(row: Template) -> None:
    """Padding of x is nan: it reaches no column, and columns that fit are computed in place."""
    checks = []

    @settings(max_examples=30, deadline=None, database=None, derandomize=True)
    @given(
        shape=st.tuples(st.integers(1, 90), st.integers(1, 90)),
        batch=st.integers(2, 70),
        more=st.integers(0, 40),
        whole=st.sampled_from([1, 8, 16, 32]),
        activation=st.sampled_from(Activation),
        density=st.sampled_from([0.0, 0.3, 1.0]),
        edge=st.sampled_from(EDGES),
    )
    def collect(
        shape: tuple[int, int],
        batch: int,
        more: int,
        whole: int,
        activation: Activation,
        density: float,
        edge: Edge,
    ) -> None:
        matrix = SparseMatrix(block_weights(shape, density))
        pitch = -(-(batch + more) // whole) * whole
        spec = spec_of(row, matrix, batch, Layout.FEATURE_MAJOR, activation, pitch)
        check_one = partial(check, compiled(row, spec, matrix), spec, matrix, edge)
        checks.append((f"{shape}, {spec.case}, {density}, {edge}", check_one))

    collect()
    run_in_child(checks).assert_clean()


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("row", PANELS, ids=lambda row: row.name)
def test_panels_take_one_layout_to_the_other(row: Template, layout: Layout) -> None:
    checks = []
    for number, batch in enumerate((2, 8, 15, 16, 17, 60, 64, 65, 124, 165)):
        matrix = SparseMatrix(block_weights((37, 21 + 30 * (number % 3)), 0.3))
        spec = spec_of(row, matrix, batch, layout, Activation.TANH)
        other = next(each for each in Layout if each is not layout)
        spec = replace(spec, result_layout=other, padded_to=spread_pitch(batch))
        kernel = compiled(row, spec, matrix)
        checks += [
            (f"{spec.case} {edge}", partial(check, kernel, spec, matrix, edge)) for edge in EDGES
        ]
    run_in_child(checks).assert_clean()


# The repeated kernel is given a column that lies by itself: it cannot see the pitch of x.
CHUNKS = [
    pytest.param(row, layout, pitch, id=f"{row.name}-{layout.value}-{pitch}")
    for rows, layout, pitch in (
        (RUNNABLE, Layout.BATCH_MAJOR, None),
        (RUNNABLE, Layout.FEATURE_MAJOR, 165),
        (KINDS, Layout.FEATURE_MAJOR, 176),
    )
    for row in rows
]


@pytest.mark.parametrize(("row", "layout", "pitch"), CHUNKS)
def test_every_template_with_several_chunks(
    row: Template, layout: Layout, pitch: int | None
) -> None:
    """Two full chunks of 64 columns, a shorter one, and columns left over."""
    matrix = SparseMatrix(block_weights((37, 21), 0.3))
    spec = spec_of(row, matrix, 165, layout, Activation.NONE, pitch)
    kernel = compiled(row, spec, matrix)
    checks = [(edge, partial(check, kernel, spec, matrix, edge)) for edge in EDGES]
    run_in_child(checks).assert_clean()


@pytest.mark.parametrize("row", KINDS, ids=lambda row: row.name)
def test_tiles_without_weights(row: Template) -> None:
    """Most rows are empty, and panels enough for each to ask for rows that the next tile needs."""
    weights = block_weights((90, 21), 0.3)
    weights[5:80] = 0
    matrix = SparseMatrix(weights)
    checks = []
    for layout in Layout:
        spec = spec_of(row, matrix, 96, layout, Activation.NONE)
        kernel = compiled(row, spec, matrix)
        checks += [(f"{layout} {e}", partial(check, kernel, spec, matrix, e)) for e in EDGES]
    run_in_child(checks).assert_clean()


@pytest.mark.parametrize("row", WITH_PANELS, ids=lambda row: row.name)
def test_every_batch_of_many_inputs(row: Template) -> None:
    """A copy of x that exceeds L1 has padding lines: 301 inputs from 44 columns on, 1700 from 8."""
    many = SparseMatrix(block_weights((20, 301), 0.05))
    most = SparseMatrix(block_weights((3, 1700), 0.05))
    cases = [(many, batch) for batch in (*range(2, 71), 127, 191)]
    checks = []
    for matrix, batch in (*cases, (most, 9), (most, 15), (most, 17)):
        spec = spec_of(row, matrix, batch, Layout.FEATURE_MAJOR, Activation.NONE)
        kernel = compiled(row, spec, matrix)
        edge = EDGES[batch % 2]
        checks.append((f"batch {batch}, {edge}", partial(check, kernel, spec, matrix, edge)))
    run_in_child(checks).assert_clean()


ROUNDED = [1 + 2.0**-8, 1 + 3 * 2.0**-8, -3.0, 2.0**-126, 1e30, 255.5, 0.1, -0.0]


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("row", [each for each in KINDS if each.family == "dense-pairs"])
def test_pairs_round_x_to_nearest_and_ties_to_even(row: Template, layout: Layout) -> None:
    """Each result is one element of x, or its negative."""
    matrix = SparseMatrix(np.diag([1, -1] * 4).astype(np.float32))
    spec = MatMul(MatVec(8, 8, dtype=row.dtype), 3, layout)
    x = np.tile(np.array(ROUNDED, np.float32), (3, 1))
    given = np.ascontiguousarray(x if layout is Layout.BATCH_MAJOR else x.T)
    y = np.empty_like(given)
    compiled(row, spec, matrix).function(2)(given.ctypes.data, y.ctypes.data)
    wanted = reference.round_to_bfloat16(x) * np.array([1, -1] * 4, np.float32)
    assert (wanted != x * np.array([1, -1] * 4)).any()
    np.testing.assert_array_equal(y if layout is Layout.BATCH_MAJOR else y.T, wanted)


@pytest.mark.parametrize("offset", [0, 4, 32])
@pytest.mark.parametrize("row", KINDS, ids=lambda row: row.name)
@pytest.mark.parametrize(
    ("batch", "pitch", "in_features"),
    [(32, None, 50), (80, None, 50), (33, 48, 50), (5, 16, 50), (400, None, 700)],
)
def test_x_may_lie_anywhere(
    row: Template, batch: int, pitch: int | None, in_features: int, offset: int
) -> None:
    """Feature-major x of whole panels is used where it lies if aligned, else copied.

    The last one exceeds the workspace, so it is used as it is even then.
    """
    matrix = SparseMatrix(block_weights((30, in_features), 15 / in_features))
    spec = spec_of(row, matrix, batch, Layout.FEATURE_MAJOR, Activation.RELU, pitch)
    values = x_for(spec, 3)
    room = np.zeros(values.size + 32, np.float32)
    start = (-room.ctypes.data % 64 + offset) // 4
    x = room[start : start + values.size].reshape(values.shape)
    x[:] = values
    y = np.empty(spec.y_shape, np.float32)
    compiled(row, spec, matrix).function(2)(x.ctypes.data, y.ctypes.data)
    found, expected = (columns(spec, each) for each in (y, reference.matmul(spec, matrix, values)))
    # A kernel with an index in the weight changes it by 2^-19 at most.
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_x_is_copied_where_its_rows_fall_into_few_sets_of_the_cache() -> None:
    """Lines of a panel may be twice what L1 holds of their sets, not more: so are 256 features."""
    target, dense = Target.named("avx512"), SparseMatrix(np.ones((2, 256)))
    row = next(row for row in MATMUL_TEMPLATES if row.name == "f32-panels-avx512")
    stays = {
        pitch: row.expect(MatMul(MatVec(2, 256), 60, Layout.FEATURE_MAJOR, pitch), dense, target)
        for pitch in (None, 63, 64, 80, 96, 128, 144, 256)
    }
    assert [pitch for pitch, counts in stays.items() if counts.x_stays] == [64, 80, 96, 144]


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_padding_costs_no_more_than_the_columns_it_fills(isa: str) -> None:
    """Nothing is copied with padding, so no batch costs more than the next that fills vectors."""
    target, matrix = Target.named(isa), SparseMatrix(block_weights((256, 256), 0.1, block_rows=1))

    def ns(batch: int, pitch: int | None) -> float:
        spec = MatMul(MatVec(256, 256), batch, Layout.FEATURE_MAJOR, pitch)
        return plan_batch(spec, matrix, target, "panels").chosen.cost.ns

    for batch in (5, 13, 31, 60):
        whole = -(-batch // target.lanes) * target.lanes
        assert ns(batch, whole) == ns(whole, None) < ns(batch, None)


def test_a_column_is_the_same_in_any_batch() -> None:
    """The last panel overlaps the one before it where a batch is no whole number of panels."""
    matrix = SparseMatrix(block_weights((40, 60), 0.3))
    row = next(row for row in KINDS if row.family == "panels")
    values = np.random.default_rng(4).standard_normal((60, 64), np.float32)
    outputs = []
    for batch in (45, 64):
        spec = spec_of(row, matrix, batch, Layout.FEATURE_MAJOR, Activation.TANH)
        x, y = np.ascontiguousarray(values[:, :batch]), np.empty(spec.y_shape, np.float32)
        compiled(row, spec, matrix).function(2)(x.ctypes.data, y.ctypes.data)
        outputs.append(y[:, :45])
    np.testing.assert_array_equal(*outputs)


def test_products_are_the_weights_each_once() -> None:
    matrix = SparseMatrix(block_weights((70, 40), 0.2, block_rows=1))
    found = np.zeros(matrix.dense.shape, np.float32)
    for tile in products(matrix.nonzeros, 29):
        assert len(tile.rows) <= 29
        found[tile.rows[tile.accumulator], tile.column] += tile.weight
        uses = np.count_nonzero(matrix.dense[tile.rows], axis=0)
        np.testing.assert_array_equal(tile.alone, uses[tile.column] == 1)
        assert np.count_nonzero(tile.first) == np.count_nonzero(uses)
    np.testing.assert_array_equal(found, matrix.dense)


def test_tiles_group_rows_that_share_inputs() -> None:
    """Rows of two kinds in turn, with no input in common: each tile holds one kind."""
    weights = np.zeros((40, 20), np.float32)
    weights[::2, :10] = weights[1::2, 10:] = 1
    tiles = products(SparseMatrix(weights).nonzeros, 20)
    assert [len(np.unique(tile.rows % 2)) for tile in tiles] == [1, 1]


def test_no_two_rows_would_better_be_in_each_others_tiles() -> None:
    matrix = SparseMatrix(block_weights((36, 40), 0.15, block_rows=1))
    tiles = [tile.rows for tile in products(matrix.nonzeros, 12)]

    def loads(groups: list[np.ndarray]) -> float:
        """An input used once comes with its product and costs less than one used more often."""
        uses = [np.count_nonzero(matrix.dense[rows], axis=0) for rows in groups]
        return sum(0.6 * np.sum(n > 0) + 0.4 * np.sum(n > 1) for n in uses)

    for a, b in combinations(tiles, 2):
        now = loads([a, b])
        for i, j in product(range(len(a)), range(len(b))):
            c, d = a.copy(), b.copy()
            c[i], d[j] = b[j], a[i]
            assert loads([c, d]) > now - 1e-6


def test_tiles_are_of_nearly_equal_size() -> None:
    assert [len(rows) for rows in tile_rows(60, 29)] == [20, 20, 20]


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_the_predicted_time_never_falls_much_as_the_batch_grows(isa: str, layout: Layout) -> None:
    matrix = SparseMatrix(block_weights((256, 256), 0.1, block_rows=1))
    each = MatVec(256, 256)
    target = Target.named(isa)
    plans = [plan_batch(MatMul(each, n, layout), matrix, target) for n in range(2, 65)]
    times = [plan.chosen.cost.ns for plan in plans]
    # A feature-major x of whole panels need not be copied: 64 columns take less time than 63.
    least = 0.9 if layout is Layout.BATCH_MAJOR else 0.84
    assert all(later >= least * max(times[: n + 1]) for n, later in enumerate(times[1:]))


def test_small_batches_repeat_and_large_ones_take_panels() -> None:
    matrix = SparseMatrix(block_weights((256, 256), 0.1, block_rows=1))
    target = Target.named("avx512")
    families = {
        batch: plan_batch(MatMul(MatVec(256, 256), batch), matrix, target).chosen.template.family
        for batch in (2, 16, 17, 64)
    }
    assert families == {2: "rows", 16: "panels", 17: "mixed", 64: "panels"}


def test_a_layer_too_large_for_the_workspace_is_repeated() -> None:
    weights = np.zeros((3, 100_000), np.float32)
    matrix, each = SparseMatrix(weights), MatVec(*weights.shape)
    target = Target.named("avx2")
    choice = plan_batch(MatMul(each, 16), matrix, target)
    families = {candidate.template.family for candidate in choice.candidates}
    assert families == {"rows", "csr", "dense"}
    integers = MatMul(MatVec(*weights.shape, dtype=DType.INT8), 16, Layout.FEATURE_MAJOR)
    assert plan_batch(integers, matrix, target).chosen.template.family == "csr"
    panels = next(row for row in MATMUL_TEMPLATES if row.family == "panels" and row.isa == "avx2")
    with pytest.raises(CompileError, match=r"3x100000 layer needs more than.*strategy='rows'"):
        panels.emit(Assembler(target), panels.lower(MatMul(each, 16), matrix, target))


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_dense_code_is_for_what_has_no_zeros(isa: str, layout: Layout) -> None:
    target = Target.named(isa)
    families = {}
    for density in (0.1, 1.0):
        for shape in ((512, 512), (784, 512), (256, 1024), (300, 200)):
            matrix = SparseMatrix(block_weights(shape, density, 1))
            choice = plan_batch(MatMul(MatVec(*shape), 64, layout), matrix, target)
            families.setdefault(density, set()).add(choice.chosen.template.family)
    assert families == {0.1: {"panels"}, 1.0: {"dense"}}


def test_panels_exist_for_every_dtype() -> None:
    """int8 by float32 as far as its sums are exact."""
    target = Target.named("avx2")
    for dtype, short in ((DType.BFLOAT16, "bf16"), (DType.INT8, "int8")):
        spec = MatMul(MatVec(20, 20, dtype=dtype), 16)
        choice = plan_batch(spec, SparseMatrix(np.eye(20)), target, "panels")
        assert choice.chosen.template.name == f"{short}-panels-avx2"
    spec = MatMul(MatVec(2, 1041, dtype=DType.INT8), 16)
    with pytest.raises(InvalidInput, match="'panels' has no kernel for int8 and batch 16"):
        plan_batch(spec, SparseMatrix(np.ones((2, 1041))), target, "panels")


def test_an_unknown_strategy_is_named_with_the_known() -> None:
    spec, matrix = MatMul(MatVec(3, 3), 2), SparseMatrix(np.eye(3))
    with pytest.raises(InvalidInput, match="'fast' is unknown; use one of auto, panels"):
        plan_batch(spec, matrix, Target.named("avx2"), "fast")


def test_code_beyond_the_caches_is_not_taken() -> None:
    """4096x4096 at 90 % zero: panels would be 16 MB of code, a loop is data."""
    weights = np.zeros((4096, 4096), np.float32)
    weights[:, ::10] = 1
    spec = MatMul(MatVec(4096, 4096), 16)
    choice = plan_batch(spec, SparseMatrix(weights), Target.named("avx512"))
    assert choice.chosen.template.family == "csr"
