"""The same elements in another shape or order, or next to others."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from sparsejit.ir.graph import Array, TensorType
from sparsejit.ir.ops.types import axis_of, require


@dataclass(frozen=True)
class Reshape:
    """The elements in row-major order, as `shape`."""

    shape: tuple[int, ...]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        require(x.size == prod(self.shape), self, operands, f"give {prod(self.shape)} elements")
        return (TensorType(self.shape, x.element),)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        return (operands[0].reshape(self.shape),)


@dataclass(frozen=True)
class Permute:
    """Axis i of the result is axis `axes[i]` of the operand."""

    axes: tuple[int, ...]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        is_permutation = sorted(self.axes) == list(range(len(x.shape)))
        require(is_permutation, self, operands, f"give a tensor of {len(self.axes)} axes")
        return (TensorType(tuple(x.shape[axis] for axis in self.axes), x.element),)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        return (operands[0].transpose(self.axes),)


@dataclass(frozen=True)
class Slice:
    """Elements `first`, `first + step` ... before `end` of an axis, all of them non-negative."""

    axis: int
    first: int
    end: int
    step: int = 1

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        axis = axis_of(self.axis, len(x.shape))
        fits = 0 <= self.first <= self.end <= x.shape[axis] and self.step > 0
        require(fits, self, operands, "give a range within the axis")
        length = len(range(self.first, self.end, self.step))
        return (TensorType((*x.shape[:axis], length, *x.shape[axis + 1 :]), x.element),)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        (x,) = operands
        axis = axis_of(self.axis, x.ndim)
        taken = slice(self.first, self.end, self.step)
        return (x[(slice(None),) * axis + (taken,)],)


@dataclass(frozen=True)
class Expand:
    """Repeated to `shape` by numpy's broadcasting."""

    shape: tuple[int, ...]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        fits = np.broadcast_shapes(x.shape, self.shape) == self.shape
        require(fits, self, operands, f"give what broadcasts to {self.shape}")
        return (TensorType(self.shape, x.element),)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        return (np.broadcast_to(operands[0], self.shape),)


@dataclass(frozen=True)
class Concat:
    """One after the other along an axis."""

    axis: int

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        require(len(operands) > 0, self, operands, "give at least one tensor")
        axis = axis_of(self.axis, len(operands[0].shape))
        others = {(*o.shape[:axis], *o.shape[axis + 1 :]) for o in operands}
        same = len(others) == 1 and len({o.element for o in operands}) == 1
        require(same, self, operands, "give tensors that differ along the axis only")
        length = sum(operand.shape[axis] for operand in operands)
        first = operands[0]
        shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
        return (TensorType(shape, first.element),)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        return (np.concatenate(operands, axis=self.axis),)


@dataclass(frozen=True)
class Pad:
    """`widths[axis]` = (before, after) elements of `value` around each axis."""

    widths: tuple[tuple[int, int], ...]
    value: float = 0.0

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        fits = len(self.widths) == len(x.shape) and min(map(min, self.widths), default=0) >= 0
        require(fits, self, operands, f"give a tensor of {len(self.widths)} axes")
        return (TensorType(_padded(x.shape, self.widths), x.element),)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        return (np.pad(operands[0], self.widths, constant_values=self.value),)


def _padded(shape: Sequence[int], widths: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    return tuple(n + before + after for n, (before, after) in zip(shape, widths, strict=True))
