"""Functions in float64 of columns of x, against the references."""

from dataclasses import replace

import numpy as np
import pytest
from guard import EDGES, GuardedArray, run_in_child
from hypothesis import given, settings
from hypothesis import strategies as st
from runnable import LEVELS

from sparsejit.asm_templates.pointwise.float64_columns import (
    ColumnScaling,
    DoubleProductSpec,
    emit_double_product,
    emit_scaled_columns,
)
from sparsejit.ir.ops.columns import DoubleProduct, ScaledColumns
from sparsejit.ir.values import Array
from sparsejit.machine.target import Target
from sparsejit.runtime.native_timing import call_native
from sparsejit.runtime.program import build

SEEDS = st.integers(0, 2**32 - 1)


def scaling(rows: int, features: int, outputs: int, dtype: type, seed: int) -> ColumnScaling:
    """Any columns, or the first in order; of seven rows of numbers some do nothing."""
    generator = np.random.default_rng(seed)
    columns = generator.integers(0, features, outputs)
    if generator.integers(2) and outputs <= features:
        columns = np.arange(outputs)
    numbers = generator.standard_normal((6, outputs))
    numbers[0] = np.round(1e6 * numbers[0])
    numbers[3:5] = np.sort(10 * numbers[3:5], axis=0)
    numbers[5] = generator.integers(0, 2, outputs)
    neutral = np.array([0, 1, 0, -np.inf, np.inf, 0])
    plain = generator.random(6) < 0.4
    numbers[plain] = neutral[plain][:, None]
    if generator.integers(2):
        filled = generator.standard_normal((1, outputs))
        filled[:, generator.random(outputs) < 0.5] = np.nan
        numbers = np.concatenate([numbers, filled])
    y_bytes = int(generator.choice([4, 8]))
    return ColumnScaling(rows, features, np.dtype(dtype).itemsize, y_bytes, columns, numbers)


def rows_of(spec: ColumnScaling, dtype: type, seed: int) -> Array:
    """x near the centres, at them, and missing."""
    generator = np.random.default_rng(seed)
    x = 1e6 + generator.standard_normal((spec.rows, spec.features))
    x[:, spec.columns] = spec.numbers[0] + generator.integers(-1, 2, (spec.rows, spec.outputs))
    x[generator.random(x.shape) < 0.1] = np.nan
    return x.astype(dtype)


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@settings(max_examples=25)
@given(
    rows=st.sampled_from([1, 2, 7]),
    features=st.sampled_from([1, 3, 8, 30]),
    outputs=st.sampled_from([1, 3, 4, 8, 21]),
    seed=SEEDS,
)
def test_any_columns(
    isa: str, dtype: type, rows: int, features: int, outputs: int, seed: int
) -> None:
    spec = scaling(rows, features, outputs, dtype, seed)
    x = rows_of(spec, dtype, seed)
    (wanted,) = ScaledColumns().reference(x.astype(np.float64), spec.columns, spec.numbers)
    y = np.zeros((rows, outputs), f"f{spec.y_bytes}")
    program = build("columns", Target.named(isa), lambda asm: emit_scaled_columns(asm, spec))
    call_native(program.memory.address, (x.ctypes.data, y.ctypes.data))
    np.testing.assert_allclose(y, wanted, rtol=2e-7, atol=1e-9)


def product(
    rows: int, inputs: int, outputs: int, density: float, seed: int, x_bytes: int = 8
) -> DoubleProductSpec:
    generator = np.random.default_rng(seed)
    weights = generator.standard_normal((outputs, inputs))
    weights[:, generator.random(inputs) > density] = 0
    bias, y_bytes = generator.standard_normal(outputs), int(generator.choice([4, 8]))
    return DoubleProductSpec(rows, x_bytes, weights, bias, y_bytes)


@pytest.mark.parametrize("isa", LEVELS)
@settings(max_examples=25)
@given(
    rows=st.sampled_from([1, 2, 7]),
    inputs=st.sampled_from([1, 3, 8, 30, 133, 300]),
    outputs=st.sampled_from([1, 2, 3, 4, 5, 9]),
    density=st.sampled_from([0.0, 0.1, 1.0]),
    x_bytes=st.sampled_from([4, 8]),
    seed=SEEDS,
)
def test_any_product(
    isa: str, rows: int, inputs: int, outputs: int, density: float, x_bytes: int, seed: int
) -> None:
    """Large numbers that cancel leave what float32 would lose."""
    spec = product(rows, inputs, outputs, density, seed, x_bytes)
    x = 1e6 + np.random.default_rng(seed + 1).standard_normal((rows, inputs))
    x = x.astype(f"f{x_bytes}")
    spec.bias[:] -= 1e6 * spec.weights.sum(axis=1)
    (wanted,) = DoubleProduct().reference(x.astype(np.float64), spec.weights, spec.bias)
    y = np.zeros((rows, outputs), f"f{spec.y_bytes}")
    program = build("product", Target.named(isa), lambda asm: emit_double_product(asm, spec))
    call_native(program.memory.address, (x.ctypes.data, y.ctypes.data))
    np.testing.assert_allclose(y, wanted, rtol=2e-7, atol=1e-6)


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("size", [1, 6, 21])
def test_nothing_beyond_x_and_y_is_touched(isa: str, size: int) -> None:
    target = Target.named(isa)
    columns = scaling(3, size, size, np.float64, 1)
    spec = product(3, size, 5, 1.0, 2)
    x = np.random.default_rng(3).standard_normal((3, size))
    (scaled,) = ScaledColumns().reference(x, columns.columns, columns.numbers)
    (sums,) = DoubleProduct().reference(x, spec.weights, spec.bias)
    scaling_code = build("columns", target, lambda asm: emit_scaled_columns(asm, columns))
    product_code = build("product", target, lambda asm: emit_double_product(asm, spec))
    narrow, x32 = replace(spec, x_bytes=4), x.astype(np.float32)
    narrow_code = build("product", target, lambda asm: emit_double_product(asm, narrow))
    (narrow_sums,) = DoubleProduct().reference(x32.astype(np.float64), spec.weights, spec.bias)
    programs = (
        (scaling_code, x, scaled, columns.y_bytes),
        (product_code, x, sums, spec.y_bytes),
        (narrow_code, x32, narrow_sums, spec.y_bytes),
    )

    def try_at(edge: str) -> None:
        for program, rows, wanted, size in programs:
            source = GuardedArray(rows.reshape(-1).view(np.float32), edge)  # type: ignore[arg-type]
            floats = wanted.size * size // 4
            result = GuardedArray(np.zeros(floats, np.float32), edge)  # type: ignore[arg-type]
            call_native(program.memory.address, (source.address, result.address))
            found = result.values.view(f"f{size}")
            np.testing.assert_allclose(found, wanted.reshape(-1), rtol=1e-6, atol=1e-6)
            assert source.surroundings_intact() and result.surroundings_intact()

    run_in_child([(edge, lambda edge=edge: try_at(edge)) for edge in EDGES]).assert_clean()  # type: ignore[misc]
