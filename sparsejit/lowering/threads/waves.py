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
from dataclasses import dataclass, replace
from typing import NamedTuple

from sparsejit.lowering.step import Step
from sparsejit.lowering.threads.crew import Crew, LastWriters, ScheduledStep, Way
from sparsejit.planner.sharing import WavePrices


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

    def without_code(self, records: dict[Step, Step]) -> Wave:
        """A record of it; `records` has those of steps, which are made once."""
        threads = [
            tuple(ScheduledStep(number, _record(step, records)) for number, step in steps)
            for steps in self.threads
        ]
        return Wave(tuple(threads), self.alone_ns, self.ns)


def _record(step: Step, records: dict[Step, Step]) -> Step:
    record = records.get(step)
    if record is None:
        record = records[step] = step.without_code()
    return record


def schedule(steps: Sequence[Step], threads: int, prices: WavePrices) -> tuple[Wave, ...]:
    """Waves for at most so many threads; a wave a step on one, and where nothing gains."""
    each = (ScheduledStep(number, step) for number, step in enumerate(steps))
    alone = tuple(Wave(((one,),), one.step.ns, one.step.ns) for one in each)
    if threads == 1:
        return alone
    ways = _Ways(steps, threads)
    reckoned = prices, prices.without_crossing
    found = (_grown_one_by_one(ways, prices, LastWriters(each)) for each in reckoned)
    shared = (waves for waves in found if _gain_enough(waves, prices))
    return min([alone, *shared], key=lambda waves: sum(wave.ns for wave in waves))


def _gain_enough(waves: Sequence[Wave], prices: WavePrices) -> bool:
    """Whether what threads share is faster by enough, with all that crosses to any wave."""
    shared_ns = sum(wave.alone_ns for wave in waves if wave.is_shared)
    saved_ns = sum(wave.alone_ns - wave.ns for wave in waves)
    return prices.score(shared_ns, shared_ns - saved_ns, True) >= 1


def _grown_one_by_one(ways: _Ways, prices: WavePrices, reckoned: LastWriters) -> tuple[Wave, ...]:
    """Each wave as fast as it can be; `reckoned` says what crosses between cores then.

    That does not see what crosses later: without it longer waves are found at times.
    """
    waves: list[Wave] = []
    growing = _Growing(ways, prices, reckoned)
    arriving = LastWriters(prices)
    first = 0
    while first < len(ways.steps):
        wave = max(growing.waves_from(first), key=lambda grown: grown.score).wave
        reckoned.note(wave.threads)
        waves.append(_priced(wave, arriving, prices))
        first += len({each.number for each in wave.steps})
    return tuple(waves)


def _priced(wave: Wave, writers: LastWriters, prices: WavePrices) -> Wave:
    """The wave with all that it should take; its writers are noted."""
    parts: dict[int, list[Step]] = {}
    for number, step in wave.steps:
        parts.setdefault(number, []).append(step)
    torn = {number: writers.torn_ns(tuple(way)) for number, way in parts.items()}
    busy = [
        sum(step.ns + torn[n] + writers.crossing_ns(step, thread) for n, step in steps)
        for thread, steps in enumerate(wave.threads)
    ]
    writers.note(wave.threads)
    return replace(wave, ns=prices.wave_ns(max(busy), len(busy)))


class _Ways:
    """The steps of a model, and the ways to divide each, which are made once."""

    def __init__(self, steps: Sequence[Step], threads: int) -> None:
        self.steps, self.threads = steps, threads
        self._divided: dict[int, list[Way]] = {}

    def whole(self, number: int) -> list[Way]:
        """The step as it is."""
        return [(self.steps[number],)]

    def divided(self, number: int) -> list[Way]:
        """Whole where there is no other way."""
        if number not in self._divided:
            divide = self.steps[number].divide
            ways = [tuple(way) for way in divide(self.threads)] if divide else []
            self._divided[number] = ways or self.whole(number)
        return self._divided[number]


class _Grown(NamedTuple):
    """A wave, and how many times faster it is than the caller alone from here on.

    Less where threads share it, since prediction may be half as wrong.
    """

    wave: Wave
    score: float


class _Growing:
    """Makes waves that begin with some step."""

    def __init__(self, ways: _Ways, prices: WavePrices, writers: LastWriters) -> None:
        self._ways, self._prices, self._writers = ways, prices, writers

    def waves_from(self, first: int) -> Iterator[_Grown]:
        """The step alone; it and those behind it whole; and divided, in each way to divide it."""
        yield from self._grown(first, self._ways.whole(first)[0], self._ways.whole)
        for way in self._ways.divided(first):
            yield from self._grown(first, way, self._ways.divided)

    def _grown(
        self, first: int, way: Way, ways_of: Callable[[int], Sequence[Way]]
    ) -> Iterator[_Grown]:
        """The wave of a step, divided so or whole; then that of two steps, and so on."""
        crew = Crew(self._ways.threads, self._writers)
        crew.take(first, [way])
        number = first
        while True:
            grown = self._wave(crew, first, number + 1)
            if grown.wave.is_shared or number == first:
                yield grown
            number += 1
            if number == len(self._ways.steps) or not crew.take(number, ways_of(number)):
                return

    def _wave(self, crew: Crew, first: int, end: int) -> _Grown:
        busy = tuple(tuple(steps) for steps in crew.steps if steps)
        steps = self._ways.steps[first:end]
        ns = self._prices.wave_ns(max(crew.ns), len(busy))
        wave = Wave(busy, sum(step.ns for step in steps), ns)
        alone = wave.alone_ns + sum(self._writers.crossing_ns(step, 0) for step in steps)
        return _Grown(wave, self._prices.score(alone, ns, wave.is_shared))
