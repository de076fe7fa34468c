"""Products and powers of columns, and norms of rows, in float64, against the references."""

import numpy as np
import pytest
from guard import EDGES, GuardedArray, run_in_child
from hypothesis import given, settings
from hypothesis import strategies as st
from runnable import LEVELS

from sparsejit.asm_templates.pointwise.float64_features import (
    NORMS,
    ColumnFactors,
    emit_column_products,
    emit_row_norms,
)
from sparsejit.asm_templates.pointwise.float64_powers import emit_powers
from sparsejit.ir.ops.columns import ColumnProducts, PowerColumns, RowNorm
from sparsejit.ir.values import Array
from sparsejit.machine.target import Target
from sparsejit.runtime.native_timing import call_native
from sparsejit.runtime.program import Program, build

SIZES = {
    "rows": st.sampled_from([1, 2, 7]),
    "features": st.sampled_from([1, 3, 8, 30]),
    "seed": st.integers(0, 2**32 - 1),
}


def ran(program: Program, x: Array, outputs: int) -> Array:
    y = np.zeros((len(x), outputs))
    call_native(program.memory.address, (x.ctypes.data, y.ctypes.data))
    return y


def factors(features: int, outputs: int, degree: int, seed: int) -> Array:
    """Products of up to `degree` columns, some of none."""
    generator = np.random.default_rng(seed)
    found = generator.integers(0, features, (outputs, degree))
    counts = generator.integers(0, degree + 1, outputs)
    found[np.arange(degree) >= counts[:, None]] = -1
    return found


@pytest.mark.parametrize("isa", LEVELS)
@settings(max_examples=25)
@given(outputs=st.integers(1, 12), degree=st.integers(1, 4), **SIZES)
def test_any_products(
    isa: str, rows: int, features: int, outputs: int, degree: int, seed: int
) -> None:
    x = np.random.default_rng(seed).standard_normal((rows, features))
    spec = ColumnFactors(rows, features, factors(features, outputs, degree, seed))
    program = build("products", Target.named(isa), lambda asm: emit_column_products(asm, spec))
    (wanted,) = ColumnProducts().reference(x, spec.factors)
    np.testing.assert_allclose(ran(program, x, outputs), wanted, rtol=1e-15)


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("norm", NORMS)
@settings(max_examples=20)
@given(**SIZES)
def test_any_norm(isa: str, norm: str, rows: int, features: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((rows, features)) * 10.0 ** generator.integers(-5, 5)
    x[generator.random(rows) < 0.3] = 0
    target = Target.named(isa)
    program = build("norm", target, lambda asm: emit_row_norms(asm, rows, features, norm))
    (wanted,) = RowNorm(norm).reference(x)
    np.testing.assert_allclose(ran(program, x, features), wanted, rtol=1e-14)


@pytest.mark.parametrize("isa", LEVELS)
@settings(max_examples=40)
@given(
    power=st.sampled_from([0.0, 2.0, 1.0, 0.5, -1.3, 3.7, -4.0, 1e-3, 2.001]),
    size=st.integers(-18, 12),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_power(isa: str, power: float, size: int, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((3, 7)) * 10.0**size
    x[0, :3] = np.nan, 0, -1
    powers = np.tile([power, 2 - power], (7, 1))
    program = build("powers", Target.named(isa), lambda asm: emit_powers(asm, 3, powers))
    (wanted,) = PowerColumns().reference(x, powers)
    np.testing.assert_allclose(ran(program, x, 7), wanted, rtol=2e-14)


@pytest.mark.parametrize("isa", LEVELS)
def test_nothing_beyond_x_and_y_is_touched(isa: str) -> None:
    target, x = Target.named(isa), np.random.default_rng(0).standard_normal((3, 5))
    spec = ColumnFactors(3, 5, factors(5, 4, 3, 1))
    products = build("products", target, lambda asm: emit_column_products(asm, spec))
    norms = build("norm", target, lambda asm: emit_row_norms(asm, 3, 5, "l2"))
    wanted = ColumnProducts().reference(x, spec.factors)[0], RowNorm("l2").reference(x)[0]

    def try_at(edge: str) -> None:
        for program, right in zip((products, norms), wanted, strict=True):
            source = GuardedArray(x.reshape(-1).view(np.float32), edge)  # type: ignore[arg-type]
            floats = np.zeros(2 * right.size, np.float32)
            result = GuardedArray(floats, edge)  # type: ignore[arg-type]
            call_native(program.memory.address, (source.address, result.address))
            found = result.values.view(np.float64).reshape(right.shape)
            np.testing.assert_allclose(found, right, rtol=1e-14)
            assert source.surroundings_intact() and result.surroundings_intact()

    run_in_child([(edge, lambda edge=edge: try_at(edge)) for edge in EDGES]).assert_clean()  # type: ignore[misc]
