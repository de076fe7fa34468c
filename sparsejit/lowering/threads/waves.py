"""Steps on threads: a schedule in waves, with a barrier after each, made before the model runs.

    Crew         the threads of a wave while it grows: the steps of each, and their conflicts
    Wave         the steps of each thread
    schedule     the waves of a model
    merged       waves of one thread: consecutive steps with equal keys in one wave
    emit_wave    a wave as code: a function that the caller's thread calls, and one for each
                 thread's steps

An example:

    wave 1   thread 0  stem, rows 0 to 55               thread 1  stem, rows 56 to 111
    ---------------------------------------------------------------------------------- barrier
    wave 2   thread 0  b, then c, which reads it        thread 1  d

A wave takes the next steps, divided or whole, as long as each depends only on steps of earlier
waves or earlier steps of its own thread. It ends where the gain is greatest; a step that gains too
little runs alone. Predictions include the time to fetch bytes that another core wrote.
(Waves of tiles placed at compile time: Ma et al., "Rammer: enabling holistic deep learning compiler
optimizations with rTasks", 2020.)

As code:

    call wave
    wave:      hand thread 1 its function, run thread 0's, wait for the answer   runtime/workers.py
    thread 0:  step, step ...
    thread 1:  step, step ...

Steps of several threads that run the same code on their own columns share it (`SharedBodies`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from typing import NamedTuple

from sparsejit.asm_templates.shared.location import WORKSPACE
from sparsejit.lowering.memory.overlap import overlap, shared_bytes, torn_lines
from sparsejit.lowering.memory.storage import Buffer, View
from sparsejit.lowering.step import Step
from sparsejit.planner.cheapest_row import choose, least, priced
from sparsejit.planner.sharing import WavePrices
from sparsejit.runtime.workers import HostThreads, NativePart, Pool
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import rdi
from sparsejit.x86.routines import pop, push

Way = tuple[Step, ...]  # the parts of a divided step, or a whole step


class ScheduledStep(NamedTuple):
    """A step, or a part of one; `number` is the place of the whole step in the model."""

    number: int
    step: Step


class LastWriters:
    """The threads that wrote each buffer in earlier waves, whose cores have it in their caches."""

    def __init__(self, prices: WavePrices) -> None:
        self._prices = prices
        self._written: dict[Buffer, list[tuple[int, View]]] = {}

    def note(self, threads: Sequence[Sequence[ScheduledStep]]) -> None:
        """Record the views that each thread of a wave writes."""
        for thread, steps in enumerate(threads):
            for view in (view for each in steps for view in each.step.writes):
                self._written.setdefault(view.buffer, []).append((thread, view))

    def crossing_ns(self, step: Step, thread: int) -> float:
        """Predicted nanoseconds to fetch bytes that a step reads and other threads wrote."""
        crossing = sum(
            shared_bytes(view, other)
            for view in step.reads
            for writer, other in self._written.get(view.buffer, ())
            if writer != thread
        )
        return self._prices.crossing_ns(crossing)

    def torn_ns(self, way: Way) -> float:
        """Predicted nanoseconds for cache lines that two parts of a step write."""
        writes = [part.writes for part in way]
        lines = max((sum(map(torn_lines, *both)) for both in pairwise(writes)), default=0)
        return self._prices.torn_ns(lines)


class _Assigned(NamedTuple):
    """A step on a thread, and its predicted time there, including bytes that cross cores."""

    step: Step
    thread: int
    ns: float


class Crew:
    """The steps of each thread, their predicted nanoseconds, and the views each thread touches."""

    def __init__(self, threads: int, writers: LastWriters) -> None:
        self.steps: list[list[ScheduledStep]] = [[] for _ in range(threads)]
        self.ns = [0.0] * threads
        self._writers = writers
        self._touched: dict[Buffer, list[tuple[int, View, bool]]] = {}

    def take(self, number: int, ways: Sequence[Way]) -> bool:
        """Assign a step's parts to threads, in the way in which the busiest thread ends earliest.

        Returns False, and assigns nothing, if in every way some part would have to wait for two
        threads.
        """
        given = [places for way in ways if (places := self._places(way)) is not None]
        if not given:
            return False
        for place in least(given, lambda places: max(self._ns_with(places))):
            self._give(number, place)
        return True

    def _places(self, way: Way) -> list[_Assigned] | None:
        """A thread for every part of a step; None if a part conflicts with two threads.

        A part goes to the thread that it conflicts with. Without a conflict, part n goes to thread
        n, so that each core keeps the same part of one step after another, and an undivided step
        goes to the thread that ends earliest.
        """
        bound = [self._bound_to(step) for step in way]
        if any(len(threads) > 1 for threads in bound):
            return None
        torn_ns = self._writers.torn_ns(way)
        places = []
        for number, (step, threads) in enumerate(zip(way, bound, strict=True)):
            usual = {number} if len(way) > 1 or not any(self.steps) else range(len(self.ns))
            possible = [
                _Assigned(step, thread, step.ns + torn_ns + self._writers.crossing_ns(step, thread))
                for thread in threads or usual
            ]
            places.append(least(possible, lambda place: self.ns[place.thread] + place.ns))
        return places

    def _ns_with(self, places: Sequence[_Assigned]) -> list[float]:
        """Predicted nanoseconds of each thread with additional steps."""
        ns = list(self.ns)
        for place in places:
            ns[place.thread] += place.ns
        return ns

    def _give(self, number: int, place: _Assigned) -> None:
        self.ns[place.thread] += place.ns
        self.steps[place.thread].append(ScheduledStep(number, place.step))
        for view, is_written in _touches(place.step):
            self._touched.setdefault(view.buffer, []).append((place.thread, view, is_written))

    def _bound_to(self, step: Step) -> set[int]:
        """Threads that write bytes which a step touches, or touch bytes which it writes."""
        return {
            thread
            for view, is_written in _touches(step)
            for thread, other, was_written in self._touched.get(view.buffer, ())
            if (is_written or was_written) and overlap(view, other)
        }


def _touches(step: Step) -> list[tuple[View, bool]]:
    """A step's views, and whether each is written."""
    return [*((view, False) for view in step.reads), *((view, True) for view in step.writes)]


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
    """Whether waves of several threads save enough time to be worth it.

    Their predicted times include the bytes that cross between cores.
    """
    shared_ns = sum(wave.alone_ns for wave in waves if wave.is_shared)
    saved_ns = sum(wave.alone_ns - wave.ns for wave in waves)
    return prices.gain_enough(shared_ns, shared_ns - saved_ns)


