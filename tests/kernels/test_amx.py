"""int8 batches by tiles of AMX, native or by `instruction_emulator`, against the exact oracle."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from guard import EDGES, Edge, GuardedArray, run_in_child
from hypothesis import given, settings
from hypothesis import strategies as st
from instruction_emulator import (
    emulated_instructions,
    is_native,
    needs_tiles,
    run_tiles,
    tile_target,
)
from matvec_checks import block_weights, target_of

from sparsejit.asm_templates.batch import amx, amx_layout
from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.errors import InvalidInput
from sparsejit.ir import reference
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, Layout, MatMul, MatVec, Quantisation
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.planner.batch_plan import plan_batch
from sparsejit.selftest.calling_convention import PATTERNS, UNUSUAL_MXCSR, Checker
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, rax, rdi, rdx, rsi, tmm

pytestmark = needs_tiles

ROW = next(row for row in MATMUL_TEMPLATES if row.family == "int8-tiles")
# Bytes of L2: all of x and the weights; a chunk of 48 columns of 300 inputs; one tile of columns.
L2_BYTES = (2 << 20, 64 << 10, 4 << 10)


def int8_batch(
    shape: tuple[int, int],
    batch: int,
    layout: Layout = Layout.BATCH_MAJOR,
    activation: Activation = Activation.NONE,
    input_scale: float | None = None,
    bias: bool = True,
    shift: int | None = None,
) -> MatMul:
    values = np.linspace(-1, 1, shape[0], dtype=np.float32) if bias else None
    steps = None
    if input_scale is not None:
        steps = Quantisation(input_scale, shift or 0, symmetric=shift is None)
    each = MatVec(*shape, values, activation, DType.INT8, steps)
    return MatMul(each, batch, layout)


def compiled(spec: MatMul, matrix: SparseMatrix, l2_bytes: int = L2_BYTES[0]) -> ExecutableMemory:
    return native(tile_target(l2_bytes=l2_bytes), lambda asm: emit_batch(asm, spec, matrix))


def emit_batch(asm: Assembler, spec: MatMul, matrix: SparseMatrix) -> None:
    amx.emit(asm, amx_layout.lower(spec, matrix, asm.target))


def native(target: Target, body: Callable[[Assembler], None]) -> ExecutableMemory:
    asm = Assembler(target)
    body(asm)
    asm.emit("vzeroupper")
    asm.emit("ret")
    return ExecutableMemory(asm.finish().data)


def outputs(kernel: ExecutableMemory, spec: MatMul, x: np.ndarray) -> np.ndarray:
    run_tiles()
    y = np.full(spec.y_shape, np.nan, np.float32)
    kernel.function(2)(x.ctypes.data, y.ctypes.data)
    return y


def oracle(spec: MatMul, matrix: SparseMatrix, x: np.ndarray) -> np.ndarray:
    """`reference.matmul`, which quantises the weights anew for each column."""
    feature_major = spec.layout is Layout.FEATURE_MAJOR
    weights = reference.stored_weights(matrix, DType.INT8)
    columns = [reference.quantised_input(spec.each, one) for one in (x.T if feature_major else x)]
    y = np.stack([weights @ (integers * np.float64(scale)) for integers, scale in columns])
    y = reference.ACTIVATIONS[spec.each.activation](y if spec.bias is None else y + spec.bias)
    return y.T if feature_major else y


def checks_at_edges(
    spec: MatMul, matrix: SparseMatrix, l2_bytes: int
) -> list[tuple[str, Callable[[], None]]]:
    """A kernel between inaccessible pages, flush against either."""
    kernel = compiled(spec, matrix, l2_bytes)
    values = np.random.default_rng(5).standard_normal(spec.x_shape, np.float32)
    expected = oracle(spec, matrix, values)
    name = f"{matrix.dense.shape}, {spec.case}, {matrix.nnz}, L2 {l2_bytes}"
    return [
        (f"{name}, {edge}", partial(check_guarded, kernel, values, expected, edge))
        for edge in EDGES
    ]


def check_guarded(
    kernel: ExecutableMemory, values: np.ndarray, expected: np.ndarray, edge: Edge
) -> None:
    """Compute between inaccessible pages and compare."""
    run_tiles()
    x = GuardedArray(values.ravel(), edge)
    y = GuardedArray(np.full(expected.size, np.nan, np.float32), edge)
    kernel.function(2)(x.address, y.address)
    assert x.surroundings_intact() and y.surroundings_intact()
    np.testing.assert_array_equal(x.values, values.ravel())
    assert is_native or emulated_instructions() > 0
    scale = max(1.0, float(np.abs(expected).max()))
    assert np.abs(y.values.reshape(expected.shape) - expected).max() < 2e-6 * scale


def test_any_shape_and_batch_inside_guard_pages() -> None:
    checks = []

    @settings(max_examples=50, deadline=None, database=None, derandomize=True)
    @given(
        shape=st.tuples(st.integers(1, 100), st.integers(1, 200)),
        batch=st.integers(2, 90),
        layout=st.sampled_from(Layout),
        activation=st.sampled_from(Activation),
        density=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
        input_scale=st.sampled_from([None, 0.02, 1.0]),
        bias=st.booleans(),
        l2_bytes=st.sampled_from(L2_BYTES),
    )
    def collect(
        shape: tuple[int, int],
        batch: int,
        layout: Layout,
        activation: Activation,
        density: float,
        input_scale: float | None,
        bias: bool,
        l2_bytes: int,
    ) -> None:
        matrix = SparseMatrix(block_weights(shape, density, 8))
        spec = int8_batch(shape, batch, layout, activation, input_scale, bias)
        checks.extend(checks_at_edges(spec, matrix, l2_bytes))

    collect()
    run_in_child(checks).assert_clean()


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("l2_bytes", L2_BYTES)
def test_many_columns_and_strips(layout: Layout, l2_bytes: int) -> None:
    """Several chunks, pairs of tiles of columns, and one left over; the same of outputs."""
    checks = []
    for out_features, batch in ((100, 112), (70, 150), (20, 1024)):
        matrix = SparseMatrix(block_weights((out_features, 300), 0.2, 1))
        spec = int8_batch((out_features, 300), batch, layout)
        checks += checks_at_edges(spec, matrix, l2_bytes)
    run_in_child(checks).assert_clean()


@pytest.mark.parametrize("l2_bytes", L2_BYTES)
def test_rows_may_be_padded_and_outputs_part_of_more(l2_bytes: int) -> None:
    matrix = SparseMatrix(block_weights((50, 140), 0.2, 1))
    plain = int8_batch((50, 140), 45, Layout.FEATURE_MAJOR)
    x = np.random.default_rng(6).standard_normal((140, 45)).astype(np.float32)
    room = np.full((140, 61), np.nan, np.float32)
    room[:, :45] = x
    padded = replace(plain, padded_to=61)
    y = outputs(compiled(padded, matrix, l2_bytes), padded, room)
    expected = oracle(plain, matrix, x)
    np.testing.assert_allclose(y[:, :45], expected, atol=1e-5)
    part = replace(plain, layout=Layout.BATCH_MAJOR, part_of=int8_batch((73, 140), 45))
    y = outputs(compiled(part, matrix, l2_bytes), part, np.ascontiguousarray(x.T))
    np.testing.assert_allclose(y[:, :50], expected.T, atol=1e-5)
    assert np.isnan(y[:-1, 50:]).all()


def test_weights_are_compressed_where_tiles_exceed_l2() -> None:
    matrix = SparseMatrix(block_weights((300, 300), 0.2, 1))
    spec = int8_batch((300, 300), 112)
    for l2_bytes, compressed in zip(L2_BYTES, (False, True, True), strict=True):
        counts = amx_layout.expect(spec, matrix, tile_target(l2_bytes=l2_bytes))
        assert counts.compressed is compressed
        assert (counts.chunks > 1) is compressed
    many = SparseMatrix(np.ones((300, 300), np.float32))
    assert not amx_layout.expect(spec, many, tile_target(l2_bytes=4 << 10)).compressed


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("l2_bytes", L2_BYTES)
def test_sums_of_integers_are_exact(layout: Layout, l2_bytes: int) -> None:
    weights = np.rint(100 * block_weights((90, 300), 0.3, 1)).clip(-127, 127)
    weights[:, 150] = 127  # the largest of each row, so that its scale is 1
    spec = int8_batch(weights.shape, 50, layout, input_scale=1.0, bias=False)
    x = np.random.default_rng(2).integers(-127, 128, spec.x_shape).astype(np.float32)
    columns = (x if layout is Layout.FEATURE_MAJOR else x.T).astype(np.int64)
    exact = weights.astype(np.int64) @ columns
    found = outputs(compiled(spec, SparseMatrix(weights.astype(np.float32)), l2_bytes), spec, x)
    np.testing.assert_array_equal(found if layout is Layout.FEATURE_MAJOR else found.T, exact)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize(("scale", "shift"), [(None, None), (0.01, None), (0.01, -128), (0.01, 9)])
@pytest.mark.parametrize("bias", [False, True])
def test_the_bits_are_those_of_a_column_by_itself(
    layout: Layout, scale: float | None, shift: int | None, bias: bool
) -> None:
    repeating = next(row for row in MATMUL_TEMPLATES if row.name == "int8-rows-pairs-avx512")
    matrix = SparseMatrix(block_weights((50, 130), 0.3, 1))
    spec = int8_batch((50, 130), 37, layout, Activation.TANH, scale, bias, shift)
    x = np.random.default_rng(3).standard_normal(spec.x_shape).astype(np.float32)
    emit = partial(repeating.emit, lowered=repeating.lower(spec, matrix, target_of(repeating)))
    each = outputs(native(target_of(repeating), emit), spec, x)
    np.testing.assert_array_equal(outputs(compiled(spec, matrix), spec, x), each)


@pytest.mark.parametrize("layout", Layout)
def test_every_value_of_x_is_quantised_as_specified(layout: Layout) -> None:
    """One input an output: y is that input's integer. Halves go to even, what is beyond is cut."""
    halves = np.arange(-130, 130.25, 0.25, np.float32)
    extremes = np.float32([0.0, -0.0, 1e-30, 2.0**31, -(2.0**31), 3e38, np.inf, -np.inf, np.nan])
    values = np.concatenate([halves, np.nextafter(halves, np.float32(np.inf)), extremes])[:2100]
    x = np.resize(values, (21, 100))
    weights = np.diag(np.full(100, 127, np.float32))
    expected = 127 * np.nan_to_num(np.rint(x), nan=127).clip(-127, 127)
    spec = int8_batch(weights.shape, 21, layout, input_scale=1.0, bias=False)
    feature_major = layout is Layout.FEATURE_MAJOR
    given_x = np.ascontiguousarray(x.T if feature_major else x)
    found = outputs(compiled(spec, SparseMatrix(weights)), spec, given_x)
    np.testing.assert_array_equal(found.T if feature_major else found, expected)


