"""What operators ask of the types of their operands."""

from collections.abc import Sequence

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Element, TensorType


def require(condition: bool, op: object, found: Sequence[TensorType], wanted: str) -> None:
    """Raise InvalidInput, naming operator and operands, unless the condition holds."""
    if not condition:
        operands = ", ".join(map(str, found))
        raise InvalidInput(f"{op} got ({operands}); {wanted}")


def broadcast_shape(op: object, operands: Sequence[TensorType]) -> tuple[int, ...]:
    """The shape to which all operands repeat, by numpy's rules."""
    try:
        return np.broadcast_shapes(*(operand.shape for operand in operands))
    except ValueError:
        shapes = ", ".join(map(str, operands))
        raise InvalidInput(f"{op} got ({shapes}); give shapes that broadcast") from None


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front. Raises InvalidInput for one that does not exist."""
    if not -rank <= axis < max(rank, 1):
        raise InvalidInput(f"axis {axis} of a tensor of {rank} axes; use {-rank} to {rank - 1}")
    return axis % rank if rank else 0


def float_type(shape: Sequence[int]) -> TensorType:
    """A float32 tensor."""
    return TensorType(tuple(shape), Element.FLOAT32)
