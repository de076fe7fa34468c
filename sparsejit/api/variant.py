"""A model made for inputs of certain shapes: its graph, its native function, its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from sparsejit.api import code_cache
from sparsejit.api.final_graph import Dtypes, final_graph
from sparsejit.api.statistics import sizes_of
from sparsejit.api.variant_call import native_call
from sparsejit.artefact.graph_file import (
    axes_from_data,
    axes_to_data,
    value_from_data,
    value_to_data,
)
from sparsejit.errors import CompileError, DamagedFile
from sparsejit.ir.batch_axes import BatchAxes
from sparsejit.ir.graph import Graph, Value
from sparsejit.ir.packed_graph import PackedGraph
from sparsejit.lowering.batch_forms import paying
from sparsejit.lowering.context import ModelOptions, Progress
from sparsejit.lowering.function import build_function, function_workspace_bytes
from sparsejit.lowering.kept_weights import KeptWeights
from sparsejit.lowering.lowered_model import EndRecord, LoweredModel
from sparsejit.lowering.memory_plan import MemoryPlan
from sparsejit.lowering.model import lower_model
from sparsejit.lowering.sample_turns import SampleTurns
from sparsejit.lowering.selection import unread_bytes
from sparsejit.lowering.step import Step
from sparsejit.lowering.threads.waves import Wave
from sparsejit.native.copying import SharedCode
from sparsejit.runtime.moved_call import MovedCall
from sparsejit.runtime.native_call import NativeCall
from sparsejit.runtime.program import Program

Shapes = tuple[tuple[int, ...], ...]
_RECORD_BYTES = 1 << 19  # of BERT-base; of few models more
# What lowering may raise for a graph that no frontend and no passes ever made. An AssertionError is
# a fault of ours, and to be seen as one.
GRAPH_REFUSALS = (CompileError, ValueError, TypeError, LookupError, ArithmeticError)


class TiledGraph(NamedTuple):
    """A graph of `tile` samples, or of inputs whose batch is fixed where that is None."""

    graph: Graph
    tile: int | None


class Planned(NamedTuple):
    """The record of a variant's kernels in order, which thread runs them when, and its memory.

    `turns` says which of them samples take turns with, if they do; `end` which stand for several
    samples at once.
    """

    steps: tuple[Step, ...]
    waves: tuple[Wave, ...]
    memory: MemoryPlan
    turns: SampleTurns | None
    end: EndRecord | None

    @classmethod
    def of(cls, lowered: LoweredModel) -> Planned:
        """Without weights and code."""
        records = {step: step.without_code() for step in lowered.steps}
        waves = tuple(wave.without_code(records) for wave in lowered.waves)
        steps = tuple(records[step] for step in lowered.steps)
        end = None if lowered.end is None else lowered.end.record
        return cls(steps, waves, lowered.memory, lowered.turns, end)


@dataclass(frozen=True, eq=False)
class Variant(SharedCode):
    """One native function of a model.

    Where the batch is free it has one or more tiles: `tile` is the one that it was compiled for
    above all, which reports are about, and `tiles` are all; it lies on `axes` of what a call gives
    and gets, or on axis 0 of all where they are None. `inputs` and `outputs` are those of that
    tile's graph; `call` calls the function with numpy arrays. `sizes` are those of
    `statistics.sizes_of`. `key` is by what the cache of code has it, if it does: then its graphs
    are made, and planned, when they are asked for.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    options: ModelOptions
    tile: int | None
    tiles: tuple[int | None, ...]
    axes: BatchAxes | None
    workspace_bytes: int
    buffer_bytes: int
    program: Program
    call: NativeCall | MovedCall
    sizes: Mapping[str, int]
    compile_ms: float
    key: str | None
    make_graphs: Callable[[], Sequence[TiledGraph]]
    known_plan: Planned | None = None

    @cached_property
    def graphs(self) -> list[TiledGraph]:
        """What was lowered, after all passes, for each of `tiles`."""
        made = self.make_graphs()
        return [each for each in made if each.tile in self.tiles]

    @cached_property
    def graph(self) -> Graph:
        """The graph of `tile`."""
        return next(graph for graph, tile in self.graphs if tile == self.tile)

    @cached_property
    def planned(self) -> Planned:
        """Its record, made anew where it is not known."""
        return self.known_plan or Planned.of(self.lowered_again(_may_join(self.tiles)))

    @cached_property
    def batch_axes(self) -> BatchAxes | None:
        """Where calls have the batch; None where it is fixed."""
        if self.tile is None or self.axes is not None:
            return self.axes
        return BatchAxes((0,) * len(self.inputs), (0,) * len(self.outputs))

    @property
    def input_shapes(self) -> Shapes:
        """As calls give them, without the batch where that is free."""
        axes = self.batch_axes
        if axes is None:
            return tuple(value.shape for value in self.inputs)
        pairs = zip(self.inputs, axes.inputs, strict=True)
        return tuple(v.shape if axis is None else v.shape[1:] for v, axis in pairs)

    def without_batch(self, shapes: Sequence[tuple[int, ...]]) -> Shapes:
        """Shapes of a call's inputs as `input_shapes` has them."""
        axes = self.batch_axes
        if axes is None:
            return tuple(shapes)
        pairs = zip(shapes, axes.inputs, strict=False)  # the call says where a number is wrong
        return tuple(s if axis is None else (*s[:axis], *s[axis + 1 :]) for s, axis in pairs)

    @property
    def bytes(self) -> int:
        """About what memory it takes, with its graph."""
        return self.program.image.size + _RECORD_BYTES

    @property
    def steps(self) -> tuple[Step, ...]:
        """The record of its kernels in order."""
        return self.planned.steps

    @property
    def waves(self) -> tuple[Wave, ...]:
        """The record of which thread runs them when."""
        return self.planned.waves

    @property
    def memory(self) -> MemoryPlan:
        """Where its buffers lie."""
        return self.planned.memory

    def listing(self) -> Iterator[str]:
        """The lines of `Image.listing`, from code written anew."""
        joins, graphs = _may_join(self.tiles), self.graphs
        forms = [lower_model(one, self.options, tile=tile, joins=joins) for one, tile in graphs]
        return build_function(paying(forms), self.program.name, listed=True).image.listing()

    def lowered_again(self, joins: bool = False) -> LoweredModel:
        """What it has for `tile`, with last layers for several samples if it `joins` them."""
        return lower_model(self.graph, self.options, tile=self.tile, joins=joins)


