"""Whole numbers narrower than the int64 that a model computes, where they come in and go out."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.frontends.nesting import Nest, dtypes
from sparsejit.ir.graph import Array, Element, Value

_INT64 = np.dtype(np.int64)


class NarrowNumbers:
    """Which inputs and outputs of a graph are int64, and the dtypes that its model gives them.

    values: the graph's inputs; inputs, outputs: those of the model.
    """

    def __init__(self, values: Sequence[Value], inputs: Nest, outputs: Nest) -> None:
        pairs = enumerate(zip(values, dtypes(inputs), strict=True))
        self.inputs = [
            (place, value.origin.name, np.dtype(dtype or _INT64))
            for place, (value, dtype) in pairs
            if value.type.element is Element.INT64
        ]
        self.outputs = [(n, np.dtype(each)) for n, each in enumerate(dtypes(outputs)) if each]

    def widen(self, arrays: list[Any]) -> None:
        """Make inputs with whole numbers int64. Raises InvalidInput for what their dtype lacks."""
        for place, name, dtype in self.inputs:
            if place >= len(arrays):
                break
            array = arrays[place]
            given = array.dtype
            if given is not dtype:
                check_held(array, name, dtype)
            if given is not _INT64 and given.kind in "iu":
                arrays[place] = array.astype(_INT64)

    def as_given(self, arrays: Sequence[Array]) -> list[Array]:
        """Widened inputs as the model takes them."""
        found = list(arrays)
        for place, _, dtype in self.inputs:
            found[place] = found[place].astype(dtype, copy=False)
        return found

    def narrowed(self, results: list[Array]) -> list[Array]:
        """Outputs as the model gives them."""
        for place, dtype in self.outputs:
            results[place] = results[place].astype(dtype)
        return results


def check_held(array: Array, name: str, dtype: np.dtype[Any]) -> None:
    """Raises InvalidInput for whole numbers that a dtype does not hold."""
    if array.dtype.kind not in "iu" or np.can_cast(array.dtype, dtype) or not array.size:
        return
    limits = np.iinfo(dtype)
    if not limits.min <= array.min() <= array.max() <= limits.max:
        raise InvalidInput(
            f"{name} has {array.dtype} numbers beyond {dtype}, for which the model was compiled; "
            f"give {dtype}, or compile it for {array.dtype}"
        )
