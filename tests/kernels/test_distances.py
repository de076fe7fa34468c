"""Distances to known rows in float64, against the reference, at the edges of memory."""

import numpy as np
import pytest
from guard import EDGES, GuardedArray, run_in_child
from hypothesis import given, settings
from hypothesis import strategies as st
from runnable import LEVELS

from sparsejit.asm_templates.pointwise.float64_distances import DistanceSpec, emit_distances
from sparsejit.ir.ops.columns import Distances, Measure
from sparsejit.machine.target import Target
from sparsejit.runtime.native_timing import call_native
from sparsejit.runtime.program import build


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("measure", Measure)
@settings(max_examples=20)
@given(
    rows=st.sampled_from([1, 2, 5]),
    features=st.sampled_from([1, 3, 8, 21]),
    count=st.sampled_from([1, 3, 4, 8, 16, 17, 32, 33, 70]),
    x_bytes=st.sampled_from([4, 8]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_distances(
    isa: str, measure: Measure, rows: int, features: int, count: int, x_bytes: int, seed: int
) -> None:
    """Far from zero, where |x|^2 - 2 x y + |y|^2 would lose all digits, and at known rows."""
    generator = np.random.default_rng(seed)
    known = 1e8 + np.round(4 * generator.standard_normal((count, features)))
    x = (1e8 + generator.standard_normal((rows, features))).astype(f"f{x_bytes}")
    x[0] = known[generator.integers(count)]
    (wanted,) = Distances(measure).reference(x.astype(np.float64), known)
    spec = DistanceSpec(measure, rows, x_bytes, known)
    program = build("distances", Target.named(isa), lambda asm: emit_distances(asm, spec))
    y = np.zeros((rows, count))
    call_native(program.memory.address, (x.ctypes.data, y.ctypes.data))
    np.testing.assert_allclose(y, wanted, rtol=1e-14, atol=0)


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("count", [1, 5, 16, 43])
def test_nothing_beyond_x_and_y_is_touched(isa: str, count: int) -> None:
    generator = np.random.default_rng(count)
    known, x = generator.standard_normal((count, 3)), generator.standard_normal((2, 3))
    spec = DistanceSpec(Measure.SQUARED, 2, 8, known)
    program = build("distances", Target.named(isa), lambda asm: emit_distances(asm, spec))
    (wanted,) = Distances(Measure.SQUARED).reference(x, known)

    def try_at(edge: str) -> None:
        source = GuardedArray(x.reshape(-1).view(np.float32), edge)  # type: ignore[arg-type]
        result = GuardedArray(np.zeros(2 * wanted.size, np.float32), edge)  # type: ignore[arg-type]
        call_native(program.memory.address, (source.address, result.address))
        found = result.values.view(np.float64)
        np.testing.assert_allclose(found, wanted.reshape(-1), rtol=1e-14)
        assert source.surroundings_intact() and result.surroundings_intact()

    run_in_child([(edge, lambda edge=edge: try_at(edge)) for edge in EDGES]).assert_clean()  # type: ignore[misc]
