"""int8 kernels: integers bit for bit, outputs against the oracle, and the error of quantising."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matvec_checks import block_weights, check, compile_kernel, target_of, templates_of

from sparsejit.api.kernels.compile_layer import compile_matrix
from sparsejit.asm_templates.dense_product import int8_dense
from sparsejit.asm_templates.families import MATVEC_TEMPLATES, Template
from sparsejit.asm_templates.gather.int8_boundary import LANES
from sparsejit.asm_templates.gather.int8_layout import ACCUMULATORS, RUN_ROWS
from sparsejit.asm_templates.gather.int8_permute import (
    MOST_FOLD,
    fold_of,
    index_sharing_rows,
    lower_for,
)
from sparsejit.asm_templates.scheduling.covering import Covering, Demand, registers_in_turn
from sparsejit.asm_templates.scheduling.int8_schedule import PRODUCTS, quad_schedule
from sparsejit.asm_templates.scheduling.row_order import row_panels
from sparsejit.errors import InvalidInput
from sparsejit.ir import reference
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, MatVec, Quantisation
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.voice.speak.wavernn import WaveRNN
from sparsejit.voice.weights import PRUNED
from sparsejit.x86.assembler import Assembler

FloatArray = npt.NDArray[np.float32]

needs_vnni = pytest.mark.skipif(
    not {"avx512vl", "avx512_vnni"} <= Target.detect().instruction_sets,
    reason="needs AVX-512 VL and VNNI",
)
FAMILIES = ("int8-permute", "int8-single", "int8-staged", "int8-dense", "int8-pairs")
every_template = pytest.mark.parametrize(
    "row", [row for family in FAMILIES for row in templates_of(family)]
)
PERMUTE = [*templates_of("int8-permute"), *templates_of("int8-single")]
VNNI = Target.named("avx512")  # as far as counting steps goes


def outputs(
    row: Template, spec: MatVec, weights: FloatArray, x: FloatArray, target: Target | None = None
) -> FloatArray:
    """The kernel's result for x."""
    memory = ExecutableMemory(compile_kernel(row, spec, SparseMatrix(weights), target).data)
    y = np.full(spec.out_features, np.nan, np.float32)
    memory.function(2)(x.ctypes.data, y.ctypes.data)
    return y


def int8_spec(weights: FloatArray, input_scale: float | None = None, **more: object) -> MatVec:
    steps = None if input_scale is None else Quantisation(input_scale, 0, symmetric=True)
    return MatVec(*weights.shape, dtype=DType.INT8, **{"x_steps": steps, **more})


def integer_weights(shape: tuple[int, int], block_rows: int) -> FloatArray:
    """Whole numbers of which the largest in each row is 127, so that its scale is 1."""
    weights = np.rint(100 * block_weights(shape, 0.3, block_rows)).clip(-127, 127)
    weights[:, shape[1] // 2] = 127
    return weights.astype(np.float32)


@every_template
@pytest.mark.parametrize("block_rows", [1, 8, 16])
@pytest.mark.parametrize("shape", [(5, 3), (100, 70), (128, 300), (300, 1900)])
def test_sums_of_integers_are_exact(row, shape, block_rows):
    weights = integer_weights(shape, block_rows)
    x = np.random.default_rng(2).integers(-127, 128, shape[1]).astype(np.float32)
    exact = weights.astype(np.int64) @ x.astype(np.int64)
    assert np.abs(exact).max() < 2**24
    np.testing.assert_array_equal(outputs(row, int8_spec(weights, 1.0), weights, x), exact)


@every_template
@pytest.mark.parametrize("x", [-128.0, 127.0, 0.0])
def test_the_largest_products_are_exact(row, x):
    """All of one sign in a lane, so that any saturation would show; rows of 1 to 300 inputs."""
    weights = np.where(np.arange(300) % 7 == np.arange(40)[:, None] % 7, 127, -127)
    weights[::3] = 127 * (np.arange(300) <= 8 * np.arange(40)[::3, None])
    spec = int8_spec(weights, x_steps=Quantisation(1.0, 0))
    exact = weights @ np.full(300, int(x))
    found = outputs(row, spec, np.float32(weights), np.full(300, x, np.float32))
    np.testing.assert_array_equal(found, exact)


@needs_vnni
@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 300), st.integers(1, 700)),
    input_scale=st.sampled_from([None, 0.02]),
    biased=st.booleans(),
    activation=st.sampled_from(list(Activation)),
)
def test_dense_layers_by_quads_of_avx_vnni(shape, input_scale, biased, activation):
    """By the same instruction in its longer encoding, which more processors have."""
    narrow = Target.named("avx2")
    target = replace(narrow, instruction_sets=narrow.instruction_sets | {"avx_vnni"})
    row = next(row for row in MATVEC_TEMPLATES if row.name == "int8-dense-avx2")
    generator = np.random.default_rng(sum(shape))
    weights, x = (generator.standard_normal(size, np.float32) for size in (shape, shape[1]))
    bias = generator.standard_normal(shape[0], np.float32) if biased else None
    spec = int8_spec(weights, input_scale, bias=bias, activation=activation)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(int8_dense, "VEX", replace(int8_dense.VEX, multiply="vpdpbusd"))
        found = outputs(row, spec, weights, x, target)
    expected = reference.matvec(spec, SparseMatrix(weights), x)
    scale = max(1.0, float(np.abs(expected).max()))
    assert np.abs(found - expected).max() < 1e-6 * scale


