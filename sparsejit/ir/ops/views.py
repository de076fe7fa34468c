"""Operators that reshape, reorder, select, repeat, join and pad elements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import numpy as np

from sparsejit.ir.operator import BatchPlace, Follower, Node, Operator, SamplesMixed
from sparsejit.ir.signature import ALIKE, Bound, Signature, signature
from sparsejit.ir.time_rules import Apart, Appended, Grouped, Shifted, TimeRule, Whole, Window
from sparsejit.ir.values import Array, Element, axis_of, broadcasts_to


def _with_length(shape: tuple[int, ...], axis: int, length: int) -> tuple[int, ...]:
    return (*shape[:axis], length, *shape[axis + 1 :])


@dataclass(frozen=True)
class Reshape(Operator):
    """The elements in row-major order, as `shape`."""

    shape: tuple[int, ...]

    types: ClassVar[str] = "x X [*given] -> X [*shape]"

    needs: ClassVar[str] = ", with the same number of elements"

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        return {} if prod(bound["*given"]) == prod(self.shape) else None

    def follow_batch(self, follow: Follower, node: Node) -> None:
        (x,) = node.inputs
        place = self._place(x.shape, follow.places[x], follow.batch)
        if place is None:
            raise SamplesMixed("joins samples in another order")
        follow.put(node, place)

    def _place(self, given: tuple[int, ...], place: BatchPlace, batch: int) -> BatchPlace | None:
        """The place in the result of a batch that has this place in the operand."""
        before = prod(given[: place.axis]) * place.outer
        after = place.inner * prod(given[place.axis + 1 :])
        for axis, length in enumerate(self.shape):
            outer, uneven = divmod(before, prod(self.shape[:axis]) or 1)
            inner, rest = divmod(length, outer * batch or 1)
            if not uneven and not rest and inner and inner * prod(self.shape[axis + 1 :]) == after:
                return BatchPlace(axis, outer, inner)
        return None

    def time_rule(
        self, node: Node, places: Sequence[BatchPlace | None], length: int
    ) -> TimeRule:
        """Frames may be joined, the least number that a frame of the result can have."""
        (x,), (place,) = node.inputs, places
        for frames in range(1, length // 2 + 1):
            if place is None or length % frames:
                continue
            joined = place._replace(inner=place.inner * frames)
            if self._place(x.shape, joined, length // frames) is not None:
                return Apart() if frames == 1 else Grouped(frames)
        return Whole("joins frames in another order", "keep time on an axis of its own")

    def resized(self, node: Node, place: BatchPlace, length: int) -> Operator:
        return replace(self, shape=_with_length(self.shape, place.axis, length))

    def of_any_size(self) -> Operator:
        return replace(self, shape=())

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        return (operands[0].reshape(self.shape),)


@dataclass(frozen=True)
class Permute(Operator):
    """Axis i of the result is axis `axes[i]` of the operand."""

    axes: tuple[int, ...]

    types: ClassVar[str] = "x X [*given] -> X [*permuted]"

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        given = bound["*given"]
        if sorted(self.axes) != list(range(len(given))):
            return None
        return {"*permuted": tuple(given[axis] for axis in self.axes)}

    def follow_batch(self, follow: Follower, node: Node) -> None:
        place = follow.places[node.inputs[0]]
        follow.put(node, place._replace(axis=self.axes.index(place.axis)))

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        return (operands[0].transpose(self.axes),)


@dataclass(frozen=True)
class Slice(Operator):
    """Elements `first`, `first + step` ... before `end` of an axis; 0 <= `first` <= `end`."""

    axis: int
    first: int
    end: int
    step: int = 1

    types: ClassVar[str] = "x X [*given] -> X [*taken]"
    needs: ClassVar[str] = ", with the range within the axis"

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        given = bound["*given"]
        if not given:
            return None
        axis = axis_of(self.axis, len(given))
        if not (0 <= self.first <= self.end <= given[axis] and self.step > 0):
            return None
        length = len(range(self.first, self.end, self.step))
        return {"*taken": (*given[:axis], length, *given[axis + 1 :])}

    def follow_batch(self, follow: Follower, node: Node) -> None:
        (x,) = node.inputs
        place = follow.places[x]
        if axis_of(self.axis, len(x.shape)) == place.axis and node.output.shape != x.shape:
            raise SamplesMixed("takes samples out of the batch")
        follow.put(node, place)

    def time_rule(
        self, node: Node, places: Sequence[BatchPlace | None], length: int
    ) -> TimeRule:
        (x,), (place,) = node.inputs, places
        if place is None or axis_of(self.axis, len(x.shape)) != place.axis:
            return Apart()
        if self.step == 1:
            return Shifted(-self.first, self.end - x.shape[place.axis])
        op = replace(self, first=0, end=1)
        return Window(1, self.step, -self.first, 0.0, op)

    def resized(self, node: Node, place: BatchPlace, length: int) -> Operator:
        if axis_of(self.axis, len(node.output.shape)) != place.axis:
            return self
        return replace(self, first=0, end=(length - 1) * self.step + 1)

    def of_any_size(self) -> Operator:
        return replace(self, first=0, end=0)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        (x,) = operands
        axis = axis_of(self.axis, x.ndim)
        taken = slice(self.first, self.end, self.step)
        return (x[(slice(None),) * axis + (taken,)],)


@dataclass(frozen=True)
class Expand(Operator):
    """The operand repeated to `shape` by numpy's broadcasting."""

    shape: tuple[int, ...]

    types: ClassVar[str] = "x X [...] -> X [*shape]"

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        return {} if broadcasts_to(self.shape, bound["..."]) else None

    def follow_batch(self, follow: Follower, node: Node) -> None:
        follow.put_from_end(node, follow.common(node))

    def resized(self, node: Node, place: BatchPlace, length: int) -> Operator:
        return replace(self, shape=_with_length(self.shape, place.axis, length))

    def of_any_size(self) -> Operator:
        return replace(self, shape=())

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        return (np.broadcast_to(operands[0], self.shape),)


