"""The batch axes of a model's inputs and outputs."""

from __future__ import annotations

from typing import NamedTuple


class BatchAxes(NamedTuple):
    """The batch axis of each input and of each output; None for an input without batch.

    An input without batch is the same for all samples. Every output has the batch.
    """

    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]

    @property
    def are_first(self) -> bool:
        """Whether the batch is axis 0 of everything."""
        return not any(axis != 0 for axis in (*self.inputs, *self.outputs))

    @property
    def are_moved(self) -> bool:
        """Whether any batch axis is not axis 0."""
        return any((*self.inputs, *self.outputs))


def to_first(axis: int, rank: int) -> tuple[int, ...]:
    """The permutation that moves an axis to the front and keeps the order of the others."""
    return (axis, *(each for each in range(rank) if each != axis))


def from_first(axis: int, rank: int) -> tuple[int, ...]:
    """The inverse of the permutation `to_first`."""
    places = to_first(axis, rank)
    return tuple(places.index(each) for each in range(rank))
