"""Kernels on several threads: same results whoever computes them, and nobody waits for ever."""

import gc
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from guard import EDGES, Edge, GuardedArray, run_in_child
from matvec_checks import block_weights
from test_calling_convention import PATTERNS, STATUS_FLAGS, UNUSUAL_MXCSR, call_and_report

import sparsejit
from sparsejit.errors import CompileError
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.runtime import workers
from sparsejit.runtime.workers import PARKED, SLEEP, NativePart, mailbox_at, pool
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, dword, rax, rcx, rdi, rsi

pytestmark = pytest.mark.usefixtures("barriers_are_free")

LONGEST_WAIT_S = 300  # only a hang takes so long
Eventually = Callable[[Callable[[], bool]], bool]


def make(
    shape: tuple[int, int] = (150, 90), threads: int = 3, seed: int = 0
) -> tuple[sparsejit.Kernel, np.ndarray, np.ndarray]:
    """A kernel in parts, an input, and what it gives for it."""
    kernel = sparsejit.compile_matrix(block_weights(shape, 0.3, 1, seed), threads=threads)
    x = np.random.default_rng(seed).standard_normal(shape[1]).astype(np.float32)
    return kernel, x, kernel(x)


def test_thousands_of_calls_give_the_same_bits() -> None:
    kernel, x, expected = make()
    y = np.zeros_like(expected)
    run = kernel.bind(x, y)
    for _ in range(5000):
        y[:] = np.nan
        run()
        assert np.array_equal(y, expected)


def test_many_python_threads_may_call_at_once() -> None:
    kernels = [make(threads=threads, seed=threads) for threads in (2, 3, 4)]
    wrong = []

    def call(number: int) -> None:
        kernel, x, expected = kernels[number % len(kernels)]
        y = np.empty_like(expected)
        for _ in range(500):
            kernel(x, out=y)
            if not np.array_equal(y, expected):
                wrong.append(number)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.parametrize("edge", EDGES)
def test_parts_stay_inside_the_arrays(edge: Edge) -> None:
    kernel, x, expected = make((77, 50))
    source = GuardedArray(x, edge)
    destination = GuardedArray(np.zeros_like(expected), edge)
    native = kernel.program.memory.function(2)

    def check() -> None:
        native(source.address, destination.address)
        np.testing.assert_array_equal(destination.values, expected)
        assert destination.surroundings_intact()

    check()  # with workers
    run_in_child([("in a fork", check)]).assert_clean()


def test_a_dispatcher_keeps_what_a_function_must() -> None:
    kernel, x, expected = make()
    y = np.zeros_like(expected)
    found = call_and_report(kernel.image.data, Target.detect().isa, x, y)
    assert found.registers == PATTERNS
    assert found.mxcsr & ~STATUS_FLAGS == UNUSUAL_MXCSR
    assert not found.upper_bytes.any()


def dispatcher_of(emit_parts: list[Callable[[Assembler], None]], saved_ns: float = np.inf) -> bytes:
    """The code of a dispatcher over hand-made parts; part i writes from y + 4 i on."""
    asm = Assembler(Target.detect())
    pool().require(len(emit_parts) - 1)
    natives = [NativePart(asm.label("part"), 4 * i) for i in range(len(emit_parts))]
    pool().emit_dispatcher(asm, natives, saved_ns)
    for native, emit in zip(natives, emit_parts, strict=True):
        asm.bind(native.label)
        emit(asm)
        asm.emit("ret")
    return asm.finish().data


def wait_for(place: Memory) -> Callable[[Assembler], None]:
    """A part that ends when memory is no longer zero."""

    def emit(asm: Assembler) -> None:
        again = asm.label("again")
        asm.bind(again)
        asm.emit("pause")
        asm.emit("mov", dword(rax), place)
        asm.emit("test", dword(rax), dword(rax))
        asm.jump("jz", again)

    return emit


def test_a_worker_rounds_as_its_caller_does() -> None:
    """Part 0 waits for part 1, so that a worker runs it; part 1 tells its MXCSR."""
    code = dispatcher_of([wait_for(Memory(rsi, 4)), lambda asm: asm.emit("stmxcsr", Memory(rsi))])
    y = np.zeros(2, np.uint32)
    call_and_report(code, Target.detect().isa, np.zeros(1, np.float32), y)
    assert int(y[1]) & ~STATUS_FLAGS == UNUSUAL_MXCSR


def test_a_second_caller_does_not_wait_for_the_first(eventually: Eventually) -> None:
    code = dispatcher_of([wait_for(Memory(rdi)), lambda asm: asm.emit("nop")])
    stuck = ExecutableMemory(code).function(2)
    go_on = np.zeros(1, np.uint32)
    first = threading.Thread(target=stuck, args=(go_on.ctypes.data, 0))
    first.start()
    try:
        assert eventually(lambda: pool()._block[0] == 1)
        kernel, x, expected = make()
        np.testing.assert_array_equal(kernel(x), expected)
        assert first.is_alive()
    finally:
        go_on[0] = 1
        first.join()
    assert pool()._block[0] == 0


def test_a_worker_sleeps_when_idle_and_wakes_for_work(eventually: Eventually) -> None:
    code = dispatcher_of([wait_for(Memory(rsi, 4)), _write_one])
    call = ExecutableMemory(code).function(2)
    for _ in range(20):
        assert eventually(lambda: parked(0))
        y = np.zeros(2, np.uint32)
        call(0, y.ctypes.data)  # returns only after a worker ran part 1
        assert y[1] == 1


