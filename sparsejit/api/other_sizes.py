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
from sparsejit.ir.sized_graph import SizedGraph, with_constants_of
from sparsejit.lowering.kept_weights import KeptWeights
from sparsejit.lowering.tiles import share_tiles

Array = np.ndarray[Any, Any]
# Compiles a model, or the program that it was exported to, for arguments; and only its graphs.
Compile = Callable[[Any, Any, Mapping[str, Any]], Variant]
ReadGraphs = Callable[[Any, Any, Mapping[str, Any]], list[TiledGraph]]
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
        self._write_first()
        read = {t: g for g, t in self._read(model, *unflatten(self._inputs, list(leaves)))}
        finals = [
            TiledGraph(with_constants_of(graph, read[tile]), tile)
            for graph, tile in self._first.graphs
            if tile in read
        ]
        return self._lowered(finals) if finals and self._runs_alike(finals) else None

    def _by_rule(self, program: Any, leaves: Sequence[Array]) -> Variant | None:
        """From the graphs of other lengths; None where only reading the model does."""
        if self._kept is None or self._sizes is None:
            return None
        lengths = self._sizes.lengths([leaf.shape for leaf in leaves])
        others = [name for name, length in lengths.items() if length != self._lengths[name]]
        if len(others) != 1 or others[0] not in self._rules:
            return None
        (name,) = others
        rule, length = self._rules[name], lengths[name]
        finals = rule.at(length)
        if finals is None and length > rule.longest:
            self._rules[name] = rule._replace(longest=length)  # unless there is another
            self._rules[name] = self._rule(program, name, leaves)
            finals = self._rules[name].at(length)
        if finals is None or not self._runs_alike(finals):
            return None
        self._write_first()
        return self._lowered(finals)

    def _lowered(self, finals: Sequence[TiledGraph]) -> Variant:
        options, title = self._first.options, self._first.program.name
        return lowered_variant(finals, options, title, kept=self._kept, is_cached=False)

    def _runs_alike(self, finals: Sequence[TiledGraph]) -> bool:
        """Whether samples of these graphs run as those of the first's."""
        first, smallest = (min(each, key=_tile).graph for each in (self._first.graphs, finals))
        return first.batch_axes == smallest.batch_axes and share_tiles(first, smallest)

    def _write_first(self) -> None:
        """Have the first's weights where others read them, if it came from the cache of code."""
        assert self._kept is not None
        if not self._kept.is_there:
            self._first = self._lowered(self._first.graphs)

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
                    self._rules[name] = self._rule(program, name, own)

    def _rule(self, program: Any, name: str, leaves: Sequence[Array]) -> _Rule:
        """How graphs grow with a length, from these inputs and others. Raises ValueError."""
        assert self._sizes is not None
        first = self._lengths[name]
        own = self._sizes.lengths([leaf.shape for leaf in leaves])[name]
        read: dict[int, list[TiledGraph]] = {}
        for length in _lengths_to_read(first, own, self._sizes.largest(name)):
            with suppress(SparseJitError, *GRAPH_REFUSALS):
                inputs = unflatten(self._inputs, self._resized(leaves, {name: length}))
                read[length] = self._read(program, *inputs)
            if len(read) == 2:
                return _Rule.of(self._first.graphs, first, read)
        raise ValueError(f"the model takes no third length of {name}")

    def _resized(self, leaves: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
        """Zeros for these sizes, all others as they are. Raises InvalidInput out of bounds."""
        assert self._sizes is not None
        shapes = self._sizes.like([leaf.shape for leaf in leaves]).shapes_for(sizes)
        return [_zeros(shape, leaf) for shape, leaf in zip(shapes, leaves, strict=True)]


class _Rule(NamedTuple):
    """The graphs of any length by tile, and the longest length that it was made of."""

    by_tile: Sequence[tuple[SizedGraph, int | None]]
    longest: int

    @classmethod
    def of(
        cls, graphs: Sequence[TiledGraph], first: int, read: Mapping[int, Sequence[TiledGraph]]
    ) -> _Rule:
        """By the graphs of the first length, and those of two others.

        A tile that not all have is left out. Raises ValueError where they differ by more than a
        length.
        """
        by_tile = []
        for graph, tile in graphs:
            like = [g for each in read.values() for g, t in each if t == tile]
            if len(like) == len(read):
                by_tile.append((SizedGraph([graph, *like], [first, *read]), tile))
        if not by_tile:
            raise ValueError("no tile is of all lengths")
        return cls(by_tile, max(first, *read))

    def at(self, length: int) -> list[TiledGraph] | None:
        """Where only this size is not the first variant's; None where the rule does not say."""
        made = []
        for sized, tile in self.by_tile:
            graph = sized.at(length)
            if graph is None:
                return None
            made.append(TiledGraph(graph, tile))
        return made


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
