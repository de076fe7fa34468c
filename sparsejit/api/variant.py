"""A model made for inputs of certain shapes: its graph, its native function, its record."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sparsejit.errors import CompileError
from sparsejit.ir.graph import Graph, Value
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
from sparsejit.passes.default import run_passes
from sparsejit.passes.quantised_layers import quantised_layers
from sparsejit.runtime.copying import SharedCode
from sparsejit.runtime.native_call import NativeCall
from sparsejit.runtime.program import Program
from sparsejit.runtime.python_objects import ArrayType

Dtypes = str | Mapping[str, str]
# What lowering may raise for a graph that no frontend and no passes ever made.
GRAPH_REFUSALS = (CompileError, ValueError, TypeError, LookupError, ArithmeticError, AssertionError)


@dataclass(frozen=True, eq=False)
class Variant(SharedCode):
    """One native function of a model.

    `graph` is what was lowered, after all passes; where the batch is free, of `tile` samples.
    `steps` are the record of its kernels in order, `waves` that of which thread runs them when;
    `call` calls it with numpy arrays.
    """

    graph: Graph
    options: ModelOptions
    tile: int | None
    steps: tuple[Step, ...]
    waves: tuple[Wave, ...]
    memory: MemoryPlan
    workspace_bytes: int
    program: Program
    call: NativeCall
    compile_ms: float

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
    layers = with_cheapest_convolutions(quantised_layers(graph), options)
    passed = run_passes(layers)
    final = with_rounded_inputs(with_dtypes(passed, dtypes, is_part))
    variant = lowered_variant(final, options, tile, name, progress)
    return replace(variant, compile_ms=1e3 * (time.perf_counter() - started))


def lowered_variant(
    final: Graph,
    options: ModelOptions,
    tile: int | None,
    name: str,
    progress: Progress = lambda stage, share: None,
) -> Variant:
    """Compile a graph that has been through all passes. Raises as `make_variant` does."""
    started = time.perf_counter()
    lowered, program = _written(final, options, name, progress)
    target, size = options.target, len(program.image.data) - unread_bytes(final)
    if lowered.options.weight_bytes <= target.core.l3_share * target.l3_bytes < size:
        # What was priced as if it came from L3 does not fit there.
        lowered, program = _written(final, replace(options, weight_bytes=size), name, progress)
    call = NativeCall(
        program.memory,
        [_array_type(value, tile) for value in final.inputs],
        [_array_type(value, tile) for value in final.outputs],
        lowered.call_bytes,
        tile,
    )
    progress("done", 1.0)
    return Variant(
        final,
        lowered.options,
        tile,
        without_code(lowered.steps),
        waves_without_code(lowered.waves),
        lowered.memory,
        lowered.call_bytes,
        program,
        call,
        1e3 * (time.perf_counter() - started),
    )


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
