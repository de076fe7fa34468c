"""Cut tensors along one axis, for steps that run at once."""

from dataclasses import dataclass

import numpy as np

from sparsejit.lowering.memory.storage import View
from sparsejit.whole_numbers import ceil_div

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