def call_for_little(soon_ticks: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A call whose second part gains nothing by a worker; `soon_ticks` is a quick succession."""
    monkeypatch.setattr(workers, "SOON_TICKS", soon_ticks)
    routines = workers.Routines()
    monkeypatch.setattr(pool()._native, "wake_if_soon", routines.wake_if_soon)
    code = dispatcher_of([lambda asm: asm.emit("nop"), _write_one], saved_ns=0.0)
    native, y = ExecutableMemory(code).function(2), np.zeros(2, np.uint32)

    def call(kept: workers.Routines = routines) -> None:
        y[1] = 0
        native(0, y.ctypes.data)
        assert y[1] == 1

    return call


def test_calls_far_apart_do_not_wake_a_worker_for_little(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = call_for_little(0, monkeypatch)
    assert eventually(lambda: parked(0))
    for _ in range(1000):
        call()
        assert parked(0)


def test_calls_in_quick_succession_wake_a_worker(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = call_for_little(2**31 - 1, monkeypatch)
    assert eventually(lambda: parked(0))

    def woken_by_two_calls() -> bool:
        call()
        call()
        return not parked(0)

    assert eventually(woken_by_two_calls)


def _write_one(asm: Assembler) -> None:
    asm.emit("mov", dword(rcx), 1)
    asm.emit("mov", Memory(rsi), dword(rcx))


def parked(worker: int) -> bool:
    return bool(pool()._block[(mailbox_at(worker) + SLEEP) // 4] == PARKED)


def test_idle_workers_sleep_in_the_kernel(eventually: Eventually) -> None:
    """Neither running nor ready to: Linux calls them S, sleeping."""
    make()
    tasks = [thread.native_id for thread in pool()._threads]
    assert len(tasks) >= 2

    def state(task: int) -> str:
        return Path(f"/proc/self/task/{task}/stat").read_text().rpartition(")")[2].split()[0]

    assert eventually(lambda: all(map(parked, range(pool().workers))))
    assert eventually(lambda: {state(task) for task in tasks} == {"S"})


def test_a_dropped_kernel_is_freed_and_the_workers_stay() -> None:
    kernel, _, _ = make()
    other, x, expected = make(seed=1)
    memory = weakref.ref(kernel.program.memory)
    there = pool().workers
    gc.disable()
    try:
        del kernel
        assert memory() is None
    finally:
        gc.enable()
    assert pool().workers == there
    assert all(thread.is_alive() for thread in pool()._threads)
    np.testing.assert_array_equal(other(x), expected)


def test_the_pool_grows_and_old_kernels_go_on() -> None:
    kernel, x, expected = make(threads=2)
    make(threads=8)
    assert pool().workers >= 7
    np.testing.assert_array_equal(kernel(x), expected)


def test_a_refused_thread_is_an_error_and_the_pool_stays_sound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel, x, expected = make()
    there = pool().workers

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(CompileError, match=f"threads={there + 1}"):
            pool().require(there + 2)
    assert pool().workers == there
    np.testing.assert_array_equal(kernel(x), expected)
    pool().require(there)


def test_a_stopped_pool_computes_on_the_caller_and_starts_anew() -> None:
    kernel, x, expected = make()
    pool().stop()
    pool().stop()
    assert pool().workers == 0
    np.testing.assert_array_equal(kernel(x), expected)
    make()
    assert pool().workers >= 2
    assert pool()._block[0] == 0
    np.testing.assert_array_equal(kernel(x), expected)


def test_a_forked_child_computes_alone_until_it_compiles() -> None:
    kernel, x, expected = make()

    def alone() -> None:
        assert pool().workers == 0
        np.testing.assert_array_equal(kernel(x), expected)

    def with_workers_of_its_own() -> None:
        make()
        assert pool().workers >= 2
        assert pool()._block[0] == 0
        for _ in range(100):
            np.testing.assert_array_equal(kernel(x), expected)

    for _ in range(3):
        outcome = run_in_child([("alone", alone), ("workers", with_workers_of_its_own)])
        outcome.assert_clean()
    np.testing.assert_array_equal(kernel(x), expected)


SCRIPT = """
    import os, sys, threading, time
    import numpy as np
    import sparsejit
    from sparsejit.machine.price_records import SharingPrices
    from sparsejit.planner import sharing
    sharing.sharing_prices = lambda target: SharingPrices(0.0, 1e9)
    random = np.random.default_rng(0)
    kernel = sparsejit.compile_matrix(random.standard_normal((64, 64)), threads=4)
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    run = kernel.bind(x, y)
    run()
    expected = y.copy()
"""


def start(script: str) -> "subprocess.Popen[str]":
    code = textwrap.dedent(SCRIPT) + textwrap.dedent(script)
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    "last_words",
    [
        "",  # workers spin
        "time.sleep(0.1)",  # workers sleep
        "os._exit(0)",
        "sys.exit(0)",
        "threading.Thread(target=lambda: [run() for _ in range(50000)], daemon=True).start()",
        "threading.Thread(target=lambda: [run() for _ in range(50000)]).start()",
    ],
)
def test_the_interpreter_ends_quietly(last_words: str) -> None:
    process = start(last_words)
    _, errors = process.communicate(timeout=LONGEST_WAIT_S)
    assert (process.returncode, errors) == (0, "")


def test_an_interrupt_ends_a_loop_of_calls() -> None:
    process = start("print('calling', flush=True)\nwhile True: run()")
    assert process.stdout is not None and process.stdout.readline() == "calling\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LONGEST_WAIT_S)
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert process.returncode == -signal.SIGINT


def test_one_core_is_enough() -> None:
    process = start(
        """
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        for task in os.listdir('/proc/self/task'):
            os.sched_setaffinity(int(task), os.sched_getaffinity(0))
        for _ in range(3000):
            y[:] = 0
            kernel(x, out=y)
            assert (y == expected).all()
        """
    )
    _, errors = process.communicate(timeout=LONGEST_WAIT_S)
    assert (process.returncode, errors) == (0, "")
