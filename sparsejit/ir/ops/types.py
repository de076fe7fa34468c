"""Shapes and axes of tensors."""

from collections.abc import Sequence

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.values import Element, TensorType


def broadcasts_to(shape: Sequence[int], *others: Sequence[int]) -> bool:
    """Whether all shapes broadcast to `shape`, by numpy's rules."""
    try:
        return np.broadcast_shapes(tuple(shape), *map(tuple, others)) == tuple(shape)
    except ValueError:
        return False


def axis_of(axis: int, rank: int) -> int:
    """Return the axis counted from the front; 0 for axes 0 and -1 of a tensor without axes.

    Raises InvalidInput for one that does not exist.
    """
    if not -max(rank, 1) <= axis < max(rank, 1):
        raise InvalidInput(
            f"axis {axis} does not exist in a tensor of {rank} axes; use {-rank} to {rank - 1}"
        )
    return axis % rank if rank else 0


def float_type(shape: Sequence[int]) -> TensorType:
    """The type of a float32 tensor."""
    return TensorType(tuple(shape), Element.FLOAT32)