def make_variant(
    graph: Graph,
    options: ModelOptions,
    dtypes: Dtypes,
    tile: int | None,
    name: str = "model",
    progress: Progress = lambda stage, share: None,
    is_part: bool = False,
    others: Sequence[TiledGraph] = (),
    kept: KeptWeights | None = None,
) -> Variant:
    """Compile a graph. Raises InvalidInput or CompileError for what no kernel can do.

    Where the graph `is_part` of a model, `dtypes` may name layers that it does not have. `others`
    are graphs of the model for other tiles, which stay where they serve some batch better. `kept`
    is as in `lowered_variant`.
    """
    started = time.perf_counter()
    progress("rewriting the graph", 0.0)
    finals = [
        TiledGraph(final_graph(each, options, dtypes, is_part), samples)
        for each, samples in (TiledGraph(graph, tile), *others)
    ]
    variant = lowered_variant(finals, options, name, progress, kept)
    return replace(variant, compile_ms=_since(started))


def lowered_variant(
    finals: Sequence[TiledGraph],
    options: ModelOptions,
    name: str,
    progress: Progress = lambda stage, share: None,
    kept: KeptWeights | None = None,
    is_cached: bool = True,
) -> Variant:
    """Compile a model that has been through all passes, the graph of its main tile first.

    `kept` is what has been made of the weights for other sizes, or takes what is made of them now
    for those to come. The cache of code has no such thing: it has code that `is_cached` of models
    for one length. Raises as `make_variant` does.
    """
    started = time.perf_counter()
    if kept is not None and kept.is_there:
        return _beside_others(finals, options, name, kept)
    may_be_there = is_cached and kept is None
    key = code_cache.key_of(finals, options, name) if may_be_there else None
    if key is not None and (known := kept_variant(key, options, name, lambda: finals)) is not None:
        progress("done", 1.0)
        return replace(known, make_graphs=_put_away(finals))
    forms, program = _written(finals, options, name, progress, kept)
    size = _bytes_of_one(program, forms) - unread_bytes(finals[0].graph)
    if forms[0].options.weight_bytes <= options.planner.l3_bytes < size:
        # What was priced as if it came from L3 does not fit there.
        if kept is not None:
            kept.begin_anew()
        again = replace(options, weight_bytes=size)
        forms, program = _written(finals, again, name, progress, kept)
    made = _of_forms(forms, finals[0].tile, program, key, started, has_record=True)
    del forms  # their weights and code, before the graphs are written once more
    if key is not None:
        code_cache.remember(key, _to_data(made), program.image)
    progress("done", 1.0)
    graphs = _put_away(finals) if kept is None else _settled(finals, kept)
    return replace(made, make_graphs=graphs)


def _beside_others(
    finals: Sequence[TiledGraph], options: ModelOptions, name: str, kept: KeptWeights
) -> Variant:
    """A variant that reads the weights of the first; the cache of code has it not."""
    started = time.perf_counter()
    forms, program = _written(finals, options, name, lambda stage, share: None, kept)
    made = _of_forms(forms, finals[0].tile, program, None, started)
    kept.share_new()
    kept.put_away()
    return replace(made, make_graphs=lambda: finals)


