"""A model with named sizes, compiled for lengths that it was not compiled for.

A torch module is exported once for all of them, at the second. Its graphs at three lengths say how
one at any length looks (`ir.sized_graph`); from then on another length costs the code around the
weights alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

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


class OtherSizes:
    """Calls compile for flat inputs of other shapes than the first variant's."""

    def __init__(
        self,
        model: Any,
        sizes: NamedSizes | None,
        inputs: Nest,
        first: Variant,
        first_shapes: Sequence[tuple[int, ...]],
        kept: KeptWeights | None,
        compile_it: Compile,
        read_graphs: ReadGraphs,
    ) -> None:
        self._model, self._inputs, self._first = model, inputs, first
        self._sizes = None if sizes is None else sizes.in_order(inputs.items[1].keys)
        self._compile, self._read = compile_it, read_graphs
        self._kept, self._program = kept, _OpenProgram(model, self._sizes)
        self._lengths = {} if self._sizes is None else self._sizes.lengths(first_shapes)
        self._sized: dict[str, list[tuple[SizedGraph, int | None]]] = {}
        self._without_rule: set[str] = set()

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
        if set(read) != {tile for _, tile in self._first.graphs}:
            return None
        finals = [TiledGraph(with_constants_of(g, read[t]), t) for g, t in self._first.graphs]
        return self._lowered(finals) if self._runs_alike(finals) else None

    def _by_rule(self, program: Any, leaves: Sequence[Array]) -> Variant | None:
        """From the graphs of other lengths; None where only reading the model does."""
        if self._kept is None or self._sizes is None:
            return None
        lengths = self._sizes.lengths([leaf.shape for leaf in leaves])
        others = [name for name, length in lengths.items() if length != self._lengths[name]]
        if len(others) != 1:
            return None
        (name,) = others
        is_known = file_has_polynomial_sizes if is_onnx(program) else has_polynomial_sizes
        if name not in self._sized and not is_known(program):
            self._without_rule.add(name)
        if name in self._without_rule:
            return None
        self._write_first()
        finals = self._graphs(name, lengths[name])
        if finals is None:
            self._without_rule.add(name)  # unless there is one
            self._sized[name] = list(self._rules(program, name, leaves))
            self._without_rule.remove(name)
            finals = self._graphs(name, lengths[name])
        if finals is None or not self._runs_alike(finals):
            return None
        return self._lowered(finals)

    def _lowered(self, finals: Sequence[TiledGraph]) -> Variant:
        options, title = self._first.options, self._first.program.name
        return lowered_variant(finals, options, title, kept=self._kept, is_cached=False)

    def _graphs(self, name: str, length: int) -> list[TiledGraph] | None:
        """Where only this size is not the first variant's; None where no rule says them."""
        graphs = [(sized.at(length), tile) for sized, tile in self._sized.get(name, ())]
        made = [TiledGraph(graph, tile) for graph, tile in graphs if graph is not None]
        return made if made and len(made) == len(graphs) else None

    def _runs_alike(self, finals: Sequence[TiledGraph]) -> bool:
        """Whether samples of these graphs run as those of the first's."""
        first, smallest = (min(each, key=_tile).graph for each in (self._first.graphs, finals))
        return first.batch_axes == smallest.batch_axes and share_tiles(first, smallest)

    def _write_first(self) -> None:
        """Have the first's weights where others read them, if it came from the cache of code."""
        assert self._kept is not None
        if not self._kept.is_there:
            self._first = self._lowered(self._first.graphs)

    def _rules(
        self, program: Any, name: str, leaves: Sequence[Array]
    ) -> Iterator[tuple[SizedGraph, int | None]]:
        """By tile. Raises ValueError where there are none."""
        assert self._sizes is not None
        first = self._lengths[name]
        own = self._sizes.lengths([leaf.shape for leaf in leaves])[name]
        second = self._read_at(program, leaves, {})
        third, graphs = self._third(program, name, leaves, {first, own})
        for graph, tile in self._first.graphs:
            like = [g for each in (second, graphs) for g, t in each if t == tile]
            if len(like) < 2:
                raise ValueError(f"not all lengths have a tile of {tile}")
            yield SizedGraph([graph, *like], [first, own, third]), tile

    def _third(
        self, program: Any, name: str, leaves: Sequence[Array], known: set[int]
    ) -> tuple[int, list[TiledGraph]]:
        """A length that the model takes, longer than these if it may be, and its graphs."""
        assert self._sizes is not None
        for length in (2 * max(known), max(known) + 1, max(known) - 1, max(known) - 2):
            if length in known or length < 2:
                continue
            with suppress(SparseJitError, *GRAPH_REFUSALS):
                return length, self._read_at(program, leaves, {name: length})
        raise ValueError(f"the model takes no third length of {name}")

    def _read_at(
        self, program: Any, leaves: Sequence[Array], sizes: Mapping[str, int]
    ) -> list[TiledGraph]:
        assert self._sizes is not None
        shapes = self._sizes.like([leaf.shape for leaf in leaves]).shapes_for(sizes)
        arrays = [np.zeros(shape, leaf.dtype) for shape, leaf in zip(shapes, leaves, strict=True)]
        return self._read(program, *unflatten(self._inputs, arrays))


class _OpenProgram:
    """A torch module exported once for all its named sizes, at the second of them; or a file."""

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


def _tile(each: TiledGraph) -> int:
    return each.tile or 1


def _is_module(model: Any) -> bool:
    return hasattr(model, "forward")
