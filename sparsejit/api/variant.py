"""A model made for inputs of certain shapes: its graph, its native function, its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from sparsejit.api import code_cache
from sparsejit.api.statistics import sizes_of
from sparsejit.artefact.graph_file import value_from_data, value_to_data
from sparsejit.errors import CompileError, DamagedFile
from sparsejit.ir.graph import Graph, Value
from sparsejit.ir.packed_graph import PackedGraph
from sparsejit.lowering.context import ModelOptions, Progress
from sparsejit.lowering.convolution.int8_convolutions import (
    with_cheapest_convolutions,
    with_rounded_inputs,
)
from sparsejit.lowering.dtypes import with_dtypes
from sparsejit.lowering.memory_plan import MemoryPlan
from sparsejit.lowering.model import (
    LoweredModel,
    build_model,
    lower_model,
    unread_bytes,
    waves_without_code,
    without_code,
)
from sparsejit.lowering.shared_tiles import build_shared_tiles
from sparsejit.lowering.step import Step
from sparsejit.lowering.threads.waves import Wave
from sparsejit.native.copying import SharedCode
from sparsejit.passes.default import run_passes
from sparsejit.passes.quantised_layers import quantised_layers
from sparsejit.runtime.native_call import NativeCall
from sparsejit.runtime.program import Program
from sparsejit.runtime.python_objects import ArrayType

Dtypes = str | Mapping[str, str]
# What lowering may raise for a graph that no frontend and no passes ever made. An AssertionError is
# a fault of ours, and to be seen as one.
GRAPH_REFUSALS = (CompileError, ValueError, TypeError, LookupError, ArithmeticError)


class Planned(NamedTuple):
    """The record of a variant's kernels in order, which thread runs them when, and its memory."""

    steps: tuple[Step, ...]
    waves: tuple[Wave, ...]
    memory: MemoryPlan

    @classmethod
    def of(cls, lowered: LoweredModel) -> Planned:
        """Without weights and code."""
        waves = waves_without_code(lowered.waves)
        return cls(without_code(lowered.steps), waves, lowered.memory)


@dataclass(frozen=True, eq=False)
class Variant(SharedCode):
    """One native function of a model.

    `inputs` and `outputs` are its graph's, `tile` the samples of a run where the batch is free;
    `call` calls it with numpy arrays. `sizes` are those of `statistics.sizes_of`. `key` is by what
    the cache of code has it, if it does: then its graph is made, and planned, when it is asked for.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    options: ModelOptions
    tile: int | None
    workspace_bytes: int
    buffer_bytes: int
    program: Program
    call: NativeCall
    sizes: Mapping[str, int]
    compile_ms: float
    key: str | None
    make_graph: Callable[[], Graph]
    known_plan: Planned | None = None

    @cached_property
    def graph(self) -> Graph:
        """What was lowered, after all passes; where the batch is free, of `tile` samples."""
        return self.make_graph()

    @cached_property
    def planned(self) -> Planned:
        """Its record, made anew where it is not known."""
        return self.known_plan or Planned.of(self.lowered_again())

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
        return _built(self.lowered_again(), self.program.name, listed=True).image.listing()

    def lowered_again(self) -> LoweredModel:
        """The model with its code's inputs, which a variant does not keep."""
        return lower_model(self.graph, self.options)


def make_variant(
    graph: Graph,
    options: ModelOptions,
    dtypes: Dtypes,
    tile: int | None,
    name: str = "model",
    progress: Progress = lambda stage, share: None,
    is_part: bool = False,
) -> Variant:
    """Compile a graph. Raises InvalidInput or CompileError for what no kernel can do.

    Where the graph `is_part` of a model, `dtypes` may name layers that it does not have.
    """
    started = time.perf_counter()
    progress("rewriting the graph", 0.0)
    final = final_graph(graph, options, dtypes, is_part)
    variant = lowered_variant(final, options, tile, name, progress)
    return replace(variant, compile_ms=_since(started))


def final_graph(
    graph: Graph, options: ModelOptions, dtypes: Dtypes, is_part: bool = False
) -> Graph:
    """The graph that is lowered. Raises as `make_variant` does."""
    passed = run_passes(with_cheapest_convolutions(quantised_layers(graph), options))
    final = with_rounded_inputs(with_dtypes(passed, dtypes, is_part))
    return replace(final, notes=graph.notes)


