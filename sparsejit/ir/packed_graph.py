"""Arrays and graphs in less memory: arrays of mostly zeros keep only their nonzeros.

    packed, unpacked   an array in less memory, and the array again
    PackedGraph        a graph whose constants are packed
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.ir.graph import Graph

Array = npt.NDArray[Any]

# Largest size of a packed array relative to the array; a larger one is not packed.
_WORTH_IT = 0.75


@dataclass(frozen=True, eq=False)
class PackedArray:
    """Nonzeros of an array, their places, and the places of -0.0, which masks leave.

    Places are bits, a bit for each element, as np.packbits packs them.
    """

    shape: tuple[int, ...]
    values: Array
    places: npt.NDArray[np.uint8]
    negative_zeros: npt.NDArray[np.uint8]


def packed(array: Array) -> Array | PackedArray:
    """Copy an array, packed where that takes less memory."""
    whole = np.ascontiguousarray(array).reshape(-1)
    is_set = whole != 0
    left = np.count_nonzero(is_set) * whole.itemsize + whole.size / 4
    if left > _WORTH_IT * whole.nbytes:
        return array.copy()
    is_negative = np.signbit(whole) & ~is_set if whole.dtype.kind == "f" else np.zeros(0, bool)
    return PackedArray(
        array.shape, whole[is_set], np.packbits(is_set), np.packbits(is_negative)
    )


def unpacked(kept: Array | PackedArray) -> Array:
    """The array that `packed` was given."""
    if not isinstance(kept, PackedArray):
        return kept
    array = np.zeros(kept.shape, kept.values.dtype)
    flat = array.reshape(-1)
    flat[np.unpackbits(kept.places, count=flat.size).view(bool)] = kept.values
    if len(kept.negative_zeros):
        flat[np.unpackbits(kept.negative_zeros, count=flat.size).view(bool)] = -0.0
    return array


class PackedGraph:
    """Holds a graph with copies of its constants, whose source arrays may change afterwards."""

    def __init__(self, graph: Graph) -> None:
        self._bare = replace(graph, constants={})
        self._constants = {value: packed(array) for value, array in graph.constants.items()}

    @cached_property
    def graph(self) -> Graph:
        """The graph with its constants unpacked, and the same values and nodes as before."""
        constants = {value: unpacked(kept) for value, kept in self._constants.items()}
        self._constants = {}
        return replace(self._bare, constants=constants)
