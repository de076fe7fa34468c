"""Times a model's native function and its steps: rounds of both in turn, each in a native loop.

Long steps are timed by time stamps that a function writes to its workspace. A stamp takes some ten
nanoseconds and the processor overlaps short steps, so short steps are timed by prefixes: the
function stops after each number of steps in turn, and the differences are the times of the steps.
"""

import ctypes
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.runtime import native_timing
from sparsejit.runtime.native_call import address_table, new_workspace
from sparsejit.runtime.native_timing import (
    Timing,
    calls_a_sample,
    duration_ns,
    native_loop,
    pinned,
)

_BUDGET_NS = 400_000_000
_FEWEST_ROUNDS, _MOST_ROUNDS = 7, 200
# Stamps may take at most this share of the function's time; a stamp takes this many nanoseconds.
_MOST_DISTURBED, _STAMP_NS = 0.05, 15

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ProbedFunction:
    """`int run(inputs, outputs, workspace, samples)` with int64 slots for probes in its workspace.

    A stamped function keeps its last time stamp in slot 0, and adds the ticks of an empty probe to
    slot 1 and the ticks of step n to slot 2 + n. A function for prefixes stops after the number of
    steps in slot 0.
    """

    memory: ExecutableMemory
    workspace_bytes: int
    first_slot: int
    steps: int


@dataclass(frozen=True)
class StepTimes:
    """Median nanoseconds of the function for one tile, of each step, and of the call itself.

    `call` is None where stamps were used, since they do not time it.
    """

    whole: float
    steps: list[float]
    call: float | None = None


def wants_prefixes(whole_ns: float, steps: int) -> bool:
    """Whether to time a function by prefixes, since time stamps would slow it down too much."""
    return steps * _STAMP_NS > _MOST_DISTURBED * whole_ns


class ModelTimer:
    """Times a model's function, and probed versions of it, on the same arrays."""

    def __init__(
        self,
        memory: ExecutableMemory,
        workspace_bytes: int,
        arrays: tuple[list[Array], ...],
        samples: int,
    ) -> None:
        self._arrays, self._samples = arrays, samples
        self._tables = [address_table(each) for each in arrays]
        self._loop = self._looped(memory, new_workspace(workspace_bytes))

    def run(self) -> None:
        """Run the function once."""
        self._loop(1)

    def whole(self) -> Timing:
        """Nanoseconds of the function."""
        with pinned():
            return native_timing.sample(self._loop, _MOST_ROUNDS, _BUDGET_NS // 4)

    def by_stamps(self, function: ProbedFunction) -> StepTimes:
        """Return the function's median time, and its steps' times by a version with time stamps."""
        workspace = new_workspace(function.workspace_bytes)
        slots = _slots(workspace, function)
        loop = self._looped(function.memory, workspace)
        wholes, ticks = [], []
        with pinned():
            counts = calls_a_sample(self._loop), calls_a_sample(loop)
            first_tick, started = int(slots[0]), native_timing.clock()
            for _ in _rounds(counts, (self._loop, loop)):
                wholes.append(duration_ns(self._loop, counts[0]) / counts[0])
                slots[1:] = 0
                loop(counts[1])
                ticks.append(slots[1:] / counts[1])
            last_tick, ended = int(slots[0]), native_timing.clock()
        ns_a_tick = (ended - started) / max(last_tick - first_tick, 1)
        empty, *steps = np.median(np.array(ticks), axis=0).tolist()
        # A step that takes no longer than an empty probe counts as one tick.
        return StepTimes(
            statistics.median(wholes), [max(1.0, each - empty) * ns_a_tick for each in steps]
        )

    def by_prefixes(self, function: ProbedFunction) -> StepTimes:
        """Return the function's median time, and its steps' times by a version that stops early.

        A step's time is the difference of two prefixes, with and without it.
        """
        workspace = new_workspace(function.workspace_bytes)
        slots = _slots(workspace, function)
        loop = self._looped(function.memory, workspace)
        prefixes = range(function.steps + 1)
        wholes: list[float] = []
        times: list[list[float]] = [[] for _ in prefixes]
        with pinned():
            slots[0] = function.steps
            count = calls_a_sample(self._loop)
            loops = (self._loop, *[loop] * len(prefixes))
            for _ in _rounds((count,) * len(loops), loops):
                wholes.append(duration_ns(self._loop, count) / count)
                for prefix in prefixes:
                    slots[0] = prefix
                    times[prefix].append(duration_ns(loop, count) / count)
        call, *steps = increments([statistics.median(each) for each in times])
        return StepTimes(statistics.median(wholes), steps, call)

    def _looped(self, memory: ExecutableMemory, workspace: Array) -> Callable[[int], None]:
        inputs, outputs = map(ctypes.addressof, self._tables)
        arguments = inputs, outputs, workspace.ctypes.data, self._samples
        loop = native_loop([(memory.address, arguments)])

        def run(count: int, keep: tuple[object, ...] = (memory, workspace)) -> None:
            loop(count)

        return run


def ns_of_calls(
    memory: ExecutableMemory,
    arrays: tuple[list[Array], ...],
    workspace: Array,
    samples: int,
    count: int,
) -> Array:
    """Return the nanoseconds of each of `count` calls of a model's function on the same arrays."""
    tables = [address_table(each) for each in arrays]
    inputs, outputs = map(ctypes.addressof, tables)
    call = memory.address, (inputs, outputs, workspace.ctypes.data, samples)
    return native_timing.ns_of_each(call, count)


def increments(prefixes: Sequence[float]) -> list[float]:
    """Return the time that each prefix adds to the one before, never negative.

    They add up to the time of the last prefix. Noise may make a longer prefix faster: then the
    step counts as 0.
    """
    most = prefixes[-1]
    rising = [min(ns, most) for ns in accumulate(prefixes, max)]
    return [after - before for before, after in pairwise((0.0, *rising))]


def _rounds(counts: Sequence[int], loops: Sequence[Callable[[int], None]]) -> Iterator[int]:
    """Yield round numbers, as the budget allows, after a first round that measures their length."""
    took = sum(duration_ns(loop, count) for loop, count in zip(loops, counts, strict=True))
    affordable = int(_BUDGET_NS / max(took, 1))
    return iter(range(max(_FEWEST_ROUNDS, min(_MOST_ROUNDS, affordable))))


def _slots(workspace: Array, function: ProbedFunction) -> Array:
    room = workspace[function.first_slot :][: 8 * (function.steps + 2)]
    return room.view(np.int64)
