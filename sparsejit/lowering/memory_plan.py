"""Plan offsets in one workspace by lifetime: buffers that are never alive together share bytes.

Largest first, each at the lowest place that is free for as long as it lives (the greedy-by-size
order of Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020).

A buffer that only one thread touches lies in that thread's arena, where lifetimes count the
thread's own steps; a buffer that several touch lies in another arena, where lifetimes count waves.
So memory that only one core writes stays in that core's caches.

Where samples take turns with the last steps (`SampleTurns`), each sample has a region for the
buffers of these steps; behind all regions lie the buffers of the other steps, which samples share.
"""

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sparsejit.lowering.memory.storage import Buffer
from sparsejit.lowering.step import Step
from sparsejit.whole_numbers import round_up

ALIGNMENT = 64

# Start and end of the bytes that a buffer occupies, and the first and last time at which it does.
_Placed = tuple[int, int, int, int]


@dataclass(frozen=True)
class MemoryPlan:
    """Byte offsets of buffers, and of each step's scratch memory, in the workspace.

    `bytes` is the workspace's size; `sum_bytes` would be its size if buffers shared no bytes.
    """

    offsets: Mapping[Buffer, int]
    scratch: Sequence[int]
    bytes: int
    sum_bytes: int


@dataclass(frozen=True)
class SampleTurns:
    """The last steps of a model, each of which runs for several samples before the next step runs.

    first: the first of these steps.
    samples: the greatest number of samples that take turns; a batch may end with fewer.
    stride: bytes from the region of one sample in the workspace to the region of the next.
    """

    first: int
    samples: int
    stride: int


@dataclass(eq=False)
class _Lifetime:
    buffer: Buffer
    first: int
    last: int


@dataclass(frozen=True)
class _TimedStep:
    """A step with its time: its wave, its thread, and its place among all steps of that thread.

    `scratch` is the buffer of its scratch memory.
    """

    step: Step
    wave: int
    thread: int
    place: int
    scratch: Buffer

    @cached_property
    def buffers(self) -> list[Buffer]:
        """The buffers of the workspace that it writes or reads, one for each view of them."""
        views = (*self.step.writes, *self.step.reads)
        return [view.buffer for view in views if type(view.buffer) is Buffer]


def plan_memory(waves: Sequence[Sequence[Sequence[Step]]]) -> MemoryPlan:
    """Plan memory for all buffers that steps write and read, and for their scratch memory.

    waves: the steps of each thread, in order; all threads end before the next wave begins.
    """
    runs = _runs(waves)
    owners = _owners(runs)
    offsets: dict[Buffer, int] = {}
    end = total = 0
    for owner in sorted(set(owners.values()), key=lambda thread: -1 if thread is None else thread):
        arena = _Arena(runs, owners, owner)
        placed, size = arena.placed()
        offsets |= {buffer: end + offset for buffer, offset in placed.items()}
        end += size
        total += arena.sum_bytes
    return MemoryPlan(offsets, [offsets.get(run.scratch, 0) for run in runs], end, total)


