"""Which axes of a model's inputs and outputs are its batch."""

from __future__ import annotations

from typing import NamedTuple


class BatchAxes(NamedTuple):
    """The axis of each input and of each output on which samples lie; None: on none.

    What an input without batch holds is the same for all samples. Every output has the batch.
    """

    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]

    @property
    def are_first(self) -> bool:
        """Whether the batch is axis 0 of everything."""
        return not any(axis != 0 for axis in (*self.inputs, *self.outputs))

    @property
    def are_moved(self) -> bool:
        """Whether any lies elsewhere than on axis 0."""
        return any((*self.inputs, *self.outputs))


def to_first(axis: int, rank: int) -> tuple[int, ...]:
    """What permutes an array so that this axis lies first, the others as they were."""
    return (axis, *(each for each in range(rank) if each != axis))


def from_first(axis: int, rank: int) -> tuple[int, ...]:
    """What permutes it back."""
    places = to_first(axis, rank)
    return tuple(places.index(each) for each in range(rank))
