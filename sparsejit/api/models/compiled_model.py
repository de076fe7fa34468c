"""The compiled model: a callable, with a record of its kernels and the reasons for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sparsejit.api.compiled import Compiled, Loader, PathLike
from sparsejit.api.models.called import (
    CalledModel,
    as_arrays,
    bound_arrays,
    check_open_axes,
    cut,
    output_names,
)
from sparsejit.api.models.dtypes import ModelDtypes
from sparsejit.api.models.export import exported_model, for_host
from sparsejit.api.models.model_file import (
    KIND,
    ModelSource,
    SavedVariant,
    model_to_data,
    own_states,
    read_model,
)
from sparsejit.api.models.stepped import SteppedModel, StreamedModel
from sparsejit.api.models.stream import ModelStream
from sparsejit.api.models.streams import ModelStreams
from sparsejit.api.models.variant import Variant, lowered_variant, sizes_text
from sparsejit.api.options import ModelSettings
from sparsejit.api.quantising.seen_inputs import calls_of
from sparsejit.api.reports.accuracy import Accuracy, ModelCall, accuracy_of
from sparsejit.api.reports.advisor import Advice, advice_for
from sparsejit.api.reports.layers_report import measured_times, report_of
from sparsejit.api.reports.report import Report
from sparsejit.api.sizes.named_sizes import NamedSizes
from sparsejit.api.sizes.size_rules import SizeRules
from sparsejit.artefact import sealed
from sparsejit.artefact.cmake_package import export_package, package_name
from sparsejit.artefact.exported import ExportedFunction
from sparsejit.errors import CompileError, DamagedFile, InvalidInput
from sparsejit.frontends.nesting import Nest, open_axes
from sparsejit.ir.graph import BatchAxes, Graph
from sparsejit.ir.layer_scales import LayerScales
from sparsejit.ir.state import NO_PACE, Pace, State
from sparsejit.ir.values import Array
from sparsejit.lowering.kept_weights import kept_weights
from sparsejit.planner.split import parse_threads
from sparsejit.runtime.program import Program

_MOST_BYTES = 256 << 20  # of variants for sizes other than the example's


class ModelParts(NamedTuple):
    """The data of a compiled model: variants, nests of inputs and outputs, options and named sizes.

    A variant is the model for inputs of certain shapes; a nest is a nested structure of tensors.
    `makes_others`: whether the model can be compiled for further sizes.
    """

    variants: tuple[Variant, ...]
    input_nest: Nest
    output_nest: Nest
    settings: ModelSettings
    sizes: NamedSizes | None
    makes_others: bool


class CompiledModel(CalledModel, Compiled):
    """A model as machine code with its weights inside. Thread-safe.

    Call it as the model was called: torch tensors or numpy arrays in, the same out, in objects of
    the classes that the model returns.

    Attributes:
        batch_is_free: whether the batch may have any length
        batch_axes: the axis of the batch in each input and output
        tile: the number of samples that run at a time for a free batch like the example's
        stats: counts of layers and weights, sizes in bytes, the time to compile in milliseconds
        graph: the computation, after all passes
        shrinking: for an ONNX model, the command that puts zeros into it; else empty
        states: the inputs that take an output of the call before, which a stream carries
        step, delay: frames of a call's input, and frames by which results are late
        pointer: the address of `int run(inputs, outputs, workspace, samples)`, whose arrays have
            samples on axis 0 wherever the model has them
    """

    def __init__(
        self,
        variants: Sequence[Variant],
        input_nest: Nest,
        output_nest: Nest,
        settings: ModelSettings,
        compile_for: SizeRules | None = None,
        sizes: NamedSizes | None = None,
        scales: Sequence[LayerScales] = (),
        shrinking: str = "",
        states: Sequence[State] = (),
        pace: Pace = NO_PACE,
    ) -> None:
        super().__init__(input_nest, output_nest)
        self._first = variants[0]
        self._variants = {variant.input_shapes: variant for variant in variants}
        self._settings = settings
        self._compile_for = compile_for
        self._sizes, self._scales = sizes, scales
        self._has_others = compile_for is not None or (sizes is not None and sizes.has_others)
        self.shrinking = shrinking
        self.states = tuple(states)
        self._own_states = own_states(self.states, input_nest, output_nest)
        self._pace = pace
        self._accuracy: Accuracy | None = None
        self._stepped: dict[int, SteppedModel] = {}  # by batch
        self._compiling = threading.Lock()
        self._dtypes = ModelDtypes(self._first.inputs, input_nest, output_nest)
        self._open_axes = open_axes(output_nest)

    @property
    def step(self) -> int | None:
        """Frames of the input in a call, where `compile` was given a step; else None."""
        return self._pace.step

    @property
    def delay(self) -> int:
        """Frames of the input by which results are late, where the model looks ahead.

        Frame i of a stream is frame i - delay of the whole model, and zero before its first one.
        """
        return self._pace.delay

    @property
    def title(self) -> str:
        """Counts of layers, weights and kernels, in one line."""
        stats = self.stats
        batch = "any batch" if self.batch_is_free else "a fixed batch"
        return f"sparsejit model: {sizes_text(stats)}, {stats['isa']}, {batch}"

    @property
    def parts(self) -> ModelParts:
        """The variants, nests, options and sizes that the model was made from."""
        nests, makes_others = (self._input_nest, self._output_nest), self._compile_for is not None
        variants = tuple(self._variants.values())
        return ModelParts(variants, *nests, self._settings, self._sizes, makes_others)

    @property
    def program(self) -> Program:
        return self._first.program

    def disassemble(self) -> str:
        """Return the instructions, with the literals they read; lowers the model again."""
        return "\n".join(self._first.listing())

    @property
    def _input_names(self) -> list[str]:
        return [value.origin.name for value in self._first.inputs]

    @property
    def _output_names(self) -> list[str]:
        return output_names(self._first.outputs, self._output_nest)

    @property
    def graph(self) -> Graph:
        """The model's graph after all passes; `str` of it has a line per operation."""
        return self._first.graph

    @property
    def batch_is_free(self) -> bool:
        """Whether the batch may have any length."""
        return self._first.tile is not None

    @property
    def batch_axes(self) -> BatchAxes | None:
        """The batch axis of each input and output; None where the batch is fixed.

        The axis is None for an input without a batch, whose values all samples share.
        """
        return self._first.batch_axes

    @property
    def tile(self) -> int | None:
        """The number of samples that run at a time for a free batch like the example's."""
        return self._first.tile

    @property
    def stats(self) -> dict[str, Any]:
        """Sizes: layers, kernels, weights, nnz, bytes of code, literals and workspace; times."""
        return self._first.statistics

    def run(self, inputs: Sequence[Any]) -> list[Array]:
        """Return the flat list of outputs, numpy arrays, for a flat list of inputs.

        Outputs have the model's dtypes, float32 in place of bfloat16. The buffers that a torch
        module changes are the last inputs and outputs, in the graph's dtypes.

        Args:
            inputs: tensors or arrays, in the order of `graph`
        """
        dtypes = self._dtypes
        words = dtypes.words()
        arrays = dtypes.arrays(inputs, words) if dtypes.inputs else as_arrays(inputs)
        results = self._variant_for(arrays).call.run(*arrays)
        if self._open_axes:
            results = cut(results, self._open_axes)
        return dtypes.narrowed(results, words) if dtypes.outputs else results

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._refuse_own_states()
        return super()._call(args, kwargs)

    def _refuse_own_states(self) -> None:
        """Raise InvalidInput for a model with buffers that a call would have to give."""
        if self._own_states:
            names = ", ".join(state.name for state in self._own_states)
            raise InvalidInput(
                f"the model keeps state ({names}); make a stream: stream = fast.stream()"
            )

    def _new_direct(self, torch: Any) -> Callable[..., Any] | None:
        dtypes, sizes = self._dtypes, self._sizes
        if dtypes.has_others or self._open_axes or (sizes is not None and sizes.are_bounded):
            return None
        return self._first.call.direct(self._is_plain_result, torch)

    def prepare(self, **sizes: int) -> None:
        """Compile for these sizes now, by the names that `dynamic_shapes` gave them.

        Sizes left out are as in the example. A batch needs no preparation: the same code runs any
        length. Where the code of other sizes takes more than 256 MiB, the oldest is dropped. It may
        be called from several threads, also while others run the model.

        Args:
            **sizes: whole numbers by name, such as time=128

        Raises:
            InvalidInput: the model has no such name, or does not take such a size
        """
        if self._sizes is None:
            raise InvalidInput(
                "prepare: no size of this model has a name; compile it with dynamic_shapes, such "
                "as {'x': {0: 'batch', 1: 'time'}}"
            )
        shapes = zip(self._sizes.shapes_for(sizes), self._first.inputs, strict=True)
        self._variant_for([np.zeros(shape, value.type.element.value) for shape, value in shapes])

    def explain(self, *, measure: bool = False) -> Report:
        """Report the cost of every layer and why.

        Args:
            measure: run the model for about a second, and time every layer

        Returns:
            A report to print; `as_dict()` is plain data, `html()` a self-contained page.
        """
        made = self._first, self.title, self.stats, measure, self._accuracy
        return report_of(*made, list(map(str, self.states)), self._output_names)

    def accuracy(self, data: Iterable[Any]) -> Accuracy:
        """Measure the errors of layers and outputs on data, against float64.

        The errors of the model in float32 are measured beside them. `explain()` shows the errors
        from then on. An element takes as long as numpy takes for the model in float64. A loaded
        model is compared with the model of its file, which includes the ranges and corrections of
        `Scales`.

        Args:
            data: as for `quantise`

        Raises:
            InvalidInput: data is not a list, or an element does not fit the model's inputs
        """
        self._refuse_own_states()
        checked = []
        for call in calls_of(data):
            arrays = self._dtypes.arrays(self._leaves(call.args, dict(call.kwargs)))
            variant = self._variant_for(arrays)
            checked.append(ModelCall(variant, arrays, variant.call.run(*arrays)))
        self._accuracy = accuracy_of(checked, self._scales, self._output_names)
        return self._accuracy

    def advise(self) -> Advice:
        """Suggest changes that would make the model faster on this processor, with their gains.

        Runs the model for about a second, then predicts the times of changed layers, which takes
        some seconds for large ones. Gains are predictions; measure yourself how a change affects
        results.
        """
        return advice_for(self._first, measured_times(self._first), shrinking=self.shrinking)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        """Return a function without arguments that computes outputs from the current inputs.

        It holds all arrays, adds some 20 ns to the native time and keeps the interpreter lock. One
        thread may call it at a time. A divisor of 0, or an index out of range, raises nothing.
        Arrays whose batch lies behind other axes are copied at every call: some microseconds.
        Outputs whose sizes depend on the inputs have their largest size; the actual sizes follow as
        further outputs, int64 without axes.

        Args:
            inputs: a flat list of contiguous numpy arrays, all whole numbers as int64, all floats
                as float32; they are read in place
            outputs: the same, for the results

        Raises:
            InvalidInput: arrays of other types, shapes or layouts
        """
        arrays, results = bound_arrays(inputs), bound_arrays(outputs)
        return self._variant_for(arrays).call.bind(arrays, results)

    def stream(self, batch: int = 1) -> ModelStream:
        """Return a stream, which keeps the model's states from call to call.

        The model is compiled with `state=`. A stream has the sizes of the example inputs.

        Args:
            batch: the number of samples that each step takes, where the batch is free

        Raises:
            InvalidInput: the model has no states, or its batch is fixed and `batch` is not 1
        """
        return ModelStream(self.stepped(batch), self)

    def stepped(self, batch: int) -> SteppedModel:
        """Return the model without its states for streams of `batch` samples, made once.

        All streams of that batch share it. Raises InvalidInput as `stream` does.
        """
        shared = self._stepped.get(batch)
        if shared is None:
            shared = self._stepped.setdefault(batch, SteppedModel(self._streamed, batch))
        return shared

    def streams(self, capacity: int, *, threads: int | str | None = None) -> ModelStreams:
        """Return room for many streams, which join and leave, and step together.

        The model is compiled with `state=`, and its batch is free. Its code may be made once more,
        in tiles of one size, so that the bits of a stream do not depend on the others.

        Args:
            capacity: the most streams at a time
            threads: the number of threads that run tiles in turn, or "auto" for one a core; by
                default as the model was compiled

        Raises:
            InvalidInput: the model has no states, or a state without a free batch
        """
        own = self._first.options.threads if threads is None else parse_threads(threads)
        return ModelStreams(self._streamed, capacity, own)

    @property
    def _streamed(self) -> StreamedModel:
        """The parts of this model that streams need."""
        nests = self._input_nest, self._output_nest
        return StreamedModel(self._first, self.states, *nests, self._pace)

    def _saved(self) -> sealed.SealedFile:
        return sealed.SealedFile(KIND, *model_to_data(self.source()))

    def _exported(self, name: str) -> ExportedFunction:
        variant = for_host(self._first)
        streamed = self._streamed._replace(variant=variant)
        stepped = SteppedModel(streamed, 1) if self.states else None
        nests = self._input_nest, self._output_nest
        return exported_model(name, variant, nests, stepped)

    def export(
        self,
        path: PathLike,
        header: PathLike | None = None,
        *,
        system: str = "linux",
        cmake: str = "",
    ) -> None:
        """Write functions for C, as `Compiled.export` describes, or a package for CMake and C++.

        A package is a folder with the object file, its C header, a C++17 header with a class
        `Stream`, and the configuration that `find_package` reads.

        Args:
            path: an object file or a shared object (.so); with `cmake` the package's folder
            header: a C header (.h); a package has its own
            system: "linux", "windows" or "macos", on x86-64 processors
            cmake: the name of the package, which begins the names in C, such as "mymodel"

        Raises:
            InvalidInput: as for `Compiled.export`; a header or an invalid name beside `cmake`
            MissingDependency: there is no linker
        """
        if not cmake:
            super().export(path, header, system=system)
            return
        if header is not None:
            raise InvalidInput(f"header {header} is given beside cmake; a package has its own")
        export_package(self._exported(package_name(cmake)), path, system)

    def source(self) -> ModelSource:
        """Return the data from which the model is compiled, with rules for further sizes."""
        with self._compiling:
            made = list(self._variants.values())
            rules = [] if self._compile_for is None else self._compile_for.saved()
        variants = [SavedVariant(each.graphs, each.options.shares_tiles) for each in made]
        name = self._first.program.name
        nests = self._input_nest, self._output_nest
        given = name, self._settings, *nests, variants, self.shrinking
        return ModelSource(*given, self._sizes, rules, self.states, self._pace)

    def _variant_for(self, arrays: Sequence[Array]) -> Variant:
        if self._sizes is not None and len(arrays) == len(self._sizes.inputs):
            self._sizes.check(self._dtypes.shapes(arrays))
        if len(self._variants) == 1 and not self._has_others:
            return self._first
        shapes = self._first.without_batch([array.shape for array in arrays])
        variant = self._variants.get(shapes)
        if variant is None and self._compile_for is not None:
            with self._compiling:
                variant = self._variants.get(shapes)  # another thread may have been first
                if variant is None:
                    variant = self._compile_for(self._dtypes.as_given(arrays))
                    if variant is None:  # a loaded model has no rule for these
                        raise InvalidInput(self._held_sizes(arrays))
                    self._variants[shapes] = variant
                    self._forget_oldest()
        if variant is None:
            raise InvalidInput(self._held_sizes(arrays))
        return variant

    def _held_sizes(self, arrays: Sequence[Array]) -> str:
        """Return the message for inputs whose sizes the saved file lacks."""
        held = (_in_words(each.free_shapes) for each in self._variants.values())
        given = _in_words([array.shape for array in arrays])
        names = () if self._compile_for is None else self._compile_for.names
        makes = f", and makes others for one new length of {' or '.join(names)}" if names else ""
        return (
            f"the inputs have shapes {given}; this model was loaded with code for "
            f"{' and for '.join(held)} (any: a batch of any length){makes}. Compile it again for "
            "others, or call `prepare` with their sizes before it is saved"
        )

    def _forget_oldest(self) -> None:
        """Drop the oldest variants for other sizes than the example's while they exceed 256 MiB."""
        _, *others = self._variants.items()
        room = sum(variant.bytes for _, variant in others)
        for shapes, variant in others[:-1]:
            if room <= _MOST_BYTES:
                return
            room -= variant.bytes
            del self._variants[shapes]