def _grown_one_by_one(ways: _Ways, prices: WavePrices, reckoned: LastWriters) -> tuple[Wave, ...]:
    """Waves chosen one by one, each as fast as possible; `reckoned` predicts crossing times.

    A choice does not see the bytes that cross to later waves, so a search without crossing times
    sometimes finds longer waves.
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
    """The wave with its predicted time, which includes the bytes that cross cores.

    The views that it writes are noted in `writers`.
    """
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
        """The only way to run a step undivided, as a list of ways."""
        return [(self.steps[number],)]

    def divided(self, number: int) -> list[Way]:
        """The ways to divide a step among threads; if there is none, the undivided step."""
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
    """Makes the candidates for the next wave, which begin with a given step."""

    def __init__(self, ways: _Ways, prices: WavePrices, writers: LastWriters) -> None:
        self._ways, self._prices, self._writers = ways, prices, writers

    def waves_from(self, first: int) -> Iterator[_Grown]:
        """Yield waves that begin with the step `first`, undivided and divided in each way.

        Each is yielded alone, then with one later step, and so on.
        """
        yield from self._grown(first, self._ways.whole(first)[0], self._ways.whole)
        for way in self._ways.divided(first):
            yield from self._grown(first, way, self._ways.divided)

    def _grown(
        self, first: int, way: Way, ways_of: Callable[[int], Sequence[Way]]
    ) -> Iterator[_Grown]:
        """Yield waves of the step `first`, run in `way`, alone, then with the next step, and so on.

        `ways_of` gives the ways to run each further step.
        """
        crew = Crew(self._ways.threads, self._writers)
        crew.take(first, [way])
        number, alone_ns, crossing_ns = first, 0.0, 0.0
        while True:
            step = self._ways.steps[number]
            alone_ns += step.ns
            crossing_ns += self._writers.crossing_ns(step, 0)
            grown = self._wave(crew, alone_ns, crossing_ns)
            if grown.wave.is_shared or number == first:
                yield grown
            number += 1
            if number == len(self._ways.steps) or not crew.take(number, ways_of(number)):
                return

    def _wave(self, crew: Crew, alone_ns: float, crossing_ns: float) -> _Grown:
        """Return a wave, whose steps take both times together on the caller's thread alone."""
        busy = tuple(tuple(steps) for steps in crew.steps if steps)
        ns = self._prices.wave_ns(max(crew.ns), len(busy))
        wave = Wave(busy, alone_ns, ns)
        return _Grown(wave, self._prices.score(alone_ns + crossing_ns, ns, wave.is_shared))


RunSteps = Callable[[Assembler, Sequence[ScheduledStep]], None]


def emit_wave(
    asm: Assembler, wave: Wave, run: RunSteps, saved_ns: float, workers: Pool | HostThreads
) -> None:
    """Append a wave of several threads, whose steps `run` appends.

    saved_ns: predicted saving by this and later waves.
    """
    function, end = asm.label("wave"), asm.label("end of wave")
    asm.emit("mov", rdi, WORKSPACE)
    asm.jump("call", function)
    asm.jump("jmp", end)
    labels = [asm.label(f"thread {number}") for number in range(len(wave.threads))]
    workers.require(len(labels) - 1)
    asm.align(64)
    asm.bind(function)
    workers.emit_dispatcher(asm, [NativePart(label, 0) for label in labels], saved_ns)
    for label, steps in zip(labels, wave.threads, strict=True):
        emit_thread(asm, label, partial(run, asm, steps))
    asm.bind(end)


def emit_thread(asm: Assembler, label: Label, run: Callable[[], None]) -> None:
    """Append void function(workspace) around the code of `run`; it keeps rdi for dispatchers."""
    kept = WORKSPACE, rdi
    asm.align(64)
    asm.bind(label)
    push(asm, kept)
    asm.emit("mov", WORKSPACE, rdi)
    run()
    pop(asm, kept)
    asm.emit("vzeroupper")
    asm.emit("ret")