# Elements of operands that are all alike; other views take no float64.
_ANY_NUMBER = "float32|float64|int64|bool"


@dataclass(frozen=True)
class Concat(Operator):
    """The operands one after the other along an axis."""

    axis: int

    needs: ClassVar[str] = ", equal in all other axes"
    takes_empty: ClassVar[bool] = True

    def signature(self, operands: int) -> Signature:
        parts = ", ".join(f"x{n} {_ANY_NUMBER} [*part{n}]" for n in range(operands))
        return signature(f"{parts} -> {_ANY_NUMBER} [*joined]")

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        parts = [sizes for name, sizes in bound.items() if name.startswith("*")]
        first = parts[0] if parts else ()
        if not first or any(len(part) != len(first) for part in parts):
            return None
        axis = axis_of(self.axis, len(first))
        if len({(*part[:axis], *part[axis + 1 :]) for part in parts}) != 1:
            return None
        return {"*joined": (*first[:axis], sum(part[axis] for part in parts), *first[axis + 1 :])}

    def follow_batch(self, follow: Follower, node: Node) -> None:
        place = follow.common(node, from_end=False)
        if place.axis == axis_of(self.axis, len(node.output.shape)):
            raise SamplesMixed("adds samples to the batch")
        follow.put(node, place)

    def time_rule(
        self, node: Node, places: Sequence[BatchPlace | None], length: int
    ) -> TimeRule:
        axis = axis_of(self.axis, len(node.output.shape))
        return Appended() if any(place and place.axis == axis for place in places) else Apart()

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        return (np.concatenate(operands, axis=self.axis),)


@dataclass(frozen=True)
class Pad(Operator):
    """`widths[axis]` = (before, after) elements of `value` around each axis."""

    widths: tuple[tuple[int, int], ...]
    value: float = 0.0

    types: ClassVar[str] = "x X [*given] -> X [*padded]"

    needs: ClassVar[str] = ", with widths of at least 0 for each axis, and a value of the dtype"

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        given = bound["*given"]
        if len(self.widths) != len(given) or min(map(min, self.widths), default=0) < 0:
            return None
        if bound[ALIKE] is not Element.FLOAT32 and not float(self.value).is_integer():
            return None
        pairs = zip(given, self.widths, strict=True)
        return {"*padded": tuple(n + before + after for n, (before, after) in pairs)}

    def follow_batch(self, follow: Follower, node: Node) -> None:
        place = follow.places[node.inputs[0]]
        if any(self.widths[place.axis]):
            raise SamplesMixed("adds samples to the batch")
        follow.put(node, place)

    def time_rule(
        self, node: Node, places: Sequence[BatchPlace | None], length: int
    ) -> TimeRule:
        (place,) = places
        if place is None or not any(self.widths[place.axis]):
            return Apart()
        widths = (*self.widths[: place.axis], (0, 0), *self.widths[place.axis + 1 :])
        op = replace(self, widths=widths) if any(map(any, widths)) else None
        return Shifted(*self.widths[place.axis], self.value, op)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        return (np.pad(operands[0], self.widths, constant_values=self.value),)
