"""Calls of whole models: any arrays in, right arrays out, nothing shared and nothing leaked."""

import gc
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from copying_model import Subclass, copier, copying, of_type, spin_until_told
from guard import EDGES, GuardedArray, run_in_child

from sparsejit.errors import InvalidInput
from sparsejit.runtime import call_stub
from sparsejit.runtime.native_call import NativeCall, new_workspace
from sparsejit.runtime.python_objects import ArrayType

BATCHES = (0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 257)
ROWS, WIDTH = 4, 6


@pytest.fixture(params=["native", "python"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stub, and what takes its place where it cannot be used."""
    if request.param == "python":
        monkeypatch.setattr(call_stub, "layout_is_known", lambda: False)


FIXED = ArrayType("float32", (3, 8), "features")
FREE = ArrayType("float32", (None, WIDTH), "features")


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 3, 4)])
@pytest.mark.usefixtures("either_way")
def test_every_element_and_rank(dtype: str, shape: tuple[int, ...]) -> None:
    call = copying(ArrayType(dtype, shape, "x"))
    x = of_type(dtype, shape)
    for _ in range(3):
        (y,) = call([x])
        assert y.dtype == x.dtype and y.shape == shape and y.flags.owndata
        assert y is not x and sys.getrefcount(y) == 2
        np.testing.assert_array_equal(y, x)


@pytest.mark.usefixtures("either_way")
def test_several_inputs_of_no_axis_and_of_mixed_elements() -> None:
    types = [
        ArrayType("float32", (), "scale"),
        ArrayType("bool", (2, 2), "mask"),
        ArrayType("int64", (5,), "words"),
    ]
    call = copying(*types)
    inputs = [of_type(kind.dtype, tuple(map(int, kind.shape))) for kind in types]  # type: ignore[arg-type]
    for _ in range(3):
        outputs = call.run(*inputs)
        assert type(outputs) is list and len(outputs) == 3
        for x, y in zip(inputs, outputs, strict=True):
            assert y.shape == x.shape and y.dtype == x.dtype
            np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.usefixtures("either_way")
def test_any_batch(batch: int) -> None:
    words, scale = ArrayType("int64", (None,), "words"), ArrayType("float32", (None, 2, 3), "s")
    call = copying(FREE, words, scale)
    for _ in range(3):
        inputs = [
            of_type("float32", (batch, WIDTH)),
            of_type("int64", (batch,)),
            of_type("float32", (batch, 2, 3)),
        ]
        for x, y in zip(inputs, call(inputs), strict=True):
            assert y.shape == x.shape
            np.testing.assert_array_equal(y, x)


def test_an_input_may_have_no_part_in_the_free_batch() -> None:
    fixed = ArrayType("float32", (2,), "bias")
    memory = copier([4 * WIDTH])
    call = NativeCall(memory, [FREE, fixed], [FREE], 4 * WIDTH)
    for batch in BATCHES:
        x = of_type("float32", (batch, WIDTH))
        np.testing.assert_array_equal(call([x, np.zeros(2, np.float32)])[0], x)


def test_any_batch_stays_within_the_arrays() -> None:
    """The input ends, or begins, where memory is inaccessible."""

    def check(batch: int, edge: Any) -> None:
        x = of_type("float32", (batch, WIDTH))
        guarded = GuardedArray(x.ravel(), edge)
        (y,) = copying(FREE)([guarded.values.reshape(batch, WIDTH)])
        np.testing.assert_array_equal(y, x)
        assert guarded.surroundings_intact()

    run_in_child(
        (f"{batch} rows at the {edge}", lambda b=batch, e=edge: check(b, e))
        for batch in BATCHES[1:]
        for edge in EDGES
    ).assert_clean()


class Spy:
    """A fallback that counts."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []

    def __call__(self, *inputs: object) -> Any:
        self.seen.append(inputs)
        return "from the fallback"


def unaligned(array: np.ndarray) -> np.ndarray:
    room = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    room[...] = array
    return room


X = of_type("float32", (3, 8))
COPIED = {
    "columns first": np.asfortranarray(X),
    "every second": np.repeat(X, 2, axis=1)[:, ::2],
    "backwards": X[::-1].copy()[::-1],
    "other byte order": X.astype(">f4"),
    "unaligned": unaligned(X),
    "a subclass": X.view(Subclass),
    "repeated": np.broadcast_to(X[0], (3, 8)),
}


@pytest.mark.parametrize("name", COPIED)
@pytest.mark.usefixtures("either_way")
def test_unusual_arrays_are_copied(name: str) -> None:
    x = COPIED[name]
    for _ in range(3):
        (y,) = copying(FIXED)([x])
        assert type(y) is np.ndarray
        np.testing.assert_array_equal(y, x)


def test_plain_arrays_never_reach_the_fallback() -> None:
    spy, free = Spy(), [new_workspace(96)]
    before = sys.getrefcount(free[0])
    run = call_stub.call_stub(copier([96]), [FIXED], [FIXED], free, spy)
    np.testing.assert_array_equal(run(X)[0], X)
    after = sys.getrefcount(free[0])
    assert not spy.seen and len(free) == 1 and after == before


@pytest.mark.parametrize("name", [name for name in COPIED if name != "a subclass"])
def test_the_fallback_gets_the_arguments_as_they_were(name: str) -> None:
    spy, free = Spy(), [new_workspace(96)]
    run = call_stub.call_stub(copier([96]), [FIXED], [FIXED], free, spy)
    assert run(COPIED[name]) == "from the fallback"
    assert spy.seen[0][0] is COPIED[name]


def test_without_a_free_workspace_the_fallback_makes_one() -> None:
    spy = Spy()
    run = call_stub.call_stub(copier([96]), [FIXED], [FIXED], [], spy)
    assert run(X) == "from the fallback"
    call = copying(FIXED)
    call([X])
    call([X])
    assert len(call.checked.workspaces) == 1


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "0 inputs given; the model has 1: features"),
        ([X, X], "2 inputs given"),
        ([X.tolist()], "features is a list; give a numpy array of float32"),
        ([None], "features is a NoneType"),
        ([X.astype(np.float64)], r"features has dtype float64; convert it to float32"),
        ([X.view(np.int32)], "features has dtype int32"),
        ([X[:2]], r"features has shape \(2, 8\); give \(3, 8\)"),
        ([X.ravel()], r"features has shape \(24,\)"),
        ([np.float32(1)], "features is a float32"),
        ([np.zeros((), np.float32)], r"features has shape \(\)"),
    ],
)
@pytest.mark.usefixtures("either_way")
def test_wrong_inputs_are_named(inputs: list[Any], message: str) -> None:
    call = copying(FIXED)
    call([X])
    with pytest.raises(InvalidInput, match=message):
        call(inputs)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((np.zeros((5, WIDTH)), np.zeros(5)), "features has dtype float64"),
        ((np.zeros((5, 7)), np.zeros(5)), r"features has shape \(5, 7\); give \(any, 6\)"),
        ((np.zeros((8, WIDTH)), np.zeros(4)), r"words has shape \(4,\); .* axis 0 is the batch, 8"),
        ((np.zeros(()), np.zeros(4)), r"features has shape \(\)"),
    ],
)
@pytest.mark.usefixtures("either_way")
def test_wrong_batches_are_named(inputs: tuple[np.ndarray, np.ndarray], message: str) -> None:
    call = copying(FREE, ArrayType("int64", (None,), "words"))
    x, words = inputs
    x = x if "float64" in message else x.astype(np.float32)
    with pytest.raises(InvalidInput, match=message):
        call([x, words.astype(np.int64)])