def test_a_processor_with_quads_uses_them():
    narrow = Target.named("avx2")
    target = replace(narrow, instruction_sets=narrow.instruction_sets | {"avx_vnni"})
    weights = block_weights((40, 70), 1.0)
    row = next(row for row in MATVEC_TEMPLATES if row.name == "int8-dense-avx2")
    for each, used, other in (
        (target, "{vex} vpdpbusd", "vpmaddubsw"), (narrow, "vpmaddubsw", "vpdpbusd")
    ):  # fmt: skip
        asm = Assembler(each)
        row.emit(asm, row.lower(int8_spec(weights), SparseMatrix(weights), each))
        text = "\n".join(asm.finish().listing())
        assert used in text and other not in text


@every_template
@pytest.mark.parametrize("shift", [None, 0, -128, 57, 127])
def test_every_value_of_x_is_quantised_as_specified(row, shift):
    """One input an output: y is that input's integer. Halves go to even, what is beyond is cut.

    With a shift -128 is among them.
    """
    halves = np.arange(-130, 130.25, 0.25, np.float32)
    extremes = np.float32([0.0, -0.0, 1e-30, 2.0**31, -(2.0**31), 3e38, -3e38, np.inf, -np.inf])
    x = np.concatenate([halves, np.nextafter(halves, np.float32(np.inf)), extremes])
    weights = np.diag(np.full(len(x), 127, np.float32))
    least = -127 if shift is None else -128
    expected = 127 * (np.rint(x) + (shift or 0)).clip(least, 127)
    spec = int8_spec(weights, x_steps=Quantisation(1.0, shift or 0, symmetric=shift is None))
    np.testing.assert_array_equal(outputs(row, spec, weights, x), expected)


@every_template
@settings(max_examples=30, deadline=None)
@given(
    out_features=st.integers(1, 300),
    in_features=st.integers(1, 2000),
    block_rows=st.sampled_from([1, 8, 16]),
    density=st.sampled_from([0.02, 0.1, 0.5]),
    biased=st.booleans(),
    activation=st.sampled_from(list(Activation)),
    input_scale=st.sampled_from([None, 0.02, 1e-4, 3.0]),
    shift=st.sampled_from([None, 0, -128, 90]),
    seed=st.integers(0, 2**32 - 1),
)
def test_random_layers(
    row, out_features, in_features, block_rows, density, biased, activation, input_scale, shift,
    seed,
):
    generator = np.random.default_rng(seed)
    weights = block_weights((out_features, in_features), density, block_rows, seed)
    bias = generator.standard_normal(out_features, np.float32) if biased else None
    x = generator.standard_normal(in_features, np.float32)
    spec = int8_spec(weights, input_scale, bias=bias, activation=activation)
    if input_scale is not None:
        steps = Quantisation(input_scale, shift or 0, symmetric=shift is None)
        spec = replace(spec, x_steps=steps)
    expected = reference.matvec(spec, SparseMatrix(weights), x)
    scale = max(1.0, float(np.abs(expected).max()))
    assert np.abs(outputs(row, spec, weights, x) - expected).max() < 1e-6 * scale


@every_template
def test_nothing_but_zeros(row):
    weights, bias = block_weights((70, 90), 0.5), np.linspace(-1, 1, 70, dtype=np.float32)
    nothing = np.zeros(90, np.float32)
    y = outputs(row, int8_spec(weights, bias=bias), weights, nothing)
    np.testing.assert_array_equal(y, bias)
    x = np.ones(90, np.float32)
    np.testing.assert_array_equal(outputs(row, int8_spec(weights * 0), weights * 0, x), 0)


