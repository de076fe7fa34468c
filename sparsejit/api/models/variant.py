"""A variant: a model compiled for inputs of certain shapes, with its graphs and its record.

    sizes_of         sizes of a model's native function, as plain data
    native_call      calls of the function with arrays in the model's layout
    Variant          the native function, its graphs and its record
    make_variant     a variant from a graph
    kept_variant     a variant from the code cache
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from sparsejit.api.models import code_cache
from sparsejit.api.models.final_graph import Dtypes, final_graph
from sparsejit.api.reports.shown import counted
from sparsejit.artefact.graph_file import (
    axes_from_data,
    axes_to_data,
    value_from_data,
    value_to_data,
)
from sparsejit.errors import CompileError, DamagedFile
from sparsejit.ir.graph import BatchAxes, Graph
from sparsejit.ir.packed_graph import PackedGraph
from sparsejit.ir.values import Decision, Value
from sparsejit.lowering.context import ModelOptions, Progress
from sparsejit.lowering.function import build_function, function_workspace_bytes
from sparsejit.lowering.kept_weights import KeptWeights
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.lowering.memory_plan import MemoryPlan, SampleTurns
from sparsejit.lowering.model_schedule import EndRecord, ModelSchedule
from sparsejit.lowering.selection import unread_bytes
from sparsejit.lowering.step import Step
from sparsejit.lowering.threads.waves import Wave
from sparsejit.lowering.tiles import paying
from sparsejit.native.copying import SharedCode
from sparsejit.runtime.moved_call import MovedCall
from sparsejit.runtime.native_call import NativeCall
from sparsejit.runtime.program import Program
from sparsejit.runtime.python_objects import ArrayType


def sizes_of(steps: Sequence[Step]) -> dict[str, int]:
    """Return counts of layers, kernels, weights, nnz and flops of the steps of a model."""
    facts = [step.facts for step in steps]
    # Weights count once for an operator that runs band by band, or sample by sample.
    layers = {
        (step.origin, step.facts.zeros): step.facts for step in steps if step.facts.weights
    }.values()
    return {
        "layers": len(layers),
        "kernels": len(facts),
        "weights": sum(int(fact.weights) for fact in layers),
        "nnz": sum(int(fact.nnz) for fact in layers),
        "effective_flops": sum(int(fact.effective_flops) for fact in facts),
        "flops": sum(int(fact.flops) for fact in facts),
    }


def sizes_text(stats: Mapping[str, Any]) -> str:
    """Return the counts of layers, weights and kernels in words."""
    kernels = counted(stats["kernels"], "kernel")
    if not stats["weights"]:
        return f"no weights, {kernels}"
    return (
        f"{counted(stats['layers'], 'layer')}, {stats['nnz']:,} of {stats['weights']:,} weights "
        f"nonzero ({stats['nnz'] / stats['weights']:.1%}), {kernels}"
    )


def native_call(
    program: Program,
    graph: Graph,
    workspace_bytes: int,
    tile: int | None,
) -> NativeCall | MovedCall:
    """Return an object that calls the program with arrays in the model's layout.

    The types of the arrays are the types of the graph's inputs and outputs.
    """
    shared = set(filter(graph.is_shared, range(len(graph.inputs))))
    taken = [
        _array_type(value, None if number in shared else tile)
        for number, value in enumerate(graph.inputs)
    ]
    made = [_array_type(value, tile) for value in graph.outputs]
    call = NativeCall(program.memory, taken, made, workspace_bytes)
    axes = graph.batch_axes
    return call if axes is None or not axes.are_moved else MovedCall(call, taken, made, *axes)


def _array_type(value: Value, tile: int | None) -> ArrayType:
    free = value.shape if tile is None else (None, *value.shape[1:])
    return ArrayType(value.type.element.value, free, value.origin.name)


Shapes = tuple[tuple[int, ...], ...]
_RECORD_BYTES = 1 << 19  # of the record of BERT-base; few models have a larger one
# Errors that lowering may raise for a graph that no frontend and no passes ever made. No
# AssertionError: that is a bug of the compiler, and must stay visible.
GRAPH_REFUSALS = (CompileError, ValueError, TypeError, LookupError, ArithmeticError)


class TiledGraph(NamedTuple):
    """A graph for `tile` samples, or, where that is None, for a fixed batch."""

    graph: Graph
    tile: int | None


class Planned(NamedTuple):
    """The record of a variant: its kernels in order, their schedule on threads, and its memory.

    `turns` are the steps in which samples take turns, if they do; `end` are the last steps, if
    these are computed for several samples at once. `decisions` are all choices that led to it.
    """

    steps: tuple[Step, ...]
    waves: tuple[Wave, ...]
    memory: MemoryPlan
    turns: SampleTurns | None
    end: EndRecord | None
    decisions: tuple[Decision, ...] = ()

    @classmethod
    def of(cls, lowered: ModelSchedule) -> Planned:
        """Return the record of a lowered model, without weights and code."""
        records = {step: step.without_code() for step in lowered.steps}
        waves = tuple(wave.without_code(records) for wave in lowered.waves)
        steps = tuple(records[step] for step in lowered.steps)
        end = None if lowered.end is None else lowered.end.record
        return cls(steps, waves, lowered.memory, lowered.turns, end, lowered.decisions)


@dataclass(frozen=True, eq=False)
class Variant(SharedCode):
    """One native function of a model.

    Where the batch is free it has one or more tiles: `tiles` are all, and `tile` is the main one,
    which reports are about. The batch lies on `axes` of a call's inputs and outputs, or on axis 0
    of all where that is None. `inputs` and `outputs` are the values of the main tile's graph.
    `call` calls the function with numpy arrays. `sizes` are from `statistics.sizes_of`. `key` is
    the key in the code cache, if it is cached. `make_graphs` makes its graphs when they are needed;
    they are planned again where `known_plan` is None.
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
        """The lowered graphs, after all passes, one for each of `tiles`."""
        made = self.make_graphs()
        return [each for each in made if each.tile in self.tiles]

    @property
    def interface(self) -> Graph:
        """The inputs and outputs of the graph of `tile`, without nodes."""
        return Graph(self.inputs, self.outputs, (), {}, (), self.axes)

    @cached_property
    def graph(self) -> Graph:
        """The graph of `tile`."""
        return next(graph for graph, tile in self.graphs if tile == self.tile)

    @cached_property
    def planned(self) -> Planned:
        """The record; the graph is lowered again where it is not known."""
        return self.known_plan or Planned.of(self.lowered_again(_may_join(self.tiles)))

    @cached_property
    def batch_axes(self) -> BatchAxes | None:
        """The batch axes of a call's inputs and outputs; None where the batch is fixed."""
        if self.tile is None or self.axes is not None:
            return self.axes
        return BatchAxes((0,) * len(self.inputs), (0,) * len(self.outputs))

    @property
    def input_shapes(self) -> Shapes:
        """Shapes of a call's inputs; the axis of a free batch is left out."""
        axes = self.batch_axes
        if axes is None:
            return tuple(value.shape for value in self.inputs)
        pairs = zip(self.inputs, axes.inputs, strict=True)
        return tuple(v.shape if axis is None else v.shape[1:] for v, axis in pairs)

    @property
    def free_shapes(self) -> tuple[tuple[int | None, ...], ...]:
        """Shapes of a call's inputs; the length of a free batch is None."""
        axes = self.batch_axes
        if axes is None:
            return self.input_shapes
        return tuple(
            shape if axis is None else (*shape[:axis], None, *shape[axis:])
            for shape, axis in zip(self.input_shapes, axes.inputs, strict=True)
        )

    def without_batch(self, shapes: Sequence[tuple[int, ...]]) -> Shapes:
        """Remove a free batch from the shapes of a call's inputs, as in `input_shapes`."""
        axes = self.batch_axes
        if axes is None:
            return tuple(shapes)
        pairs = zip(shapes, axes.inputs, strict=False)  # the call reports a wrong number of inputs
        return tuple(s if axis is None else (*s[:axis], *s[axis + 1 :]) for s, axis in pairs)

    @property
    def bytes(self) -> int:
        """Approximate size in memory, with its graph."""
        return self.program.image.size + _RECORD_BYTES

    @property
    def statistics(self) -> dict[str, Any]:
        """`sizes`, the bytes of code, literals and workspace, and the time to compile."""
        image = self.program.image
        return {
            **self.sizes,
            "code_bytes": image.code_bytes,
            "pool_bytes": image.pool_bytes,
            "workspace_bytes": self.workspace_bytes,
            "buffer_bytes": self.buffer_bytes,
            "isa": self.options.target.isa,
            "tile": self.tile,
            "compile_ms": self.compile_ms,
        }

    @property
    def steps(self) -> tuple[Step, ...]:
        """The records of its kernels, in order."""
        return self.planned.steps

    @property
    def waves(self) -> tuple[Wave, ...]:
        """The record of the schedule: the steps of each thread, wave by wave."""
        return self.planned.waves

    @property
    def memory(self) -> MemoryPlan:
        """The memory plan: the offsets of its buffers in the workspace."""
        return self.planned.memory

    def listing(self) -> Iterator[str]:
        """Return the lines of `Image.listing`; the code is written again for it."""
        joins, graphs = _may_join(self.tiles), self.graphs
        forms = [lower_model(one, self.options, tile=tile, joins=joins) for one, tile in graphs]
        return build_function(paying(forms), self.program.name, listed=True).image.listing()

    def lowered_again(self, joins: bool = False) -> ModelSchedule:
        """Lower the graph of `tile` again; with `joins`, last layers may take several samples."""
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
    """Compile a graph. Raises InvalidInput or CompileError where no kernel exists for it.

    Where the graph `is_part` of a model, `dtypes` may name layers that it lacks. `others` are
    graphs of the model for other tiles; each is kept if it is faster for some batch. `kept` is as
    in `lowered_variant`.
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
    """Compile graphs after all passes, the graph of the main tile first.

    `kept` has the matrices and shared weights of earlier sizes, or stores them for later ones. Code
    with `kept` is not cached; other code is if `is_cached`. Raises as `make_variant` does.
    """
    started = time.perf_counter()
    if kept is not None and kept.is_there:
        return _beside_others(finals, options, name, kept)
    may_be_there = is_cached and kept is None
    key = code_cache.key_of(finals, options, name) if may_be_there else None
    if key is not None and (known := kept_variant(key, options, name, lambda: finals)) is not None:
        progress("done", 1.0)
        return replace(known, make_graphs=_compressed(finals))
    forms, program = _written(finals, options, name, progress, kept)
    size = _bytes_of_one(program, forms) - unread_bytes(finals[0].graph)
    if forms[0].options.weight_bytes <= options.planner.l3_bytes < size:
        # The prices assumed that weights come from L3, but code and literals do not fit there.
        if kept is not None:
            kept.restart()
        again = replace(options, weight_bytes=size)
        forms, program = _written(finals, again, name, progress, kept)
    made = _of_forms(forms, finals[0].tile, program, key, started, has_record=True)
    del forms  # their weights and code, before the graphs are written once more
    if key is not None:
        code_cache.remember(key, _to_data(made), program.image)
    progress("done", 1.0)
    graphs = _compressed(finals) if kept is None else _settled(finals, kept)
    return replace(made, make_graphs=graphs)


def _beside_others(
    finals: Sequence[TiledGraph], options: ModelOptions, name: str, kept: KeptWeights
) -> Variant:
    """Compile a variant that reads the first variant's weights, from `kept`; it is not cached."""
    started = time.perf_counter()
    forms, program = _written(finals, options, name, lambda stage, share: None, kept)
    made = _of_forms(forms, finals[0].tile, program, None, started)
    kept.share_new()
    kept.compress()
    return replace(made, make_graphs=lambda: finals)


