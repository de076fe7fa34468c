"""The threads of a wave while it grows: who has what to do, and what each must wait for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from sparsejit.lowering.memory.overlap import overlap, shared_bytes, torn_lines
from sparsejit.lowering.memory.storage import Buffer, View
from sparsejit.lowering.step import Step
from sparsejit.planner.sharing import WavePrices

Way = tuple[Step, ...]  # a step divided, or alone


class ScheduledStep(NamedTuple):
    """A step, or a part of one; `number` is the place of the whole in the model."""

    number: int
    step: Step


class LastWriters:
    """Who wrote what in earlier waves, and so has it near."""

    def __init__(self, prices: WavePrices) -> None:
        self._prices = prices
        self._written: dict[Buffer, list[tuple[int, View]]] = {}

    def note(self, threads: Sequence[Sequence[ScheduledStep]]) -> None:
        """Say what each thread of a wave ran."""
        for thread, steps in enumerate(threads):
            for view in (view for each in steps for view in each.step.writes):
                self._written.setdefault(view.buffer, []).append((thread, view))

    def crossing_ns(self, step: Step, thread: int) -> float:
        """How long what other threads wrote should take to arrive where a step reads it."""
        crossing = sum(
            shared_bytes(view, other)
            for view in step.reads
            for writer, other in self._written.get(view.buffer, ())
            if writer != thread
        )
        return self._prices.crossing_ns(crossing)

    def torn_ns(self, way: Way) -> float:
        """How long lines of which two parts of a step write some should take."""
        writes = [part.writes for part in way]
        lines = max((sum(map(torn_lines, *both)) for both in pairwise(writes)), default=0)
        return self._prices.torn_ns(lines)


class _Assigned(NamedTuple):
    """A step on a thread, and what it should take there: what crosses between cores included."""

    step: Step
    thread: int
    ns: float


class Crew:
    """The steps of each thread and the nanoseconds they should take, and who touches what."""

    def __init__(self, threads: int, writers: LastWriters) -> None:
        self.steps: list[list[ScheduledStep]] = [[] for _ in range(threads)]
        self.ns = [0.0] * threads
        self._writers = writers
        self._touched: dict[Buffer, list[tuple[int, View, bool]]] = {}

    def take(self, number: int, ways: Sequence[Way]) -> bool:
        """Give out a step in the way that leaves the longest thread shortest.

        False, and nothing is given, if in every way a part would have to wait for two threads.
        """
        given = [places for way in ways if (places := self._places(way)) is not None]
        if not given:
            return False
        for place in min(given, key=lambda places: max(self._ns_with(places))):
            self._give(number, place)
        return True

    def _places(self, way: Way) -> list[_Assigned] | None:
        """A thread for every part: the one that has what it conflicts with, or the next in order.

        A whole step goes to the least busy: parts in order keep the same halves on the same core.
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
            places.append(min(possible, key=lambda place: self.ns[place.thread] + place.ns))
        return places

    def _ns_with(self, places: Sequence[_Assigned]) -> list[float]:
        """What each thread would take with more to do."""
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
        """The threads that write what a step touches, or touch what it writes."""
        return {
            thread
            for view, is_written in _touches(step)
            for thread, other, was_written in self._touched.get(view.buffer, ())
            if (is_written or was_written) and overlap(view, other)
        }


def _touches(step: Step) -> list[tuple[View, bool]]:
    """Its views, and whether each is written."""
    return [*((view, False) for view in step.reads), *((view, True) for view in step.writes)]
