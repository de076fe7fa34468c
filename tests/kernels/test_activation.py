"""tanh, sigmoid and ReLU against float64, over floats of every size."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsejit.asm_templates.shared.activation import SCRATCH_PER_VECTOR, apply_activation
from sparsejit.asm_templates.shared.exponential import COEFFICIENTS
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.errors import CompileError
from sparsejit.ir import reference
from sparsejit.ir.spec import Activation, Elementwise
from sparsejit.machine.target import ISA_LEVELS, Target
from sparsejit.perf.activations import CHUNK, NativeActivation, Sweep, sampled_ranks, sweep
from sparsejit.perf.fit_exp2 import fit_exp2, largest_relative_error
from sparsejit.runtime.program import build
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, rdi, rsi

BOUND = 1e-6
RANGES = {Activation.TANH: (-1.0, 1.0), Activation.SIGMOID: (0.0, 1.0)}
CURVES = tuple(RANGES)
ISAS = [
    pytest.param(
        isa,
        marks=pytest.mark.skipif(
            not Target.named(isa).runs_on(Target.detect()), reason=f"needs {isa}"
        ),
    )
    for isa in ISA_LEVELS
]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", CURVES)
def test_error_range_and_monotony_over_floats_of_every_size(
    activation: Activation, isa: str
) -> None:
    result = sweep(
        activation,
        NativeActivation(activation, isa, CHUNK),
        sampled_ranks(np.random.default_rng(0)),
    )
    assert result.floats > 16_000_000
    assert result.largest_error <= BOUND
    assert result.decreasing_pairs == 0
    assert (result.low, result.high) == RANGES[activation]
    documented = _documented(activation, isa)
    assert documented.floats == 2 * 0x7F800000 + 1 and documented.decreasing_pairs == 0
    assert 0.9 * documented.largest_error <= result.largest_error <= documented.largest_error


def _documented(activation: Activation, isa: str) -> Sweep:
    page = Path(__file__).parents[2] / "docs" / "activations.md"
    cells = next(
        [cell.strip() for cell in row.split("|")[1:-1]]
        for row in page.read_text().splitlines()
        if row.startswith(f"| {activation.value} | {isa} |")
    )
    low, high = cells[6].split(" to ")
    return Sweep(
        int(cells[2].replace(",", "")),
        float(cells[3]) * 1.005,  # three digits are printed
        float(cells[4]),
        int(cells[5]),
        float(low),
        float(high),
    )


def test_the_sweep_sees_a_step_down_and_a_large_error() -> None:
    def dented(x: np.ndarray) -> np.ndarray:
        return np.where(np.abs(x - 1.0) < 1e-6, 0.5, np.tanh(x)).astype(np.float32)

    around_one = np.arange(CHUNK) + int(np.float32(1.0).view(np.int32)) - CHUNK // 2
    result = sweep(Activation.TANH, dented, [around_one])
    assert result.decreasing_pairs == 1
    assert result.largest_error == pytest.approx(np.tanh(1.0) - 0.5, abs=1e-5)
    assert result.worst_x == pytest.approx(1.0, abs=2e-6)
    assert result.floats == CHUNK


@pytest.mark.parametrize("isa", ISAS)
def test_values_that_must_be_exact(isa: str) -> None:
    largest, infinity = np.finfo(np.float32).max, np.inf
    inputs = [0.0, -0.0, 1.5, -1.5, 20.0, -104.0, largest, -largest, infinity, -infinity]
    expected = {
        Activation.TANH: [0.0, -0.0, None, None, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0],
        Activation.SIGMOID: [0.5, 0.5, None, None, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0],
        Activation.RELU: [0.0, -0.0, 1.5, 0.0, 20.0, 0.0, largest, 0.0, infinity, 0.0],
        Activation.NONE: inputs,
    }
    x = np.array(inputs, np.float32)
    for activation, outputs in expected.items():
        exact = np.array([output is not None for output in outputs])
        wanted = np.array(outputs, float)[exact].astype(np.float32)
        y = NativeActivation(activation, isa, len(x))(x)[exact]
        np.testing.assert_array_equal(y, wanted, err_msg=activation.value)
        np.testing.assert_array_equal(np.signbit(y), np.signbit(wanted), err_msg=activation.value)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", Activation)
def test_nan_gives_nan_and_touches_no_other_lane(activation: Activation, isa: str) -> None:
    x = np.random.default_rng(1).normal(size=100).astype(np.float32)
    nan = np.arange(100) % 3 == 0
    bits = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF], np.uint32)
    x[nan] = np.resize(bits, nan.sum()).view(np.float32)
    y = NativeActivation(activation, isa, 100)(x)
    np.testing.assert_array_equal(np.isnan(y), nan)
    expected = reference.elementwise(Elementwise(100, activation), x[~nan])
    assert np.max(np.abs(y[~nan] - expected)) <= BOUND


@pytest.mark.parametrize("isa", ISAS)
@given(
    length=st.integers(1, 700),
    activation=st.sampled_from(Activation),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_arrays_of_any_length(
    isa: str, length: int, activation: Activation, scale: float, seed: int
) -> None:
    x = (np.random.default_rng(seed).normal(size=length) * scale).astype(np.float32)
    y = NativeActivation(activation, isa, length)(x)
    expected = reference.elementwise(Elementwise(length, activation), x)
    assert np.max(np.abs(y - expected)) <= BOUND


@pytest.mark.parametrize("isa", ISAS)
def test_every_division_of_registers_and_scratch_computes_the_same(isa: str) -> None:
    """However many vectors run in step, each result has the same bits."""
    target = Target.named(isa)
    x = np.random.default_rng(2).normal(size=4 * target.lanes).astype(np.float32)
    for activation in CURVES:
        expected = NativeActivation(activation, isa, len(x))(x).tobytes()
        for scratch in range(SCRATCH_PER_VECTOR, target.vector_registers - 4):
            assert _four_vectors(target, activation, x, scratch).tobytes() == expected


def _four_vectors(
    target: Target, activation: Activation, x: np.ndarray, scratch: int
) -> np.ndarray:
    def body(asm: Assembler) -> None:
        registers = [vector(asm, number) for number in range(4)]
        places = [target.vector_bytes * number for number in range(4)]
        for register, place in zip(registers, places, strict=True):
            asm.emit("vmovups", register, Memory(rdi, place))
        free = [vector(asm, 4 + number) for number in range(scratch)]
        apply_activation(asm, activation, registers, free)
        for register, place in zip(registers, places, strict=True):
            asm.emit("vmovups", Memory(rsi, place), register)

    y = np.empty_like(x)
    build("four", target, body).memory.function(2)(x.ctypes.data, y.ctypes.data)
    return y


def test_too_little_scratch_is_refused() -> None:
    asm = Assembler(Target.named("avx2"))
    scratch = [vector(asm, number) for number in range(1, SCRATCH_PER_VECTOR)]
    with pytest.raises(CompileError, match=f"tanh got {len(scratch)} scratch registers"):
        apply_activation(asm, Activation.TANH, [vector(asm, 0)], scratch)


def test_the_polynomial_is_as_good_as_a_fresh_fit_and_monotone() -> None:
    coefficients = np.array(COEFFICIENTS, np.float32)
    fitted = fit_exp2(len(COEFFICIENTS) - 1)
    np.testing.assert_allclose(coefficients, fitted, rtol=1e-4)
    assert largest_relative_error(coefficients) < 1.1e-7
    assert largest_relative_error(coefficients) <= 1.05 * largest_relative_error(fitted)
    assert np.all(coefficients > 0), "Horner's scheme is monotone only for positive coefficients"
    below_one = np.float32(1.0) - np.float32(2.0**-24)
    for end in (below_one, np.float32(1.0)):
        assert np.polyval(coefficients[::-1], end) <= 2.0, "2^t steps down where floor(t) steps up"


@pytest.mark.parametrize("isa", ISAS)
def test_a_constant_is_in_the_pool_once(isa: str) -> None:
    asm = Assembler(Target.named(isa))
    first = asm.constant(1.5)
    assert asm.constant(1.5).offset == first.offset
    assert asm.constant(1).offset != asm.constant(1.0).offset
