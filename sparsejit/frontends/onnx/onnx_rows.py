"""Table of ONNX's operators and their mappings: one row an operator, one file a group."""

from collections.abc import Callable, Mapping
from typing import Any

from sparsejit.frontends.onnx.operators import (
    convolution,
    einsum,
    elementwise,
    fourier,
    microsoft,
    normalisation,
    places,
    products,
    quantisation,
    recurrent,
    reductions,
    selection,
    views,
)

GROUPS = (
    *(products, einsum, convolution, recurrent, elementwise, reductions, normalisation, views),
    *(selection, places, quantisation, fourier, microsoft),
)
# Each mapping is called with the writer and the node's `Call`.
OPERATORS: Mapping[str, Callable[..., Any]] = {
    name: mapping for group in GROUPS for name, mapping in group.OPERATORS.items()
}
