"""The threads of a wave while it grows: the steps of each, and the conflicts between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from sparsejit.lowering.memory.overlap import overlap, shared_bytes, torn_lines
from sparsejit.lowering.memory.storage import Buffer, View
from sparsejit.lowering.step import Step
from sparsejit.planner.choice import least
from sparsejit.planner.sharing import WavePrices

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
        """Assign a step to threads, in the way in which the busiest thread ends first.

        Returns False, and assigns nothing, if in every way a part would have to wait for two
        threads.
        """
        given = [places for way in ways if (places := self._places(way)) is not None]
        if not given:
            return False
        for place in least(given, lambda places: max(self._ns_with(places))):
            self._give(number, place)
        return True

    def _places(self, way: Way) -> list[_Assigned] | None:
        """A thread for every part: the thread that it conflicts with, or the next in order.

        A whole step goes to the thread that ends first; parts in order keep the same halves on the
        same core. None if a part conflicts with two threads.
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