def _in_words(shapes: Sequence[Sequence[int | None]]) -> str:
    """Return the shapes of a call's inputs; a length of None is "any"."""
    texts = (
        ", ".join("any" if length is None else str(length) for length in shape) for shape in shapes
    )
    return ", ".join(f"({text})" for text in texts)


def compile_saved(source: ModelSource) -> CompiledModel:
    """Compile a model's source for this machine.

    Raises DamagedFile, without the file's name, where no kernel exists for a graph of the source,
    and UnsupportedTarget for a target that cannot run here.
    """
    options = source.settings.resolved()
    kept = kept_weights() if source.rules else None
    (graphs, shared), *others = source.variants
    try:
        own = replace(options, shares_tiles=shared)
        first = lowered_variant(graphs, own, source.name, kept=kept)
        rules = SizeRules(source.sizes, first, kept, source.rules)
        variants = [first, *(rules.with_graphs(*each) for each in others)]
    except (CompileError, InvalidInput) as error:
        raise DamagedFile(f"has a graph that cannot be compiled: {error}") from error
    check_open_axes(open_axes(source.output_nest), first.outputs)
    made = source.input_nest, source.output_nest, source.settings
    again = rules if source.rules else None
    return CompiledModel(
        variants,
        *made,
        again,
        source.sizes,
        shrinking=source.shrinking,
        states=source.states,
        pace=source.pace,
    )


LOADER = Loader(read_model, compile_saved)