def _bytes_of_one(program: Program, forms: Sequence[ModelSchedule]) -> int:
    """Approximate bytes of code and literals that a run of one form reads."""
    return program.image.size // len(forms)


def _of_forms(
    forms: Sequence[ModelSchedule],
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


def _compressed(finals: Sequence[TiledGraph]) -> Callable[[], Sequence[TiledGraph]]:
    """Pack the graphs, so that the user's weights may be freed; return a function that unpacks."""
    packed = [(PackedGraph(graph), tile) for graph, tile in finals]
    return lambda: [TiledGraph(one.graph, tile) for one, tile in packed]


def _settled(finals: Sequence[TiledGraph], kept: KeptWeights) -> Callable[[], Sequence[TiledGraph]]:
    """Move the graphs' constants to the memory of `kept`; return a function of the graphs."""
    graphs = kept.settle([graph for graph, _ in finals])
    made = [TiledGraph(one, tile) for one, (_, tile) in zip(graphs, finals, strict=True)]
    return lambda: made


def kept_variant(
    key: str, options: ModelOptions, name: str, make_graphs: Callable[[], Sequence[TiledGraph]]
) -> Variant | None:
    """Return the variant with this key in the code cache; None where there is none."""
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
    """Whether samples run one after another, so that several may run the last layers together."""
    return list(tiles) == [1]


def _since(started: float) -> float:
    """Milliseconds since `started`."""
    return 1e3 * (time.perf_counter() - started)


def _written(
    finals: Sequence[TiledGraph],
    options: ModelOptions,
    name: str,
    progress: Progress,
    kept: KeptWeights | None,
) -> tuple[list[ModelSchedule], Program]:
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