@every_template
def test_nan_spoils_every_output_with_a_dynamic_scale(row):
    weights = block_weights((40, 100), 0.5)
    x = np.ones(100, np.float32)
    x[37] = np.nan
    assert np.isnan(outputs(row, int8_spec(weights), weights, x)).all()
    x[37] = -np.inf
    assert not np.isfinite(outputs(row, int8_spec(weights), weights, x)).any()


# 133,144 times 127 * 127 is the most that int32 holds.
MOST_ONES = (2**31 - 1) // 127**2


@pytest.mark.parametrize("row", PERMUTE)
def test_the_largest_sum_that_fits(row):
    halves = np.full((1, MOST_ONES), 0.5, np.float32)  # 127 steps each
    y = outputs(row, int8_spec(halves, 1 / 127), halves, np.ones(MOST_ONES, np.float32))
    np.testing.assert_allclose(y, MOST_ONES / 2, rtol=1e-6)


@every_template
def test_a_row_whose_sum_may_overflow_is_named(row):
    too_many = np.zeros((3, MOST_ONES + 1), np.float32)
    too_many[1] = -0.5
    with pytest.raises(InvalidInput, match=r"weights\[1\] has 133145 nonzeros"):
        compile_kernel(row, int8_spec(too_many), SparseMatrix(too_many))


@pytest.mark.parametrize("row", PERMUTE)
@pytest.mark.parametrize("block_rows", [1, 8, 16])
def test_folded_batches_from_beyond_l2_and_what_is_left_over(row, block_rows):
    weights = block_weights((RUN_ROWS * (MOST_FOLD + 1) + 30, 2700), 0.3, block_rows)
    assert fold_of(SparseMatrix(weights), target_of(row)) == MOST_FOLD
    assert len(row_panels(len(weights), LANES, ACCUMULATORS, MOST_FOLD)) == 3
    bias = np.linspace(-1, 1, len(weights), dtype=np.float32)
    check(row, weights, bias, Activation.TANH)


@pytest.mark.parametrize("row", PERMUTE)
@pytest.mark.parametrize(("block_rows", "index_bytes"), [(1, 64), (8, 8), (16, 4)])
def test_blocks_share_indices(row, block_rows, index_bytes):
    weights = block_weights((256, 256), 0.2, block_rows)
    matrix = SparseMatrix(weights)
    assert index_sharing_rows(matrix) == block_rows
    steps = steps_of(1 if row.family == "int8-single" else 2, matrix)
    pool_bytes = compile_kernel(row, int8_spec(weights, 1.0), matrix).pool_bytes
    assert 0 < pool_bytes - steps * (64 + index_bytes) < 256 * 20


def steps_of(sources: int, matrix: SparseMatrix) -> int:
    """Steps of the kernel that pick from that many registers."""
    spec = MatVec(matrix.out_features, matrix.in_features, dtype=DType.INT8)
    return lower_for("int8-permute", sources, spec, matrix, VNNI).layout.steps


@pytest.mark.parametrize("row", PERMUTE)
@pytest.mark.parametrize("shape", [(16, 64), (64, 576), (300, 100), (200, 1000)])
@pytest.mark.parametrize("density", [0.03, 0.1, 0.3])
def test_steps_are_expected_about_as_they_become(row, shape, density):
    weights = block_weights(shape, density, block_rows=1)
    spec, matrix = int8_spec(weights), SparseMatrix(weights)
    counts = row.expect(spec, matrix, VNNI), row.lower(spec, matrix, VNNI).counts
    expected, made = (sum(part.steps for part in each.work) for each in counts)
    assert 0.8 * made <= expected <= 1.25 * made


@settings(max_examples=30, deadline=None)
@given(
    sets=st.integers(1, 3),
    lanes=st.sampled_from([1, 2, 16, 64]),
    window=st.integers(1, 5),
    density=st.floats(0, 1),
    tries=st.sampled_from([1, 3]),
    seed=st.integers(0, 1000),
)
def test_a_schedule_takes_every_nonzero_once(sets, lanes, window, density, tries, seed):
    used = np.random.default_rng(seed).random((sets * lanes, window * 8)) < density
    demand = Demand.of(used, lanes, 8, window)
    covered(used, lanes, quad_schedule(demand, tries))
    alone = registers_in_turn(demand, PRODUCTS)
    covered(used, lanes, alone)
    assert np.array_equal(alone.first, alone.second)
    assert len(alone.problem) == np.ceil(demand.count.max(axis=1) / PRODUCTS).sum()


