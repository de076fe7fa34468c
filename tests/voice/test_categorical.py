"""Native draws against the float64 reference: the same class, or a demonstrable rounding tie."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runnable import ISAS

from sparsejit.asm_templates.pointwise.class_draw import emit_categorical_draw, scratch_floats
from sparsejit.ir import reference
from sparsejit.ir.spec import CategoricalDraw
from sparsejit.machine.target import Target
from sparsejit.runtime.program import build
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, rcx, xmm

FloatArray = npt.NDArray[np.float32]
# A partial sum in float32 is off by less than this fraction of the total: the weights by 2e-6
# (logits within 20 of the largest), the sums by 1e-7 for each of at most 70 additions.
TIE = 1e-5


def drawer(isa: str, spec: CategoricalDraw) -> Callable[[FloatArray, float], int]:
    """draw(logits, uniform) of the native code."""

    def body(asm: Assembler) -> None:
        asm.emit("vmovss", xmm(0), Memory(rcx))
        emit_categorical_draw(asm, spec)

    target = Target.named(isa)
    program = build("draw", target, body)
    function = program.memory.function(4)
    scratch = np.empty(scratch_floats(target, spec), np.float32)
    drawn = np.zeros(1, np.int64)

    def draw(logits: FloatArray, uniform: float) -> int:
        given = np.array([uniform], np.float32)
        addresses = (a.ctypes.data for a in (logits, drawn, scratch, given))
        function(*addresses)
        return int(drawn[0])

    return draw


@pytest.mark.parametrize("isa", ISAS)
@given(
    classes=st.integers(1, 600),
    spread=st.sampled_from([0.0, 0.5, 3.0]),
    inverse_temperature=st.sampled_from([0.5, 1.0, 1 / 0.9]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_number_of_classes(
    isa: str, classes: int, spread: float, inverse_temperature: float, seed: int
) -> None:
    spec = CategoricalDraw(classes, inverse_temperature)
    draw = drawer(isa, spec)
    generator = np.random.default_rng(seed)
    for uniform in generator.integers(1 << 24, size=20) * 2.0**-24:
        logits = (generator.normal(size=classes) * spread).astype(np.float32)
        drawn = draw(logits, uniform)
        if drawn != reference.categorical_draw(spec, logits, uniform):
            assert reference.categorical_margin(spec, logits, uniform) < TIE


@pytest.mark.parametrize("isa", ISAS)
def test_differences_are_rare_and_ties(isa: str) -> None:
    spec = CategoricalDraw(256)
    draw, generator = drawer(isa, spec), np.random.default_rng(4)
    logits = (generator.normal(size=256) * 2).astype(np.float32)
    uniforms = reference.random_uniform(4, np.arange(20_000))
    differing = 0
    for uniform in map(float, uniforms):
        drawn = draw(logits, uniform)
        expected = reference.categorical_draw(spec, logits, uniform)
        if drawn != expected:
            differing += 1
            assert abs(drawn - expected) == 1
            assert reference.categorical_margin(spec, logits, uniform) < TIE
    # Chance of a uniform within 1e-6 of one of 256 partial sums: about 5e-4.
    assert differing <= 10


@pytest.mark.parametrize("isa", ISAS)
def test_frequencies_are_the_probabilities(isa: str) -> None:
    classes, draws = 33, 20_000
    spec = CategoricalDraw(classes, 0.8)
    draw = drawer(isa, spec)
    logits = np.random.default_rng(5).normal(size=classes).astype(np.float32)
    uniforms = reference.random_uniform(5, np.arange(draws))
    counts = np.bincount([draw(logits, float(u)) for u in uniforms], minlength=classes)
    expected = np.exp(0.8 * logits.astype(np.float64))
    expected *= draws / expected.sum()
    chi_square = float(np.sum((counts - expected) ** 2 / expected))
    assert chi_square < 62.5  # 32 degrees of freedom, 0.1 %


@pytest.mark.parametrize("isa", ISAS)
def test_extremes(isa: str) -> None:
    """Both ends of the unit interval, masked classes, and logits far apart or huge."""
    spec = CategoricalDraw(20)
    draw, largest_uniform = drawer(isa, spec), 1.0 - 2.0**-24
    logits = np.zeros(20, np.float32)
    assert draw(logits, 0.0) == 0 and draw(logits, largest_uniform) == 19
    logits[:3] = logits[17:] = -np.inf
    assert draw(logits, 0.0) == 3 and draw(logits, largest_uniform) == 16
    logits[:] = -3e38
    logits[7] = 3e38
    assert draw(logits, 0.0) == 7 and draw(logits, largest_uniform) == 7
    logits[:] = -1000.0
    assert draw(logits, 0.5) == 10


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("classes", [1, 9, 256])
def test_the_class_is_in_range_even_for_nan(isa: str, classes: int) -> None:
    """The sampler uses the class as an index."""
    draw = drawer(isa, CategoricalDraw(classes))
    for bad in (np.nan, np.inf, -np.inf):
        for uniform in (0.0, 0.5, np.nan, 2.0):
            assert 0 <= draw(np.full(classes, bad, np.float32), uniform) < classes
            logits = np.zeros(classes, np.float32)
            logits[classes // 2] = bad
            assert 0 <= draw(logits, uniform) < classes


def test_the_margin_is_the_distance_to_the_nearest_partial_sum() -> None:
    logits = np.log(np.array([1.0, 2.0, 1.0])).astype(np.float32)
    spec = CategoricalDraw(3)
    for uniform, margin in ((0.25, 0.0), (0.5, 0.25), (0.7, 0.05), (0.9, 0.1)):
        found = reference.categorical_margin(spec, logits, uniform)
        assert found == pytest.approx(margin, abs=1e-7)
