"""Memory of values: buffers, and strided views of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from sparsejit.ir.values import Array, TensorType


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
