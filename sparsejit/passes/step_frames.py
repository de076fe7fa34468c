"""Frames of a step: the past of a value, its delay, and the frames before the first one.

    past  = state                        the last frames of x, zeros before the first step
    whole = concat(past, x)              what a window of the step reads
    state' = whole[step:]

    Frames        a value of the step, and where its frames lie in the sequence
    FrameWriter   writes states, delays and masks
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from sparsejit.ir.graph import GraphBuilder
from sparsejit.ir.operator import BatchPlace, Operator
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.ops.views import Concat, Reshape, Slice
from sparsejit.ir.values import Array, Element, Origin, TensorType, Value


@dataclass(frozen=True, eq=False)
class Frames:
    """A value of the step, whose frame i of the whole stream is frame i - `delay` of a sequence.

    Attributes:
        value: the frames of one step
        place: their place in the value
        rate: frames for each frame of the model's input
        lengths: frames of the sequence in the two graphs that were read
        delay: frames by which the value is late; below 0 only if `before` is as large
        before: number of first frames of the sequence that are `fill`, whatever the value holds
        fill: the number that these frames hold
    """

    value: Value
    place: BatchPlace
    rate: Fraction
    lengths: tuple[int, int]
    delay: int = 0
    before: int = 0
    fill: float = 0.0

    @property
    def axis(self) -> int:
        """The axis of `apart`, which frames have alone."""
        return self.place.axis + (self.place.outer > 1)

    @property
    def apart(self) -> tuple[int, ...]:
        """The value's shape where the frames of all outer elements lie on an axis of their own."""
        shape, (axis, outer, _) = self.value.shape, self.place
        sizes = (outer, shape[axis] // outer) if outer > 1 else (shape[axis],)
        return (*shape[:axis], *sizes, *shape[axis + 1 :])

    @property
    def count(self) -> int:
        """Frames of one step."""
        return self.apart[self.axis] // self.place.inner

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
        )


@dataclass(frozen=True, eq=False)
class TiedState:
    """A state of the step: the value before it, the value after it, and the first value."""

    name: str
    before: Value
    after: Value
    initial: Array | None


class FrameWriter:
    """Writes what a step needs besides the model's operators."""

    def __init__(self) -> None:
        self.build = GraphBuilder()
        self.states: list[TiedState] = []
        self._names: set[str] = set()
        self._known: dict[tuple[object, ...], Value] = {}

    def state(self, origin: Origin, kind: str, like: TensorType, initial: Array | None) -> Value:
        """A new state, named by the layer that reads it; `tie` gives its next value."""
        stem = f"{origin.layer}.{kind}"
        name = next(n for n in _numbered(stem) if n not in self._names)
        self._names.add(name)
        return self.build.input(like, replace(origin, name=name))

    def tie(self, before: Value, after: Value, initial: Array | None = None) -> None:
        """Give the value that a state has after a step."""
        self.states.append(TiedState(before.origin.name, before, after, initial))

    def history(self, frames: Frames, length: int, fill: float, origin: Origin) -> Value:
        """The last `length` frames before the step and its own, in the form `apart`."""
        key = frames.value, frames.place, length, fill
        if key not in self._known:
            self._known[key] = self._history(frames, length, fill, origin)
        return self._known[key]

    def _history(self, frames: Frames, length: int, fill: float, origin: Origin) -> Value:
        value, axis = self.shaped(frames.value, frames.apart), frames.axis
        if not length:
            return value
        extra, own = length * frames.place.inner, value.shape[axis]
        shape = (*value.shape[:axis], extra, *value.shape[axis + 1 :])
        like = TensorType(shape, value.type.element)
        initial = np.full(shape, fill, like.element.value) if fill else None
        past = self.state(origin, "past", like, initial)
        whole = self.one(Concat(axis), past, value)
        self.tie(past, self.cut(whole, axis, own, own + extra), initial)
        return whole

    def taken(self, frames: Frames, whole: Value, first: int) -> Frames:
        """The frames of a step from this place of `history` on."""
        unit, own = frames.place.inner, frames.count
        part = self.cut(whole, frames.axis, first * unit, (first + own) * unit)
        return replace(frames, value=self.shaped(part, frames.value.shape))

    def delayed(self, frames: Frames, delay: int, origin: Origin) -> Frames:
        """The frames with a larger delay."""
        by = delay - frames.delay
        if not by:
            return frames
        late = self.taken(frames, self.history(frames, by, 0.0, origin), 0)
        return replace(late, delay=delay)

    def settled(self, frames: Frames, origin: Origin) -> Frames:
        """The frames without frames before them: the value holds these."""
        if not frames.before:
            return frames
        known = self.masked(frames, frames.fill, frames.before + frames.delay)
        by = max(-frames.delay, 0)
        late = self.taken(known, self.history(known, by, frames.fill, origin), 0)
        return replace(late, delay=frames.delay + by, before=0)

    def masked(self, frames: Frames, fill: float, until: int) -> Frames:
        """The frames with `fill` in the first `until` frames of the stream."""
        if until <= 0:
            return frames
        key = "masked", frames.value, frames.place, fill, until
        if key not in self._known:
            value, unit = self.shaped(frames.value, frames.apart), frames.place.inner
            mask = self.is_reached(frames.count * unit, until * unit)
            behind = value.shape[frames.axis + 1 :]
            mask = self.shaped(mask, (frames.count * unit, *(1 for _ in behind)))
            other = self.number(fill, value.type.element)
            chosen = self.one(Pointwise("where"), mask, value, other)
            self._known[key] = self.shaped(chosen, frames.value.shape)
        return replace(frames, value=self._known[key])

    def is_reached(self, count: int, until: int, each_step: int = 0) -> Value:
        """Whether numbers from 0 to below `count` are at least `until`: bool (count,).

        They grow by `each_step` from step to step, by default as frames do, by `count`.
        """
        key = "reached", count, until, each_step
        if key not in self._known:
            numbers = [np.arange(count), np.array([each_step or count]), np.array([until])]
            own, each, least = (self.build.constant(n, Origin("frames")) for n in numbers)
            first = self.one(Pointwise("mul"), self.steps, each)
            number = self.one(Pointwise("add"), first, own)
            self._known[key] = self.one(Pointwise("greater_equal"), number, least)
        return self._known[key]

    @property
    def steps(self) -> Value:
        """The number of steps before this one, int64 (1,)."""
        if ("steps",) not in self._known:
            like = TensorType((1,), Element.INT64)
            before = self.state(Origin("steps"), "count", like, None)
            one = self.build.constant(np.array([1]), Origin("1"))
            self.tie(before, self.one(Pointwise("add"), before, one))
            self._known["steps",] = before
        return self._known["steps",]

    def aligned(self, frames: Sequence[Frames], origin: Origin) -> list[Frames]:
        """The frames with the largest of their delays."""
        latest = max(each.delay for each in frames)
        return [self.delayed(each, latest, origin) for each in frames]

    def cut(self, value: Value, axis: int, first: int, end: int) -> Value:
        """Elements of an axis."""
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