def plan_regions(
    waves: Sequence[Sequence[Sequence[Step]]],
    first: int,
    header_bytes: int,
    most_bytes: int,
    most_samples: int,
) -> tuple[MemoryPlan, SampleTurns]:
    """Plan memory for samples that take turns from step `first` on, on one thread.

    A region has a header, and the buffers of these steps without their scratch memory. The number
    of regions is limited by `most_bytes` and `most_samples`, but at least 1; the plan's size is
    the size of all of them.
    """
    runs = _runs(waves)
    kept = {buffer for run in runs[first:] for buffer in run.buffers}
    owners: dict[Buffer, int | None] = {b: None if b in kept else 0 for b in _owners(runs)}
    own, passing = _Arena(runs, owners, None), _Arena(runs, owners, 0)
    offsets, own_bytes = own.placed()
    others, size = passing.placed()
    stride = aligned(header_bytes + own_bytes)
    samples = max(1, min(most_samples, most_bytes // stride))
    behind = samples * stride - header_bytes
    places = {**offsets, **{buffer: behind + offset for buffer, offset in others.items()}}
    scratch = [places.get(run.scratch, 0) for run in runs]
    end = behind + size + (samples - 1) * stride
    plan = MemoryPlan(places, scratch, end, own.sum_bytes + passing.sum_bytes)
    return plan, SampleTurns(first, samples, stride)


def live_bytes(steps: Sequence[Step]) -> list[int]:
    """Bytes of the buffers that are alive during each of some steps, which run in order."""
    runs = _runs([[steps]])
    arena = _Arena(runs, dict.fromkeys(_owners(runs), 0), 0)
    live = [0] * len(steps)
    for life in arena.lives.values():
        for time in range(life.first, life.last + 1):
            live[time] += aligned(life.buffer.bytes)
    return live


def _runs(waves: Sequence[Sequence[Sequence[Step]]]) -> list[_TimedStep]:
    """All steps with the wave and thread of each, wave by wave and thread by thread."""
    runs: list[_TimedStep] = []
    places: dict[int, int] = {}
    for number, wave in enumerate(waves):
        for thread, steps in enumerate(wave):
            for step in steps:
                places[thread] = places.get(thread, -1) + 1
                scratch = Buffer(step.scratch_bytes)
                runs.append(_TimedStep(step, number, thread, places[thread], scratch))
    return runs


def _owners(runs: Sequence[_TimedStep]) -> dict[Buffer, int | None]:
    """The thread that alone touches each buffer; None if several threads do."""
    owners: dict[Buffer, int | None] = {}
    for run in runs:
        for buffer in run.buffers:
            is_first = owners.setdefault(buffer, run.thread) == run.thread
            owners[buffer] = run.thread if is_first else None
        if run.scratch.bytes:
            owners[run.scratch] = run.thread
    return owners


class _Arena:
    """The buffers of one owner, with their lifetimes.

    The owner is a thread, whose lifetimes count its own steps, or None for buffers of several
    threads, whose lifetimes count waves.
    """

    def __init__(
        self, runs: Sequence[_TimedStep], owners: Mapping[Buffer, int | None], owner: int | None
    ) -> None:
        self.lives: dict[Buffer, _Lifetime] = {}
        self._steps: list[tuple[int, Step]] = []
        self._touches: dict[tuple[int, Buffer], int] = {}  # by time and buffer
        for run in runs:
            if owner not in (None, run.thread):
                continue
            time = run.wave if owner is None else run.place
            self._steps.append((time, run.step))
            for buffer in (*run.buffers, *[run.scratch] * bool(run.scratch.bytes)):
                if owners[buffer] == owner:
                    self._touch(buffer, time)

    def _touch(self, buffer: Buffer, time: int) -> None:
        known = self.lives.get(buffer)
        if known is None:
            self.lives[buffer] = _Lifetime(buffer, time, time)
        else:
            known.last = time
        self._touches[time, buffer] = self._touches.get((time, buffer), 0) + 1

    @property
    def sum_bytes(self) -> int:
        return sum(aligned(buffer.bytes) for buffer in self.lives)

    def placed(self) -> tuple[dict[Buffer, int], int]:
        """Offsets of buffers from the first byte of the arena, and the arena's size."""
        taken = self._shared_in_place()
        placed: list[_Placed] = []
        offsets: dict[Buffer, int] = {}
        merged = _merged(list(self.lives.values()), taken)
        for life in sorted(merged, key=lambda life: (-life.buffer.bytes, life.first)):
            size = aligned(life.buffer.bytes)
            offset = offsets[life.buffer] = _lowest(size, life, placed)
            insort(placed, (offset, offset + size, life.first, life.last))
        for buffer in taken:
            offsets[buffer] = offsets[_root(buffer, taken)]
        return offsets, max((end for _, end, *_ in placed), default=0)

    def _shared_in_place(self) -> dict[Buffer, Buffer]:
        """The buffers that are written over an operand, each with the operand's buffer.

        The life of the operand's buffer ends with the step that writes.
        """
        taken: dict[Buffer, Buffer] = {}
        for time, step in self._steps:
            if step.in_place is None:
                continue
            read, written = step.reads[step.in_place], step.writes[0]
            before, after = self.lives.get(read.buffer), self.lives.get(written.buffer)
            fits = (
                before is not None
                and after is not None
                and before.last == time == after.first
                and read.lies_alike(written)
                and self._touches[time, read.buffer] == 1
                and self._touches[time, written.buffer] == 1
            )
            if fits:
                taken[written.buffer] = read.buffer
        return taken


def _root(buffer: Buffer, taken: Mapping[Buffer, Buffer]) -> Buffer:
    while buffer in taken:
        buffer = taken[buffer]
    return buffer


def _merged(lives: list[_Lifetime], taken: Mapping[Buffer, Buffer]) -> list[_Lifetime]:
    """Lifetimes, with a single one for all buffers that lie in the same memory."""
    merged: dict[Buffer, _Lifetime] = {}
    for life in lives:
        root = _root(life.buffer, taken)
        known = merged.get(root)
        if known is None:
            merged[root] = _Lifetime(root, life.first, life.last)
        else:
            known.first, known.last = min(known.first, life.first), max(known.last, life.last)
    return list(merged.values())


def _lowest(size: int, life: _Lifetime, placed: list[_Placed]) -> int:
    """The lowest offset of `size` bytes that no buffer alive at the same time covers."""
    offset, own_first, own_last = 0, life.first, life.last
    for start, end, first, last in placed:
        if first > own_last or own_first > last:
            continue
        if offset + size <= start:
            break
        offset = max(offset, end)
    return offset


def aligned(size: int) -> int:
    """Round a number of bytes up to whole cache lines."""
    return round_up(size, ALIGNMENT)
