"""The native way from Python into a kernel: same results and refusals, nothing leaked."""

import gc
import sys
import weakref
from collections.abc import Callable

import numpy as np
import pytest
from copying_model import Subclass

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.runtime import call_stub
from sparsejit.runtime.python_objects import ArrayType

SIZE = 24
RANDOM = np.random.default_rng(0)
WEIGHTS = np.where(RANDOM.random((SIZE, SIZE)) < 0.3, RANDOM.standard_normal((SIZE, SIZE)), 0)
X = RANDOM.standard_normal(SIZE).astype(np.float32)
EXPECTED = WEIGHTS @ X


class Spy:
    """A fallback that records what reaches it."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []

    def __call__(self, *arrays: object) -> str:
        self.seen.append(arrays)
        return "from the fallback"


@pytest.fixture
def kernel() -> sparsejit.Kernel:
    return sparsejit.compile_matrix(WEIGHTS)


@pytest.fixture
def spy() -> Spy:
    return Spy()


@pytest.fixture
def spied(kernel: sparsejit.Kernel, spy: Spy) -> Callable[..., object]:
    return stub_of(kernel.program.memory, SIZE, spy)


def stub_of(memory: ExecutableMemory, size: int, spy: Spy) -> Callable[..., object]:
    kind = ArrayType("float32", (size,), "x")
    return call_stub.call_stub(memory, [kind], [kind], None, spy)


def test_plain_arrays_never_reach_the_fallback(spied: Callable[..., object], spy: Spy) -> None:
    out = np.zeros(SIZE, np.float32)
    assert spied(X, out) is out
    np.testing.assert_allclose(out, EXPECTED, atol=1e-5)
    found = spied(X)
    assert type(found) is np.ndarray and sys.getrefcount(found) == 2
    np.testing.assert_array_equal(found, out)
    assert not spy.seen


@pytest.mark.parametrize("count", [0, 3])
def test_other_numbers_of_arrays_reach_the_fallback(
    spied: Callable[..., object], spy: Spy, count: int
) -> None:
    assert spied(*[X] * count) == "from the fallback"
    assert len(spy.seen[0]) == count


def read_only() -> np.ndarray:
    array = np.zeros(SIZE, np.float32)
    array.flags.writeable = False
    return array


BOTH = np.zeros(2 * SIZE, np.float32)


@pytest.mark.parametrize(
    ("x", "out"),
    [
        (None, np.zeros(SIZE, np.float32)),
        (X.tolist(), np.zeros(SIZE, np.float32)),
        (X.view(Subclass), np.zeros(SIZE, np.float32)),
        (X.astype(np.float64), np.zeros(SIZE, np.float32)),
        (X.view(np.int32), np.zeros(SIZE, np.float32)),
        (X[:-1].copy(), np.zeros(SIZE, np.float32)),
        (X[None], np.zeros(SIZE, np.float32)),
        (X[::-1], np.zeros(SIZE, np.float32)),
        (X, np.zeros(SIZE + 1, np.float32)),
        (X, np.zeros(SIZE, np.float64)),
        (X, BOTH[::2]),
        (X, read_only()),
        (X, X),
        (BOTH[: SIZE], BOTH[SIZE - 1 : -1]),
        (BOTH[SIZE - 1 : -1], BOTH[: SIZE]),
    ],
)
def test_whatever_is_unusual_reaches_the_fallback_untouched(
    spied: Callable[..., object], spy: Spy, x: object, out: object
) -> None:
    assert spied(x, out) == "from the fallback"
    assert spy.seen[0][0] is x and spy.seen[0][1] is out


def test_neighbours_do_not_overlap(spied: Callable[..., object], spy: Spy) -> None:
    memory = np.concatenate([X, np.zeros(SIZE, np.float32)])
    spied(memory[:SIZE], memory[SIZE:])
    np.testing.assert_allclose(memory[SIZE:], EXPECTED, atol=1e-5)
    assert not spy.seen


def test_a_legal_subclass_is_computed(kernel: sparsejit.Kernel) -> None:
    np.testing.assert_allclose(kernel(X.view(Subclass)), EXPECTED, atol=1e-5)


def test_bind_refuses_what_a_call_refuses(kernel: sparsejit.Kernel) -> None:
    with pytest.raises(InvalidInput, match="shares memory"):
        kernel.bind(X, X)


def test_reference_counts_stay_level(kernel: sparsejit.Kernel) -> None:
    y = np.zeros(SIZE, np.float32)
    run = kernel.bind(X, y)
    before = sys.getrefcount(y), sys.getrefcount(X)
    for _ in range(1000):
        kernel(X, out=y)
        kernel(X)
        run()
    assert (sys.getrefcount(y), sys.getrefcount(X)) == before


def test_a_bound_function_outlives_its_kernel_and_then_lets_go() -> None:
    kernel = sparsejit.compile_matrix(WEIGHTS)
    kernel(X)
    y = np.zeros(SIZE, np.float32)
    run = kernel.bind(X, y)
    memory = weakref.ref(kernel.program.memory)
    del kernel
    run()
    np.testing.assert_allclose(y, EXPECTED, atol=1e-5)
    del run
    gc.collect()
    assert memory() is None


def test_a_kernel_is_freed_without_the_cycle_collector() -> None:
    kernel = sparsejit.compile_matrix(WEIGHTS)
    kernel(X)
    memory = weakref.ref(kernel.program.memory)
    gc.disable()
    try:
        del kernel
        assert memory() is None
    finally:
        gc.enable()
