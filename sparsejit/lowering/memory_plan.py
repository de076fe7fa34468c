"""Offsets in one workspace, by lifetime: buffers that are never alive together share bytes.

Largest first, each at the lowest place that is free for as long as it lives (the greedy-by-size
order of Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparsejit.lowering.step import Step
from sparsejit.lowering.storage import Buffer

ALIGNMENT = 64


@dataclass(frozen=True)
class MemoryPlan:
    """Byte offsets of buffers, and of each step's scratch memory, from the workspace's first.

    `bytes` is what the workspace needs; `sum_bytes` what it needed if nothing shared.
    """

    offsets: Mapping[Buffer, int]
    scratch: Sequence[int]
    bytes: int
    sum_bytes: int


@dataclass(frozen=True)
class _Lifetime:
    buffer: Buffer
    first: int
    last: int

    def overlaps(self, other: "_Lifetime") -> bool:
        return self.first <= other.last and other.first <= self.last


def plan_memory(steps: Sequence[Step]) -> MemoryPlan:
    """Places for all buffers that steps write and read, and for their scratch memory."""
    scratch = [Buffer(step.scratch_bytes) for step in steps]
    lives = _lifetimes(steps) + [_Lifetime(b, n, n) for n, b in enumerate(scratch) if b.bytes]
    taken = _shared_in_place(steps, lives)
    placed: list[tuple[_Lifetime, int]] = []
    offsets: dict[Buffer, int] = {}
    for life in sorted(_merged(lives, taken), key=lambda life: (-life.buffer.bytes, life.first)):
        offset = _lowest(life, placed)
        placed.append((life, offset))
        offsets[life.buffer] = offset
    for buffer in taken:
        offsets[buffer] = offsets[_root(buffer, taken)]
    end = max((offset + _aligned(life.buffer.bytes) for life, offset in placed), default=0)
    total = sum(_aligned(life.buffer.bytes) for life in lives)
    return MemoryPlan(offsets, [offsets.get(buffer, 0) for buffer in scratch], end, total)


def _lifetimes(steps: Sequence[Step]) -> list[_Lifetime]:
    """From the step that first writes a buffer to the last that touches it."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for number, step in enumerate(steps):
        for view in (*step.writes, *step.reads):
            if type(view.buffer) is Buffer:
                first.setdefault(view.buffer, number)
                last[view.buffer] = number
    return [_Lifetime(buffer, first[buffer], last[buffer]) for buffer in first]


def _shared_in_place(steps: Sequence[Step], lives: list[_Lifetime]) -> dict[Buffer, Buffer]:
    """Written buffers that take over that of an operand which ends with the step."""
    ends = {life.buffer: life.last for life in lives}
    starts = {life.buffer: life.first for life in lives}
    taken: dict[Buffer, Buffer] = {}
    for number, step in enumerate(steps):
        if not step.in_place:
            continue
        read, written = step.reads[0], step.writes[0]
        others = {view.buffer for view in step.reads[1:]}
        fits = (
            type(read.buffer) is type(written.buffer) is Buffer
            and ends[read.buffer] == number
            and starts[written.buffer] == number
            and read.is_whole
            and written.is_whole
            and read.type == written.type
            and read.buffer not in others
        )
        if fits:
            taken[written.buffer] = read.buffer
    return taken


def _root(buffer: Buffer, taken: Mapping[Buffer, Buffer]) -> Buffer:
    while buffer in taken:
        buffer = taken[buffer]
    return buffer


def _merged(lives: list[_Lifetime], taken: Mapping[Buffer, Buffer]) -> list[_Lifetime]:
    """One life for all that follow each other in the same memory."""
    merged: dict[Buffer, _Lifetime] = {}
    for life in lives:
        root = _root(life.buffer, taken)
        known = merged.get(root, _Lifetime(root, life.first, life.last))
        ends = min(known.first, life.first), max(known.last, life.last)
        merged[root] = _Lifetime(root, *ends)
    return list(merged.values())


def _lowest(life: _Lifetime, placed: list[tuple[_Lifetime, int]]) -> int:
    """The lowest offset that no buffer alive at the same time covers."""
    size, offset = _aligned(life.buffer.bytes), 0
    neighbours = ((o, _aligned(p.buffer.bytes)) for p, o in placed if p.overlaps(life))
    for start, length in sorted(neighbours):
        if offset + size <= start:
            break
        offset = max(offset, start + length)
    return offset


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
