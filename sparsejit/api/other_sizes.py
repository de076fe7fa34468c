"""A model with named sizes, compiled for lengths that it was not compiled for.

A torch module is exported once for all of them. Its graphs at three lengths say how one at any
length looks (`ir.sized_graph`); another length costs the code around the weights alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from sparsejit.api.named_sizes import NamedSizes
from sparsejit.api.variant import GRAPH_REFUSALS, TiledGraph, Variant, lowered_variant
from sparsejit.errors import SparseJitError
from sparsejit.frontends.nesting import Nest, unflatten
from sparsejit.frontends.onnx import file_has_polynomial_sizes, is_onnx
from sparsejit.frontends.torch_export import has_polynomial_sizes, is_program, opened
from sparsejit.ir.graph import Graph
from sparsejit.ir.sized_graph import SizedGraph, with_constants_of
from sparsejit.lowering.kept_weights import KeptWeights
from sparsejit.lowering.tiles import batch_tiles, share_tiles

Array = np.ndarray[Any, Any]
# Compiles a model, or the program that it was exported to, for arguments; and only its graphs.
Compile = Callable[[Any, Any, Mapping[str, Any]], Variant]
# The tiles are given, or None: then they are those that serve the model best.
ReadGraphs = Callable[[Any, Any, Mapping[str, Any], Sequence[int] | None], list[TiledGraph]]
_LONG = 2048  # up to so many a model is read for eight times the first length: masks are squares


class OtherSizes:
    """Calls compile for flat inputs of other shapes than the first variant's."""

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
        """`examples` are the tensors, or arrays, of the first call."""
        self._model, self._inputs, self._first = model, inputs, first
        self._sizes = None if sizes is None else sizes.in_order(inputs.items[1].keys)
        self._compile, self._read = compile_it, read_graphs
        self._kept, self._program = kept, _OpenProgram(model, self._sizes)
        self._lengths: dict[str, int] = {}
        if self._sizes is not None:
            self._lengths = self._sizes.lengths([tuple(each.shape) for each in examples])
        self._rules: dict[str, _Rule] = {}
        if self._kept is not None:
            self._learn(examples)

    def __call__(self, leaves: Sequence[Array]) -> Variant:
        """The variant for inputs like these. Raises as compiling does."""
        args, kwargs = unflatten(self._inputs, list(leaves))
        program = self._program.of(args, kwargs, leaves)
        model = self._model if program is None else program
        ways = (self._by_rule, self._beside_first, self._by_program)
        for way in ways if program is not None else (self._beside_first,):
            with suppress(SparseJitError, *GRAPH_REFUSALS):
                variant = way(model, leaves)
                if variant is not None:
                    return variant
        return self._compile(self._model, args, kwargs)

    def _by_program(self, program: Any, leaves: Sequence[Array]) -> Variant | None:
        """With weights of its own; None where the batch would lie on other axes."""
        variant = self._compile(program, *unflatten(self._inputs, list(leaves)))
        return variant if variant.batch_axes == self._first.batch_axes else None

    def _beside_first(self, model: Any, leaves: Sequence[Array]) -> Variant | None:
        """By reading the model, or its program, for this length, with the weights of the first.

        None where samples would run otherwise, or weights are not to be shared.
        """
        if self._kept is None:
            return None
        args, kwargs = unflatten(self._inputs, list(leaves))
        read = self._read(model, args, kwargs, None)
        finals = self._with_weights(read)
        return self._lowered(finals) if self._runs_alike(finals) else None

    def _by_rule(self, program: Any, leaves: Sequence[Array]) -> Variant | None:
        """From the graphs of other lengths; None where only reading the model does."""
        if self._kept is None or self._sizes is None:
            return None
        lengths = self._sizes.lengths([leaf.shape for leaf in leaves])
        others = [name for name, length in lengths.items() if length != self._lengths[name]]
        if len(others) != 1 or others[0] not in self._rules:
            return None
        (name,) = others
        finals = self._finals(name, lengths[name], program, leaves)
        return self._lowered(finals) if finals else None

    def _finals(
        self, name: str, length: int, program: Any, leaves: Sequence[Array]
    ) -> list[TiledGraph]:
        """By what is known of a size, and more where that does not reach.

        None without a rule, or where samples would run otherwise.
        """
        rule = self._rules[name]
        finals = rule.at(length)
        if not finals and length > rule.longest:
            self._rules[name] = rule._replace(longest=length)  # unless there is a longer one
            rule = self._rules[name] = self._rule(program, name, leaves, list(rule.by_tile))
            finals = rule.at(length)
        if not finals or not self._runs_alike(finals):
            return []
        wanted = self._tiles_of(finals)
        if others := [tile for tile in wanted if tile not in rule.tried]:
            self._rules[name] = rule._replace(tried=rule.tried.union(others))  # and not found
            rule = self._rules[name] = rule.beside(self._rule(program, name, leaves, others))
            finals = rule.at(length)
        return [each for each in finals if each.tile in wanted]

    def _tiles_of(self, finals: Sequence[TiledGraph]) -> list[int | None]:
        """Those in which samples of such graphs run, the main one first."""
        alone = [graph for graph, tile in finals if tile == 1]
        if not alone or self._has_one_tile:
            return [tile for _, tile in finals]
        return [*batch_tiles(alone[0], self._first.tile or 1, threads=1, one_tile=False).samples]

    @property
    def _has_one_tile(self) -> bool:
        return self._first.options.exact or self._first.options.threads > 1

    def _lowered(self, finals: Sequence[TiledGraph]) -> Variant:
        options, title = self._first.options, self._first.program.name
        return lowered_variant(finals, options, title, kept=self._kept)

    def _runs_alike(self, finals: Sequence[TiledGraph]) -> bool:
        """Whether samples of these graphs run as those of the first's."""
        first, smallest = (min(each, key=_tile).graph for each in (self._first.graphs, finals))
        return first.batch_axes == smallest.batch_axes and share_tiles(first, smallest)

    def _learn(self, examples: Sequence[Any]) -> None:
        """Find the rules of all lengths that have one, so that no call waits for it."""
        assert self._sizes is not None
        for name, length in self._lengths.items():
            with suppress(SparseJitError, *GRAPH_REFUSALS):
                leaves = [_zeros(each.shape, each) for each in examples]
                own = self._resized(leaves, {name: max(2, length)})
                args, kwargs = unflatten(self._inputs, own)
                program = self._program.of(args, kwargs, own)
                if program is not None and _is_known(program):
                    tiles = [tile for _, tile in self._first.graphs]
                    self._rules[name] = self._rule(program, name, own, tiles)

    def _rule(
        self, program: Any, name: str, leaves: Sequence[Array], tiles: Sequence[int | None]
    ) -> _Rule:
        """How graphs of these tiles grow with a length, from these inputs and others.

        Raises ValueError where they differ by more than a length.
        """
        assert self._sizes is not None
        first = self._lengths[name]
        own = self._sizes.lengths([leaf.shape for leaf in leaves])[name]
        read: dict[int, Mapping[int | None, Graph]] = {}
        for length in _lengths_to_read(first, own, self._sizes.largest(name)):
            with suppress(SparseJitError, *GRAPH_REFUSALS):
                read[length] = self._read_at(program, name, length, leaves, tiles)
            if len(read) == 2:
                break
        else:
            raise ValueError(f"the model takes no third length of {name}")
        firsts = {tile: graph for graph, tile in self._first.graphs}
        if any(tile not in firsts for tile in tiles):
            beside = self._read_at(program, name, first, leaves, tiles)
            others = self._with_weights([TiledGraph(g, tile) for tile, g in beside.items()])
            firsts = {tile: graph for graph, tile in others} | firsts
        lengths, by_tile = [first, *read], {}
        for tile in tiles:
            graphs = [firsts[tile], *(each[tile] for each in read.values())]
            by_tile[tile] = SizedGraph(graphs, lengths)
        return _Rule(by_tile, max(lengths), frozenset(tiles))

    def _read_at(
        self,
        program: Any,
        name: str,
        length: int,
        leaves: Sequence[Array],
        tiles: Sequence[int | None],
    ) -> dict[int | None, Graph]:
        """The graphs of these tiles, or of those that the model has, by tile."""
        args, kwargs = unflatten(self._inputs, self._resized(leaves, {name: length}))
        wanted = None if self._has_one_tile else [tile or 1 for tile in tiles]
        return {tile: graph for graph, tile in self._read(program, args, kwargs, wanted)}

    def _with_weights(self, graphs: Sequence[TiledGraph]) -> list[TiledGraph]:
        """With the first's constants in place of those that have the same bits."""
        first = self._first.graphs[0].graph
        return [TiledGraph(with_constants_of(first, graph), tile) for graph, tile in graphs]

    def _resized(self, leaves: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
        """Zeros for these sizes, all others as they are. Raises InvalidInput out of bounds."""
        assert self._sizes is not None
        shapes = self._sizes.like([leaf.shape for leaf in leaves]).shapes_for(sizes)
        return [_zeros(shape, leaf) for shape, leaf in zip(shapes, leaves, strict=True)]


class _Rule(NamedTuple):
    """The graphs of any length by tile; the longest that they were made of; tiles looked for."""

    by_tile: Mapping[int | None, SizedGraph]
    longest: int
    tried: frozenset[int | None]

    def at(self, length: int) -> list[TiledGraph]:
        """Where only this size is not the first variant's; none where the rule does not say."""
        made = [(sized.at(length), tile) for tile, sized in self.by_tile.items()]
        graphs = [TiledGraph(graph, tile) for graph, tile in made if graph is not None]
        return graphs if len(graphs) == len(made) else []

    def beside(self, other: _Rule) -> _Rule:
        """With the tiles of another, too."""
        return _Rule(
            {**self.by_tile, **other.by_tile},
            min(self.longest, other.longest),
            self.tried | other.tried,
        )


def _lengths_to_read(first: int, own: int, largest: int | None) -> list[int]:
    """Those that tell how a model grows, the longest first: constants are as long as these."""
    most = max(first, own)
    wanted = [max(2 * most, min(8 * most, _LONG)), 4 * most, 2 * most]
    if largest is not None:
        wanted = [min(length, largest) for length in wanted]
    tried = dict.fromkeys((*wanted, own, most + 1, most - 1, most - 2))
    return [length for length in tried if length > 1 and length != first]


class _OpenProgram:
    """A torch module exported once for all its named sizes; or a file."""

    def __init__(self, model: Any, sizes: NamedSizes | None) -> None:
        self._model, self._sizes = model, sizes
        self._program: Any = model if is_program(model) or is_onnx(model) else None
        self._is_tried = sizes is None or self._program is not None or not _is_module(model)

    def of(self, args: Any, kwargs: Mapping[str, Any], leaves: Sequence[Any]) -> Any:
        """The program, for inputs of these sizes; None where each size is exported by itself.

        A size of 1 is: torch may compute otherwise for it.
        """
        if self._sizes is None:
            return None
        if not self._is_tried:
            self._is_tried = True
            self._program = opened(self._model, args, kwargs, self._sizes.open_sizes())
        lengths = self._sizes.lengths([leaf.shape for leaf in leaves])
        return self._program if min(lengths.values(), default=2) > 1 else None


def _is_known(program: Any) -> bool:
    """Whether three lengths tell of all."""
    is_known = file_has_polynomial_sizes if is_onnx(program) else has_polynomial_sizes
    return is_known(program)


def _zeros(shape: Sequence[int], like: Any) -> Array:
    """An array for a tensor or an array."""
    dtype = str(like.dtype).removeprefix("torch.")
    return np.zeros(tuple(shape), dtype)


def _tile(each: TiledGraph) -> int:
    return each.tile or 1


def _is_module(model: Any) -> bool:
    return hasattr(model, "forward")
