"""The compiled model: a callable, and the record of what was built and why."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sparsejit.api.advice import Advice
from sparsejit.api.advisor import advice_for
from sparsejit.api.compiled import Compiled
from sparsejit.api.layers_report import measured_times, report_of
from sparsejit.api.model_export import exported_model
from sparsejit.api.model_file import KIND, ModelSource, SavedGraph, model_to_data
from sparsejit.api.narrow_numbers import NarrowNumbers
from sparsejit.api.options import ModelSettings
from sparsejit.api.report import Report
from sparsejit.api.statistics import statistics_of
from sparsejit.api.variant import Variant, lowered_variant
from sparsejit.artefact import sealed
from sparsejit.artefact.exported import ExportedFunction
from sparsejit.errors import CompileError, DamagedFile, InvalidInput
from sparsejit.frontends.nesting import NARROW, Nest, NestKind, flatten, unflatten
from sparsejit.ir.graph import Array, Graph
from sparsejit.runtime.program import Program

Shapes = tuple[tuple[int, ...], ...]


class CompiledModel(Compiled):
    """A model as machine code with its weights inside. Thread-safe.

    Call it as the model was called: torch tensors or numpy arrays in, the same out, nested as the
    model nests them. Where `batch_is_free`, axis 0 of all inputs may have any length. `pointer` is
    the address of `int run(inputs, outputs, workspace, tiles)`.
    """

    def __init__(
        self,
        variants: Sequence[Variant],
        input_nest: Nest,
        output_nest: Nest,
        settings: ModelSettings,
        compile_for: Callable[[Sequence[Any]], Variant] | None = None,
    ) -> None:
        self._first = variants[0]
        self._variants = {_shapes(variant): variant for variant in variants}
        self._settings = settings
        self._input_nest, self._output_nest = input_nest, output_nest
        self._compile_for = compile_for
        self._compiling = threading.Lock()
        # Most models take a few tensors and return one: then nothing need be unpacked.
        self._plain_arguments = _plain_arguments(input_nest)
        self._is_plain_result = output_nest.kind is NestKind.TENSOR
        self._narrow = NarrowNumbers(self._first.graph, input_nest, output_nest)

    @property
    def title(self) -> str:
        """How much it holds, in a line."""
        stats = self.stats
        batch = "any batch" if self.batch_is_free else "a fixed batch"
        return (
            f"sparsejit model: {stats['layers']} layers, {stats['nnz']} nonzeros of "
            f"{stats['weights']} weights, {stats['kernels']} kernels, {batch}"
        )

    @property
    def _program(self) -> Program:
        return self._first.program

    @property
    def graph(self) -> Graph:
        """What is computed, after all passes; as text it reads like the model."""
        return self._first.graph

    @property
    def batch_is_free(self) -> bool:
        """Whether axis 0 of all inputs may have any length."""
        return self._first.tile is not None

    @property
    def tile(self) -> int | None:
        """How many samples run at a time where the batch is free."""
        return self._first.tile

    @property
    def stats(self) -> dict[str, Any]:
        """Sizes: layers, kernels, weights, nnz, bytes of code, literals and workspace; times."""
        return statistics_of(self._first)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns for these inputs.

        Raises InvalidInput for inputs that are nested, shaped or typed otherwise than the model's.
        """
        plain = not kwargs and len(args) == self._plain_arguments
        leaves = args if plain else self._leaves(args, kwargs)
        results = self.run(leaves)
        if not all(isinstance(leaf, np.ndarray) for leaf in leaves):
            from_numpy = sys.modules["torch"].from_numpy
            results = [from_numpy(result) for result in results]
        return results[0] if self._is_plain_result else unflatten(self._output_nest, results)

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The flat list of inputs. Raises InvalidInput for others than it was compiled for."""
        by_place, by_name = self._input_nest.items
        if len(args) != len(by_place.items) or kwargs.keys() != set(by_name.keys):
            names = [value.origin.name for value in self.graph.inputs]
            raise InvalidInput(
                f"the call gives {_arguments(len(args), kwargs)}, and the model was compiled for "
                f"{_arguments(len(by_place.items), by_name.keys)}; its inputs are "
                f"{', '.join(names)}"
            )
        return flatten(self._input_nest, (args, kwargs), "inputs")

    def run(self, inputs: Sequence[Any]) -> list[Array]:
        """The flat list of outputs, numpy arrays, for a flat list of inputs."""
        arrays, narrow = _as_arrays(inputs), self._narrow
        if narrow.inputs:
            narrow.widen(arrays)
        results = self._variant_for(arrays).call.run(*arrays)
        return narrow.narrowed(results) if narrow.outputs else results

    def explain(self, *, measure: bool = False) -> Report:
        """What every layer costs and why; `measure` runs the model for about a second.

        Print it; or take `as_dict()`, or `html()`, one self-contained page.
        """
        return report_of(self._first, self.title, self.stats, measure)

    def advise(self) -> Advice:
        """What would make the model faster on this processor, and by how much.

        Runs the model for about a second, then prices its layers as they might be: some seconds
        for large ones. Gains are predictions; what a change does to results is yours to measure.
        """
        return advice_for(self._first, measured_times(self._first))

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        """A function without arguments that computes outputs from inputs, as they are by then.

        Both are flat lists of contiguous numpy arrays, which it holds, all whole numbers as int64.
        It adds some 20 ns to the native time and keeps the interpreter lock; one thread may call it
        at a time. A divisor of 0, or an index out of range, raises nothing.
        """
        arrays, results = _bound_arrays(inputs), _bound_arrays(outputs)
        return self._variant_for(arrays).call.bind(arrays, results)

    def _saved(self) -> sealed.SealedFile:
        return sealed.SealedFile(KIND, *model_to_data(self._source()))

    def _exported(self, name: str) -> ExportedFunction:
        return exported_model(name, self._first)

    def _source(self) -> ModelSource:
        """What it is made from."""
        variants = tuple(self._variants.values())
        graphs = [SavedGraph(v.graph, v.tile, v.options.shares_tiles) for v in variants]
        name = self._first.program.name
        return ModelSource(name, self._settings, self._input_nest, self._output_nest, graphs)

    def _variant_for(self, arrays: Sequence[Array]) -> Variant:
        if len(self._variants) == 1 and self._compile_for is None:
            return self._first
        shapes = tuple(array.shape for array in arrays)
        if self.batch_is_free:
            shapes = tuple(shape[1:] for shape in shapes)
        if shapes not in self._variants and self._compile_for is not None:
            with self._compiling:
                if shapes not in self._variants:  # another thread may have been first
                    self._variants[shapes] = self._compile_for(self._narrow.as_given(arrays))
        return self._variants.get(shapes, self._first)


def _arguments(count: int, names: Iterable[str]) -> str:
    """So many by position, and those by name, in words."""
    words = [f"{count} argument{'s' * (count != 1)} by position", *(f"{name}=" for name in names)]
    return " and ".join(words)


def compile_saved(source: ModelSource) -> CompiledModel:
    """The model that a source was kept of, for this machine.

    Raises DamagedFile, without the file's name, where it has no kernels for what the source says,
    and UnsupportedTarget for a target that cannot run here.
    """
    options = source.settings.resolved()
    try:
        variants = [
            lowered_variant(graph, replace(options, shares_tiles=shared), tile, source.name)
            for graph, tile, shared in source.graphs
        ]
    except (CompileError, InvalidInput) as error:
        raise DamagedFile(f"has a graph that cannot be compiled: {error}") from error
    return CompiledModel(variants, source.input_nest, source.output_nest, source.settings)


def _shapes(variant: Variant) -> Shapes:
    """Of the inputs, without the batch where that is free."""
    shapes = tuple(value.shape for value in variant.graph.inputs)
    return shapes if variant.tile is None else tuple(shape[1:] for shape in shapes)


def _plain_arguments(nest: Nest) -> int:
    """How many tensors a call takes by position; -1 where it takes anything else."""
    args, kwargs = nest.items
    is_plain = not kwargs.items and all(item.kind is NestKind.TENSOR for item in args.items)
    return len(args.items) if is_plain else -1


def _as_arrays(leaves: Sequence[Any]) -> list[Array]:
    """Tensors as numpy arrays that share their memory; `NativeCall` checks dtypes and shapes."""
    return [
        leaf if isinstance(leaf, np.ndarray) else _as_array(leaf, number)
        for number, leaf in enumerate(leaves)
    ]


def _bound_arrays(leaves: Sequence[Any]) -> list[Array]:
    """Arrays in place of leaves; raises InvalidInput where one could only be a copy."""
    if not isinstance(leaves, Sequence):
        raise InvalidInput(f"inputs is a {type(leaves).__name__}; bind a list of numpy arrays")
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, np.ndarray) or leaf.dtype.name in NARROW:
            found = getattr(leaf, "dtype", None) or type(leaf).__name__
            raise InvalidInput(
                f"input {number} is {found}, which is not used in place; bind a numpy array of "
                "float32, int64 or bool"
            )
    return list(leaves)


def _as_array(leaf: Any, number: int) -> Array:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(leaf, torch.Tensor):
        raise InvalidInput(
            f"input {number} is a {type(leaf).__name__}; give a torch tensor or a numpy array"
        )
    try:
        array: Array = leaf.numpy()
    except (TypeError, RuntimeError):  # it is elsewhere, or wants a gradient
        if not leaf.is_cpu:
            raise InvalidInput(f"input {number} is on {leaf.device}; move it with .cpu()") from None
        try:
            array = leaf.detach().resolve_conj().resolve_neg().numpy()
        except (TypeError, RuntimeError):
            raise InvalidInput(
                f"input {number} is {leaf.dtype}, {leaf.layout}; give a dense tensor of float32, "
                "int64 or bool"
            ) from None
    return array
