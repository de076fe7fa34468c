"""A graph put away: of constants that are mostly zeros, only what is not zero."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sparsejit.ir.graph import Array, Graph

# What packing leaves, at most, of what a constant takes; else it is copied as it is.
_WORTH_IT = 0.75


class PackedGraph:
    """Holds a graph in memory of its own: what the constants were made of may change afterwards."""

    def __init__(self, graph: Graph) -> None:
        self._bare = replace(graph, constants={})
        self._constants = {value: _packed(array) for value, array in graph.constants.items()}

    @cached_property
    def graph(self) -> Graph:
        """The graph, its constants laid out again; with the same values and nodes as before."""
        constants = {value: _unpacked(packed) for value, packed in self._constants.items()}
        self._constants = {}
        return replace(self._bare, constants=constants)


@dataclass(frozen=True, eq=False)
class _Nonzeros:
    """What is not zero in an array, where that is, and which zeros are -0.0, as masks leave them.

    Places are bits, as np.packbits has them.
    """

    shape: tuple[int, ...]
    values: Array
    places: npt.NDArray[np.uint8]
    negative_zeros: npt.NDArray[np.uint8]


def _packed(array: Array) -> Array | _Nonzeros:
    whole = np.ascontiguousarray(array).reshape(-1)
    is_set = whole != 0
    left = np.count_nonzero(is_set) * whole.itemsize + whole.size / 4
    if left > _WORTH_IT * whole.nbytes:
        return array.copy()
    is_negative = np.signbit(whole) & ~is_set if whole.dtype.kind == "f" else np.zeros(0, bool)
    return _Nonzeros(array.shape, whole[is_set], np.packbits(is_set), np.packbits(is_negative))


def _unpacked(packed: Array | _Nonzeros) -> Array:
    if not isinstance(packed, _Nonzeros):
        return packed
    array = np.zeros(packed.shape, packed.values.dtype)
    flat = array.reshape(-1)
    flat[np.unpackbits(packed.places, count=flat.size).view(bool)] = packed.values
    if len(packed.negative_zeros):
        flat[np.unpackbits(packed.negative_zeros, count=flat.size).view(bool)] = -0.0
    return array
