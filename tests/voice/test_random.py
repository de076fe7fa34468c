"""The random generator: native code against numpy bit for bit, and against what random means."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsejit.asm_templates.pointwise.class_draw import emit_random_uniform
from sparsejit.ir import reference
from sparsejit.machine.target import Target
from sparsejit.runtime.program import build
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, r9, rdx, xmm

WORD = st.integers(0, 2**64 - 1)


@pytest.fixture(scope="module")
def native() -> Callable[[int, int], np.float32]:
    def body(asm: Assembler) -> None:
        asm.emit("mov", r9, rdx)
        emit_random_uniform(asm)
        asm.emit("vmovss", Memory(r9), xmm(0))

    function = build("uniform", Target.detect(), body).memory.function(3)
    drawn = np.zeros(1, np.float32)

    def draw(seed: int, counter: int) -> np.float32:
        function(seed, counter, drawn.ctypes.data)
        return drawn[0]

    return draw


@given(seed=WORD, counter=WORD)
def test_native_and_numpy_agree_to_the_bit(
    native: Callable[[int, int], np.float32], seed: int, counter: int
) -> None:
    assert native(seed, counter) == reference.random_uniform(seed, counter)


def test_the_stream_is_the_published_one() -> None:
    """SplitMix64 from state 1234567: the first outputs of the authors' C code."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    steps = np.arange(1, 4, dtype=np.uint64) * np.uint64(reference.SPLITMIX_INCREMENT)
    assert reference.splitmix(steps + np.uint64(1234567)).tolist() == published


def test_chunks_join_to_the_same_stream() -> None:
    whole = reference.random_uniform(9, np.arange(1000))
    parts = [reference.random_uniform(9, np.arange(a, a + 125)) for a in range(0, 1000, 125)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


def chi_square(counts: npt.NDArray[np.int64]) -> float:
    """Standard deviations by which counts that should be equal stray from that."""
    expected = counts.sum() / counts.size
    degrees = counts.size - 1
    return float((np.sum((counts - expected) ** 2) / expected - degrees) / np.sqrt(2 * degrees))


@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_uniform_numbers_fill_the_unit_interval_evenly(seed: int) -> None:
    uniform = reference.random_uniform(seed, np.arange(1 << 20))
    assert uniform.dtype == np.float32
    assert uniform.min() >= 0.0 and uniform.max() < 1.0
    words = (uniform * 2.0**24).astype(np.int64)
    np.testing.assert_array_equal(words * 2.0**-24, uniform)
    assert abs(chi_square(np.bincount(words >> 12, minlength=4096))) < 4
    assert abs(chi_square(np.bincount(words & 4095, minlength=4096))) < 4


@pytest.mark.parametrize("lag", [1, 2, 256])
def test_samples_are_independent_of_earlier_ones(lag: int) -> None:
    words = (reference.random_uniform(7, np.arange(1 << 20)) * 64).astype(np.int64)
    pairs = words[:-lag] * 64 + words[lag:]
    assert abs(chi_square(np.bincount(pairs, minlength=4096))) < 4


def test_near_seeds_give_unrelated_streams() -> None:
    """Not even seeds that differ by the generator's own increment share samples."""
    counters = np.arange(1 << 16)
    first = reference.random_uniform(3, counters)
    for other in (2, 4, (3 + reference.SPLITMIX_INCREMENT) % 2**64):
        second = reference.random_uniform(other, counters)
        assert abs(np.corrcoef(first, second)[0, 1]) < 4 / 256
        assert np.mean(np.isin(second, first)) < 0.01
