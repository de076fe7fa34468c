"""Frames of a step: the past of a value, its delay, and the frames before the first one.

    past  = state                        the last frames of x, zeros before the first step
    whole = concat(past, x)              what a window of the step reads
    state' = whole[step:]

Where the first frames of the sequence repeat later ones, as in a reflection, the step that has the
last of these puts the copies into the past:

    whole = where(steps == 2, whole[copies], whole)

    Frames        a value of the step, and where its frames lie in the sequence
    Start         the first frames of a sequence that copy later ones
    FrameWriter   writes states, delays and masks
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from sparsejit.ir.graph import GraphBuilder
from sparsejit.ir.operator import BatchPlace, Operator, SamplesMixed
from sparsejit.ir.ops.pointwise import Cast, Pointwise
from sparsejit.ir.ops.selection import Embedding
from sparsejit.ir.ops.views import Concat, Permute, Reshape, Slice
from sparsejit.ir.values import Array, Element, Origin, TensorType, Value


class Start(NamedTuple):
    """The first frames of a sequence, which copy later ones whatever the value holds.

    A frame is `unit` elements in the order of the axes from its own on.

    Attributes:
        place: the number of the first element in the stream that is no copy
        sources: for each copy before it, the distance of its source behind that element
        unit: elements of a frame
    """

    place: int
    sources: tuple[int, ...]
    unit: int = 1

    def moved(self, frames: int) -> Start:
        """The same start in a stream that is later by some frames."""
        return self._replace(place=self.place + frames * self.unit)

    def last_source(self, first: int) -> int:
        """The last element of the stream that elements from `first` on copy."""
        number = max(0, first - self.place + len(self.sources))
        return self.place + max(self.sources[number:])

    def copies(self, first: int, size: int) -> Array:
        """The places in elements `first` to `first` + `size` - 1 that replace each of them."""
        places = np.arange(size)
        numbers = places + first - self.place + len(self.sources)
        is_copy = (numbers >= 0) & (numbers < len(self.sources))
        sources = np.array(self.sources)[np.where(is_copy, numbers, 0)] + self.place - first
        return np.where(is_copy & (sources < size), sources, places)


@dataclass(frozen=True, eq=False)
class Frames:
    """A value with frames, which a step computes as a part of a stream.

    Frame i of the stream is frame i - `delay` of the model's sequence.

    Attributes:
        value: the frames of one step
        place: their place in the value
        rate: the number of frames for each frame of the model's input
        lengths: the numbers of frames of the sequence in the two graphs that were read
        delay: number of frames by which the value is late; at least -`before`
        before: number of first frames of the sequence that are `fill`, whatever the value holds
        fill: the number that these frames hold
        samples: the place of samples in the sequence's value; None where the batch is fixed
        start: the first frames of the sequence where they copy later ones; `before` is 0 then
    """

    value: Value
    place: BatchPlace
    rate: Fraction
    lengths: tuple[int, int]
    delay: int = 0
    before: int = 0
    fill: float = 0.0
    samples: BatchPlace | None = None
    start: Start | None = None

    @property
    def axis(self) -> int:
        """The axis of the frames in the shape `apart`."""
        return self.place.axis + (self.place.outer > 1)

    @property
    def apart(self) -> tuple[int, ...]:
        """The value's shape after its axis of time is cut in two: outer elements, then frames.

        It is the value's own shape if there is one outer element.
        """
        shape, (axis, outer, _) = self.value.shape, self.place
        sizes = (outer, shape[axis] // outer) if outer > 1 else (shape[axis],)
        return (*shape[:axis], *sizes, *shape[axis + 1 :])

    @property
    def count(self) -> int:
        """Frames of one step."""
        return self.apart[self.axis] // self.place.inner

    @property
    def sample_axis(self) -> int | None:
        """The axis of `apart` that samples have alone; None where the batch is fixed.

        Raises SamplesMixed where they share it with something else.
        """
        if self.samples is None:
            return None
        own, (axis, outer, inner) = self.samples, self.place
        if own.axis == axis:
            if (own.outer, own.inner) == (1, self.lengths[0] * inner) and outer > 1:
                return axis
        elif (own.outer, own.inner) == (1, 1):
            return own.axis + (outer > 1 and own.axis > axis)
        raise SamplesMixed("has samples and something else on one axis")

    def fine(self) -> Frames:
        """The same value with each inner element as a frame."""
        unit = self.place.inner
        long, short = self.lengths
        return replace(
            self,
            place=self.place._replace(inner=1),
            rate=self.rate * unit,
            lengths=(long * unit, short * unit),
            delay=self.delay * unit,
            before=self.before * unit,
            start=self.start and self.start._replace(unit=self.start.unit // unit),
        )

    def known_from(self, delay: int, count: int | None = None) -> int:
        """The least delay, at least `delay`, at which the frames that the start copies are there.

        `count` are the frames of a step at that delay, by default the value's own.
        """
        if self.start is None:
            return delay
        count = count or self.count
        source = self.start.last_source(self.delay * self.start.unit)
        step = source // (self.count * self.start.unit)
        return delay if delay // count >= step else step * count


@dataclass(frozen=True, eq=False)
class TiedState:
    """A state of the step: the value before it, the value after it, and the first value.

    `axis` is the axis of samples, of which the first value has one; None where the batch is fixed.
    """

    name: str
    before: Value
    after: Value
    axis: int | None
    initial: Array | None


class FrameWriter:
    """Writes the states, delays and masks of a step, besides the model's operators."""

    def __init__(self, samples: int = 1) -> None:
        """Take the number of samples, of which each counts its own steps; 1 for a fixed batch."""
        self.build, self.samples = GraphBuilder(), samples
        self.states: list[TiedState] = []
        self._names: set[str] = set()
        self._known: dict[tuple[object, ...], Value] = {}
        self._histories: dict[Hashable, dict[int, Value]] = {}

    def state(self, origin: Origin, kind: str, like: TensorType) -> Value:
        """A new state, named by the layer that reads it; `tie` gives its next value."""
        stem = f"{origin.layer}.{kind}"
        name = next(n for n in _numbered(stem) if n not in self._names)
        self._names.add(name)
        return self.build.input(like, replace(origin, name=name))

    def tie(
        self, before: Value, after: Value, axis: int | None, initial: Array | None = None
    ) -> None:
        """Give the value that a state has after a step, and the axis of its samples."""
        if axis is not None and initial is not None:
            initial = initial.take([0], axis)
        self.states.append(TiedState(before.origin.name, before, after, axis, initial))

    def history(
        self, frames: Frames, length: int, fill: float, origin: Origin, starts: int | None = None
    ) -> Value:
        """The last `length` frames before the step, then the step's own, in the shape `apart`.

        Frames before the first step are `fill`. `starts` is the number of the step that puts copies
        in the place of the first frames of the sequence.
        """
        start = None if starts is None else frames.start
        key = frames.value, frames.place, fill, start, starts
        known = self._histories.setdefault(key, {})
        longer = next((each for each in known if each > length), None)
        if length not in known and length and longer is not None:
            whole, axis = known[longer], frames.axis
            first = (longer - length) * frames.place.inner
            known[length] = self.cut(whole, axis, first, whole.shape[axis])
        if length not in known:
            known[length] = self._history(frames, length, fill, origin, starts)
        return known[length]

    def _history(
        self, frames: Frames, length: int, fill: float, origin: Origin, starts: int | None
    ) -> Value:
        value, axis = self.shaped(frames.value, frames.apart), frames.axis
        if not length:
            return value if starts is None else self._started(frames, value, 0, starts)
        extra, own = length * frames.place.inner, value.shape[axis]
        shape = (*value.shape[:axis], extra, *value.shape[axis + 1 :])
        like = TensorType(shape, value.type.element)
        initial = np.full(shape, fill, like.element.value) if fill else None
        past = self.state(origin, "past", like)
        whole = self.one(Concat(axis), past, value)
        if starts is not None:
            whole = self._started(frames, whole, length, starts)
        self.tie(past, self.cut(whole, axis, own, own + extra), frames.sample_axis, initial)
        return whole

    def _started(self, frames: Frames, whole: Value, past: int, starts: int) -> Value:
        """A history with copies, in step number `starts`, in the place of the first frames.

        The history has `past` frames before the step's own.
        """
        start, axis, inner = frames.start, frames.axis, frames.place.inner
        assert start is not None and frames.place.outer == 1
        lead, size = whole.shape[:axis], whole.shape[axis] // inner * start.unit
        places = start.copies((starts * frames.count - past) * start.unit, size)
        changed = np.flatnonzero(places != np.arange(size)) // start.unit
        if not changed.size:
            return whole
        bounds = 0, int(changed[0]), int(changed[-1]) + 1, whole.shape[axis] // inner
        now = places[bounds[1] * start.unit : bounds[2] * start.unit]
        parts = [
            self.cut(whole, axis, first * inner, end * inner) if first < end else None
            for first, end in pairwise(bounds)
        ]
        own = parts[1]
        assert own is not None
        rows = self.shaped(whole, (*lead, size, prod(whole.shape[axis:]) // size))
        made = self.shaped(self._rows(rows, axis, now), own.shape)
        number = self.build.constant(np.array([starts]), Origin("start"))
        is_now = self.one(Pointwise("equal"), self.steps, number)
        mask = self.spread(is_now, len(whole.shape), frames.sample_axis, axis)
        parts[1] = self.one(Pointwise("where"), mask, made, own)
        return self.one(Concat(axis), *(part for part in parts if part is not None))

    def _rows(self, value: Value, axis: int, places: Array) -> Value:
        """The elements of an axis, the last but one, at known places."""
        *lead, size, width = value.shape
        front = self.one(Permute((axis, *range(axis), axis + 1)), value)
        table = self.shaped(front, (size, prod(lead) * width))
        numbers = self.build.constant(places, Origin("copies"))
        found = self.one(Embedding(), numbers, table)
        found = self.shaped(found, (len(places), *lead, width))
        return self.one(Permute((*range(1, axis + 1), 0, axis + 1)), found)

    def taken(self, frames: Frames, whole: Value, first: int) -> Frames:
        """The frames from number `first` of `whole` on, as many as a step has.

        `whole` is a result of `history`.
        """
        unit, own = frames.place.inner, frames.count
        part = self.cut(whole, frames.axis, first * unit, (first + own) * unit)
        return replace(frames, value=self.shaped(part, frames.value.shape))

    def delayed(self, frames: Frames, delay: int, origin: Origin) -> Frames:
        """The frames with the delay `delay`, which is at least their own."""
        by = delay - frames.delay
        if not by:
            return frames
        late = self.taken(frames, self.history(frames, by, 0.0, origin), 0)
        return replace(late, delay=delay, start=frames.start and frames.start.moved(by))

    def settled(self, frames: Frames, origin: Origin, kept: int = 0) -> Frames:
        """The frames with `before` at most `kept`; the value holds their other first frames."""
        if frames.start is not None:
            return self.filled(frames, frames.known_from(max(frames.delay, 0)), origin)
        return self.filled(frames, max(frames.delay, -kept), origin, kept)

    def filled(self, frames: Frames, delay: int, origin: Origin, kept: int = 0) -> Frames:
        """The frames with that delay, without a start, and with `before` at most `kept`."""
        if frames.start is not None:
            starts, past = delay // frames.count, delay - frames.delay
            whole = self.history(frames, past, 0.0, origin, starts)
            return replace(self.taken(frames, whole, 0), delay=delay, start=None)
        if frames.before <= kept:
            return self.delayed(frames, delay, origin)
        known = self.masked(frames, frames.fill, frames.before + frames.delay)
        whole = self.history(known, delay - frames.delay, frames.fill, origin)
        return replace(self.taken(known, whole, 0), delay=delay, before=kept)

    def masked(self, frames: Frames, fill: float, until: int) -> Frames:
        """The frames with `fill` in the first `until` frames of the stream."""
        if until <= 0:
            return frames
        key = "masked", frames.value, frames.place, fill, until
        if key not in self._known:
            value, unit = self.shaped(frames.value, frames.apart), frames.place.inner
            reached = self.is_reached(frames.count * unit, until * unit)
            places = len(value.shape), frames.sample_axis, frames.axis
            mask = self.spread(reached, *places)
            other = self.number(fill, value.type.element)
            chosen = self.one(Pointwise("where"), mask, value, other)
            self._known[key] = self.shaped(chosen, frames.value.shape)
        return replace(frames, value=self._known[key])

    def spread(self, rows: Value, rank: int, sample_axis: int | None, axis: int) -> Value:
        """A row for each sample (samples, n) as a value of that rank, with n on that axis."""
        count, n = rows.shape
        if sample_axis is not None and sample_axis > axis:
            rows = self.one(Permute((1, 0)), rows)
        sizes = {axis: n} if sample_axis is None else {axis: n, sample_axis: count}
        return self.shaped(rows, tuple(sizes.get(each, 1) for each in range(rank)))

    def is_reached(self, count: int, until: int, each_step: int = 0) -> Value:
        """Whether each of `count` consecutive numbers is at least `until`: bool (samples, count).

        The first number is 0 in the first step, and grows by `each_step`, by default `count`, from
        step to step.
        """
        key = "reached", count, until, each_step
        if key not in self._known:
            numbers = [np.arange(count), np.array([each_step or count]), np.array([until])]
            own, each, least = (self.build.constant(n, Origin("frames")) for n in numbers)
            first = self.one(Pointwise("mul"), self.steps, each)
            number = self.one(Pointwise("add"), first, own)
            self._known[key] = self.one(Pointwise("greater_equal"), number, least)
        return self._known[key]

    def row_of_step(self, table: Array, axis: int, like: Frames, origin: Origin) -> Value:
        """The row of a constant (steps, frames, ...) for a step, with its frames on that axis.

        It is an operand beside `like`. Samples are at different steps.
        """
        last, period, *sizes = len(table) - 1, *table.shape[1:]
        shape = (*sizes[:axis], period, *sizes[axis:])
        if not last:
            return self.build.constant(np.moveaxis(table[0], 0, axis), origin)
        is_bool = table.dtype == bool
        rows = np.moveaxis(table, 1, 1 + axis)
        if like.samples is not None:
            rows, shape = self._for_samples(rows, shape, like)
        rows = rows.reshape(1 + last, -1)
        rows = rows.astype(np.int64) if is_bool else rows
        end = self.build.constant(np.array([last]), Origin("steps"))
        place = self.one(Pointwise("minimum"), self.steps, end)
        row = self.one(Embedding(), place, self.build.constant(rows, origin))
        row = self.one(Cast(Element.BOOL), row) if is_bool else row
        if like.samples is None:
            return self.shaped(row, shape)
        whole = self.shaped(row, (self.samples, *shape))
        return self._samples_at(whole, like.samples.axis)

    def _for_samples(
        self, rows: Array, shape: tuple[int, ...], like: Frames
    ) -> tuple[Array, tuple[int, ...]]:
        """The rows of one sample, and their shape without the axis of samples in `like`."""
        sample_axis, rank = like.sample_axis, len(like.value.shape)
        if like.place.outer > 1 or sample_axis is None:
            raise SamplesMixed("has samples and something else on one axis")
        full = (1,) * (rank - len(shape)) + shape
        rows = rows.reshape(len(rows), *full)
        one = rows.take([0], 1 + sample_axis)
        if not np.array_equal(np.broadcast_to(one, rows.shape), rows):
            raise SamplesMixed("treats samples differently, by their place in the batch")
        return one, (*full[:sample_axis], *full[sample_axis + 1 :])

    def _samples_at(self, value: Value, axis: int) -> Value:
        """The value with its first axis moved."""
        order = [*range(1, len(value.shape))]
        order.insert(axis, 0)
        return self.one(Permute(tuple(order)), value) if axis else value

    @property
    def steps(self) -> Value:
        """The number of steps of each sample before this one, int64 (samples, 1)."""
        if ("steps",) not in self._known:
            like = TensorType((self.samples, 1), Element.INT64)
            before = self.state(Origin("steps"), "count", like)
            one = self.build.constant(np.array([1]), Origin("1"))
            self.tie(before, self.one(Pointwise("add"), before, one), 0)
            self._known["steps",] = before
        return self._known["steps",]

    def aligned(self, frames: Sequence[Frames], origin: Origin) -> list[Frames]:
        """All of `frames` with one delay, as large as the largest, and with `before` 0."""
        latest = max(0, *(each.delay for each in frames))
        for each in frames:
            latest = each.known_from(latest)
        return [self.filled(each, latest, origin) for each in frames]

    def cut(self, value: Value, axis: int, first: int, end: int) -> Value:
        """Elements `first` up to `end` of an axis."""
        if (first, end) == (0, value.shape[axis]):
            return value
        return self.one(Slice(axis, first, end), value)

    def shaped(self, value: Value, shape: tuple[int, ...]) -> Value:
        """The value in another shape."""
        return value if value.shape == shape else self.one(Reshape(shape), value)

    def number(self, number: float, element: Element = Element.FLOAT32) -> Value:
        """A number, without axes."""
        return self.build.constant(np.asarray(number, element.value), Origin(f"{number:g}"))

    def one(self, op: Operator, *inputs: Value) -> Value:
        """Apply an operator that has one output, with the origin of its last computed operand."""
        computed = [value for value in inputs if not self.build.is_constant(value)]
        return self.build.one(op, *inputs, origin=(computed or inputs)[-1].origin)


def _numbered(stem: str) -> list[str]:
    return [stem, *(f"{stem}.{number}" for number in range(2, 10_000))]
