"""Compiles a model with named sizes for further lengths.

A torch module is exported once for all lengths. The graph of any length follows from the graphs of
three lengths (`ir.sized_graph`), so another length needs only the code around the shared weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from sparsejit.api.models.variant import GRAPH_REFUSALS, TiledGraph, Variant
from sparsejit.api.sizes.named_sizes import NamedSizes
from sparsejit.api.sizes.size_rules import Array, SizeRule, SizeRules
from sparsejit.errors import SparseJitError
from sparsejit.frontends.arrays import is_tensor
from sparsejit.frontends.nesting import Nest, unflatten
from sparsejit.frontends.onnx import file_has_polynomial_sizes, is_onnx
from sparsejit.frontends.torch_export import has_polynomial_sizes, is_program, opened
from sparsejit.ir.graph import Graph
from sparsejit.ir.sized_graph import TELLING, SizedGraph, with_constants_of
from sparsejit.lowering.kept_weights import KeptWeights
from sparsejit.lowering.tiles import ENOUGH_ROWS

# Compiles a model, or the program that it was exported to, for example arguments.
Compile = Callable[[Any, Any, Mapping[str, Any]], Variant]
# Returns the graphs of a model or a program, for example arguments and tiles; None: the best tiles.
ReadGraphs = Callable[[Any, Any, Mapping[str, Any], Sequence[int] | None], list[TiledGraph]]
# The model is read at eight times the first length, up to this length: masks grow with the square.
_LONG = 2048


class OtherSizes(SizeRules):
    """A callable that compiles the model for flat inputs of other shapes than the first's."""

    def __init__(
        self,
        model: Any,
        sizes: NamedSizes | None,
        inputs: Nest,
        first: Variant,
        examples: Sequence[Any],
        kept: KeptWeights | None,
        compile_it: Compile,
        read_graphs: ReadGraphs,
    ) -> None:
        """Take a model and its first variant; `examples` are that variant's flat inputs."""
        own = None if sizes is None else sizes.in_order(inputs.items[1].keys)
        super().__init__(own, first, kept)
        self._model, self._inputs = model, inputs
        self._compile, self._read = compile_it, read_graphs
        self._program = _OpenProgram(model, own)
        self._examples = [_zeros(each.shape, each) for each in examples]
        # The longest length that was tried for a rule, by size and tile.
        self._tried: dict[tuple[str, int | None], int] = {}
        if self._kept is not None:
            self._learn()

    def __call__(self, leaves: Sequence[Array]) -> Variant:
        """Return the variant for inputs like these. Raises the errors of `compile_it`."""
        args, kwargs = unflatten(self._inputs, list(leaves))
        program = self._program.of(args, kwargs, leaves)
        model = self._model if program is None else program
        ways = (self._by_rule, self._beside_first, self._by_program)
        for way in ways if program is not None else (self._beside_first,):
            with suppress(SparseJitError, *GRAPH_REFUSALS):
                variant = way(leaves, model)
                if variant is not None:
                    return variant
        return self._compile(self._model, args, kwargs)

    def _by_program(self, leaves: Sequence[Array], program: Any) -> Variant | None:
        """Compile a variant with its own weights from the exported program.

        Returns None where the batch would be on other axes.
        """
        variant = self._compile(program, *unflatten(self._inputs, list(leaves)))
        return variant if variant.batch_axes == self._first.batch_axes else None

    def _beside_first(self, leaves: Sequence[Array], model: Any) -> Variant | None:
        """Compile a variant for these inputs that reads the first variant's weights.

        Returns None where samples would need other tiles, or weights are not to be shared.
        """
        if self._kept is None:
            return None
        args, kwargs = unflatten(self._inputs, list(leaves))
        read = self._read(model, args, kwargs, None)
        finals = [TiledGraph(self._with_weights(graph), tile) for graph, tile in read]
        return self._lowered(finals) if self._runs_alike(finals) else None

    def _graph(
        self, tile: int | None, name: str, length: int, leaves: Sequence[Array], program: Any
    ) -> Graph | None:
        """Return the graph of a tile by its rule; None where there is no rule.

        The rule is found first, or found again for a length that it does not reach.
        """
        rules, key = self._rules[name], (name, tile)
        if tile not in rules:
            rules[tile] = None  # stays if `_rule` raises
            rules[tile] = self._rule(program, name, leaves, tile)
        graph, sized = super()._graph(tile, name, length, leaves, program), rules[tile]
        if sized is None or graph is not None or length <= self._longest(name, tile):
            return graph
        self._tried[key] = length  # stays if `_rule` raises
        rules[tile] = sized = self._rule(program, name, leaves, tile)
        return sized.at(length)

    def _longest(self, name: str, tile: int | None) -> int:
        """Return the longest length that a rule was made from, or tried to be."""
        sized = self._rules[name][tile]
        made = 0 if sized is None else max(sized.lengths)
        return max(made, self._tried.get((name, tile), 0))

    def _tiles_for(self, graph: Graph, leaves: Sequence[Array]) -> list[int | None]:
        """Return the tiles for samples of this graph; [] unless they match the first variant's."""
        smallest = [TiledGraph(graph, self._smallest)]
        return super()._tiles_for(graph, leaves) if self._runs_alike(smallest) else []

    def _learn(self) -> None:
        """Find the rules of all named sizes that have one, so that no call waits for them."""
        for name, length in self._lengths.items():
            with suppress(SparseJitError, *GRAPH_REFUSALS):
                own, program = self._at(name, max(2, length))
                if program is not None and _is_known(program):
                    tiles = [tile for _, tile in self._first.graphs]
                    self._rules[name] = {t: self._rule(program, name, own, t) for t in tiles}

    def _at(self, name: str, length: int) -> tuple[list[Array], Any]:
        """Return inputs like the examples with this length of size `name`, and their program."""
        own = self._resized(self._examples, {name: length})
        args, kwargs = unflatten(self._inputs, own)
        return own, self._program.of(args, kwargs, own)

    def saved(self) -> list[SizeRule]:
        """Return the rules that a file keeps, and find the ones that calls would still find.

        These are rules for longer constants, where the size has an upper bound, and for the tiles
        of short lengths. A rule is left out where the model can no longer be read.
        """
        for name in self._rules:
            assert self._sizes is not None
            least, largest = self._sizes.bounds(name)
            if largest is not None:
                for _, tile in self._first.graphs:
                    self._found(tile, name, min(largest, _LONG))
            shortest = max(2, least)
            graph = self._found(self._smallest, name, shortest)
            if graph is not None:
                for tile in super()._tiles_for(graph, self._examples):
                    self._found(tile, name, shortest)
        return super().saved()

    def _found(self, tile: int | None, name: str, length: int) -> Graph | None:
        """Return the graph of a tile at a length; None where the model has none."""
        with suppress(SparseJitError, OSError, *GRAPH_REFUSALS):
            own, program = self._at(name, length)
            return self._graph(tile, name, length, own, program)
        return None

    def _rule(
        self, program: Any, name: str, leaves: Sequence[Array], tile: int | None
    ) -> SizedGraph:
        """Return the rule by which the graph of a tile grows with a size.

        It is found from the lengths of these inputs and others. A tile that the first variant lacks
        is for short lengths only. Raises ValueError where the graphs of two lengths differ in more
        than sizes.
        """
        assert self._sizes is not None
        own = self._sizes.lengths([leaf.shape for leaf in leaves])[name]
        first, largest = self._lengths[name], self._sizes.bounds(name)[1]
        known = [graph for graph, its in self._first.graphs if its == tile]
        if not known:
            first, largest = own, ENOUGH_ROWS - 1
            known = [self._with_weights(self._read_at(program, name, own, leaves, tile))]
        graphs, lengths = known[:1], [first]
        for length in _lengths_to_read(first, own, largest):
            with suppress(SparseJitError, *GRAPH_REFUSALS):
                graphs.append(self._read_at(program, name, length, leaves, tile))
                lengths.append(length)
            if len(graphs) == TELLING:
                return SizedGraph(graphs, lengths)
        raise ValueError(f"the model can be read at fewer than {TELLING} lengths of {name}")

    def _read_at(
        self, program: Any, name: str, length: int, leaves: Sequence[Array], tile: int | None
    ) -> Graph:
        """Read the graph of a tile at a length. Raises LookupError where there is no such tile."""
        args, kwargs = unflatten(self._inputs, self._resized(leaves, {name: length}))
        wanted = None if self._has_one_tile else [tile or 1]
        return {its: g for g, its in self._read(program, args, kwargs, wanted)}[tile]

    def _with_weights(self, graph: Graph) -> Graph:
        """Replace constants of the graph by the first variant's where they have the same bits."""
        return with_constants_of(self._first.graphs[0].graph, graph)

    def _resized(self, leaves: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
        """Return inputs of zeros for these sizes, which are otherwise shaped as `leaves`.

        Raises InvalidInput for sizes out of bounds.
        """
        assert self._sizes is not None
        shapes = self._sizes.like([leaf.shape for leaf in leaves]).shapes_for(sizes)
        return [_zeros(shape, leaf) for shape, leaf in zip(shapes, leaves, strict=True)]


def _lengths_to_read(first: int, own: int, largest: int | None) -> list[int]:
    """Return lengths to read for a rule, the longest first: it limits the length of constants."""
    most = max(first, own)
    wanted = [max(2 * most, min(8 * most, _LONG)), 4 * most, 2 * most]
    if largest is not None:
        wanted = [min(length, largest) for length in wanted]
    tried = dict.fromkeys((*wanted, own, most + 1, most - 1, most - 2))
    return [length for length in tried if length > 1 and length != first]


class _OpenProgram:
    """A torch module exported once for all its named sizes, or an ONNX model."""

    def __init__(self, model: Any, sizes: NamedSizes | None) -> None:
        self._model, self._sizes = model, sizes
        self._program: Any = model if is_program(model) or is_onnx(model) else None
        self._is_tried = sizes is None or self._program is not None or not _is_module(model)

    def of(self, args: Any, kwargs: Mapping[str, Any], leaves: Sequence[Any]) -> Any:
        """Return the program for inputs of these sizes; None where it does not serve them.

        It serves no size of 1, for which torch may compute differently.
        """
        if self._sizes is None:
            return None
        if not self._is_tried:
            self._is_tried = True
            self._program = opened(self._model, args, kwargs, self._sizes.open_sizes())
        lengths = self._sizes.lengths([leaf.shape for leaf in leaves])
        return self._program if min(lengths.values(), default=2) > 1 else None


def _is_known(program: Any) -> bool:
    """Whether the sizes of the program are polynomials, so that three lengths determine all."""
    is_known = file_has_polynomial_sizes if is_onnx(program) else has_polynomial_sizes
    return is_known(program)


def _zeros(shape: Sequence[int], like: Any) -> Any:
    """Return a tensor or an array of zeros, with the type and dtype of `like`."""
    sizes = tuple(shape)
    return like.new_zeros(sizes) if is_tensor(like) else np.zeros(sizes, like.dtype)


def _is_module(model: Any) -> bool:
    return hasattr(model, "forward")
