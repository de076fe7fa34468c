"""The function of a step, from a model of whole sequences.

x (1, 4, T)                                 x (1, 4, 160), past (1, 4, 4)
y = conv1d(pad(x, (4, 0)), W)          ->   whole = concat(past, x)
return y                                    return conv1d(whole, W), whole[160:]

The model is read at two lengths: an operator of a step is the same for both, and a value has time
where its sizes differ. What differs in any other way is refused.

Frame i of a value's stream is frame i - delay of its sequence. A window that looks ahead makes its
result late; operands of one operator are delayed alike; frames before the first one of a sequence
are what the model pads with, since a mask of the number of steps puts it there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count
from math import ceil, lcm

import numpy as np

from sparsejit.errors import UnsupportedOperator
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import BatchPlace, Follower, Node, SamplesMixed
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.ops.views import Expand, Pad, Permute, Reshape, Slice
from sparsejit.ir.state import State
from sparsejit.ir.time_rules import (
    Apart,
    Appended,
    Attended,
    Carried,
    Grouped,
    Overlap,
    Shifted,
    TimeRule,
    Whole,
    Window,
)
from sparsejit.ir.values import Array, Value
from sparsejit.passes.fold_constants import fold_constants
from sparsejit.passes.recognise_attention import recognise_attention
from sparsejit.passes.rewriter import remove_dead_code
from sparsejit.passes.step_attention import attended, common_band
from sparsejit.passes.step_constants import rows_of_steps
from sparsejit.passes.step_frames import Frames, FrameWriter, Start
from sparsejit.passes.step_starts import CopiedStart, copied_starts

_KEEP_APART = "compute it for each frame, over channels, or over a window of frames"
_BY_LENGTH = (
    "give a model whose operators are the same for every length, and a multiple of its hops as step"
)
_NO_LAST = (
    "a stream has no last frames: pad with zeros or copies of the first frames, and give a "
    "multiple of the model's hops as step"
)
# Operators whose result holds one number where their operand does.
_KEEP_FILL = (Expand, Permute, Reshape, Slice)


@dataclass(frozen=True)
class StepGraph:
    """The graph of a step. Its last inputs and outputs are the states.

    Attributes:
        delay: the number of frames of the input by which results are late
        axes: the axis of time in each output that is no state; None for an output without time
        samples: the axis of samples in each state; None where the batch is fixed
    """

    graph: Graph
    states: tuple[State, ...]
    delay: int
    axes: tuple[int | None, ...]
    samples: tuple[int | None, ...]


class UnevenStep(Exception):
    """Error: a layer would get a fraction of a frame in a step.

    A step of a multiple of `whole` frames of the input has whole frames in that layer.
    """

    def __init__(self, whole: int) -> None:
        super().__init__(whole)
        self.whole = whole


def step_graph(
    long: Graph,
    short: Graph,
    step: int,
    axes: Sequence[int | None],
    window: int | None = None,
    follow: Callable[[Graph], Follower] | None = None,
) -> StepGraph:
    """Return the graph of `step` frames, from the model's graphs at two lengths.

    `axes` are the axes of time in the inputs; None for an input that is the same for all frames.
    `long` has at least twice the frames of `short`. Where the model's attention reads all earlier
    frames, the step's attention reads the last `window` ones. `follow` follows samples through a
    graph of several; without it the batch is fixed. Raises UnsupportedOperator for a model that
    computes a frame from later ones without bound, UnevenStep, and SamplesMixed where samples,
    which are at different steps, are not apart.
    """
    own, other = (recognise_attention(fold_constants(graph)) for graph in (long, short))
    samples = None if follow is None else follow(own)
    return _StepWriter(own, other, step, axes, window, samples).write()


class _StepWriter:
    """Walks through both graphs and writes the step."""

    def __init__(
        self,
        long: Graph,
        short: Graph,
        step: int,
        axes: Sequence[int | None],
        window: int | None,
        samples: Follower | None,
    ) -> None:
        self.long, self.short, self.step, self.window = long, short, step, window
        self.samples: Mapping[Value, BatchPlace] = {} if samples is None else samples.places
        self.writer = FrameWriter(1 if samples is None else samples.batch)
        self.build = self.writer.build
        self.frames: dict[Value, Frames] = {}
        self.now: dict[Value, Value] = {}  # values of the last frame, and the step's
        self.late: set[Value] = set()  # states that are behind the frames of the step
        self.given: set[Value] = set()  # without time, from inputs
        self._steady: dict[Value, bool] = {}
        self._followers = long.follower(1), short.follower(1)
        self._starts = copied_starts(long, short)
        makers = (start.makers for start in self._starts.values())
        self._copying = {node for each in makers for node in each}
        self.twins = dict(zip(long.inputs, short.inputs, strict=True))
        self._inputs(axes)

    def _inputs(self, axes: Sequence[int | None]) -> None:
        for value, axis in zip(self.long.inputs, axes, strict=True):
            if axis is None:
                self.given.add(self.build.adopt(value))
                continue
            lengths = value.shape[axis], self.twins[value].shape[axis]
            shape = (*value.shape[:axis], self.step, *value.shape[axis + 1 :])
            own = self.build.input(replace(value.type, shape=shape), value.origin)
            samples = self.samples.get(value)
            place = BatchPlace(axis)
            self.frames[value] = Frames(own, place, Fraction(1), lengths, samples=samples)
            self.total = lengths

    def write(self) -> StepGraph:
        """Return the step. Raises as `step_graph` does."""
        for value, array in self.long.constants.items():
            self.build.adopt(value, array)
        for node, twin in zip(self.long.nodes, self.short.nodes, strict=False):
            self._pair(node, twin)
            for value in self.late.intersection(node.inputs):
                raise self._too_late(value)
            if node in self._copying:
                continue
            if any(value in self.frames for value in node.inputs):
                self._timed(node, twin)
            else:
                self._untimed(node, twin)
        if len(self.long.nodes) != len(self.short.nodes) or not self._pairs_outputs():
            extra = self.long.nodes[min(len(self.short.nodes), len(self.long.nodes) - 1)]
            raise self.refused(extra, "is not the same for every length", _BY_LENGTH)
        outputs, axes, delay = self._outputs()
        return self._finish(outputs, axes, delay)

    def _pairs_outputs(self) -> bool:
        found = [self.twins.get(value) for value in self.long.outputs]
        return found == list(self.short.outputs)

    def _finish(
        self, outputs: list[Value], axes: Sequence[int | None], delay: int
    ) -> StepGraph:
        tied = {state.before: state for state in self.writer.states}
        own = [tied[value] for value in self.build.finish([]).inputs if value in tied]
        graph = self.build.finish([*outputs, *(state.after for state in own)])
        first = len(graph.inputs) - len(own), len(outputs)
        states = [
            State(state.name, first[0] + number, first[1] + number, state.initial)
            for number, state in enumerate(own)
        ]
        made = replace(remove_dead_code(graph), notes=self.long.notes)
        samples = tuple(state.axis if self.samples else None for state in own)
        return StepGraph(made, tuple(states), delay, tuple(axes), samples)

    def _pair(self, node: Node, twin: Node) -> None:
        """Note the twins of a node's results: the same values in the shorter graph.

        Raises UnsupportedOperator where the two nodes differ in operator or operands.
        """
        for value, other in zip(node.inputs, twin.inputs, strict=False):
            if value in self.long.constants and other in self.short.constants:
                self.twins.setdefault(value, other)
        own = [self.twins.get(value) for value in node.inputs]
        if type(node.op) is not type(twin.op) or own != list(twin.inputs):
            raise self.refused(node, "is not the same for every length", _BY_LENGTH)
        self.twins.update(zip(node.outputs, twin.outputs, strict=True))

    def refused(self, node: Node, why: str, remedy: str) -> UnsupportedOperator:
        """The error for an operator that no step can compute."""
        origin = node.outputs[0].origin
        name = getattr(node.op, "title", "") or node.op.as_text().partition("[")[0]
        places = [each for each in (origin.module, origin.source) if each]
        where = f" ({', '.join(places)})" if places else ""
        return UnsupportedOperator(f"{origin.name}{where}: {name} {why}; {remedy}")

    def _too_late(self, value: Value) -> UnsupportedOperator:
        """The error for the last state of a recurrence that runs late."""
        node = self.long.producers()[value]
        why = "returns the state after the last frame, and layers before it look ahead"
        return self.refused(node, why, "pad these on the left alone, or return all frames")

    # Values without time

    def _untimed(self, node: Node, twin: Node) -> None:
        """Write a node that reads no frames."""
        if any(value in self.now for value in node.inputs):
            operands = [self.now.get(value) or self._fixed(node, value) for value in node.inputs]
            if node.op != twin.op:
                raise self.refused(node, "is not the same for every length", _BY_LENGTH)
            made = self.build.add(node.op, *operands, origin=node.outputs[0].origin)
            self.now.update(zip(node.outputs, made, strict=True))
            return
        if not self.given.isdisjoint(node.inputs):
            if node.op != twin.op:
                raise self.refused(node, "is not the same for every length", _BY_LENGTH)
            for value in node.inputs:
                self._fixed(node, value)
            self.given.update(node.outputs)
        self.build.adopt_node(node)

    def _fixed(self, node: Node, value: Value) -> Value:
        """Return the value. Raises UnsupportedOperator if it depends on the sequence's length."""
        if value not in self.given:
            if value not in self._steady:
                self._steady[value] = np.array_equal(*self._arrays(value), equal_nan=True)
            if not self._steady[value]:
                why = f"reads {value.origin.name}, which depends on the length"
                raise self.refused(node, why, _KEEP_APART)
        return value

    def _arrays(self, value: Value) -> tuple[Array, Array]:
        """The arrays of a value without time, in both graphs."""
        long, short = self._followers
        return long.array(value), short.array(self.twins[value])

    # Values with time

    def _timed(self, node: Node, twin: Node) -> None:
        if node in self._starts:
            self._started(node, self._starts[node])
            return
        if any(value in self.now for value in node.inputs):
            raise self.refused(node, "reads the last frame beside all frames", _KEEP_APART)
        found = [self.frames.get(value) for value in node.inputs]
        fine = [None if each is None else each.fine() for each in found]
        if len({(each.lengths, each.place.inner) for each in found if each is not None}) > 1:
            found = fine
        if len({each.lengths for each in found if each is not None}) > 1:
            raise self.refused(node, "joins frames of different rates", "resample one of them")
        try:
            self._by_rule(node, twin, found)
        except SamplesMixed:
            try:
                self._by_rule(node, twin, fine)
            except SamplesMixed as error:
                words = str(error).replace("sample", "frame").replace("the batch", "the sequence")
                why = f"mixes all of time, since it {words}"
                raise self.refused(node, why, _KEEP_APART) from error
        for value in node.outputs:
            if value in self.frames:
                own = replace(self.frames[value], samples=self.samples.get(value))
                self.frames[value] = own
                self._check_sizes(node, value)

    def _by_rule(self, node: Node, twin: Node, found: list[Frames | None]) -> None:
        """Write a node by its operator's rule along time.

        Raises SamplesMixed where the operator mixes the frames at their places in the operands.
        """
        timed = [each for each in found if each is not None]
        places = [None if each is None else each.place for each in found]
        long, short = timed[0].lengths
        rule, other = node.op.time_rule(node, places, long), twin.op.time_rule(twin, places, short)
        if isinstance(rule, Whole):
            raise self.refused(node, rule.why, rule.remedy)
        if isinstance(rule, Shifted) and rule != other and self._is_last(node, twin, rule, other):
            self.now[node.output] = self._last(node, timed[0], rule)
            return
        if rule != other:
            remedy = _NO_LAST if isinstance(rule, Shifted) else _BY_LENGTH
            raise self.refused(node, "is not the same for every length", remedy)
        if isinstance(rule, (Apart, Grouped)):
            self._apart(node, twin, found, rule)
        elif isinstance(rule, Carried):
            self._carried(node, twin, found, rule)
        elif isinstance(rule, Appended):
            self._appended(node, found)
        elif isinstance(rule, Attended):
            self._attended(node, timed, rule)
        else:
            if any(found[1:]):
                raise self.refused(node, "has weights that change with time", _KEEP_APART)
            fixed = [self._fixed(node, value) for value in node.inputs[1:]]
            made = self._along(node, timed[0].fine(), fixed, rule)
            self.frames[node.output] = made

    def _check_sizes(self, node: Node, value: Value) -> None:
        """Raise UnsupportedOperator unless the result has the predicted sizes in both graphs."""
        made, twin = self.frames[value], self.twins[value]
        axis, outer, inner = made.place
        for own, length in zip((value, twin), made.lengths, strict=True):
            sizes = (*own.shape[:axis], made.value.shape[axis], *own.shape[axis + 1 :])
            if own.shape[axis] != outer * length * inner or sizes != made.value.shape:
                raise self.refused(node, "is not the same for every length", _BY_LENGTH)
        long, short = made.lengths
        if long - short != made.rate * (self.total[0] - self.total[1]):
            raise self.refused(node, "takes a fixed number of frames", _BY_LENGTH)

    def _lengths(self, node: Node, place: BatchPlace) -> tuple[int, int]:
        """The frames of a node's first result in both graphs."""
        unit = place.outer * place.inner
        long, short = node.outputs[0], self.twins[node.outputs[0]]
        return long.shape[place.axis] // unit, short.shape[place.axis] // unit

    def even(self, rate: Fraction) -> Fraction:
        """Return the rate. Raises UnevenStep unless a step has whole frames at that rate."""
        if (rate * self.step).denominator != 1:
            raise UnevenStep(rate.denominator)
        return rate

    def _apart(
        self, node: Node, twin: Node, found: list[Frames | None], rule: TimeRule
    ) -> None:
        """Write an operator that computes each frame by itself."""
        writer, origin = self.writer, node.outputs[0].origin
        timed = [each for each in found if each is not None]
        if isinstance(rule, Grouped):
            timed = [self._grouped(timed[0], rule.frames, node)]
            found = [*timed]
        places, cut, changing = self._followed(node, found, timed[0])
        is_start = timed[0].start is not None
        if is_start and isinstance(node.op, Reshape):
            is_start = places[0].outer != 1
        if is_start or not isinstance(node.op, _KEEP_FILL):
            timed = writer.aligned(timed, origin)
        for value, place in changing.items():
            cut[value] = self._row_of_step(node, value, place, timed[0])
        left = iter(timed)
        own = [None if each is None else next(left) for each in found]
        operands = [
            each.value if each is not None else cut.get(value) or self._fixed(node, value)
            for each, value in zip(own, node.inputs, strict=True)
        ]
        _, outer, inner = places[0]
        size = outer * timed[0].count * inner
        op = node.op.resized(node, places[0], size)
        if op != twin.op.resized(twin, places[0], size):
            raise self.refused(node, "is not the same for every length", _BY_LENGTH)
        made = self.build.add(op, *operands, origin=origin)
        for value, result, place in zip(node.outputs, made, places, strict=True):
            self.frames[value] = replace(timed[0], value=result, place=place)

    def _followed(
        self, node: Node, own: Sequence[Frames | None], like: Frames
    ) -> tuple[list[BatchPlace], dict[Value, Value], dict[Value, BatchPlace]]:
        """Follow time through a node: the places of time in its results, and two kinds of operands.

        The first kind repeats one frame along time, and is cut to a step. The second are constants
        that change along time, with the places of time in them. Raises SamplesMixed.
        """
        follow = self.long.follower(like.lengths[0])
        follow.given |= self.given
        for value, each in zip(node.inputs, own, strict=True):
            if each is not None:
                follow.places[value] = each.place
        changing = self._changing(node, follow, like)
        follow.places |= changing
        node.op.follow_batch(follow, node)
        places = [follow.places.get(value) for value in node.outputs]
        if not all(places):
            raise SamplesMixed(node.op.mixing)
        cut = {
            value: self._repeated(node, value, place, like)
            for value, place in follow.shared.items()
        }
        return [place for place in places if place is not None], cut, changing

    def _changing(self, node: Node, follow: Follower, like: Frames) -> dict[Value, BatchPlace]:
        """Constants of a pointwise operator that change along time, and its place in them."""
        axis, outer, inner = like.place
        if not isinstance(node.op, Pointwise) or outer != 1:
            return {}
        from_end, found = axis - len(like.value.shape), {}
        for value in node.inputs:
            place = BatchPlace(len(value.shape) + from_end, 1, inner)
            is_known = value not in follow.places and value not in follow.given
            if is_known and place.axis >= 0 and follow.changes(value, place):
                found[value] = place
        return found

    def _row_of_step(self, node: Node, value: Value, place: BatchPlace, like: Frames) -> Value:
        """The frames of a step out of a constant that changes along time."""
        long, short = (np.moveaxis(each, place.axis, 0) for each in self._arrays(value))
        table = rows_of_steps(long, short, like.count * place.inner, like.delay * place.inner)
        if table is None:
            why = f"reads {value.origin.name}, which changes along time"
            remedy = "let it repeat with each step; where it does, give a longer example"
            raise self.refused(node, why, remedy)
        return self.writer.row_of_step(table, place.axis, like, value.origin)

    def _repeated(self, node: Node, value: Value, place: BatchPlace, like: Frames) -> Value:
        """An operand that repeats one frame along time, cut to the frames of a step."""
        axis, outer, inner = place
        firsts = []
        for array, length in zip(self._arrays(value), like.lengths, strict=True):
            if array.shape[axis] != outer * length * inner:
                raise self.refused(node, "is not the same for every length", _BY_LENGTH)
            split = (*array.shape[:axis], outer, length, inner, *array.shape[axis + 1 :])
            firsts.append(array.reshape(split).take([0], axis=axis + 1))
        if not np.array_equal(firsts[0], firsts[1], equal_nan=True):
            raise self.refused(node, f"reads {value.origin.name} by its length", _KEEP_APART)
        whole = np.repeat(firsts[0], like.count, axis=axis + 1)
        shape = (*value.shape[:axis], outer * like.count * inner, *value.shape[axis + 1 :])
        return self.build.constant(whole.reshape(shape), value.origin)

    def _grouped(self, frames: Frames, each: int, node: Node) -> Frames:
        """The frames in groups: `each` consecutive frames become one frame."""
        rate, origin = self.even(frames.rate / each), node.outputs[0].origin
        if frames.start is None:
            frames = self.writer.settled(frames, origin, frames.before // each * each)
        delay = ceil(frames.delay / each)
        if delay >= 0 and frames.known_from(delay * each) == delay * each:
            late = self.writer.filled(frames, delay * each, origin, frames.before)
        else:
            late = self.writer.delayed(frames, delay * each, origin)
        if any(length % each for length in frames.lengths):
            raise self.refused(node, "is not the same for every length", _BY_LENGTH)
        lengths = frames.lengths[0] // each, frames.lengths[1] // each
        place = late.place._replace(inner=late.place.inner * each)
        lead = late.before // each
        start = late.start and late.start._replace(unit=late.start.unit * each)
        late = replace(late, place=place, rate=rate, lengths=lengths, start=start)
        return replace(late, delay=delay, before=lead)

    # Rules along time

    def _along(
        self, node: Node, frames: Frames, fixed: list[Value], rule: TimeRule
    ) -> Frames:
        """Write an operator that reads several frames of its first operand."""
        if frames.place.outer != 1:
            raise self.refused(node, "reads frames of several samples", "keep the batch apart")
        if isinstance(rule, Shifted):
            return self._shifted(node, frames, rule)
        if isinstance(rule, Overlap):
            return self._overlapped(node, frames, fixed, rule)
        assert isinstance(rule, Window)
        return self._windows(node, frames, fixed, rule)

    def _shifted(self, node: Node, frames: Frames, rule: Shifted) -> Frames:
        if rule.op is not None and frames.start is not None:
            frames = self.writer.settled(frames, node.output.origin)
        moved = self.moved(node, frames, rule.before, rule.fill)
        if rule.op is not None:
            value = self.build.one(rule.op, moved.value, origin=node.output.origin)
            moved = replace(moved, value=value)
        return replace(moved, lengths=self._lengths(node, moved.place))

    def moved(self, node: Node, frames: Frames, before: int, fill: float) -> Frames:
        """The sequence after `before` frames of `fill`, or without its first -`before` frames."""
        if before > 0:
            if frames.start is not None or (frames.before and frames.fill != fill):
                frames = self.writer.settled(frames, node.outputs[0].origin)
            frames = replace(frames, fill=fill)
        lead, start = max(frames.before + before, 0), frames.start
        delay = frames.delay - before
        if start is not None and start.place <= delay * start.unit:
            start = None
        return replace(frames, delay=delay, before=lead, start=start)

    def _started(self, node: Node, start: CopiedStart) -> None:
        """Write a concatenation that adds copies of the first frames before these."""
        given = self.frames[start.frames].fine()
        if given.place != BatchPlace(given.axis):
            raise self.refused(node, "reads frames of several samples", "keep the batch apart")
        frames = self.writer.settled(given, node.output.origin)
        first = Start(frames.delay, start.sources) if start.sources else None
        delay = frames.delay - len(start.sources)
        lengths, samples = self._lengths(node, frames.place), self.samples.get(node.output)
        made = replace(frames, delay=delay, lengths=lengths, start=first, samples=samples)
        self.frames[node.output] = made
        self._check_sizes(node, node.output)

    def _windows(
        self, node: Node, frames: Frames, fixed: list[Value], rule: Window
    ) -> Frames:
        writer, origin, stride = self.writer, node.output.origin, rule.stride
        rate = self.even(frames.rate / stride)
        frames = self.moved(node, frames, rule.before, rule.fill)
        delay = max(0, ceil((frames.delay + rule.reach - stride) / stride))
        delay = frames.known_from(delay, frames.count // stride)
        starts = None if frames.start is None else delay // (frames.count // stride)
        past = delay * stride - frames.delay
        fill = frames.fill if frames.before else 0.0
        known = writer.masked(frames, fill, frames.before + frames.delay if frames.before else 0)
        whole = writer.history(known, max(past, 0), fill, origin, starts)
        first = max(-past, 0)
        read = frames.count - stride + rule.reach
        part = writer.cut(whole, frames.axis, first, first + read)
        op = rule.op.resized(node, frames.place, frames.count // stride)
        made = self.build.one(op, part, *fixed, origin=origin)
        lengths = self._lengths(node, frames.place)
        samples = self.samples.get(node.output)
        late = Frames(made, frames.place, rate, lengths, delay, samples=samples)
        # Windows before the first frame hold padding alone; infinite numbers would become NaN.
        return late if np.isfinite(fill) else writer.masked(late, 0.0, delay)

    def _overlapped(
        self, node: Node, frames: Frames, fixed: list[Value], rule: Overlap
    ) -> Frames:
        writer, origin, axis = self.writer, node.output.origin, frames.place.axis
        frames = writer.settled(frames, origin)
        frames = writer.masked(frames, 0.0, frames.delay)
        whole = self.build.one(rule.op, frames.value, fixed[0], origin=origin)
        own, extra = frames.count * rule.stride, rule.reach - rule.stride
        if extra < 0:
            whole = writer.one(_behind(whole, axis, -extra), whole)
        elif extra:
            shape = (*whole.shape[:axis], extra, *whole.shape[axis + 1 :])
            past = writer.state(origin, "overlap", replace(whole.type, shape=shape))
            added = writer.one(_behind(past, axis, own), past)
            whole = writer.one(Pointwise("add"), added, whole)
            writer.tie(past, writer.cut(whole, axis, own, own + extra), frames.sample_axis)
        made = writer.cut(whole, axis, 0, own)
        for bias in fixed[1:]:
            column = writer.shaped(bias, (*bias.shape, *(1 for _ in made.shape[2:])))
            made = self.build.one(Pointwise("add"), made, column, origin=origin)
        delay, rate = frames.delay * rule.stride + rule.before, frames.rate * rule.stride
        return Frames(made, frames.place, rate, self._lengths(node, frames.place), delay)

    def _appended(self, node: Node, found: list[Frames | None]) -> None:
        """Write a concatenation of constants and frames: the constants become frames of padding."""
        places = [number for number, each in enumerate(found) if each is not None]
        frames = found[places[0]]
        assert frames is not None
        frames = frames.fine()
        lead = [self._fixed(node, value) for value in node.inputs[: places[0]]]
        numbers = [self._arrays(v)[0].ravel() for v in lead if v not in self.given]
        filled = np.unique(np.concatenate([*numbers, np.zeros(0)]))
        is_padding = len(numbers) == len(lead) and len(filled) <= 1
        if len(places) > 1 or frames.place.outer != 1 or not is_padding:
            why = "joins frames along time"
            raise self.refused(node, why, "join channels, or pad with one number")
        fill = float(filled[0]) if len(filled) else 0.0
        before = sum(value.shape[frames.place.axis] for value in lead)
        moved = self.moved(node, frames, before, fill)
        lengths = self._lengths(node, frames.place)
        self.frames[node.output] = replace(moved, lengths=lengths)

    def _attended(self, node: Node, timed: list[Frames], rule: Attended) -> None:
        """Write attention in which each frame attends to a band of frames."""
        band = common_band(*self._arrays(node.inputs[3]), self.window)
        if band is None:
            why = "attends to more frames with every step"
            raise self.refused(node, why, "mask frames outside of a window, or give a window")
        query, key, value = timed
        origin = node.output.origin
        made = attended(self.writer, (query, key, value), band, rule.scale, origin)
        self.frames[node.output] = made

    def _carried(
        self, node: Node, twin: Node, found: list[Frames | None], rule: Carried
    ) -> None:
        """Write a recurrence over the frames of a step, from the state of the step before."""
        writer, origin = self.writer, node.outputs[0].origin
        timed = [each.fine() for each in found if each is not None]
        if any(each.place != BatchPlace(0) for each in timed):
            raise self.refused(node, "runs over time and something else", _KEEP_APART)
        timed = writer.aligned(timed, origin)
        number = timed[0].count
        delay = number * ceil(timed[0].delay / number)
        left = iter([writer.delayed(each, delay, origin) for each in timed])
        operands = [
            value if each is None else next(left).value
            for each, value in zip(found, node.inputs, strict=True)
        ]
        given = dict(rule.states)
        initial = {place: self._initial(node, node.inputs[place]) for place in given}
        for place in initial:
            operands[place] = writer.state(origin, "state", node.inputs[place].type)
        for place, (value, each) in enumerate(zip(node.inputs, found, strict=True)):
            if each is None and place not in given:
                self._fixed(node, value)
        op = node.op.resized(node, BatchPlace(0), number)
        if op != twin.op.resized(twin, BatchPlace(0), number):
            raise self.refused(node, "is not the same for every length", _BY_LENGTH)
        made = self.build.add(op, *operands, origin=origin)
        for place, result in given.items():
            after, axis = made[result], self._sample_axis(node.outputs[result])
            if delay:
                reached, rank = writer.is_reached(1, delay // number), len(after.shape)
                last = next(n for n in range(rank)[::-1] if n != axis)
                runs = writer.spread(reached, rank, axis, last)
                first = self.build.constant(initial[place], origin)
                after = writer.one(Pointwise("where"), runs, after, first)
                self.late.add(node.outputs[result])
            else:
                self.now[node.outputs[result]] = after
            start = initial[place] if initial[place].any() else None
            writer.tie(operands[place], after, axis, start)
        like = replace(timed[0], delay=delay)
        for n, value in enumerate(node.outputs):
            if n not in given.values():
                self.frames[value] = replace(like, value=made[n], place=BatchPlace(0))

    def _sample_axis(self, value: Value) -> int | None:
        """The axis that samples have alone in a value. Raises SamplesMixed where there is none."""
        if not self.samples:
            return None
        place = self.samples.get(value)
        if place is None or place != BatchPlace(place.axis):
            raise SamplesMixed(f"{value.origin.name} has no axis of samples alone")
        return place.axis

    def _initial(self, node: Node, value: Value) -> Array:
        """The state before the first frame. Raises UnsupportedOperator where a call gives it."""
        if value in self.frames or value in self.now or value in self.given:
            why = f"starts from {value.origin.name}, which a call gives"
            raise self.refused(node, why, "leave it out: a stream carries the state")
        self._fixed(node, value)
        return self._arrays(value)[0].astype(value.type.element.value)

    # The last frame

    def _is_last(self, node: Node, twin: Node, rule: Shifted, other: TimeRule) -> bool:
        """Whether a slice takes one frame, at the same distance from the end in both graphs."""
        shapes = node.output.shape, twin.output.shape
        operands = node.inputs[0].shape, twin.inputs[0].shape
        axis = next(n for n, (a, b) in enumerate(zip(*operands, strict=True)) if a != b)
        is_one = shapes[0] == shapes[1] and shapes[0][axis] == 1
        return is_one and isinstance(other, Shifted) and rule.after == other.after

    def _last(self, node: Node, frames: Frames, rule: Shifted) -> Value:
        """A frame near the end of the sequence, as it is after the frames of this step."""
        writer, origin = self.writer, node.output.origin
        frames = writer.settled(frames.fine(), origin)
        total = frames.rate * self.total[0]
        behind = total - frames.delay - (frames.lengths[0] + rule.after)
        if frames.place.outer != 1 or behind.denominator != 1:
            remedy = f"give an example of a multiple of {self.step} frames"
            raise self.refused(node, "takes a frame between steps", remedy)
        if behind < 0:
            why = "takes the last frame, which looks ahead"
            raise self.refused(node, why, "pad on the left alone, or return all frames")
        past = max(0, int(behind) + 1 - frames.count)
        whole = writer.history(frames, past, 0.0, origin)
        place = past + frames.count - 1 - int(behind)
        return writer.cut(whole, frames.axis, place, place + 1)

    # Results

    def _outputs(self) -> tuple[list[Value], list[int | None], int]:
        """The values that a step returns, the axis of time in each, and their common delay."""
        timed = [self.frames[value] for value in self.long.outputs if value in self.frames]
        if not timed:
            kept = [self._kept(value) for value in self.long.outputs]
            return kept, [None] * len(kept), 0
        if any(each.place.outer > 1 for each in timed):
            raise UnsupportedOperator(
                "an output has time inside of another axis; return it with time on its own axis"
            )
        own = [self.writer.settled(each, each.value.origin) for each in timed]
        unit = lcm(*(each.rate.denominator for each in own))
        least = max(ceil(each.delay / each.rate) for each in own)
        delay = next(n for n in count(least) if n % unit == 0)
        made = []
        for each in own:
            late = self.writer.delayed(each, int(delay * each.rate), each.value.origin)
            made.append(self.writer.masked(late, 0.0, late.delay))
        left = iter(made)
        results: list[Value] = []
        axes: list[int | None] = []
        for value in self.long.outputs:
            late_one = next(left) if value in self.frames else None
            results.append(self._kept(value) if late_one is None else late_one.value)
            axes.append(None if late_one is None else late_one.axis)
        return results, axes, delay

    def _kept(self, value: Value) -> Value:
        """An output without time. Raises UnsupportedOperator where it depends on the length."""
        if value in self.now:
            return self.now[value]
        if value in self.late:
            raise self._too_late(value)
        node = self.long.producers().get(value)
        if node is not None:
            return self._fixed(node, value)
        return value


def _behind(value: Value, axis: int, size: int) -> Pad:
    """The operator that pads an axis with `size` zeros behind its last element."""
    return Pad(tuple((0, size if each == axis else 0) for each in range(len(value.shape))))
