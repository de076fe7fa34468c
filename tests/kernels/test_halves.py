"""float16 batches by AVX512-FP16, native or by `instruction_emulator`."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from guard import EDGES, Edge, GuardedArray, run_in_child
from hypothesis import given, settings
from hypothesis import strategies as st
from instruction_emulator import (
    emulated_instructions,
    halves_are_native,
    halves_target,
    needs_halves,
    run_halves,
)
from matvec_checks import block_weights

import sparsejit
from sparsejit.asm_templates.batch.csr_halves import MOST_INPUTS
from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.errors import InvalidInput
from sparsejit.ir import reference
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, Layout, MatMul, MatVec
from sparsejit.machine.microarchitecture import core_named
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.planner.batch_plan import plan_batch
from sparsejit.selftest.cases import ProductCase, derive
from sparsejit.selftest.examination import bounds
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, rdi, rdx, rsi, zmm

pytestmark = needs_halves

ROW = next(row for row in MATMUL_TEMPLATES if row.family == "halves")


def batch_of(
    shape: tuple[int, int],
    batch: int,
    layout: Layout = Layout.FEATURE_MAJOR,
    activation: Activation = Activation.NONE,
    bias: bool = False,
) -> MatMul:
    values = np.arange(shape[0], dtype=np.float32) % 7 - 3 if bias else None
    return MatMul(MatVec(*shape, values, activation, DType.FLOAT16), batch, layout)


def compiled(spec: MatMul, matrix: SparseMatrix, **caches: int) -> ExecutableMemory:
    asm = Assembler(halves_target(**caches))
    ROW.emit(asm, ROW.lower(spec, matrix, asm.target))
    return native(asm)


def native(asm: Assembler) -> ExecutableMemory:
    asm.emit("vzeroupper")
    asm.emit("ret")
    image = asm.finish()
    assert "avx512_fp16" in image.instruction_sets
    return ExecutableMemory(image.data)


def outputs(spec: MatMul, matrix: SparseMatrix, x: np.ndarray, **caches: int) -> np.ndarray:
    run_halves()
    y = np.full(spec.y_shape, np.nan, np.float32)
    compiled(spec, matrix, **caches).function(2)(x.ctypes.data, y.ctypes.data)
    return y


def whole_numbers(shape: tuple[int, ...], most: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-most, most + 1, shape).astype(np.float32)


def whole_weights(shape: tuple[int, int], density: float, seed: int = 0) -> SparseMatrix:
    """Weights from -2 to 2, whose sums with x from -4 to 4 have at most 11 bits."""
    generator = np.random.default_rng(seed)
    return SparseMatrix(whole_numbers(shape, 2, seed) * (generator.random(shape) < density))


def exact(spec: MatMul, matrix: SparseMatrix, x: np.ndarray) -> np.ndarray:
    return reference.matmul(spec, matrix, x).astype(np.float32)


def checks_at_edges(
    spec: MatMul, matrix: SparseMatrix, **caches: int
) -> list[tuple[str, Callable[[], None]]]:
    """A kernel between inaccessible pages, flush against either, with exact sums."""
    kernel, values = compiled(spec, matrix, **caches), whole_numbers(spec.x_shape, 4, 5)
    expected = exact(spec, matrix, values)
    name = f"{matrix.dense.shape}, {spec.case}, {matrix.nnz}, {caches}"
    return [
        (f"{name}, {edge}", partial(check_guarded, kernel, values, expected, edge))
        for edge in EDGES
    ]


def check_guarded(
    kernel: ExecutableMemory, values: np.ndarray, expected: np.ndarray, edge: Edge
) -> None:
    run_halves()
    x = GuardedArray(values.ravel(), edge)
    y = GuardedArray(np.full(expected.size, np.nan, np.float32), edge)
    kernel.function(2)(x.address, y.address)
    assert x.surroundings_intact() and y.surroundings_intact()
    np.testing.assert_array_equal(x.values, values.ravel())
    np.testing.assert_array_equal(y.values.reshape(expected.shape), expected)


def test_any_shape_and_batch_inside_guard_pages() -> None:
    checks = []

    @settings(max_examples=60, deadline=None, database=None, derandomize=True)
    @given(
        shape=st.tuples(st.integers(1, 60), st.integers(1, 150)),
        batch=st.integers(2, 290),
        layout=st.sampled_from(Layout),
        activation=st.sampled_from([Activation.NONE, Activation.RELU]),
        density=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
        bias=st.booleans(),
        l1d_bytes=st.sampled_from([32 << 10, 4 << 10]),
    )
    def collect(
        shape: tuple[int, int],
        batch: int,
        layout: Layout,
        activation: Activation,
        density: float,
        bias: bool,
        l1d_bytes: int,
    ) -> None:
        spec = batch_of(shape, batch, layout, activation, bias)
        checks.extend(checks_at_edges(spec, whole_weights(shape, density), l1d_bytes=l1d_bytes))

    collect()
    run_in_child(checks).assert_clean()
    assert halves_are_native or checks_execute_emulated()


def checks_execute_emulated() -> bool:
    before = emulated_instructions()
    outputs(batch_of((5, 9), 40), whole_weights((5, 9), 1.0), np.ones((9, 40), np.float32))
    return emulated_instructions() > before


@pytest.mark.parametrize("layout", Layout)
def test_every_number_of_vectors(layout: Layout) -> None:
    """Passes of 1 to 8 vectors, the last of them full or shifted."""
    checks = []
    matrix = whole_weights((9, 70), 0.4)
    for batch in (*range(2, 130, 7), 15, 16, 17, 31, 32, 33, 127, 128, 129, 144, 257):
        checks += checks_at_edges(batch_of((9, 70), batch, layout, bias=True), matrix)
    run_in_child(checks).assert_clean()


def test_rows_may_be_padded_and_outputs_part_of_more() -> None:
    matrix, plain = whole_weights((50, 140), 0.2), batch_of((50, 140), 45)
    x = whole_numbers((140, 45), 4, 6)
    room = np.full((140, 61), np.nan, np.float32)
    room[:, :45] = x
    y = outputs(replace(plain, padded_to=61), matrix, room)
    expected = exact(plain, matrix, x)
    np.testing.assert_array_equal(y[:, :45], expected)
    part = replace(plain, layout=Layout.BATCH_MAJOR, part_of=batch_of((73, 140), 45))
    y = outputs(part, matrix, np.ascontiguousarray(x.T))
    np.testing.assert_array_equal(y[:, :50], expected.T)
    assert np.isnan(y[:-1, 50:]).all()


def errors(y: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.sqrt(np.mean((y - wanted) ** 2) / np.mean(wanted**2)))


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("in_features", [64, 768])
def test_errors_are_below_those_of_pairs_of_bfloat16(in_features: int, positive: bool) -> None:
    """Against float64, on normal data; with x after ReLU sums grow in one direction."""
    shape = (60, in_features)
    matrix, spec = SparseMatrix(block_weights(shape, 0.3, 1)), batch_of(shape, 33)
    x = np.random.default_rng(3).standard_normal(spec.x_shape).astype(np.float32)
    x = np.maximum(x, 0) if positive else x
    wanted = matrix.dense.astype(np.float64) @ x
    rounded = [reference.round_to_bfloat16(each).astype(np.float64) for each in (matrix.dense, x)]
    pairs = errors(rounded[0] @ rounded[1], wanted)
    assert 1e-4 < errors(outputs(spec, matrix, x), wanted) < pairs / 2


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("activation", Activation)
def test_activations_of_exact_sums(activation: Activation, layout: Layout) -> None:
    shape = (23, 60)
    spec, matrix = batch_of(shape, 37, layout, activation, bias=True), whole_weights(shape, 0.5)
    x = whole_numbers(spec.x_shape, 4, 3) / 8
    y = outputs(spec, matrix, x)
    np.testing.assert_allclose(y, exact(spec, matrix, x), rtol=0, atol=1e-6)


def test_sums_round_as_the_caller_says() -> None:
    """Rounded down and up: between these is the exact product, and neither is far."""
    matrix, spec = SparseMatrix(block_weights((20, 90), 0.3, 1)), batch_of((20, 90), 33)
    x = np.random.default_rng(5).standard_normal(spec.x_shape).astype(np.float32)
    halves = x.astype(np.float16).astype(np.float32)  # x itself is rounded to the nearest
    kernel, found = compiled(spec, matrix), []
    for mode in (1, 2):
        asm = Assembler(Target.named("avx512"))
        asm.emit("vldmxcsr", Memory(rdi))
        asm.emit("ret")
        set_mxcsr = ExecutableMemory(asm.finish().data).function(1)
        run_halves()
        y = np.full(spec.y_shape, np.nan, np.float32)
        native_kernel = kernel.function(2)
        control, usual = (np.array([value], np.uint32) for value in (0x1F80 | mode << 13, 0x1F80))
        set_mxcsr(control.ctypes.data)
        native_kernel(halves.ctypes.data, y.ctypes.data)
        set_mxcsr(usual.ctypes.data)
        found.append(y)
    wanted = reference.stored_weights(matrix, DType.FLOAT16) @ halves.astype(np.float64)
    assert np.all(found[0] <= wanted) and np.all(wanted <= found[1])
    assert (found[0] < found[1]).mean() > 0.9
    assert errors(found[0], wanted) < 1e-2 and errors(found[1], wanted) < 1e-2


def test_what_the_selftest_draws_is_within_its_bounds() -> None:
    """Denormals, equal numbers, rows of any density, large and small exponents."""
    held = 0
    for number in range(700):
        case = derive(3, number)
        if not (isinstance(case, ProductCase) and case.dtype is DType.FLOAT16 and case.batch > 1):
            continue
        case = replace(case, strategy=ROW.family, threads=1)
        least, most = bounds(case)
        y = outputs(case.spec, SparseMatrix(case.weights), np.ascontiguousarray(case.x))
        assert np.all((least <= y) & (y <= most)), str(case)
        plain = bounds(replace(case, strategy="csr"))
        held += bool(np.any((y < plain[0]) | (y > plain[1])))
    assert held > 10  # the bounds of other kernels would not do


@pytest.mark.parametrize("exponent", [-130, -126, -60, -20, 15, 60, 126, 127])
@pytest.mark.parametrize("weight_exponent", [-12, 0, 10])
def test_no_magnitude_of_x_overflows_or_loses_digits(exponent: int, weight_exponent: int) -> None:
    """Each column has a scale: its result has the same bits, times a power of two."""
    shape = (20, 100)
    weights = whole_weights(shape, 0.5).dense * np.float32(2.0**weight_exponent)
    matrix, spec = SparseMatrix(weights), batch_of(shape, 35)
    numbers = whole_numbers(spec.x_shape, 4, 1)
    numbers = numbers / 4 if exponent > 120 else numbers
    y = outputs(spec, matrix, (numbers * 2.0**exponent).astype(np.float32))
    wanted = weights.astype(np.float64) @ (numbers * 2.0**exponent)
    fits = np.abs(wanted) < np.finfo(np.float32).max
    assert fits.any()
    steps = 0 if exponent > -126 else 2.0**-149
    np.testing.assert_allclose(y[fits], wanted[fits], rtol=0, atol=steps)
    np.testing.assert_array_equal(y[~fits], np.sign(wanted[~fits]) * np.inf)


def test_the_largest_sums_fit_float16() -> None:
    """All weights and inputs of one sign, just below a power of two: the most that there is."""
    for in_features in (1, 31, 1000):
        shape = (3, in_features)
        weights = np.full(shape, np.float32(1.999))
        for value in (1.9999999, 1.9999999 * 2.0**127, -1.9999999):
            spec = batch_of(shape, 40)
            x = np.full(spec.x_shape, np.float32(value) / np.float32(4 * in_features))
            y = outputs(spec, SparseMatrix(weights), x)
            np.testing.assert_allclose(y, weights.astype(np.float64) @ x, rtol=2e-2)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("layout", Layout)
def test_a_sample_with_no_number_is_nan_and_others_as_they_were(
    value: float, layout: Layout
) -> None:
    matrix, spec = whole_weights((20, 60), 0.2), batch_of((20, 60), 37, layout)
    assert (matrix.dense[:, 21] == 0).any()
    x = whole_numbers((60, 37), 4, 1)
    expected = exact(batch_of((20, 60), 37), matrix, x)
    x[21, 5] = value
    given = x if layout is Layout.FEATURE_MAJOR else np.ascontiguousarray(x.T)
    y = outputs(spec, matrix, given)
    y = y if layout is Layout.FEATURE_MAJOR else y.T
    assert np.isnan(y[:, 5]).all()
    np.testing.assert_array_equal(np.delete(y, 5, 1), np.delete(expected, 5, 1))


def test_a_row_of_zeros_and_a_column_of_zeros() -> None:
    matrix, spec = whole_weights((9, 40), 0.5), batch_of((9, 40), 33, bias=True)
    weights = matrix.dense.copy()
    weights[4] = 0
    x = whole_numbers(spec.x_shape, 4, 2)
    x[:, 7] = 0
    y = outputs(spec, SparseMatrix(weights), x)
    assert spec.bias is not None
    np.testing.assert_array_equal(y[4], np.full(33, spec.bias[4]))
    np.testing.assert_array_equal(y[:, 7], spec.bias)


def test_a_column_is_the_same_in_any_part_of_a_batch() -> None:
    shape = (30, 300)
    matrix, whole = SparseMatrix(block_weights(shape, 0.3, 1)), batch_of(shape, 150)
    x = np.random.default_rng(4).standard_normal(whole.x_shape).astype(np.float32)
    expected = outputs(whole, matrix, x)
    for first, last in ((0, 64), (64, 150), (11, 40)):
        part = replace(batch_of(shape, last - first), part_of=whole)
        y = np.full(whole.y_shape, np.nan, np.float32)
        kernel = compiled(part, matrix).function(2)
        kernel(x.ctypes.data + 4 * first, y.ctypes.data + 4 * first)
        np.testing.assert_array_equal(y[:, first:last], expected[:, first:last])


def planned(target: Target, shape: tuple[int, int] = (768, 768), **more: Any) -> set[str]:
    matrix = SparseMatrix(block_weights(shape, 0.1, 1))
    made = plan_batch(batch_of(shape, 128), matrix, target, **more)
    return {candidate.template.family for candidate in made.candidates}


def test_it_is_chosen_only_where_a_whole_model_is_float16() -> None:
    """And only where the processor has it, and never with exact=True; but it may be asked for."""
    target = replace(halves_target(), core=core_named("golden_cove"))
    lacking = replace(target, instruction_sets=target.instruction_sets - {"avx512_fp16"})
    assert "halves" in planned(target, rounds_x=True)
    assert "halves" in planned(target, strategy="halves")
    for others in (
        planned(target),
        planned(target, rounds_x=True, exact=True),
        planned(lacking, rounds_x=True),
    ):
        assert others and "halves" not in others
    with pytest.raises(InvalidInput, match=r"'halves' has no kernel .* exact=True"):
        planned(target, strategy="halves", exact=True)


def test_it_refuses_more_inputs_than_its_sums_have_room_for() -> None:
    target, matrix = halves_target(), SparseMatrix(np.ones((1, MOST_INPUTS + 1), np.float32))
    spec = batch_of((1, MOST_INPUTS + 1), 32)
    made = plan_batch(spec, matrix, target, rounds_x=True)
    families = {candidate.template.family for candidate in made.candidates}
    assert families and "halves" not in families


# The emulator itself.

MULTIPLIED = (zmm(0), zmm(17), zmm(30))


def multiplied(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c, by `vfmadd231ph` between registers of all three parts of the state."""
    asm = Assembler(halves_target())
    for register, base in zip(MULTIPLIED, (rdx, rdi, rsi), strict=True):
        asm.emit("vmovups", register, Memory(base))
    asm.emit("vfmadd231ph", *MULTIPLIED)
    asm.emit("vmovups", Memory(rdx), MULTIPLIED[0])
    kernel = native(asm).function(3)
    result = np.concatenate([c, np.zeros(-len(c) % 32, np.float16)])
    a, b = (np.concatenate([each, np.zeros(-len(c) % 32, np.float16)]) for each in (a, b))
    run_halves()
    for first in range(0, len(result), 32):
        kernel(*(each[first:].ctypes.data for each in (a, b, result)))
    return result[: len(c)]


