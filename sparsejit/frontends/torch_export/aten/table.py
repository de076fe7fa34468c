"""Tables of ATen's operators: a row for each overload, with its mapping; a file a group.

A new operator is a function in the file of its group, and a row of the `OPERATORS` there.
"""

from collections.abc import Callable, Mapping
from typing import Any

from sparsejit.frontends.torch_export.aten import (
    activations,
    attention,
    complex_values,
    convolution,
    fourier,
    normalisation,
    ordering,
    places,
    pointwise,
    products,
    recurrent,
    reductions,
    selection,
    views,
)

GROUPS = (
    *(products, convolution, recurrent, pointwise, activations, reductions, normalisation),
    *(views, selection, places, ordering, attention, fourier),
)
# Each is called with the writer and torch's own arguments.
OPERATORS: Mapping[str, Callable[..., Any]] = {
    name: mapping for group in GROUPS for name, mapping in group.OPERATORS.items()
}
# The same for calls with a complex operand or result; known operands are pairs of parts.
COMPLEX_OPERATORS: Mapping[str, Callable[..., Any]] = {
    **complex_values.OPERATORS,
    **fourier.COMPLEX_OPERATORS,
}
