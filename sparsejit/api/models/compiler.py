"""Compiles one model, for the shapes of the example and again for other shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparsejit.api.models.compile_parts import check_fallback, compile_in_parts
from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.api.models.final_graph import Dtypes, final_graph
from sparsejit.api.models.known_files import OpenFile, compiled_or_cached
from sparsejit.api.models.parted_model import PartedModel
from sparsejit.api.models.variant import GRAPH_REFUSALS, TiledGraph, Variant, make_variant
from sparsejit.api.options import ModelSettings
from sparsejit.api.quantising.quantise import BUDGET, Budget, ReadModel, ScalesFinder
from sparsejit.api.quantising.scales import Scales
from sparsejit.api.quantising.seen_inputs import ExampleCall
from sparsejit.api.sizes.named_sizes import NamedSizes
from sparsejit.api.sizes.other_sizes import OtherSizes
from sparsejit.api.sizes.step_reading import ReadStep, StepSize, read_step
from sparsejit.errors import InvalidInput
from sparsejit.frontends.batch_axis import InputAxes
from sparsejit.frontends.model_source import onnx_shrinking
from sparsejit.frontends.nesting import Nest
from sparsejit.frontends.onnx import ImportedModel, import_onnx, is_onnx, model_name
from sparsejit.frontends.states import GivenStates, ModelInterface, states_of
from sparsejit.frontends.torch_export import Exported, export
from sparsejit.ir.graph import Graph
from sparsejit.ir.state import State, fixed_batch_note
from sparsejit.lowering.context import ModelOptions, Progress, progress_function
from sparsejit.lowering.kept_weights import KeptWeights, kept_weights
from sparsejit.lowering.tiles import batch_tiles

AUTO = "auto"


class MadeModel(NamedTuple):
    """A model for inputs like the example's: its inputs and outputs, its states, its code."""

    interface: ModelInterface
    states: tuple[State, ...]
    variant: Variant


def _named(states: Sequence[State]) -> str:
    return ", ".join(state.name for state in states)


