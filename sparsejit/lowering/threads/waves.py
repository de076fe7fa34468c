"""Schedule steps on threads before the model runs: waves of steps, with a barrier after each.

    wave 1   thread 0  stem, rows 0 to 55               thread 1  stem, rows 56 to 111
    ---------------------------------------------------------------------------------- barrier
    wave 2   thread 0  b, then c, which reads it        thread 1  d

A wave takes the next steps, divided or whole, as long as each depends only on steps of earlier
waves or earlier steps of its own thread. It ends where the gain is greatest; a step that gains too
little runs alone. Predictions include the time to fetch bytes that another core wrote.
(Waves of tiles placed at compile time: Ma et al., "Rammer: enabling holistic deep learning compiler
optimizations with rTasks", 2020.)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

from sparsejit.lowering.step import Step
from sparsejit.lowering.threads.crew import Crew, LastWriters, ScheduledStep, Way
from sparsejit.planner.choice import choose, least, priced
from sparsejit.planner.sharing import WavePrices


@dataclass(frozen=True)
class Wave:
    """The steps of each thread, in order, the caller's thread first; nanoseconds are predicted.

    `alone_ns` is the time of the steps on one thread, `ns` their time on these threads.
    """

    threads: tuple[tuple[ScheduledStep, ...], ...]
    alone_ns: float
    ns: float

    @property
    def is_shared(self) -> bool:
        """Whether threads other than the caller's have steps."""
        return len(self.threads) > 1

    @property
    def steps(self) -> list[ScheduledStep]:
        """All steps, thread by thread."""
        return [each for steps in self.threads for each in steps]

    def without_code(self, records: dict[Step, Step]) -> Wave:
        """A record of the wave; `records` has a record of each step, which is made once."""
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
    """Waves for at most `threads` threads; one wave per step where sharing gains nothing."""
    alone = tuple(_alone((ScheduledStep(number, step),)) for number, step in enumerate(steps))
    if threads == 1:
        return alone
    ways = _Ways(steps, threads)
    reckoned = {
        f"{threads} threads": prices,
        f"{threads} threads, longer waves": prices.without_crossing,
    }
    found = {
        name: _grown_one_by_one(ways, prices, LastWriters(each))
        for name, each in reckoned.items()
    }
    rows = [
        priced("one thread", _ns(alone), alone),
        *(
            priced(name, _ns(waves), waves)
            for name, waves in found.items()
            if _gain_enough(waves, prices)
        ),
    ]
    made: tuple[Wave, ...] = choose("threads", rows, None).row.emitter
    return made


def _ns(waves: Sequence[Wave]) -> float:
    return sum(wave.ns for wave in waves)


def merged(waves: Sequence[Wave], key: Callable[[ScheduledStep], Hashable]) -> list[Wave]:
    """Waves of one thread in which consecutive steps with equal keys are one wave."""
    steps = (each for wave in waves for each in wave.steps)
    return [_alone(tuple(group)) for _, group in groupby(steps, key)]


def _alone(steps: tuple[ScheduledStep, ...]) -> Wave:
    """The wave of steps on the caller's thread."""
    ns = sum(each.step.ns for each in steps)
    return Wave((steps,), ns, ns)


def _gain_enough(waves: Sequence[Wave], prices: WavePrices) -> bool:
    """Whether shared waves gain enough, with the time of all bytes that cross between cores."""
    shared_ns = sum(wave.alone_ns for wave in waves if wave.is_shared)
    saved_ns = sum(wave.alone_ns - wave.ns for wave in waves)
    return prices.gain_enough(shared_ns, shared_ns - saved_ns)


def _grown_one_by_one(ways: _Ways, prices: WavePrices, reckoned: LastWriters) -> tuple[Wave, ...]:
    """Waves chosen one by one, each as fast as possible; `reckoned` predicts crossing times.

    A choice does not see bytes that cross to later waves: a search without crossing times finds
    longer waves at times.
    """
    waves: list[Wave] = []
    growing = _Growing(ways, prices, reckoned)
    arriving = LastWriters(prices)
    first = 0
    while first < len(ways.steps):
        wave = least(growing.waves_from(first), lambda grown: -grown.score).wave
        reckoned.note(wave.threads)
        waves.append(_priced(wave, arriving, prices))
        first += len({each.number for each in wave.steps})
    return tuple(waves)


def _priced(wave: Wave, writers: LastWriters, prices: WavePrices) -> Wave:
    """The wave with its complete predicted time; `writers` records the views it writes."""
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
    """The steps of a model, and the ways to divide each, which are computed once."""

    def __init__(self, steps: Sequence[Step], threads: int) -> None:
        self.steps, self.threads = steps, threads
        self._divided: dict[int, list[Way]] = {}

    def whole(self, number: int) -> list[Way]:
        """The step undivided, as the only way."""
        return [(self.steps[number],)]

    def divided(self, number: int) -> list[Way]:
        """The ways to divide a step; whole where there is none."""
        if number not in self._divided:
            divide = self.steps[number].divide
            ways = [tuple(way) for way in divide(self.threads)] if divide else []
            self._divided[number] = ways or self.whole(number)
        return self._divided[number]


class _Grown(NamedTuple):
    """A wave, and its score: the number of times it is faster than the caller's thread alone.

    A shared wave's score is lower than that ratio, since predictions err.
    """

    wave: Wave
    score: float


class _Growing:
    """Makes the waves that may begin with a step."""

    def __init__(self, ways: _Ways, prices: WavePrices, writers: LastWriters) -> None:
        self._ways, self._prices, self._writers = ways, prices, writers

    def waves_from(self, first: int) -> Iterator[_Grown]:
        """Waves of the step alone, of it and later steps whole, and of it divided in each way."""
        yield from self._grown(first, self._ways.whole(first)[0], self._ways.whole)
        for way in self._ways.divided(first):
            yield from self._grown(first, way, self._ways.divided)

    def _grown(
        self, first: int, way: Way, ways_of: Callable[[int], Sequence[Way]]
    ) -> Iterator[_Grown]:
        """Waves of one step, run in `way`, of two steps, and so on."""
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