def covered(used: npt.NDArray[np.bool_], lanes: int, schedule: Covering) -> None:
    """Assert that a schedule takes every nonzero once, in its lane, from a named register."""
    _, columns = np.nonzero(used)
    rows = np.nonzero(used)[0]
    numbers = schedule.taken[schedule.taken >= 0]
    assert sorted(numbers) == list(range(len(columns)))
    for step, lane, number in _taken(schedule):
        assert rows[number] == schedule.problem[step] * lanes + lane
        assert columns[number] // 8 in (schedule.first[step], schedule.second[step])
    assert np.all((schedule.taken >= 0).any(axis=(1, 2))), "a step in which every lane is idle"


def _taken(schedule: Covering) -> Iterator[tuple[int, int, int]]:
    for step, lane, slot in zip(*np.nonzero(schedule.taken >= 0), strict=True):
        yield step, lane, schedule.taken[step, lane, slot]


@pytest.mark.parametrize(("density", "least_use"), [(0.05, 0.6), (0.1, 0.75), (0.3, 0.8)])
def test_lanes_are_mostly_busy(density, least_use):
    matrix = SparseMatrix(block_weights((256, 512), density, block_rows=1))
    assert matrix.nnz > least_use * steps_of(2, matrix) * 16 * PRODUCTS


def relative_error(weights: FloatArray, x: FloatArray, input_scale: float | None) -> float:
    """RMS of int8's error over the RMS of the float64 output."""
    exact = weights.astype(np.float64) @ x
    y = compile_matrix(weights, dtype="int8", input_scale=input_scale)(x)
    return float(np.sqrt(np.mean((y - exact) ** 2) / np.mean(exact**2)))


@pytest.mark.parametrize("density", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("input_scale", [None, 1 / 127])
def test_layers_like_trained_ones_lose_less_than_one_percent(density, input_scale):
    """Weights pruned by magnitude, a GRU's state as input."""
    generator = np.random.default_rng(4)
    weights = generator.standard_normal((768, 256), np.float32)
    weights[np.abs(weights) < np.quantile(np.abs(weights), 1 - density)] = 0
    state = np.tanh(generator.standard_normal(256, np.float32))
    assert relative_error(weights, state, input_scale) < 0.01


def test_the_bundled_voice_loses_less_than_one_percent():
    """Its layers on states as its GRU has them: most units near -1 or 1."""
    weights = WaveRNN.from_pretrained().weights
    generator = np.random.default_rng(5)
    state = np.tanh(1.5 * generator.standard_normal(weights.hidden_size, np.float32))
    recurrent, dense, output = (weights.tensors[name] for name in PRUNED)
    hidden = np.maximum(dense @ state, 0)
    for layer, x, input_scale in (
        (recurrent, state, 1 / 127),
        (dense, state, 1 / 127),
        (output, hidden, None),
    ):
        assert relative_error(layer, x, input_scale) < 0.01


def test_an_unusable_scale_is_refused():
    weights = np.eye(4, dtype=np.float32)
    for input_scale in (0.0, -1.0, np.nan, np.inf, 1e-40):
        with pytest.raises(InvalidInput, match="input_scale="):
            compile_matrix(weights, dtype="int8", input_scale=input_scale)
    with pytest.raises(InvalidInput, match="only dtype='int8'"):
        compile_matrix(weights, input_scale=1 / 127)


@pytest.mark.parametrize("target", ["avx2", "avx512", "native"])
def test_every_target_has_an_int8_kernel(target):
    if target == "avx512" and Target.detect().isa != "avx512":
        pytest.skip("needs another processor")
    weights, x = block_weights((50, 60), 0.5), np.linspace(-1, 1, 60, dtype=np.float32)
    kernel = compile_matrix(weights, dtype="int8", target=target)
    expected = reference.matvec(kernel.spec, SparseMatrix(weights), x)
    np.testing.assert_allclose(kernel(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("row", PERMUTE)
def test_jumps_to_the_next_instruction_lie_close_together(row):
    image = check(row, block_weights((600, 900), 0.1, 16))
    listed = [text.split(maxsplit=2) for text in image.listing()]
    jumps = [int(position, 16) for position, mnemonic, *_ in listed if mnemonic == "jmp"]
    assert len(jumps) > 10 and np.median(np.diff(jumps)) < 500