@pytest.mark.parametrize("layout", Layout)
def test_nan_spoils_its_column_alone(layout: Layout) -> None:
    feature_major = layout is Layout.FEATURE_MAJOR
    x = np.ones((20, 100), np.float32)
    x[7, 37], x[9, 90] = np.nan, -np.inf
    spec = int8_batch((40, 100), 20, layout)
    kernel = compiled(spec, SparseMatrix(block_weights((40, 100), 0.5)))
    y = outputs(kernel, spec, np.ascontiguousarray(x.T if feature_major else x))
    y = y.T if feature_major else y
    assert np.isnan(y[7]).all() and not np.isfinite(y[9]).any()
    assert np.isfinite(np.delete(y, (7, 9), axis=0)).all()


def test_a_row_whose_sum_may_overflow_is_named() -> None:
    too_many = np.zeros((3, 133_145), np.float32)
    too_many[1] = -0.5
    spec = int8_batch(too_many.shape, 4)
    with pytest.raises(InvalidInput, match=r"weights\[1\] has 133145 nonzeros"):
        amx_layout.lower(spec, SparseMatrix(too_many), tile_target())


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("l2_bytes", L2_BYTES)
def test_it_keeps_what_its_caller_may_rely_on(layout: Layout, l2_bytes: int) -> None:
    spec = int8_batch((90, 140), 53, layout, Activation.SIGMOID)
    kernel = compiled(spec, SparseMatrix(block_weights((90, 140), 0.2, 1)), l2_bytes)
    x, y = np.ones(spec.x_shape, np.float32), np.zeros(spec.y_shape, np.float32)
    run_tiles()
    report = Checker(tile_target()).call(kernel.address, x.ctypes.data, y.ctypes.data)
    assert report.registers == PATTERNS
    assert report.problem(UNUSUAL_MXCSR) is None


