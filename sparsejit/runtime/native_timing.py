"""Times native code: a function in a native loop, pinned to one core.

After a warm-up, many samples of about `SAMPLE_NS` each are taken; a sample is the mean of the
calls in it. The minimum is the cost without interruptions, the median the cost on a busy machine.
Calls follow each other immediately, so the end of one may overlap the start of the next, for a
kernel and for its rivals alike. Nothing is subtracted.
"""

import os
import statistics
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Memory,
    dword,
    r8,
    r9,
    r12,
    r13,
    rax,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
    rsp,
    xmm,
)

SAMPLE_NS = 100_000
SAMPLES = 200
BUDGET_NS = 400_000_000
WARM_UP_NS = 2_000_000
_FEWEST_SAMPLES = 5

# The address of a function, and its arguments.
Call = tuple[int, Sequence[int | float]]

_INTEGER_REGISTERS = (rdi, rsi, rdx, rcx, r8, r9)
_FLOAT_REGISTERS = tuple(xmm(number) for number in range(8))


@dataclass(frozen=True)
class Timing:
    """Nanoseconds a call: the minimum and the median of `samples` samples."""

    min_ns: float
    median_ns: float
    samples: int


def time_native(
    address: int,
    arguments: Sequence[int | float] = (),
    *,
    samples: int = SAMPLES,
    budget_ns: int = BUDGET_NS,
) -> Timing:
    """Time a System V C function at `address`.

    `arguments` are passed on every call: an int as a 64-bit integer or pointer, a float as
    float32. At most `samples` samples are taken, fewer if they would exceed `budget_ns`.
    """
    return time_in_turn([(address, arguments)], samples=samples, budget_ns=budget_ns)


def time_in_turn(
    calls: Sequence[Call],
    *,
    samples: int = SAMPLES,
    budget_ns: int = BUDGET_NS,
) -> Timing:
    """Time System V C functions that run one after another: nanoseconds of one pass over all.

    `calls` has the address and the arguments of each; see `time_native`.
    """
    loop = native_loop(calls)
    with pinned():
        return sample(loop, samples, budget_ns)


def time_copies(
    code: bytes,
    x: npt.NDArray[np.float32],
    y_shape: tuple[int, ...],
    places: int,
    samples: int,
) -> list[Timing]:
    """Time copies of `void kernel(const float *x, float *y)`, each at its own place in memory.

    The time of a kernel in L2 varies by up to 1.5 times with the addresses of its pages: see
    `median_of_least`. Every copy has its own x and y, each aligned to a cache line.
    """
    # All copies are held until the end; otherwise the next would get the same pages again.
    held = [
        (ExecutableMemory(code), aligned(x), aligned(np.empty(y_shape, np.float32)))
        for _ in range(places)
    ]
    return [
        time_native(memory.address, (source.ctypes.data, result.ctypes.data), samples=samples)
        for memory, source, result in held
    ]


def median_of_least(timings: Iterable[Timing]) -> float:
    """Nanoseconds a call: the median, over places in memory, of the minimum at each."""
    return statistics.median(timing.min_ns for timing in timings)