def bytes_kept(action: Callable[[], object], times: int) -> int:
    """The growth of the memory of Python's objects and numpy's arrays after that many calls.

    Errors lie in cycles, which are memory until they are collected, and the interpreter keeps some
    free objects of each kind: as many calls go before.
    """

    def held_after_calls() -> int:
        for _ in range(times):
            action()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = held_after_calls()
        return held_after_calls() - before
    finally:
        tracemalloc.stop()


@pytest.mark.usefixtures("either_way")
def test_a_status_is_an_error_that_loses_nothing() -> None:
    call = copying(FIXED, status=3)
    before = sys.getrefcount(X)

    def refused() -> None:
        with pytest.raises(InvalidInput, match=r"kernel 3 .* without a row"):
            call([X])

    assert bytes_kept(refused, 1000) < 50_000
    assert len(call.checked.workspaces) == 1 and sys.getrefcount(X) == before


def test_outputs_that_cannot_be_made_are_an_error_that_loses_nothing() -> None:
    huge = ArrayType("float32", (1 << 60,), "y")
    call = NativeCall(copier([96]), [FIXED], [FIXED, huge], 96)
    before = sys.getrefcount(X)

    def refused() -> None:
        with pytest.raises(MemoryError):
            call([X])

    assert bytes_kept(refused, 1000) < 50_000
    assert sys.getrefcount(X) == before


