"""Table of ONNX's operators: a row for each, with its mapping; a file of this folder a group.

A new operator is a function in the file of its group, and a row of the `OPERATORS` there.
"""

from collections.abc import Callable, Mapping
from typing import Any

from sparsejit.frontends.onnx.operators import (
    convolution,
    elementwise,
    fourier,
    microsoft,
    ml_features,
    ml_models,
    ml_trees,
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
    *(products, convolution, recurrent, elementwise, reductions, normalisation, views),
    *(selection, places, quantisation, fourier, microsoft),
    *(ml_features, ml_models, ml_trees),
)
# Each mapping is called with the writer and the node's `Call`.
OPERATORS: Mapping[str, Callable[..., Any]] = {
    name: mapping for group in GROUPS for name, mapping in group.OPERATORS.items()
}