def nearest(value: Fraction) -> float:
    """The float16 that is nearest, ties to even; float64 rounds to 11 bits after scaling."""
    if not value:
        return 0.0
    exponent = max(value.numerator.bit_length() - value.denominator.bit_length() - 12, -25)
    while True:
        unit = Fraction(2) ** max(exponent, -24)
        if abs(value) < 2048 * unit:
            break
        exponent += 1
    rounded = round(value / unit) * unit  # ties to even
    return float(rounded) if abs(rounded) < 65520 else float(np.copysign(np.inf, float(rounded)))


def test_multiply_add_rounds_once_to_the_nearest() -> None:
    generator = np.random.default_rng(0)
    bits = generator.integers(0, 1 << 16, (3, 4096)).astype(np.uint16)
    bits[:, :2000] = bits[:, :2000] & 0x83FF | generator.integers(12, 18, (3, 2000)) << 10
    a, b, c = (each.view(np.float16) for each in bits)
    found = multiplied(a, b, c)
    for x, y, z, result in zip(a, b, c, found, strict=True):
        if np.isfinite([x, y, z]).all():
            wanted = nearest(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
            assert float(result) == wanted, (x, y, z)
        else:
            with np.errstate(invalid="ignore"):
                np.testing.assert_equal(float(result), float(x) * float(y) + float(z))


def test_zeros_keep_their_sign_and_addition_reads_memory() -> None:
    zeros = np.array([0.0, 0.0, -0.0, -0.0], np.float16)
    found = multiplied(zeros, np.ones(4, np.float16), np.array([0.0, -0.0] * 2, np.float16))
    np.testing.assert_array_equal(np.signbit(found), [False, False, False, True])
    asm = Assembler(halves_target())
    asm.emit("vmovups", zmm(20), Memory(rdi))
    asm.emit("vaddph", zmm(9), zmm(20), Memory(rdi, 64))
    asm.emit("vmovups", Memory(rsi), zmm(9))
    x = np.random.default_rng(1).standard_normal(64).astype(np.float16)
    y = np.zeros(32, np.float16)
    kernel = native(asm).function(2)
    run_halves()
    kernel(x.ctypes.data, y.ctypes.data)
    wanted = (x[:32].astype(np.float64) + x[32:].astype(np.float64)).astype(np.float16)
    np.testing.assert_array_equal(y, wanted)


def test_a_whole_model_in_float16_and_its_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with exact=True, nor where float16 is chosen layer by layer."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model, x = torch.nn.Linear(300, 200).eval(), torch.randn(96, 300)
    with torch.no_grad():
        model.weight *= torch.rand(model.weight.shape) < 0.25
        wanted = model.double()(x.double()).numpy()
    model = model.float()
    monkeypatch.setattr(Target, "runs_on", lambda self, other: True)
    run_halves()
    target = replace(halves_target(l2_bytes=2 << 20), core=core_named("golden_cove"))

    def compiled_model(**options: Any) -> Any:
        return sparsejit.compile(model, (x,), target=target, free_batch=False, **options)

    def kernels(fast: Any) -> set[str]:
        return {step.kernel for step in fast.parts.variants[0].steps}

    fast = compiled_model(dtype="float16")
    assert kernels(fast) == {ROW.name}
    found = fast(x).numpy()
    assert 1e-4 < errors(found, wanted) < 2e-3
    largest = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert fast.accuracy([x]).error == pytest.approx(largest, rel=0.01)
    for options in ({"dtype": {"*": "float16"}}, {"dtype": "float16", "exact": True}):
        other = compiled_model(**options)
        assert ROW.name not in kernels(other)
        assert errors(other(x).numpy(), wanted) < 3e-4
