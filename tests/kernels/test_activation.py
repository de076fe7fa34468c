"""tanh, sigmoid, ReLU and ReLU6 against float64, over floats of every size."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runnable import ISAS

from sparsejit.asm_templates.shared.activation import (
    COARSE,
    COARSE_LIMIT,
    FINE,
    LIMIT,
    SCRATCH_PER_VECTOR,
    Tanh,
    apply_activation,
)
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.errors import CompileError
from sparsejit.ir import reference
from sparsejit.ir.spec import Activation, Elementwise
from sparsejit.machine.target import Target
from sparsejit.perf.studies.activations import CHUNK, NativeActivation, Sweep, sampled_ranks, sweep
from sparsejit.runtime.program import build
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, rdi, rsi

BOUND = 5e-7
RELATIVE_BOUND = 1e-6  # of tanh, denormals included
RANGES = {Activation.TANH: (-1.0, 1.0), Activation.SIGMOID: (0.0, 1.0)}
CURVES = tuple(RANGES)
EVERY_FLOAT = 2 * 0x7F800000 + 1
SMALLEST_NORMAL = np.finfo(np.float32).tiny


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", CURVES)
def test_error_range_and_oddness_over_floats_of_every_size(
    activation: Activation, isa: str
) -> None:
    result = _sampled(activation, isa)
    assert result.floats > 16_000_000
    assert result.largest_error <= BOUND
    assert (result.low, result.high) == RANGES[activation]
    if activation is Activation.TANH:
        assert result.odd
        assert result.relative_error <= RELATIVE_BOUND


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", CURVES)
def test_the_page_of_errors_is_of_this_code(activation: Activation, isa: str) -> None:
    """A recording over every float: a sample of them must come close to it, never past it."""
    cells = _documented(activation, isa)
    result = _sampled(activation, isa)
    three_digits = 1.005
    worst = float(cells["largest error"])
    assert int(cells["floats"].replace(",", "")) == EVERY_FLOAT
    assert 0.8 * worst <= result.largest_error <= three_digits * worst <= BOUND
    assert cells["range"] == "{:g} to {:g}".format(*RANGES[activation])
    pairs, of_all = int(cells["decreasing pairs"].replace(",", "")), EVERY_FLOAT / result.floats
    assert 0.5 * pairs <= of_all * result.decreasing_pairs <= 2 * pairs
    if activation is Activation.TANH:
        assert cells["odd"] == "yes"
        assert result.relative_error <= three_digits * float(cells["relative error"])
        assert float(cells["relative error"]) <= RELATIVE_BOUND


@cache
def _sampled(activation: Activation, isa: str) -> Sweep:
    native = NativeActivation(activation, isa, CHUNK)
    return sweep(activation, native, sampled_ranks(np.random.default_rng(0)))


def _documented(activation: Activation, isa: str) -> dict[str, str]:
    """The cells of the first table in docs/notes/activations.md, by the names in its head."""
    page = Path(__file__).parents[2] / "docs" / "notes" / "activations.md"
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in page.read_text().splitlines()
        if line.startswith("|")
    ]
    row = next(row for row in rows if row[:2] == [activation.value, isa])
    return dict(zip(rows[0], row, strict=True))


def test_the_sweep_sees_a_step_down_and_a_large_error() -> None:
    def dented(x: np.ndarray) -> np.ndarray:
        return np.where(np.abs(x - 1.0) < 1e-6, 0.5, np.tanh(x)).astype(np.float32)

    around_one = np.arange(CHUNK) + int(np.float32(1.0).view(np.int32)) - CHUNK // 2
    result = sweep(Activation.TANH, dented, [around_one])
    assert result.decreasing_pairs == 1
    assert result.largest_error == pytest.approx(np.tanh(1.0) - 0.5, abs=1e-5)
    assert result.worst_x == pytest.approx(1.0, abs=2e-6)
    assert result.floats == CHUNK
    assert not result.odd


def test_the_sweep_sees_a_large_relative_error() -> None:
    def coarse(x: np.ndarray) -> np.ndarray:
        return (np.rint(np.tanh(x) * 2.0**24) / 2.0**24).astype(np.float32)

    near_zero = np.arange(CHUNK)
    result = sweep(Activation.TANH, coarse, [near_zero])
    assert result.odd and result.largest_error < 1e-7
    assert result.relative_error == 1.0


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=200)
@given(values=st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_any_floats(isa: str, values: list[float]) -> None:
    """NaN, infinities, zeros of either sign and denormals among them."""
    x = np.array(values, np.float32)
    for activation, (low, high) in RANGES.items():
        y = NativeActivation(activation, isa, len(x))(x)
        np.testing.assert_array_equal(np.isnan(y), np.isnan(x))
        numbers = ~np.isnan(x)
        assert np.all((y[numbers] >= low) & (y[numbers] <= high))
        expected = reference.elementwise(Elementwise(len(x), activation), x)
        error = np.abs(y - expected)[numbers]
        assert np.all(error <= BOUND)
        if activation is Activation.TANH:
            assert np.all(error <= RELATIVE_BOUND * np.abs(expected[numbers]))
            opposite = NativeActivation(activation, isa, len(x))(-x)
            assert (-y[numbers]).tobytes() == opposite[numbers].tobytes()


@pytest.mark.parametrize("isa", ISAS)
def test_tanh_of_denormals_is_the_argument_to_the_bit(isa: str) -> None:
    bits = np.unique(np.geomspace(1, 0x00800000, 4000).astype(np.uint32))
    x = np.concatenate([bits, bits | 0x80000000]).astype(np.uint32).view(np.float32)
    assert np.abs(x).max() == SMALLEST_NORMAL
    y = NativeActivation(Activation.TANH, isa, len(x))(x)
    assert y.tobytes() == x.tobytes()


@pytest.mark.parametrize("isa", ISAS)
def test_sigmoid_is_made_of_tanh(isa: str) -> None:
    x = (np.random.default_rng(4).normal(size=5000) * 6).astype(np.float32)
    half = np.float32(0.5)
    tanh = NativeActivation(Activation.TANH, isa, len(x))(x * half)
    sigmoid = NativeActivation(Activation.SIGMOID, isa, len(x))(x)
    np.testing.assert_array_equal(sigmoid, half + half * tanh)


@pytest.mark.parametrize("isa", ISAS)
def test_results_end_at_the_limit(isa: str) -> None:
    limit = np.float32(LIMIT)
    beyond = np.nextafter(limit, np.float32(np.inf))
    for activation, scale in ((Activation.TANH, 1), (Activation.SIGMOID, 2)):
        x = np.array([-beyond, -limit, limit, beyond], np.float32) * np.float32(scale)
        low, high = RANGES[activation]
        y = NativeActivation(activation, isa, len(x))(x)
        np.testing.assert_array_equal(y, [low, low, high, high])


@pytest.mark.parametrize("isa", ISAS)
def test_values_that_must_be_exact(isa: str) -> None:
    largest, infinity = np.finfo(np.float32).max, np.inf
    inputs = [0.0, -0.0, 1.5, -1.5, 20.0, -104.0, largest, -largest, infinity, -infinity]
    expected = {
        Activation.TANH: [0.0, -0.0, None, None, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0],
        Activation.SIGMOID: [0.5, 0.5, None, None, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0],
        Activation.RELU: [0.0, -0.0, 1.5, 0.0, 20.0, 0.0, largest, 0.0, infinity, 0.0],
        Activation.RELU6: [0.0, -0.0, 1.5, 0.0, 6.0, 0.0, 6.0, 0.0, 6.0, 0.0],
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
def test_every_length_of_the_tail_computes_the_same(isa: str) -> None:
    """Around one and two spans of vectors in step, past which a loop begins."""
    target = Target.named(isa)
    span = target.lanes * ((target.vector_registers - 1) // (1 + SCRATCH_PER_VECTOR))
    x = np.random.default_rng(5).normal(size=2 * span + target.lanes).astype(np.float32) * 3
    for activation in CURVES:
        whole = NativeActivation(activation, isa, len(x))(x)
        for rest in range(target.lanes):
            for length in (1 + rest, span + rest, 2 * span + rest):
                y = NativeActivation(activation, isa, length)(x[:length])
                assert y.tobytes() == whole[:length].tobytes()


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
    target: Target, activation: Activation, x: np.ndarray, scratch: int, tanh: Tanh = FINE
) -> np.ndarray:
    def body(asm: Assembler) -> None:
        registers = [vector(asm, number) for number in range(4)]
        places = [target.vector_bytes * number for number in range(4)]
        for register, place in zip(registers, places, strict=True):
            asm.emit("vmovups", register, Memory(rdi, place))
        free = [vector(asm, 4 + number) for number in range(scratch)]
        apply_activation(asm, activation, registers, free, tanh)
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


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("activation", "bound"), [("tanh", 1.25e-4), ("sigmoid", 6.5e-5)])
def test_coarse_functions_are_near(isa: str, activation: str, bound: float) -> None:
    target, kind = Target.named(isa), Activation(activation)
    free = target.vector_registers - 4
    edge = 2 * COARSE_LIMIT
    xs = np.concatenate([np.linspace(-edge, edge, 4064), [-np.inf, np.inf, -30, 30] * 8])
    for x in xs.astype(np.float32).reshape(-1, 4 * target.lanes):
        y = _four_vectors(target, kind, x, free, COARSE)
        assert np.abs(y - reference.ACTIVATIONS[kind](x.astype(float))).max() <= bound


@pytest.mark.parametrize("isa", ISAS)
def test_a_constant_is_in_the_pool_once(isa: str) -> None:
    asm = Assembler(Target.named(isa))
    first = asm.constant(1.5)
    assert asm.constant(1.5).offset == first.offset
    assert asm.constant(1).offset != asm.constant(1.0).offset