def configuration(rows: int, row_bytes: int) -> np.ndarray:
    wanted = np.zeros(64, np.uint8)
    wanted[0], wanted[16:32:2], wanted[48:56] = 1, row_bytes, rows
    return wanted


@pytest.mark.parametrize("before", [np.zeros(64, np.uint8), configuration(3, 20)], ids=str)
def test_the_configuration_of_tiles_is_left_as_it_was_found(before: np.ndarray) -> None:
    run_tiles()
    target, after = tile_target(), np.full(64, 7, np.uint8)
    load = native(target, lambda asm: asm.emit("ldtilecfg", Memory(rdi)))
    store = native(target, lambda asm: asm.emit("sttilecfg", Memory(rdi)))
    release = native(target, lambda asm: asm.emit("tilerelease"))
    spec = int8_batch((20, 30), 5)
    kernel = compiled(spec, SparseMatrix(block_weights((20, 30), 0.5)))
    load.function(1)(before.ctypes.data)
    outputs(kernel, spec, np.ones(spec.x_shape, np.float32))
    store.function(1)(after.ctypes.data)
    release.function(0)()
    np.testing.assert_array_equal(after, before)


def test_the_planner_takes_tiles_where_they_exist_and_pay() -> None:
    matrix = SparseMatrix(block_weights((256, 256), 0.1, 1))
    level = tile_target()
    for batch, chosen in ((2, "rows"), (64, "int8-tiles")):
        both = target_of(next(r for r in MATMUL_TEMPLATES if r.name == "int8-rows-permute-avx512"))
        sets = both.instruction_sets | level.instruction_sets
        target = Target(**{**vars(level), "instruction_sets": sets})
        spec = int8_batch((256, 256), batch)
        assert plan_batch(spec, matrix, target).chosen.template.family == chosen
        without = plan_batch(spec, matrix, both)
        assert "int8-tiles" not in {one.template.family for one in without.candidates}


