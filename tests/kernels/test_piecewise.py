"""Polynomials of columns on intervals, against the reference."""

import numpy as np
import pytest
from guard import EDGES, GuardedArray, run_in_child
from hypothesis import given, settings
from hypothesis import strategies as st
from runnable import LEVELS

from sparsejit.asm_templates.pointwise.piecewise_columns import Pieces, emit_piecewise_columns
from sparsejit.errors import InvalidInput
from sparsejit.ir.ops.columns import PiecewiseColumns
from sparsejit.ir.values import Array
from sparsejit.machine.target import Target
from sparsejit.runtime.native_timing import call_native
from sparsejit.runtime.program import build


def pieces(rows: int, features: int, counts: list[int], numbers: int, seed: int) -> Pieces:
    """Columns with these numbers of bounds, and any polynomials."""
    generator = np.random.default_rng(seed)
    begins = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    bounds = [np.sort(np.round(10 * generator.standard_normal(n), 6)) for n in counts]
    polynomials = generator.standard_normal((begins[-1] + len(counts), numbers))
    missing = np.where(generator.random(len(counts)) < 0.5, np.nan, 3.0)
    columns = generator.integers(0, features, len(counts))
    sizes = (int(generator.choice([4, 8])) for _ in range(2))
    return Pieces(
        rows, features, *sizes, columns, begins, np.concatenate(bounds), polynomials, missing
    )


def rows_of(spec: Pieces, seed: int) -> Array:
    """x anywhere, at bounds, beside them, infinite and missing."""
    generator = np.random.default_rng(seed)
    x = 10 * generator.standard_normal((spec.rows, spec.features))
    for column, first, end in zip(spec.columns, spec.begins, spec.begins[1:], strict=False):
        if first < end:
            chosen = generator.choice(spec.bounds[first:end], spec.rows)
            x[:, column] = np.where(generator.random(spec.rows) < 0.5, chosen, x[:, column])
    x[generator.random(x.shape) < 0.1] = np.nan
    return x.astype(f"f{spec.x_bytes}")


def wanted(spec: Pieces, x: Array) -> Array:
    operands = spec.columns, spec.begins, spec.bounds, spec.pieces, spec.missing
    return PiecewiseColumns().reference(x, *operands)[0]


@pytest.mark.parametrize("isa", LEVELS)
@settings(max_examples=40)
@given(
    rows=st.sampled_from([1, 2, 7]),
    features=st.sampled_from([1, 3, 30]),
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=9),
    numbers=st.sampled_from([1, 2, 3, 5]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_pieces(
    isa: str, rows: int, features: int, counts: list[int], numbers: int, seed: int
) -> None:
    spec = pieces(rows, features, counts, numbers, seed)
    x = rows_of(spec, seed)
    y = np.zeros((rows, len(counts)), f"f{spec.y_bytes}")
    program = build("pieces", Target.named(isa), lambda asm: emit_piecewise_columns(asm, spec))
    call_native(program.memory.address, (x.ctypes.data, y.ctypes.data))
    right = wanted(spec, x)
    np.testing.assert_allclose(y, right, rtol=3e-7, atol=1e-6 * np.nanmax(np.abs(right), initial=1))


@pytest.mark.parametrize("isa", LEVELS)
def test_nothing_beyond_x_and_y_is_touched(isa: str) -> None:
    spec = pieces(3, 5, [0, 4, 9], 3, 1)
    program = build("pieces", Target.named(isa), lambda asm: emit_piecewise_columns(asm, spec))
    x = rows_of(spec, 2)

    def try_at(edge: str) -> None:
        source = GuardedArray(x.reshape(-1).view(np.float32), edge)  # type: ignore[arg-type]
        floats = np.zeros(9 * spec.y_bytes // 4, np.float32)
        result = GuardedArray(floats, edge)  # type: ignore[arg-type]
        call_native(program.memory.address, (source.address, result.address))
        found = result.values.view(f"f{spec.y_bytes}").reshape(3, 3)
        np.testing.assert_allclose(found, wanted(spec, x), rtol=1e-6, atol=1e-4)
        assert source.surroundings_intact() and result.surroundings_intact()

    run_in_child([(edge, lambda edge=edge: try_at(edge)) for edge in EDGES]).assert_clean()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("begins", "bounds", "message"),
    [
        ([0, 1, 3], [1.0, 5.0, 2.0], "do not ascend"),
        ([0, 2, 1], [1.0, 2.0, 3.0], "begins that ascend from 0 to 3"),
        ([1, 2, 3], [1.0, 2.0, 3.0], "begins that ascend"),
    ],
)
def test_bounds_that_do_not_ascend_are_refused(
    begins: list[int], bounds: list[float], message: str
) -> None:
    operands = np.array(begins), np.array(bounds), np.zeros((5, 1)), np.zeros(2)
    with pytest.raises(InvalidInput, match=message):
        Pieces(1, 1, 8, 8, np.zeros(2, np.int64), *operands)
