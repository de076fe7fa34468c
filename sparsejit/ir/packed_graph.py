"""A graph put away: of constants that are mostly zeros, only what is not zero."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from sparsejit.ir.graph import Graph
from sparsejit.ir.packed_array import packed, unpacked


class PackedGraph:
    """Holds a graph in memory of its own: what the constants were made of may change afterwards."""

    def __init__(self, graph: Graph) -> None:
        self._bare = replace(graph, constants={})
        self._constants = {value: packed(array) for value, array in graph.constants.items()}

    @cached_property
    def graph(self) -> Graph:
        """The graph, its constants laid out again; with the same values and nodes as before."""
        constants = {value: unpacked(kept) for value, kept in self._constants.items()}
        self._constants = {}
        return replace(self._bare, constants=constants)