def lowered_variant(
    final: Graph,
    options: ModelOptions,
    tile: int | None,
    name: str,
    progress: Progress = lambda stage, share: None,
) -> Variant:
    """Compile a graph that has been through all passes. Raises as `make_variant` does."""
    started = time.perf_counter()
    key = code_cache.key_of(final, options, tile, name)
    if key is not None and (kept := kept_variant(key, options, name, lambda: final)) is not None:
        progress("done", 1.0)
        return replace(kept, make_graph=_put_away(final))
    lowered, program = _written(final, options, name, progress)
    target, size = options.target, program.image.size - unread_bytes(final)
    if lowered.options.weight_bytes <= target.core.l3_share * target.l3_bytes < size:
        # What was priced as if it came from L3 does not fit there.
        lowered, program = _written(final, replace(options, weight_bytes=size), name, progress)
    made = Variant(
        final.inputs,
        final.outputs,
        lowered.options,
        tile,
        lowered.call_bytes,
        lowered.memory.sum_bytes,
        program,
        _call(program, final.inputs, final.outputs, lowered.call_bytes, tile),
        sizes_of(lowered.steps),
        _since(started),
        key,
        lambda: final,
        Planned.of(lowered),
    )
    del lowered  # its weights and code, before the graph is written once more
    if key is not None:
        code_cache.remember(key, _to_data(made), program.image)
    progress("done", 1.0)
    return replace(made, make_graph=_put_away(final))


def _put_away(graph: Graph) -> Callable[[], Graph]:
    """What gives the graph when it is asked for; it does not hold the user's weights."""
    packed = PackedGraph(graph)
    return lambda: packed.graph


def kept_variant(
    key: str, options: ModelOptions, name: str, make_graph: Callable[[], Graph]
) -> Variant | None:
    """What the cache of code has by that key; None where it has nothing."""
    started = time.perf_counter()
    entry = code_cache.recall_code(key, name)
    if entry is None:
        return None
    try:
        return _from_data(entry, key, options, make_graph, started)
    except (KeyError, TypeError, ValueError, DamagedFile):
        return None


def _to_data(variant: Variant) -> dict[str, Any]:
    return {
        "inputs": list(map(value_to_data, variant.inputs)),
        "outputs": list(map(value_to_data, variant.outputs)),
        "weight_bytes": int(variant.options.weight_bytes),
        "tile": variant.tile,
        "workspace_bytes": int(variant.workspace_bytes),
        "buffer_bytes": int(variant.buffer_bytes),
        "sizes": dict(variant.sizes),
    }


def _from_data(
    entry: code_cache.KeptCode,
    key: str,
    options: ModelOptions,
    make_graph: Callable[[], Graph],
    started: float,
) -> Variant:
    about, program = entry
    inputs, outputs = (tuple(map(value_from_data, about[side])) for side in ("inputs", "outputs"))
    tile, workspace = about["tile"], about["workspace_bytes"]
    return Variant(
        inputs,
        outputs,
        replace(options, weight_bytes=about["weight_bytes"]),
        tile,
        workspace,
        about["buffer_bytes"],
        program,
        _call(program, inputs, outputs, workspace, tile),
        about["sizes"],
        _since(started),
        key,
        make_graph,
    )


def _call(
    program: Program,
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    workspace_bytes: int,
    tile: int | None,
) -> NativeCall:
    taken = [_array_type(value, tile) for value in inputs]
    made = [_array_type(value, tile) for value in outputs]
    return NativeCall(program.memory, taken, made, workspace_bytes, tile)


def _since(started: float) -> float:
    """Milliseconds."""
    return 1e3 * (time.perf_counter() - started)


def _written(
    final: Graph, options: ModelOptions, name: str, progress: Progress
) -> tuple[LoweredModel, Program]:
    lowered = lower_model(final, options, lambda stage, share: progress(stage, 0.1 + 0.6 * share))
    progress("writing the code", 0.7)
    return lowered, _built(lowered, name)


def _built(lowered: LoweredModel, name: str, listed: bool = False) -> Program:
    build = build_shared_tiles if lowered.options.shares_tiles else build_model
    return build(lowered, name, listed=listed)


def _array_type(value: Value, tile: int | None) -> ArrayType:
    free = value.shape if tile is None else (None, *value.shape[1:])
    return ArrayType(value.type.element.value, free, value.origin.name)
