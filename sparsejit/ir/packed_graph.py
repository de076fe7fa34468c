"""A graph in less memory: constants of mostly zeros keep only their nonzeros."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from sparsejit.ir.graph import Graph
from sparsejit.ir.packed_array import packed, unpacked


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
