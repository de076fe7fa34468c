"""`sparsejit.compile`: a torch model or a scikit-learn estimator to native code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, overload

import numpy as np

from sparsejit.api.compile_parts import check_fallback, compile_in_parts
from sparsejit.api.compiled_estimator import (
    CompiledEstimator,
    Estimator,
    compile_estimator,
    is_estimator,
)
from sparsejit.api.known_files import OpenFile, compiled_once
from sparsejit.api.model import CompiledModel
from sparsejit.api.named_sizes import (
    DynamicShapes,
    NamedSizes,
    arguments_by_name,
    named_sizes,
    sizes_of_exported,
)
from sparsejit.api.options import ModelSettings
from sparsejit.api.other_sizes import OtherSizes
from sparsejit.api.parted_model import PartedModel
from sparsejit.api.variant import (
    GRAPH_REFUSALS,
    Dtypes,
    TiledGraph,
    Variant,
    final_graph,
    make_variant,
)
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.frontends.batch_first import InputAxes
from sparsejit.frontends.nesting import Nest
from sparsejit.frontends.onnx import ImportedModel, import_onnx, is_onnx, model_name
from sparsejit.frontends.torch_export import Exported, export, exported_examples, is_program
from sparsejit.lowering.context import ModelOptions, Progress, told
from sparsejit.lowering.kept_weights import KeptWeights
from sparsejit.lowering.tiles import batch_tiles
from sparsejit.machine.target import Target

_ONE_X = (
    "an estimator takes one X of any length; leave out example_kwargs, dynamic_shapes, "
    "free_shapes, constants, fallback and free_batch"
)


@overload
def compile_model(
    model: Estimator,
    example_inputs: Any = None,
    *,
    dtype: Dtypes = "float32",
    target: str | Target = "native",
    threads: int | str = 1,
    tune: bool = False,
    exact: bool = False,
    progress: Progress | None = None,
) -> CompiledEstimator: ...


@overload
def compile_model(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: DynamicShapes | None = None,
    free_batch: bool = True,
    free_shapes: bool = False,
    constants: Mapping[str, Any] | None = None,
    fallback: None = None,
    dtype: Dtypes = "float32",
    target: str | Target = "native",
    threads: int | str = 1,
    tune: bool = False,
    exact: bool = False,
    progress: Progress | None = None,
) -> CompiledModel: ...


@overload
def compile_model(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: DynamicShapes | None = None,
    free_batch: bool = True,
    free_shapes: bool = False,
    constants: Mapping[str, Any] | None = None,
    fallback: str,
    dtype: Dtypes = "float32",
    target: str | Target = "native",
    threads: int | str = 1,
    tune: bool = False,
    exact: bool = False,
    progress: Progress | None = None,
) -> CompiledModel | PartedModel: ...


def compile_model(
    model: Any,
    example_inputs: Any = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: DynamicShapes | None = None,
    free_batch: bool = True,
    free_shapes: bool = False,
    constants: Mapping[str, Any] | None = None,
    fallback: str | None = None,
    dtype: Dtypes = "float32",
    target: str | Target = "native",
    threads: int | str = 1,
    tune: bool = False,
    exact: bool = False,
    progress: Progress | None = None,
) -> CompiledModel | PartedModel | CompiledEstimator:
    """Compile a whole model to one native function; what it computes is `model.eval()`.

    Args:
        model: a torch module, a torch.export.ExportedProgram, an ONNX model (the path of an .onnx
            file or a ModelProto), or a fitted estimator of scikit-learn, XGBoost or LightGBM.
        example_inputs: what the model is called with, a tuple of tensors or arrays. The model is
            compiled for their shapes; their batch is the one that reports are about. Programs and
            estimators need none, ONNX models only for sizes that are open beside the batch.
        example_kwargs: arguments of a torch model by name.
        dynamic_shapes: which sizes may change, by argument and axis: {"x": {0: "batch", 1:
            "time"}}, with a torch.export.Dim, which has bounds, for a name if you like. The name
            that begins with "batch" is the batch, on any axis; without one, that of axis 0 of the
            first input. Another size compiles the model once more, at its first use or by
            `prepare(time=9)`.
        free_batch: without names, whether samples that are computed apart may be any number.
        free_shapes: without names, whether other shapes compile the model once more.
        constants: numbers or arrays for inputs of an ONNX model by their names: {"sr": 16000}. The
            model has these inputs no more; what depends on them alone is computed now.
        fallback: "onnxruntime" leaves nodes of an ONNX model that cannot be compiled to ONNX
            Runtime. Where there are any, a PartedModel is made, whose batch is the example's.
        dtype: how weights are stored, as in `compile_matrix`; or a dict from patterns of layers'
            names ("encoder.*") to that, of which the last that matches counts.
        target: as in `compile_matrix`.
        threads: how many may share a call, or "auto" for one a core.
        tune: as in `compile_matrix`, for every layer.
        exact: as in `compile_matrix`, for every layer. Also keeps one tile, so that a sample has
            the same bits in any batch, and rules out Winograd's algorithm.
        progress: a function that is told each stage as it begins, and the share of the work done by
            then, 0 to 1.

    Returns:
        A callable that takes and returns what the model does.

    Raises:
        UnsupportedOperator: the model has operators that sparsejit does not know; it lists them
        InvalidInput: an argument has a value that makes no sense
        UnsupportedTarget: this machine cannot run the target
    """
    settings = ModelSettings(target, threads, tune, exact)
    if is_estimator(model):
        if any((example_kwargs, dynamic_shapes, free_shapes, constants, fallback, not free_batch)):
            raise InvalidInput(_ONE_X)
        return compile_estimator(model, example_inputs, settings, dtype, told(progress))
    args, kwargs = _arguments(model, example_inputs, example_kwargs)
    sizes = _sizes(model, dynamic_shapes, args, kwargs, constants or {})
    free = free_batch, free_shapes, sizes, constants or {}
    return _Compiler(model, *free, fallback, dtype, settings).once(args, kwargs, told(progress))


def _arguments(
    model: Any, inputs: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the model is called with; an exported program has its own examples.

    Raises InvalidInput for what is no tuple, and no mapping.
    """
    if inputs is None and not kwargs and (own := exported_examples(model)) is not None:
        return own
    if inputs is None and not kwargs and not is_onnx(model):
        raise InvalidInput("example_inputs is missing; give a tuple of the model's arguments")
    if inputs is not None and not isinstance(inputs, tuple | list):
        raise InvalidInput(
            f"example_inputs is a {type(inputs).__name__}; give a tuple of the model's arguments, "
            "such as (x,)"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InvalidInput(f"example_kwargs is a {type(kwargs).__name__}; give a dict")
    for leaf in (*(inputs or ()), *(kwargs or {}).values()):
        if 0 in getattr(leaf, "shape", ()):
            raise InvalidInput(
                f"an example input has shape {tuple(leaf.shape)}; give one with elements"
            )
    return tuple(inputs or ()), dict(kwargs or {})


def _sizes(
    model: Any,
    given: DynamicShapes | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    constants: Mapping[str, Any],
) -> NamedSizes | None:
    """Those that were named, or that an exported program leaves open beside the batch."""
    if given is not None:
        return named_sizes(given, arguments_by_name(model, args, kwargs, constants))
    if not is_program(model) or kwargs:
        return None
    sizes = sizes_of_exported(model, args)
    return sizes if sizes is not None and sizes.has_others else None


@dataclass
class _Compiler:
    """A model and how to compile it, for inputs of any shapes."""

    model: Any
    free_batch: bool
    free_shapes: bool
    sizes: NamedSizes | None
    constants: Mapping[str, Any]
    fallback: str | None
    dtype: Dtypes
    settings: ModelSettings
    axes: InputAxes | None = None  # of the batch, where they are known
    name: str = ""

    def __post_init__(self) -> None:
        self.options = self.settings.resolved()
        own = model_name(self.model) if is_onnx(self.model) else type(self.model).__name__
        self.name = self.name or own
        if self.sizes is not None:
            self.free_batch = self.free_batch and self.sizes.batch_axes is not None
            self.free_shapes = self.sizes.has_others

    def once(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], tell: Progress
    ) -> CompiledModel | PartedModel:
        """What `compiled` makes, or made of the same file before."""
        check_fallback(self.fallback, self.model)
        make = partial(self.compiled, args, kwargs, tell)
        is_file = is_onnx(self.model) and isinstance(self.model, str | Path)
        if not is_file or self.free_shapes or self.sizes or kwargs:
            return make()
        asked, graphs = partial(self.asked, args), partial(self.graphs_of, args)
        return compiled_once(self.model, asked, make, graphs)

    def compiled(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], tell: Progress
    ) -> CompiledModel | PartedModel:
        """The model for inputs like these; in parts, where it must be and may be."""
        kept = _kept_weights() if self._may_share else None
        try:
            (inputs, outputs), variant = self.make(args, kwargs, tell, kept)
        except GRAPH_REFUSALS:
            if self.fallback is None or kwargs:
                raise
            given = self.model, args, self.constants, self.dtype, self.settings
            return compile_in_parts(*given, tell, self.free_shapes or self.sizes is not None)
        is_open = self.free_shapes or (self.sizes is not None and variant.tile is None)
        again = self.other_sizes(inputs, variant, args, kwargs, kept) if is_open else None
        sizes = self.sizes and self.sizes.in_order(inputs.items[1].keys)
        return CompiledModel((variant,), inputs, outputs, self.settings, again, sizes)

    @property
    def _may_share(self) -> bool:
        """Whether code for other sizes may read the weights of the first."""
        return self.sizes is not None and self.sizes.has_others and not is_onnx(self.model)

    def make(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        progress: Progress,
        kept: KeptWeights | None = None,
    ) -> tuple[tuple[Nest, Nest], Variant]:
        """Read the model's graph and compile it for inputs like these; and what calls take, give.

        What was read is let go first: it may hold the weights once more. `kept` takes what code
        for other sizes needs of the weights.
        """
        progress("exporting the model", 0.0)
        trees, graphs, options = self._read(args, kwargs)
        first, *others = graphs
        given = options, self.dtype, first.tile, self.name, progress
        return trees, make_variant(first.graph, *given, others=others, kept=kept)

    def asked(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """All that the code of an ONNX file depends on but the file, as data of which digests are.

        Raises AttributeError, TypeError, ValueError or ImportError for what is refused later.
        """
        rules = self.dtype if isinstance(self.dtype, str) else list(self.dtype.items())
        numbers = {name: np.asarray(value) for name, value in self.constants.items()}
        shapes = [tuple(map(int, example.shape)) for example in args]
        given = rules, numbers, shapes, self.fallback
        return version("onnx"), self.settings, self.free_batch, *given

    def graphs_of(self, args: tuple[Any, ...], file: OpenFile) -> list[list[TiledGraph]]:
        """What `make` lowers of an ONNX file, which may have another name by now."""
        from onnx import load

        _, graphs, options = replace(self, model=load(str(file.path)))._read(args, {})
        return [[TiledGraph(final_graph(one, options, self.dtype), t) for one, t in graphs]]

    def _read(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Nest, Nest], list[TiledGraph], ModelOptions]:
        """The model's nests, its graphs for tiles of samples, the main one first, and options."""
        exported = self._graphs(args, kwargs)
        trees = exported.input_tree, exported.output_tree
        if not exported.batch_is_free:
            return trees, [TiledGraph(exported.graph(None), None)], self.options
        batch = exported.example_batch or 1
        own = self.options
        tiles = batch_tiles(exported.graph(1), batch, own.threads, one_tile=own.exact)
        options = replace(own, shares_tiles=tiles.shared)
        return trees, [TiledGraph(exported.graph(each), each) for each in tiles.samples], options

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
        """What compiles the model for flat inputs of other shapes, nested as before.

        The batch stays on its axes: other sizes may let it be on others.
        """
        axes = first.batch_axes
        compiler = replace(self, axes=None if axes is None else axes.inputs)

        def compile_it(model: Any, args: Any, kwargs: Mapping[str, Any]) -> Variant:
            return replace(compiler, model=model).make(args, kwargs, told(None))[1]

        def read_graphs(model: Any, args: Any, kwargs: Mapping[str, Any]) -> list[TiledGraph]:
            _, graphs, options = replace(compiler, model=model)._read(args, kwargs)
            return [TiledGraph(final_graph(one, options, self.dtype), t) for one, t in graphs]

        shapes = [tuple(each.shape) for each in (*args, *kwargs.values())] if self.sizes else []
        how = compile_it, read_graphs
        return OtherSizes(self.model, self.sizes, inputs, first, shapes, kept, *how)


def _kept_weights() -> KeptWeights | None:
    """None where the system does not grant the addresses."""
    try:
        return KeptWeights()
    except CompileError:
        return None
