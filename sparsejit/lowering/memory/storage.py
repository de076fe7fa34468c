"""Memory of values: buffers, strided views of them, parts of views, and where values are written.

    Buffer, View              the bytes of a value, and its elements in them
    ShapePart, ways_to_cut    tensors cut along one axis, for steps that run at once
    destinations              views of values that are written straight to outputs, or to their
                              part of a concat
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.views import Concat, Reshape
from sparsejit.ir.values import Array, TensorType, Value
from sparsejit.whole_numbers import ceil_div


@dataclass(frozen=True, eq=False)
class Buffer:
    """Contiguous bytes of the workspace; the memory plan sets their offset."""

    bytes: int


@dataclass(frozen=True, eq=False)
class InputBuffer(Buffer):
    """The caller's array of this number."""

    number: int


@dataclass(frozen=True, eq=False)
class OutputBuffer(Buffer):
    """The caller's array for the output of this number."""

    number: int


@dataclass(frozen=True, eq=False)
class ConstantBuffer(Buffer):
    """An array in the function's pool, read when the pool is written."""

    read: Callable[[], Array]

    @classmethod
    def of(cls, array: Array) -> ConstantBuffer:
        return cls(array.nbytes, lambda: array)


class StridedShape(NamedTuple):
    """The shape of a tensor, and the byte strides of its axes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def moves(self, stack: tuple[int, ...]) -> tuple[int, ...]:
        """Byte strides along a stack (all axes before the last two); 0 where this repeats."""
        own, strides = self.shape[:-2], self.strides[:-2]
        new = len(stack) - len(own)
        axes = zip(own, strides, stack[new:], strict=True)
        return (*[0] * new, *(stride if length == wanted else 0 for length, stride, wanted in axes))


@dataclass(frozen=True)
class View:
    """A tensor in a buffer: byte strides of its axes, and the byte offset of its first element."""

    buffer: Buffer
    type: TensorType
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def whole(cls, buffer: Buffer, kind: TensorType) -> View:
        """A row-major tensor that begins where its buffer does."""
        return cls(buffer, kind, row_major(kind))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def place(self) -> StridedShape:
        """Its shape and strides, without buffer and offset."""
        return StridedShape(self.type.shape, self.strides)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements follow each other in row-major order."""
        wanted = row_major(self.type)
        axes = zip(self.shape, self.strides, wanted, strict=True)
        return all(length == 1 or stride == dense for length, stride, dense in axes)

    @property
    def is_whole(self) -> bool:
        """Whether the tensor is all of its buffer, in order."""
        return self.is_contiguous and self.type.bytes == self.buffer.bytes

    def is_same(self, other: View) -> bool:
        """Whether each element is the other's: axes of one element may have any stride."""
        axes = zip(self.shape, self.strides, other.strides, strict=True)
        begins = self.buffer is other.buffer and self.offset == other.offset
        return begins and self.type == other.type and all(n == 1 or a == b for n, a, b in axes)

    def lies_alike(self, other: View) -> bool:
        """Whether each element has the same offset in the other, in buffers of one size."""
        same = self.type == other.type and self.strides == other.strides
        return same and self.offset == other.offset and self.buffer.bytes == other.buffer.bytes

    def reshaped(self, shape: tuple[int, ...]) -> View | None:
        """The same elements in another shape; None where no strides describe that."""
        kind = TensorType(shape, self.type.element)
        if self.is_contiguous:
            return View(self.buffer, kind, row_major(kind), self.offset)
        strides = _regrouped(self.shape, self.strides, shape)
        return None if strides is None else View(self.buffer, kind, strides, self.offset)

    def permuted(self, axes: tuple[int, ...]) -> View:
        """The view whose axis i is axis axes[i] of this view."""
        own, steps = self.type.shape, self.strides
        kind = TensorType(tuple(own[axis] for axis in axes), self.type.element)
        return View(self.buffer, kind, tuple(steps[axis] for axis in axes), self.offset)

    def permuted_back(self, axes: tuple[int, ...]) -> View:
        """The view from which `permuted(axes)` makes this one."""
        return self.permuted(tuple(axes.index(axis) for axis in range(len(axes))))

    def turned(self) -> View:
        """The view with its last two axes swapped."""
        *others, rows, columns = range(len(self.shape))
        return self.permuted((*others, columns, rows))

    def sliced(self, axis: int, first: int, end: int, step: int = 1) -> View:
        """Elements first, first + step ... before end of an axis."""
        length = len(range(first, end, step))
        shape, strides = list(self.shape), list(self.strides)
        shape[axis], strides[axis] = length, strides[axis] * step
        offset = self.offset + first * self.strides[axis]
        kind = TensorType(tuple(shape), self.type.element)
        return View(self.buffer, kind, tuple(strides), offset)

    def expanded(self, shape: tuple[int, ...]) -> View:
        """The view broadcast to a shape: strides are 0 where it repeats."""
        new = len(shape) - len(self.shape)
        axes = zip(self.shape, self.strides, shape[new:], strict=True)
        kept = (stride if length == wanted else 0 for length, stride, wanted in axes)
        kind = TensorType(shape, self.type.element)
        return View(self.buffer, kind, (*[0] * new, *kept), self.offset)


