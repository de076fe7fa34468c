"""The threads of a wave while it grows: who has what to do, and what each must wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sparsejit.lowering.overlap import overlap, shared_bytes
from sparsejit.lowering.step import Step
from sparsejit.lowering.storage import Buffer, View

Way = tuple[Step, ...]  # a step divided, or alone


class ScheduledStep(NamedTuple):
    """A step, or a part of one; `number` is the place of the whole in the model."""

    number: int
    step: Step


class LastWriters:
    """Who wrote what in earlier waves, and so has it near."""

    def __init__(self) -> None:
        self._written: dict[Buffer, list[tuple[int, View]]] = {}

    def note(self, step: Step, thread: int) -> None:
        """Say that a thread ran a step."""
        for view in step.writes:
            self._written.setdefault(view.buffer, []).append((thread, view))

    def crossing_bytes(self, step: Step, thread: int) -> float:
        """About how much of what a step reads another thread wrote."""
        return sum(
            shared_bytes(view, other)
            for view in step.reads
            for writer, other in self._written.get(view.buffer, ())
            if writer != thread
        )


class Crew:
    """The steps of each thread and the nanoseconds they should take, and who touches what."""

    def __init__(self, threads: int, writers: LastWriters, bytes_a_ns: float) -> None:
        self.steps: list[list[ScheduledStep]] = [[] for _ in range(threads)]
        self.ns = [0.0] * threads
        self._writers, self._bytes_a_ns = writers, bytes_a_ns
        self._touched: dict[Buffer, list[tuple[int, View, bool]]] = {}

    def take(self, number: int, ways: Sequence[Way]) -> bool:
        """Give out a step in the way that leaves the longest thread shortest.

        False, and nothing is given, if in every way a part would have to wait for two threads.
        """
        given = [places for way in ways if (places := self._places(way)) is not None]
        if not given:
            return False
        for step, thread in min(given, key=lambda places: max(self._ns_with(places))):
            self._give(ScheduledStep(number, step), thread)
        return True

    def _places(self, way: Way) -> list[tuple[Step, int]] | None:
        """A thread for every part: the one that has what it conflicts with, or the least busy."""
        bound = [(step, self._bound_to(step)) for step in way]
        if any(len(threads) > 1 for _, threads in bound):
            return None
        places: list[tuple[Step, int]] = []
        for step, threads in sorted(bound, key=lambda part: not part[1]):
            possible = threads or range(len(self.ns) if any(self.steps) or places else 1)
            ns = self._ns_with(places)
            least = min(possible, key=lambda thread: ns[thread] + self._ns_of(step, thread))
            places.append((step, least))
        return places

    def _ns_with(self, places: Sequence[tuple[Step, int]]) -> list[float]:
        """What each thread would take with more steps."""
        ns = list(self.ns)
        for step, thread in places:
            ns[thread] += self._ns_of(step, thread)
        return ns

    def _ns_of(self, step: Step, thread: int) -> float:
        """Its own time, and that in which what another wrote arrives."""
        return step.ns + self._writers.crossing_bytes(step, thread) / self._bytes_a_ns

    def _give(self, each: ScheduledStep, thread: int) -> None:
        self.ns[thread] += self._ns_of(each.step, thread)
        self.steps[thread].append(each)
        for view, is_written in _touches(each.step):
            self._touched.setdefault(view.buffer, []).append((thread, view, is_written))

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