@dataclass
class ModelCompiler:
    """A model and how to compile it, for inputs of any shapes."""

    model: Any
    free_batch: bool
    free_shapes: bool
    sizes: NamedSizes | None
    constants: Mapping[str, Any]
    fallback: str | None
    dtype: Dtypes
    settings: ModelSettings
    axes: InputAxes | None = None  # batch axes of the inputs, where they are known
    name: str = ""
    state: GivenStates | None = None  # inputs that take outputs of the call before
    step: StepSize | None = None  # of a model of whole sequences, which becomes the model of a step

    def __post_init__(self) -> None:
        self.settings = replace(self.settings, any_length=self._may_share)
        self.options = self.settings.resolved()
        own = model_name(self.model) if is_onnx(self.model) else type(self.model).__name__
        self.name = self.name or own
        if self.sizes is not None:
            self.free_batch = self.free_batch and self.sizes.batch_axes is not None
            self.free_shapes = self.sizes.has_others

    def compiled_or_cached(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], tell: Progress
    ) -> CompiledModel | PartedModel:
        """Return the model of `compiled`, or from the code cache for a file compiled before."""
        check_fallback(self.fallback, self.model)
        if self.fallback is not None and self.state is not None:
            raise InvalidInput(
                f"state is given with fallback={self.fallback!r}, and a model in parts keeps no "
                "state; leave out fallback, or carry the state from call to call"
            )
        make = partial(self.compiled, args, kwargs, tell)
        is_file = is_onnx(self.model) and isinstance(self.model, str | Path)
        by_data = isinstance(self.dtype, Scales) or self.dtype == AUTO
        if not is_file or self.free_shapes or self.sizes or kwargs or by_data or self.step:
            return make()
        asked, graphs = partial(self.asked, args), partial(self.graphs_of, args)
        found = compiled_or_cached(self.model, asked, make, graphs)
        if isinstance(found, CompiledModel):
            found.shrinking = self.shrinking  # of this path, not of the one compiled before
        return found

    def compiled(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], tell: Progress
    ) -> CompiledModel | PartedModel:
        """Compile the model for inputs like these; in parts if it needs and has a `fallback`."""
        if self.step is not None:
            self.step.check(args)
        kept = kept_weights() if self._may_share else None
        plain = self.dtype if self.dtype != AUTO else "float32"
        try:
            if self.dtype == AUTO:
                may_choose = not self.settings.exact
                call = ExampleCall(args, kwargs)
                self.dtype = self.scales([call], BUDGET, tell) if may_choose else plain
            if self.step is not None:
                return self._compiled_step(self.step, args, kwargs, tell)
            interface, states, variant = self.make(args, kwargs, tell, kept)
        except GRAPH_REFUSALS:
            if self.fallback is None or kwargs:
                raise
            if isinstance(plain, Scales):
                raise InvalidInput(
                    "dtype is Scales, which are for models that compile whole; give a name, or a "
                    "dict from patterns of layers' names"
                ) from None
            given = self.model, args, self.constants, plain, self.settings
            return compile_in_parts(*given, tell, self.free_shapes or self.sizes is not None)
        inputs, outputs = interface.inputs, interface.outputs
        is_open = self.free_shapes or (self.sizes is not None and variant.tile is None)
        again = self.other_sizes(inputs, variant, args, kwargs, kept) if is_open else None
        sizes = self.sizes and self.sizes.in_order(inputs.items[1].keys)
        scales = self.dtype.layers if isinstance(self.dtype, Scales) else ()
        made = inputs, outputs, self.settings, again, sizes, scales, self.shrinking, states
        return CompiledModel((variant,), *made)

    def _compiled_step(
        self, size: StepSize, args: tuple[Any, ...], kwargs: Mapping[str, Any], tell: Progress
    ) -> CompiledModel:
        """Compile the step of a model of whole sequences."""
        tell("exporting the model", 0.0)
        read = partial(self._read_for_step, kwargs=kwargs)
        found = read_step(read, args, size, self.free_batch)
        inputs, outputs, made = found.inputs, found.outputs, found.made
        options, graphs = self._step_graphs(found)
        first, *others = graphs
        given = options, self.dtype, first.tile, self.name, tell
        variant = make_variant(first.graph, *given, others=others)
        scales = self.dtype.layers if isinstance(self.dtype, Scales) else ()
        about = inputs, outputs, self.settings, None, None, scales, self.shrinking, made.states
        return CompiledModel((variant,), *about, size.pace(made, args))

    def _read_for_step(
        self, args: tuple[Any, ...], free_batch: bool, kwargs: Mapping[str, Any]
    ) -> Exported | ImportedModel:
        return replace(self, free_batch=free_batch)._graphs(args, kwargs)

    def _step_graphs(self, found: ReadStep) -> tuple[ModelOptions, list[TiledGraph]]:
        """The options, and the graphs of a step for each tile, the main one first."""
        if found.sized is None:
            graph, why = found.made.graph, found.why_fixed
            notes = (*graph.notes, *([fixed_batch_note(why)] if why else []))
            return self.options, [TiledGraph(replace(graph, notes=notes), None)]
        return self._tiled(found.graph, found.batch)

    def scales(
        self,
        calls: Sequence[ExampleCall],
        budget: Budget,
        tell: Progress,
        like: ExampleCall | None = None,
    ) -> Scales:
        """Choose scales, calibrated on these calls; predicted times are for calls `like` that."""
        def priced(call: ExampleCall) -> Graph:
            _, graphs, _ = self._read(call.args, call.kwargs)
            return graphs[0].graph

        return ScalesFinder(self.read, priced, self.options).scales(calls, budget, tell, like)

    def read(self, call: ExampleCall) -> ReadModel:
        """Return the model's graph and nests for the shapes of a call, before any pass."""
        found = replace(self, free_batch=False)._graphs(call.args, call.kwargs)
        if states := found.interface.own_states:
            raise InvalidInput(
                f"the model changes buffers ({_named(states)}), so that examples of calls do not "
                "say what its layers read; take them as inputs and return them, or give dtype by "
                "name"
            )
        return ReadModel(found.graph(None), found.input_tree, found.output_tree)

    @property
    def shrinking(self) -> str:
        """The command or call that makes zeros in an ONNX model; empty for torch models."""
        if not is_onnx(self.model):
            return ""
        return onnx_shrinking(self.model, self.constants)

    @property
    def _may_share(self) -> bool:
        """Whether code for other sizes may read the weights of the first variant."""
        return self.sizes is not None and self.sizes.has_others

    def make(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        progress: Progress,
        kept: KeptWeights | None = None,
    ) -> MadeModel:
        """Read and compile the model for inputs like these.

        The exported model is freed before compilation, because it may hold a copy of the weights.
        `kept` stores the data about weights that code for other sizes needs.
        """
        progress("exporting the model", 0.0)
        interface, graphs, options = self._read(args, kwargs)
        first, *others = graphs
        states = states_of(self.state, interface, *first)
        if interface.own_states and (self.free_shapes or self.sizes is not None):
            raise InvalidInput(
                f"the model changes buffers ({_named(interface.own_states)}), which have one size; "
                "leave out dynamic_shapes and free_shapes"
            )
        given = options, self.dtype, first.tile, self.name, progress
        variant = make_variant(first.graph, *given, others=others, kept=kept)
        return MadeModel(interface, states, variant)

    def asked(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return all that the code of an ONNX file depends on, except the file, for a digest.

        Raises AttributeError, TypeError, ValueError or ImportError for arguments that compilation
        refuses later.
        """
        assert not isinstance(self.dtype, Scales)
        rules = self.dtype if isinstance(self.dtype, str) else list(self.dtype.items())
        numbers = {name: np.asarray(value) for name, value in self.constants.items()}
        shapes = [tuple(map(int, example.shape)) for example in args]
        state = list(self.state.items()) if isinstance(self.state, Mapping) else self.state
        given = rules, numbers, shapes, self.fallback, state
        return version("onnx"), self.settings, self.free_batch, *given

    def graphs_of(self, args: tuple[Any, ...], file: OpenFile) -> list[list[TiledGraph]]:
        """Return the graphs that `make` lowers for an ONNX file, which may have been renamed."""
        from onnx import load

        _, graphs, options = replace(self, model=load(str(file.path)))._read(args, {})
        return [[TiledGraph(final_graph(one, options, self.dtype), t) for one, t in graphs]]

    def _read(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: Sequence[int] | None = None
    ) -> tuple[ModelInterface, list[TiledGraph], ModelOptions]:
        """Return inputs and outputs, graphs for each tile, the main one first, and the options.

        The tiles are `wanted`, or by default the best ones for the model.
        """
        exported = self._graphs(args, kwargs)
        interface = exported.interface
        if not exported.batch_is_free:
            return interface, [TiledGraph(exported.graph(None), None)], self.options
        options, graphs = self._tiled(exported.graph, exported.example_batch or 1, wanted)
        return interface, graphs, options

    def _tiled(
        self, graph: Callable[[int], Graph], batch: int, wanted: Sequence[int] | None = None
    ) -> tuple[ModelOptions, list[TiledGraph]]:
        """The options, and graphs for each tile of a free batch, as in `_read`."""
        own = self.options
        tiles = batch_tiles(graph(1), batch, own.threads, one_tile=own.exact)
        options = replace(own, shares_tiles=tiles.shared)
        samples = tiles.samples if wanted is None else wanted
        return options, [TiledGraph(graph(each), each) for each in samples]

    def _graphs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Exported | ImportedModel:
        named = self.sizes.in_order(list(kwargs)).batch_axes if self.sizes else None
        axes = named if self.axes is None else self.axes
        if not is_onnx(self.model):
            if self.constants:
                raise InvalidInput(
                    f"constants has {', '.join(self.constants)}, which are for ONNX models; give a "
                    "torch model's as example_kwargs of plain numbers"
                )
            return export(self.model, args, dict(kwargs), self.free_batch, axes)
        if kwargs:
            raise InvalidInput(
                f"example_kwargs has {', '.join(kwargs)}; an ONNX model takes example_inputs "
                "alone, in the order of its inputs"
            )
        return import_onnx(self.model, args, self.free_batch, self.constants, axes)

    def other_sizes(
        self, inputs: Nest, first: Variant, args: Any, kwargs: Any, kept: KeptWeights | None
    ) -> OtherSizes:
        """Return an object that compiles the model for inputs of other shapes, with the same nest.

        The batch axes are fixed to the first variant's: other sizes could allow other axes.
        """
        axes = first.batch_axes
        compiler = replace(self, axes=None if axes is None else axes.inputs)

        def compile_it(model: Any, args: Any, kwargs: Mapping[str, Any]) -> Variant:
            own = replace(compiler, model=model)
            return own.make(args, kwargs, progress_function(None)).variant

        def read_graphs(
            model: Any, args: Any, kwargs: Mapping[str, Any], tiles: Sequence[int] | None
        ) -> list[TiledGraph]:
            _, graphs, options = replace(compiler, model=model)._read(args, kwargs, tiles)
            return [TiledGraph(final_graph(one, options, self.dtype), t) for one, t in graphs]

        examples = [*args, *kwargs.values()] if self.sizes else []
        how = compile_it, read_graphs
        return OtherSizes(self.model, self.sizes, inputs, first, examples, kept, *how)