def row_major(kind: TensorType) -> tuple[int, ...]:
    """Byte strides of a contiguous tensor."""
    strides, step = [], kind.element.bytes
    for length in reversed(kind.shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def _regrouped(
    shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Strides of `wanted` over the same memory: axes merge only where they follow each other."""
    if 0 in wanted:
        return (0,) * len(wanted)
    axes = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    found: list[int] = []
    rest = list(reversed(axes))
    held, stride = rest.pop(0) if rest else (1, 0)
    for length in reversed(wanted):
        if length == 1:
            found.append(stride)
            continue
        while held % length and rest and rest[0][1] == held * stride:
            held *= rest.pop(0)[0]
        if held % length:
            return None
        found.append(stride)
        held, stride = held // length, stride * length
        if held == 1 and rest:
            held, stride = rest.pop(0)
    return tuple(reversed(found))


# Multiples of this keep vectors of float32, and the cache lines of row-major tensors, whole.
_LANES = 16


@dataclass(frozen=True)
class ShapePart:
    """The elements `first` up to `end` along an axis of `whole`."""

    whole: tuple[int, ...]
    axis: int
    first: int
    end: int

    @property
    def shape(self) -> tuple[int, ...]:
        shape = list(self.whole)
        shape[self.axis] = self.end - self.first
        return tuple(shape)

    @property
    def share(self) -> str:
        """The part in words."""
        return f"{self.first} to {self.end - 1} of axis {self.axis}"

    def of(self, view: View) -> View:
        """This part of a view that broadcasts to the whole."""
        axis = self.axis - (len(self.whole) - len(view.shape))
        if axis < 0 or view.shape[axis] == 1:
            return view
        return view.sliced(axis, self.first, self.end)


def ways_to_cut(
    shape: tuple[int, ...], threads: int, uncut: int = 0, dense: int = -1
) -> list[list[ShapePart]]:
    """Ways to cut a shape into `threads` parts along an axis, the most equal parts first.

    The last `uncut` axes stay whole. Vectors lie along the axis `dense`.
    """
    steps = [_LANES if axis == dense % len(shape) else 1 for axis in range(len(shape))]
    ways = [_cut_along(shape, axis, threads, step) for axis, step in enumerate(steps)]
    ways = ways[: len(shape) - uncut]
    return sorted((parts for parts in ways if len(parts) == threads), key=_longest_share)


def cut(length: int, count: int, step: int = 1) -> list[tuple[int, int]]:
    """First and end of `count` parts, or of fewer, which begin at multiples of `step`."""
    steps = ceil_div(length, step)
    parts = np.array_split(np.arange(steps), min(count, steps))
    bounds = [(step * int(part[0]), step * int(part[-1] + 1)) for part in parts if part.size]
    return [(first, min(end, length)) for first, end in bounds]


def _cut_along(
    shape: tuple[int, ...], axis: int, threads: int, step: int
) -> list[ShapePart]:
    return [ShapePart(shape, axis, *part) for part in cut(shape[axis], threads, step)]


def _longest_share(parts: list[ShapePart]) -> float:
    return max(part.end - part.first for part in parts) / parts[0].whole[parts[0].axis]


def destinations(graph: Graph) -> dict[Value, View]:
    """The view to which a node should write each value that has a destination.

    A value with two destinations is written to the first and copied to the others.
    """
    finder = _Finder(graph.producers())
    for number, value in enumerate(graph.outputs):
        finder.want(value, View.whole(OutputBuffer(value.type.bytes, number), value.type))
    for node in reversed(graph.nodes):
        if isinstance(node.op, Concat):
            finder.want(node.output, View.whole(Buffer(node.output.type.bytes), node.output.type))
    return finder.found


class _Finder:
    def __init__(self, producers: dict[Value, Node]) -> None:
        self.producers = producers
        self.found: dict[Value, View] = {}

    def want(self, value: Value, view: View) -> None:
        """Have a value written to a view, unless no node computes it or it has a destination."""
        node = self.producers.get(value)
        if node is None or value in self.found:
            return
        self.found[value] = view
        if isinstance(node.op, Reshape):
            before = view.reshaped(node.inputs[0].shape)
            if before is not None:
                self.want(node.inputs[0], before)
        elif isinstance(node.op, Concat):
            for part, operand in zip(concat_parts(node, view), node.inputs, strict=True):
                self.want(operand, part)


def concat_parts(node: Node, view: View) -> list[View]:
    """The part of a concat's view that each operand fills."""
    assert isinstance(node.op, Concat)
    axis = node.op.axis % len(view.shape)
    parts, first = [], 0
    for operand in node.inputs:
        end = first + operand.shape[axis]
        parts.append(view.sliced(axis, first, end))
        first = end
    return parts
