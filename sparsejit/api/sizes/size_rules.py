"""Rules of named sizes: the graph of any length follows from the graphs of three.

A rule is for one size, with all others as in the example, and for one tile. A loaded model has the
rules of its file, and no model to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sparsejit.api.models.variant import GRAPH_REFUSALS, TiledGraph, Variant, lowered_variant
from sparsejit.api.sizes.named_sizes import NamedSizes
from sparsejit.errors import SparseJitError
from sparsejit.ir.graph import Graph
from sparsejit.ir.sized_graph import SizedGraph, with_constants_of
from sparsejit.lowering.kept_weights import KeptWeights
from sparsejit.lowering.tiles import batch_tiles, share_tiles

_LEAST = 2  # torch may compute a length of 1 differently
Array = np.ndarray[Any, Any]


class SizeRule(NamedTuple):
    """The graph of a tile for any length of a named size; tile None: a fixed batch."""

    size: str
    tile: int | None
    sized: SizedGraph


class SizeRules:
    """A callable that compiles a loaded model for flat inputs of other lengths, by its rules."""

    def __init__(
        self,
        sizes: NamedSizes | None,
        first: Variant,
        kept: KeptWeights | None,
        rules: Sequence[SizeRule] = (),
    ) -> None:
        """Take the first variant, which is for the sizes' example, and the weights it keeps."""
        self._sizes, self._first, self._kept = sizes, first, kept
        self._lengths = {} if sizes is None else sizes.lengths(sizes.example)
        # By size and tile.
        self._rules: dict[str, dict[int | None, SizedGraph | None]] = {}
        graphs = {tile: graph for graph, tile in first.graphs} if rules else {}
        for size, tile, sized in rules:
            own = sized.beside(graphs.get(tile, first.graphs[0].graph))
            self._rules.setdefault(size, {})[tile] = own

    def __call__(self, leaves: Sequence[Array]) -> Variant | None:
        """Return the variant for inputs like these; None where the rules do not give it."""
        with suppress(SparseJitError, *GRAPH_REFUSALS):
            return self._by_rule(leaves)
        return None

    @property
    def names(self) -> list[str]:
        """The sizes that have rules."""
        return list(self._rules)

    def saved(self) -> list[SizeRule]:
        """Return the rules that a file keeps."""
        return [
            SizeRule(size, tile, sized)
            for size, by_tile in self._rules.items()
            for tile, sized in by_tile.items()
            if sized is not None
        ]

    def with_graphs(self, graphs: Sequence[TiledGraph], shares_tiles: bool) -> Variant:
        """Return the variant of these graphs; it shares the first's weights where it can."""
        held = self._first.graphs[0].graph
        finals = [TiledGraph(with_constants_of(held, graph), tile) for graph, tile in graphs]
        return self._lowered(finals, shares_tiles)

    def _by_rule(self, leaves: Sequence[Array], program: Any = None) -> Variant | None:
        """Derive the graphs from other lengths' graphs; None where the model must be read."""
        assert self._sizes is not None
        shapes = [leaf.shape for leaf in leaves]
        lengths = self._sizes.lengths(shapes)
        others = [name for name, length in lengths.items() if length != self._lengths[name]]
        if len(others) != 1 or others[0] not in self._rules or min(lengths.values()) < _LEAST:
            return None
        (name,) = others
        wanted = self._sizes.shapes_for({name: lengths[name]})
        if self._first.without_batch(wanted) != self._first.without_batch(shapes):
            return None  # a batch that is not free has another length, too
        finals = self._finals(name, lengths[name], leaves, program)
        return self._lowered(finals) if finals else None

    def _finals(
        self, name: str, length: int, leaves: Sequence[Array], program: Any
    ) -> list[TiledGraph]:
        """Return the graphs for this length, made by rule, in the best tiles; [] without a rule."""
        how = name, length, leaves, program
        graph = self._graph(self._smallest, *how)
        if graph is None:
            return []
        made = [
            (graph if tile == self._smallest else self._graph(tile, *how), tile)
            for tile in self._tiles_for(graph, leaves)
        ]
        return [TiledGraph(one, tile) for one, tile in made if one is not None]

    def _graph(
        self, tile: int | None, name: str, length: int, leaves: Sequence[Array], program: Any
    ) -> Graph | None:
        """Return the graph of a tile by its rule; None where there is no rule."""
        sized = self._rules[name].get(tile)
        return None if sized is None else sized.at(length)

    def _tiles_for(self, graph: Graph, leaves: Sequence[Array]) -> list[int | None]:
        """Return the tiles in which samples of this graph run best, the main one first."""
        if self._smallest != 1 or self._has_one_tile:
            return [tile for _, tile in self._first.graphs]
        alike = self._runs_alike([TiledGraph(graph, 1)])
        batch = self._first.tile if alike else self._batch_of(leaves)
        return [*batch_tiles(graph, batch or 1, threads=1, one_tile=False).samples]

    def _batch_of(self, leaves: Sequence[Array]) -> int:
        """Return the number of samples of a call with a free batch."""
        axes = self._first.batch_axes
        places = zip(leaves, () if axes is None else axes.inputs, strict=False)
        return next((leaf.shape[axis] for leaf, axis in places if axis is not None), 1)

    @property
    def _smallest(self) -> int | None:
        return min(self._first.graphs, key=_tile).tile

    @property
    def _has_one_tile(self) -> bool:
        return self._first.options.exact or self._first.options.threads > 1

    def _lowered(
        self, finals: Sequence[TiledGraph], shares_tiles: bool | None = None
    ) -> Variant:
        """Compile graphs, with the first's weights where samples run in the same tiles."""
        options, title = self._first.options, self._first.program.name
        if shares_tiles is not None:
            options = replace(options, shares_tiles=shares_tiles)
        if self._runs_alike(finals):
            return lowered_variant(finals, options, title, kept=self._kept)
        return lowered_variant(finals, replace(options, weight_bytes=0), title)

    def _runs_alike(self, finals: Sequence[TiledGraph]) -> bool:
        """Whether samples of these graphs run in the same tiles as the first variant's."""
        first, smallest = (min(each, key=_tile).graph for each in (self._first.graphs, finals))
        return first.batch_axes == smallest.batch_axes and share_tiles(first, smallest)


def _tile(each: TiledGraph) -> int:
    return each.tile or 1
