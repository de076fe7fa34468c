"""The native way from Python into a kernel: same results and refusals, nothing leaked."""

import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable

import numpy as np
import pytest

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.machine.target import Target
from sparsejit.runtime import call_stub
from sparsejit.runtime.executable_memory import ExecutableMemory
from sparsejit.runtime.python_objects import ArrayType
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, dword, rax, rcx, rdi, rsi

SIZE = 24
RANDOM = np.random.default_rng(0)
WEIGHTS = np.where(RANDOM.random((SIZE, SIZE)) < 0.3, RANDOM.standard_normal((SIZE, SIZE)), 0)
X = RANDOM.standard_normal(SIZE).astype(np.float32)
EXPECTED = WEIGHTS @ X
MOST_LOOKS = 1 << 30  # half a minute or more


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
    return stub_of(kernel._program.memory, SIZE, spy)


def stub_of(memory: ExecutableMemory, size: int, spy: Spy) -> Callable[..., object]:
    kind = ArrayType("float32", (size,), "x")
    return call_stub.call_stub(memory, [kind], [kind], None, None, spy)


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


class Subclass(np.ndarray):
    """Not exactly numpy's array: the trampoline must not assume its layout."""


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


def test_bound_arrays_are_read_when_called(kernel: sparsejit.Kernel) -> None:
    x, y = X.copy(), np.zeros(SIZE, np.float32)
    run = kernel.bind(x, y)
    assert run() is None
    np.testing.assert_allclose(y, EXPECTED, atol=1e-5)
    x *= 2
    run()
    np.testing.assert_allclose(y, 2 * EXPECTED, atol=2e-5)


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
    memory = weakref.ref(kernel._program.memory)
    del kernel
    run()
    np.testing.assert_allclose(y, EXPECTED, atol=1e-5)
    del run
    gc.collect()
    assert memory() is None


def test_a_kernel_is_freed_without_the_cycle_collector() -> None:
    kernel = sparsejit.compile_matrix(WEIGHTS)
    kernel(X)
    memory = weakref.ref(kernel._program.memory)
    gc.disable()
    try:
        del kernel
        assert memory() is None
    finally:
        gc.enable()


def test_an_unknown_object_layout_falls_back(
    kernel: sparsejit.Kernel, spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_stub, "layout_is_known", lambda: False)
    assert stub_of(kernel._program.memory, SIZE, spy) is spy


def spin_until_told() -> ExecutableMemory:
    """Code that copies x[1] to y[1] to say that it runs, waits for x[0], and copies that.

    It waits long, but not for ever.
    """
    asm = Assembler(Target.detect())
    again, told = asm.label("again"), asm.label("told")
    asm.emit("mov", dword(rax), Memory(rdi, 4))
    asm.emit("mov", Memory(rsi, 4), dword(rax))
    asm.emit("mov", rcx, MOST_LOOKS)
    asm.bind(again)
    asm.emit("mov", dword(rax), Memory(rdi))
    asm.emit("test", dword(rax), dword(rax))
    asm.jump("jnz", told)
    asm.emit("pause")
    asm.emit("sub", rcx, 1)
    asm.jump("jnz", again)
    asm.bind(told)
    asm.emit("mov", Memory(rsi), dword(rax))
    asm.emit("ret")
    return ExecutableMemory(asm.finish().data)


def test_the_interpreter_lock_is_released_while_a_kernel_runs() -> None:
    """Another thread of Python sees that the call has begun, and can end it."""
    x, y = np.array([0, 1], np.float32), np.zeros(2, np.float32)
    memory = spin_until_told()
    call = stub_of(memory, 2, Spy())

    def tell() -> None:
        while not y[1]:
            time.sleep(0)  # gives the lock back
        x[0] = 7.0

    teller = threading.Thread(target=tell)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1.0)  # so the teller runs only where the lock is given up
    try:
        teller.start()
        call(x, y)
    finally:
        sys.setswitchinterval(interval)
        teller.join()
    assert y[0] == 7.0
