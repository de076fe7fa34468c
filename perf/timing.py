"""Time calls from Python; `sparsejit/runtime/native_timing.py` times native calls.

`empty_native_call` and `empty_python_call` measure the loops' own share of a time.
"""

import gc
import itertools
import statistics
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Generic, TypeVar

from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.runtime.native_timing import BUDGET_NS, SAMPLES, Timing, pinned, sample, time_native
from sparsejit.x86.assembler import Assembler

Name = TypeVar("Name", bound=Hashable)


class RoundsInTurn(Generic[Name]):
    """Contestants, each measured once a round, so that a change of the clock affects all alike.

    Each takes the number of the round and returns one time or several; `times` has the times of all
    rounds. A contestant that raises one of `failures` is dropped; `skipped` has the error's text.
    """

    def __init__(
        self,
        contestants: Mapping[Name, Callable[[int], float | Sequence[float]]],
        failures: tuple[type[Exception], ...] = (),
    ) -> None:
        self._contestants, self._failures = dict(contestants), failures
        self.times: dict[Name, list[float]] = {name: [] for name in contestants}
        self.skipped: dict[Name, str] = {}

    def round(self, number: int = 0) -> dict[Name, float]:
        """Measure each contestant once more; return the least of its times in this round."""
        found = {}
        for name, measure in list(self._contestants.items()):
            try:
                times = measure(number)
            except self._failures as problem:
                self.skipped[name] = str(problem)
                del self._contestants[name], self.times[name]
                continue
            found[name] = [times] if isinstance(times, float | int) else times
        for name, times in found.items():
            self.times[name] += times
        return {name: min(times) for name, times in found.items()}

    def run(self, rounds: int, progress: Callable[[str], None] = lambda step: None) -> None:
        """Run rounds, and report each of them to `progress`."""
        for number in range(rounds):
            progress(f"round {number + 1} of {rounds}")
            self.round(number)

    def keep(self, names: Container[Name]) -> None:
        """Measure these alone in further rounds; the others' times stay."""
        self._contestants = {n: one for n, one in self._contestants.items() if n in names}

    def forget(self) -> None:
        """Discard the times so far, which were a warm-up."""
        for times in self.times.values():
            times.clear()

    def least(self) -> dict[Name, float]:
        """The least time of each contestant over all rounds."""
        return {name: min(times) for name, times in self.times.items()}

    def medians(self) -> dict[Name, float]:
        """The median time of each contestant over all rounds."""
        return {name: statistics.median(times) for name, times in self.times.items()}


def time_python(
    callable_: Callable[[], object],
    *,
    samples: int = SAMPLES,
    budget_ns: int = BUDGET_NS,
) -> Timing:
    """Time `callable_()` as Python sees it, with the garbage collector off."""

    def loop(count: int) -> None:
        for _ in itertools.repeat(None, count):
            callable_()

    with pinned(), _no_garbage_collection():
        return sample(loop, samples, budget_ns)


@cache
def empty_native_call() -> Timing:
    """The cost of the native loop around a function that only returns."""
    asm = Assembler(Target.detect())
    asm.emit("ret")
    memory = ExecutableMemory(asm.finish().data)
    return time_native(memory.address, (0, 0))


@cache
def empty_python_call() -> Timing:
    """The cost of the Python loop around a function that only returns."""
    return time_python(lambda: None)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