def test_more_inputs_than_the_workspace_holds_are_repeated() -> None:
    spec = int8_batch((3, amx_layout.MOST_INPUTS + 1), 4)
    matrix = SparseMatrix(np.ones((3, spec.in_features), np.float32))
    with pytest.raises(InvalidInput, match="'int8-tiles' has no kernel"):
        plan_batch(spec, matrix, tile_target(), "int8-tiles")


# mnemonic -> whether the left and the right bytes are signed
PRODUCTS = {"tdpbssd": (True, True), "tdpbsud": (True, False), "tdpbusd": (False, True)}


@pytest.mark.parametrize("mnemonic", PRODUCTS)
@pytest.mark.parametrize("sizes", [(16, 64, 16), (3, 20, 7), (1, 4, 1)])
def test_products_of_tiles(mnemonic: str, sizes: tuple[int, int, int]) -> None:
    """Sums (m, n) += left (m, k) right (k / 4, n, 4), modulo 2^32."""
    m, k, n = sizes
    run_tiles()
    random = np.random.default_rng(m)
    left = random.integers(0, 256, (m, k), np.uint8)
    right = random.integers(0, 256, (k // 4, n, 4), np.uint8)
    left[0], right[:, 0] = 128, 128  # the extremes of both readings
    sums = random.integers(-(2**31), 2**31, (m, n)).astype(np.int32)
    wanted = configuration(0, 0)
    for tile, (rows, row_bytes) in enumerate(((m, 4 * n), (m, k), (k // 4, 4 * n))):
        wanted[16 + 2 * tile], wanted[48 + tile] = row_bytes, rows
    wanted[22:32], wanted[51:56] = 0, 0
    types = [np.int8 if signed else np.uint8 for signed in PRODUCTS[mnemonic]]
    a, b = left.view(types[0]).astype(np.int64), right.view(types[1]).astype(np.int64)
    products = a @ b.swapaxes(1, 2).reshape(k, n)
    expected = (sums + products).astype(np.uint64).astype(np.uint32).view(np.int32)

    def body(asm: Assembler) -> None:
        asm.emit("ldtilecfg", Memory(rdi))
        for tile, (base, pitch) in enumerate(((rsi, 4 * n), (rdx, k), (rdi, 4 * n))):
            asm.emit("mov", rax, pitch)
            asm.emit("tileloadd", tmm(tile), Memory(base, 64 * (tile == 2), index=rax))
        asm.emit(mnemonic, tmm(0), tmm(1), tmm(2))
        asm.emit("mov", rax, 4 * n)
        asm.emit("tilestored", Memory(rsi, index=rax), tmm(0))
        asm.emit("tilerelease")

    first = np.concatenate([wanted, right.ravel()])
    found = sums.copy()
    run = native(tile_target(), body).function(3)
    run(first.ctypes.data, found.ctypes.data, left.ctypes.data)
    np.testing.assert_array_equal(found, expected)


def test_a_product_by_hand() -> None:
    """One sum of four: (-1)(2) + (-128)(-128) + (127)(1) + (0)(99) on top of 5."""
    run_tiles()
    wanted = configuration(1, 4)
    operands = np.int8([-1, -128, 127, 0, 2, -128, 1, 99])
    found = np.int32([5])

    def body(asm: Assembler) -> None:
        asm.emit("ldtilecfg", Memory(rdi))
        asm.emit("mov", rax, 4)
        asm.emit("tileloadd", tmm(3), Memory(rsi, index=rax))
        asm.emit("tileloadd", tmm(4), Memory(rdx, index=rax))
        asm.emit("tileloadd", tmm(5), Memory(rdx, 4, index=rax))
        asm.emit("tdpbssd", tmm(3), tmm(4), tmm(5))
        asm.emit("tilestored", Memory(rsi, index=rax), tmm(3))
        asm.emit("tilerelease")

    run = native(tile_target(), body).function(3)
    run(wanted.ctypes.data, found.ctypes.data, operands.ctypes.data)
    assert found.tolist() == [5 - 2 + 16384 + 127]


@pytest.mark.parametrize("line", ["tilezero", "tdpbssd"])
def test_tiles_without_a_configuration_are_refused(line: str) -> None:
    operands = [tmm(n) for n in range(3 if line == "tdpbssd" else 1)]

    def body(asm: Assembler) -> None:
        asm.emit("tilerelease")
        asm.emit(line, *operands)

    memory = native(tile_target(), body)

    def run() -> None:
        run_tiles()
        memory.function(0)()

    assert run_in_child([("without", run)]).signal != 0
