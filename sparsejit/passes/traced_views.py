"""Effect of views in a row, found by sending the numbers of the elements through them."""

from collections.abc import Sequence
from math import prod

import numpy as np

from sparsejit.ir.operator import Node
from sparsejit.ir.values import Array

# Larger tensors are not traced; their views stay.
MOST_TRACED = 2**24


def traced(views: Sequence[Node], shape: tuple[int, ...]) -> Array | None:
    """Apply views in a row to a tensor of that shape that holds the numbers of its elements.

    Returns int64, of the last view's shape; None for a tensor without elements, or of too many.
    """
    size = prod(shape)
    if not 0 < size <= MOST_TRACED:
        return None
    numbers = np.arange(size).reshape(shape)
    for view in views:
        (numbers,) = view.op.reference(numbers)
    return numbers
