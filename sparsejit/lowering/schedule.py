"""Which thread runs what, fixed before the model runs: waves of steps with a barrier behind each.

    wave 1   thread 0  stem, rows 0 to 55               thread 1  stem, rows 56 to 111
    ---------------------------------------------------------------------------------- barrier
    wave 2   thread 0  b, then c, which reads it        thread 1  d

A wave takes the steps that come next, divided or whole, as long as what each must wait for is of
an earlier wave or was run before it by its own thread. It ends where that gains most; a step that
gains too little runs alone. What another core wrote takes time to arrive, and is reckoned with.
(Waves of tiles placed at compile time: Ma et al., "Rammer: enabling holistic deep learning compiler
optimizations with rTasks", 2020.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sparsejit.lowering.crew import Crew, LastWriters, ScheduledStep, Way
from sparsejit.lowering.step import Step
from sparsejit.machine.core import Core
from sparsejit.planner.split import LEAST_GAIN


@dataclass(frozen=True)
class Wave:
    """What each thread runs, one after another, the caller's first; nanoseconds as predicted.

    `alone_ns` is what the steps should take on one thread, `ns` what they should take so.
    """

    threads: tuple[tuple[ScheduledStep, ...], ...]
    alone_ns: float
    ns: float

    @property
    def is_shared(self) -> bool:
        """Whether there is anything but the caller's."""
        return len(self.threads) > 1

    @property
    def steps(self) -> list[ScheduledStep]:
        """All of them, thread by thread."""
        return [each for steps in self.threads for each in steps]

    @property
    def score(self) -> float:
        """How many times faster than on one thread; less where prediction may be half as wrong."""
        gain = self.alone_ns / self.ns if self.ns else 1.0
        return gain / LEAST_GAIN if self.is_shared else gain


def schedule(steps: Sequence[Step], threads: int, core: Core) -> tuple[Wave, ...]:
    """Waves for at most so many threads; on one, a wave a step."""
    if threads == 1:
        each = (ScheduledStep(number, step) for number, step in enumerate(steps))
        return tuple(Wave(((one,),), one.step.ns, one.step.ns) for one in each)
    waves: list[Wave] = []
    growing = _Growing(steps, threads, core)
    first = 0
    while first < len(steps):
        wave = max(growing.waves_from(first), key=lambda each: each.score)
        growing.keep(wave)
        waves.append(wave)
        first += len({each.number for each in wave.steps})
    return tuple(waves)


class _Growing:
    """Makes waves that begin with some step, after those that are kept."""

    def __init__(self, steps: Sequence[Step], threads: int, core: Core) -> None:
        self.steps, self.threads, self.core = steps, threads, core
        self._writers = LastWriters()
        self._ways: dict[int, list[Way]] = {}

    def keep(self, wave: Wave) -> None:
        """Say what each thread wrote."""
        for thread, steps in enumerate(wave.threads):
            for each in steps:
                self._writers.note(each.step, thread)

    def waves_from(self, first: int) -> Iterator[Wave]:
        """The step alone; it and those behind it whole; and divided, in each way to divide it."""
        yield from self._grown(first, self._whole(first)[0], self._whole)
        for way in self._divided(first):
            yield from self._grown(first, way, self._divided)

    def _grown(
        self, first: int, way: Way, ways_of: Callable[[int], Sequence[Way]]
    ) -> Iterator[Wave]:
        """The wave of a step, divided so or whole; then that of two steps, and so on."""
        crew = Crew(self.threads, self._writers, self.core.crossing_bytes)
        crew.take(first, [way])
        number = first
        while True:
            wave = self._wave(crew, first, number + 1)
            if wave.is_shared or number == first:
                yield wave
            number += 1
            if number == len(self.steps) or not crew.take(number, ways_of(number)):
                return

    def _whole(self, number: int) -> list[Way]:
        return [(self.steps[number],)]

    def _divided(self, number: int) -> list[Way]:
        """Ways to divide a step; whole where there are none."""
        if number not in self._ways:
            divide = self.steps[number].divide
            ways = [tuple(way) for way in divide(self.threads)] if divide else []
            self._ways[number] = ways or self._whole(number)
        return self._ways[number]

    def _wave(self, crew: Crew, first: int, end: int) -> Wave:
        busy = tuple(tuple(steps) for steps in crew.steps if steps)
        alone_ns = sum(step.ns for step in self.steps[first:end])
        return Wave(busy, alone_ns, max(crew.ns) + self.core.barrier_ns * (len(busy) - 1))