@pytest.mark.usefixtures("either_way")
def test_counts_and_memory_stay_level() -> None:
    call, x = copying(FREE), of_type("float32", (2 * ROWS, WIDTH))
    run = call.bind([x], [np.empty_like(x)])
    counted = (x, x.dtype, np.dtype(np.int64), call.run, call.checked)
    call([x])
    before = [sys.getrefcount(thing) for thing in counted]
    assert bytes_kept(lambda: (call([x]), run()), 10_000) < 10_000
    assert [sys.getrefcount(thing) for thing in counted] == before


def test_threads_never_share_a_workspace() -> None:
    """A workspace of two would mix their values, which lie in it between two long copies."""
    shape = (64, 256)
    call = copying(ArrayType("float32", shape, "x"))
    wrong: list[int] = []
    begin = threading.Barrier(4)

    def hammer(number: int) -> None:
        x = np.full(shape, number, np.float32)
        begin.wait()
        wrong.extend(number for _ in range(500) if not np.array_equal(call([x])[0], x))

    threads = [threading.Thread(target=hammer, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert 1 <= len(call.checked.workspaces) <= 4


def test_the_interpreter_lock_is_released() -> None:
    """Another thread sees that the call has begun, through the second input, and can end it."""
    pair = ArrayType("float32", (2,), "x")
    call = NativeCall(spin_until_told(), [pair, pair], [], 64)
    told, seen = np.array([1, 1], np.float32), np.zeros(2, np.float32)
    call([told, seen])  # has a workspace from here on
    told[:], seen[:] = (0, 1), 0

    def tell() -> None:
        while not seen[1]:
            time.sleep(0)  # gives the lock back
        told[0] = 7.0

    teller = threading.Thread(target=tell)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1.0)  # so the teller runs only where the lock is given up
    try:
        teller.start()
        assert call([told, seen]) == []
    finally:
        sys.setswitchinterval(interval)
        teller.join()
    assert seen[0] == 7.0


def test_all_is_released_with_the_model_without_the_cycle_collector() -> None:
    call = copying(FIXED)
    call([X])
    parts = [weakref.ref(call.checked.memory), weakref.ref(call.checked.workspaces[0].base)]
    run = call.run
    gc.disable()
    try:
        del call
        np.testing.assert_array_equal(run(X)[0], X)
        del run
        assert [part() for part in parts] == [None, None]
    finally:
        gc.enable()


def test_bound_arrays_are_read_when_called_and_held() -> None:
    x, y = of_type("float32", (2 * ROWS, WIDTH)), np.zeros((2 * ROWS, WIDTH), np.float32)
    memory = copier([4 * WIDTH])
    run = NativeCall(memory, [FREE], [FREE], 4 * WIDTH).bind([x], [y])
    released = weakref.ref(memory)
    del memory
    for factor in (1, 2):
        x *= factor
        assert run() is None
        np.testing.assert_array_equal(y, x)
    held = sys.getrefcount(x)
    del run
    assert sys.getrefcount(x) == held - 1
    assert released() is None


BOTH = np.zeros((4 * ROWS, WIDTH), np.float32)
GOOD = np.zeros((ROWS, WIDTH), np.float32)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ([GOOD], [], "0 outputs given; the model has 1: features"),
        ([BOTH[::4]], [GOOD], "features is not contiguous"),
        ([GOOD], [BOTH[::4]], "features is not contiguous"),
        ([GOOD.astype(">f4")], [GOOD], "native byte order"),
        ([GOOD], [GOOD], "shares memory"),
        ([BOTH[:ROWS]], [BOTH[1 : ROWS + 1]], "shares memory"),
        ([GOOD], [np.broadcast_to(GOOD, GOOD.shape)], "read-only"),
        ([GOOD], [GOOD.astype(np.float64)], "dtype float64"),
        ([GOOD], [BOTH], r"shape \(16, 6\)"),
    ],
)
def test_bind_refuses(inputs: list[Any], outputs: list[Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        copying(FREE).bind(inputs, outputs)


def test_workspaces_begin_at_a_multiple_of_64_bytes() -> None:
    for size in (0, 1, 63, 64, 65, 4096):
        workspace = new_workspace(size)
        assert workspace.ctypes.data % 64 == 0 and workspace.nbytes >= size