def aligned(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return a copy aligned to a cache line; numpy's allocator does not align to it."""
    room = np.empty(values.size + 16, np.float32)
    start = -room.ctypes.data % 64 // 4
    copy = room[start : start + values.size].reshape(values.shape)
    copy[...] = values
    return copy


def call_native(address: int, arguments: Sequence[int | float] = ()) -> None:
    """Call a function once, by the same loop as `time_native`."""
    native_loop([(address, arguments)])(1)


@contextmanager
def pinned(core: int | None = None) -> Iterator[int]:
    """Pin this thread to one core (default: the first allowed one) inside the context."""
    allowed = os.sched_getaffinity(0)
    chosen = min(allowed) if core is None else core
    if chosen not in allowed:
        raise InvalidInput(f"core {chosen} is not available; use one of {sorted(allowed)}")
    os.sched_setaffinity(0, {chosen})
    try:
        yield chosen
    finally:
        os.sched_setaffinity(0, allowed)


def native_loop(calls: Sequence[Call]) -> Callable[[int], None]:
    """Return void loop(count), which makes all calls in turn, `count` times.

    The arguments are passed anew each time.
    """
    asm = Assembler(Target.detect())
    again = asm.label("again")
    asm.emit("push", rbx)  # also aligns the stack to 16 bytes
    asm.emit("mov", rbx, rdi)
    asm.bind(again)
    for address, arguments in calls:
        stack_bytes = _pass_arguments(asm, arguments)
        asm.emit("mov", rax, address)
        asm.emit("call", rax)
        if stack_bytes:
            asm.emit("add", rsp, stack_bytes)
    asm.emit("sub", rbx, 1)
    asm.jump("jnz", again)
    asm.emit("pop", rbx)
    asm.emit("ret")
    return ExecutableMemory(asm.finish().data).function(1)


def ns_of_each(call: Call, count: int) -> npt.NDArray[np.float64]:
    """Return the nanoseconds of each of `count` calls, one after another in one native loop.

    Each begins when the one before has ended, by the time stamp counter, whose own 10 ns it has.
    """
    ticks = np.zeros(count, np.int64)
    ticks += 1  # touches every page before the loop does
    loop = _stamped_loop(call)
    with pinned():
        loop(min(count, 1000), ticks.ctypes.data)
        started, first = clock(), read_counter()
        loop(count, ticks.ctypes.data)
        ns_a_tick = (clock() - started) / (read_counter() - first)
    return ticks * np.float64(ns_a_tick)


def _stamped_loop(call: Call) -> Callable[[int, int], None]:
    """Return void loop(count, ticks), which makes `count` calls and writes the ticks of each."""
    address, arguments = call
    asm = Assembler(Target.detect())
    again = asm.label("again")
    for register in (rbx, r12, r13):  # three, which aligns the stack to 16 bytes
        asm.emit("push", register)
    asm.emit("mov", rbx, rdi)
    asm.emit("mov", r12, rsi)
    asm.bind(again)
    _emit_counter(asm)
    asm.emit("mov", r13, rax)
    stack_bytes = _pass_arguments(asm, arguments)
    asm.emit("mov", rax, address)
    asm.emit("call", rax)
    if stack_bytes:
        asm.emit("add", rsp, stack_bytes)
    _emit_counter(asm)
    asm.emit("sub", rax, r13)
    asm.emit("mov", Memory(r12), rax)
    asm.emit("add", r12, 8)
    asm.emit("sub", rbx, 1)
    asm.jump("jnz", again)
    for register in (r13, r12, rbx):
        asm.emit("pop", register)
    asm.emit("ret")
    return ExecutableMemory(asm.finish().data).function(2)


def _emit_counter(asm: Assembler) -> None:
    """Append rax = the time stamp counter, once all earlier instructions are done."""
    asm.emit("rdtscp")
    asm.emit("shl", rdx, 32)
    asm.emit("or", rax, rdx)


@cache
def _counter() -> tuple[Callable[[int], None], npt.NDArray[np.int64]]:
    asm, room = Assembler(Target.detect()), np.zeros(1, np.int64)
    _emit_counter(asm)
    asm.emit("mov", Memory(rdi), rax)
    asm.emit("ret")
    return ExecutableMemory(asm.finish().data).function(1), room


def read_counter() -> int:
    """The time stamp counter."""
    read, room = _counter()
    read(room.ctypes.data)
    return int(room[0])


def _pass_arguments(asm: Assembler, arguments: Sequence[int | float]) -> int:
    """Put arguments in registers, then on the stack, as in the System V ABI (section 3.2.3).

    Returns the bytes of stack used, a multiple of 16.
    """
    integers = [value for value in arguments if isinstance(value, int)]
    floats = [value for value in arguments if isinstance(value, float)]
    if len(floats) > len(_FLOAT_REGISTERS):
        raise InvalidInput(f"{len(floats)} float arguments; pass at most {len(_FLOAT_REGISTERS)}")
    on_stack = integers[len(_INTEGER_REGISTERS) :]
    on_stack += [0] * (len(on_stack) % 2)
    for integer in reversed(on_stack):
        asm.emit("mov", rax, integer)
        asm.emit("push", rax)
    for register, integer in zip(_INTEGER_REGISTERS, integers, strict=False):
        asm.emit("mov", register, integer)
    for register, number in zip(_FLOAT_REGISTERS, floats, strict=False):
        asm.emit("mov", dword(rax), int.from_bytes(struct.pack("<f", number), "little"))
        asm.emit("vmovd", register, dword(rax))
    return 8 * len(on_stack)


def sample(loop: Callable[[int], None], samples: int, budget_ns: int) -> Timing:
    """Time one call of a kernel by `loop(count)`, which makes `count` calls."""
    count = calls_a_sample(loop)
    once = duration_ns(loop, count)
    affordable = max(_FEWEST_SAMPLES, min(samples, int(budget_ns / max(once, 1))))
    times = [duration_ns(loop, count) / count for _ in range(affordable)]
    return Timing(min(times), statistics.median(times), len(times))


def calls_a_sample(loop: Callable[[int], None]) -> int:
    """Warm up, and return the number of calls that take about `SAMPLE_NS` together."""
    count, spent = 1, 0
    while True:
        # The minimum of three: an interruption would look like a slow call and make samples so
        # short that the call of the loop itself shows in them (+50 ns a call was seen).
        attempts = [duration_ns(loop, count) for _ in range(3)]
        elapsed = min(attempts)
        spent += sum(attempts)
        if elapsed >= SAMPLE_NS // 2 and spent >= WARM_UP_NS:
            return max(1, round(count * SAMPLE_NS / elapsed))
        if elapsed < SAMPLE_NS // 2:
            count *= 2


def duration_ns(loop: Callable[[int], None], count: int) -> int:
    """Nanoseconds of `count` calls."""
    start = clock()
    loop(count)
    return clock() - start


def clock() -> int:
    """Nanoseconds since an arbitrary moment. All timings here and in `perf` read this clock."""
    return time.perf_counter_ns()