def _bytes_of_one(program: Program, forms: Sequence[LoweredModel]) -> int:
    """About the code and literals that a run of one form reads."""
    return program.image.size // len(forms)


def _of_forms(
    forms: Sequence[LoweredModel],
    tile: int | None,
    program: Program,
    key: str | None,
    started: float,
    has_record: bool = False,
) -> Variant:
    by_tile = {form.tile: form for form in forms}
    main = by_tile.get(tile or 1) or forms[0]
    tile = None if tile is None else main.tile
    graph, room = main.graph, function_workspace_bytes(forms)
    return Variant(
        graph.inputs,
        graph.outputs,
        main.options,
        tile,
        (None,) if tile is None else tuple(by_tile),
        graph.batch_axes,
        room,
        main.memory.sum_bytes,
        program,
        native_call(program, graph, room, tile),
        sizes_of(main.steps),
        _since(started),
        key,
        lambda: (),
        Planned.of(main) if has_record else None,
    )


def _put_away(finals: Sequence[TiledGraph]) -> Callable[[], Sequence[TiledGraph]]:
    """What gives the graphs when they are asked for; it does not hold the user's weights."""
    packed = [(PackedGraph(graph), tile) for graph, tile in finals]
    return lambda: [TiledGraph(one.graph, tile) for one, tile in packed]


def _settled(finals: Sequence[TiledGraph], kept: KeptWeights) -> Callable[[], Sequence[TiledGraph]]:
    """As `_put_away`, with the weights where `kept` has them."""
    graphs = kept.settle([graph for graph, _ in finals])
    made = [TiledGraph(one, tile) for one, (_, tile) in zip(graphs, finals, strict=True)]
    return lambda: made


def kept_variant(
    key: str, options: ModelOptions, name: str, make_graphs: Callable[[], Sequence[TiledGraph]]
) -> Variant | None:
    """What the cache of code has by that key; None where it has nothing."""
    started = time.perf_counter()
    entry = code_cache.recall_code(key, name)
    if entry is None:
        return None
    try:
        return _from_data(entry, key, options, make_graphs, started)
    except (KeyError, TypeError, ValueError, DamagedFile):
        return None


def _to_data(variant: Variant) -> dict[str, Any]:
    return {
        "inputs": list(map(value_to_data, variant.inputs)),
        "outputs": list(map(value_to_data, variant.outputs)),
        "weight_bytes": int(variant.options.weight_bytes),
        "tile": variant.tile,
        "tiles": list(variant.tiles),
        "batch_axes": axes_to_data(variant.axes),
        "workspace_bytes": int(variant.workspace_bytes),
        "buffer_bytes": int(variant.buffer_bytes),
        "sizes": dict(variant.sizes),
    }


def _from_data(
    entry: code_cache.KeptCode,
    key: str,
    options: ModelOptions,
    make_graphs: Callable[[], Sequence[TiledGraph]],
    started: float,
) -> Variant:
    about, program = entry
    inputs, outputs = (tuple(map(value_from_data, about[side])) for side in ("inputs", "outputs"))
    tile, workspace = about["tile"], about["workspace_bytes"]
    axes = axes_from_data(about["batch_axes"], inputs, outputs)
    return Variant(
        inputs,
        outputs,
        replace(options, weight_bytes=about["weight_bytes"]),
        tile,
        tuple(about["tiles"]),
        axes,
        workspace,
        about["buffer_bytes"],
        program,
        native_call(program, Graph(inputs, outputs, (), {}, (), axes), workspace, tile),
        about["sizes"],
        _since(started),
        key,
        make_graphs,
    )


def _may_join(tiles: Sequence[int | None]) -> bool:
    """Whether samples run one after another, so that they may have last layers in common."""
    return list(tiles) == [1]


def _since(started: float) -> float:
    """Milliseconds."""
    return 1e3 * (time.perf_counter() - started)


def _written(
    finals: Sequence[TiledGraph],
    options: ModelOptions,
    name: str,
    progress: Progress,
    kept: KeptWeights | None,
) -> tuple[list[LoweredModel], Program]:
    forms = []
    for number, (graph, tile) in enumerate(finals):
        first, each = 0.1 + 0.6 * number / len(finals), 0.6 / len(finals)

        def tell(stage: str, share: float, first: float = first, each: float = each) -> None:
            progress(stage, first + each * share)

        joins = _may_join([tile for _, tile in finals])
        forms.append(lower_model(graph, options, tell, tile, kept, joins))
    forms = paying(forms)
    progress("writing the code", 0.7)
    return forms, build_function(forms, name, common=None if kept is None else kept.common)
