"""An ONNX model as graphs of any batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.frontends.arrays import Array, to_array
from sparsejit.frontends.batch_axis import GraphsBySize, why_fixed
from sparsejit.frontends.nesting import TENSOR, Nest, NestKind, tensor_of
from sparsejit.frontends.onnx.interpreting import ReadGraph, read_graph
from sparsejit.frontends.onnx.reading import dtype_of, opset_of, read_model, tensor_array
from sparsejit.frontends.resized_batch import SizedBatch
from sparsejit.ir.batch import SamplesMixed
from sparsejit.ir.graph import Graph

if TYPE_CHECKING:
    from onnx import ModelProto

Shape = tuple[int | str | None, ...]


def import_onnx(
    source: str | Path | ModelProto,
    example_inputs: Sequence[Any] = (),
    free_batch: bool = True,
    constants: Mapping[str, Any] | None = None,
) -> ImportedModel:
    """The path of an .onnx file, or a ModelProto.

    Example inputs give sizes that the file leaves open, in the order of its inputs; without them
    the batch is 1. With `free_batch` axis 0 may have any length where the file leaves it open in
    all inputs, or has several samples, and no sample touches another. Inputs that `constants` name
    are what it says, and not given any more. Raises as `reading.read_model` does, InvalidInput for
    examples that do not fit, and UnsupportedOperator, which lists the nodes that have no mapping.
    """
    given = GivenModel(read_model(source), tuple(example_inputs), constants or {})
    return ImportedModel(given, free_batch)


@dataclass(frozen=True)
class DeclaredInput:
    """An input of a file: its name, its dtype, and sizes, a name or None for those left open."""

    name: str
    dtype: np.dtype[Any]
    shape: Shape


def declared_inputs(source: str | Path | ModelProto) -> list[DeclaredInput]:
    """The inputs that a call gives, in the order of the file. Raises as `read_model` does."""
    graph = read_model(source).graph
    held = {each.name for each in graph.initializer}
    return [
        DeclaredInput(
            each.name,
            dtype_of(each.type.tensor_type.elem_type, f"input {each.name}"),
            _declared(each),
        )
        for each in graph.input
        if each.name not in held
    ]


class GivenModel:
    """A file's graph, and the sizes and arrays that it is read for.

    Inputs are a tuple, in the order of the file; a single output comes alone, several as a tuple.
    `arrays` are known beside the initialisers of the file.
    """

    def __init__(
        self,
        model: ModelProto,
        examples: tuple[Any, ...] = (),
        constants: Mapping[str, Any] | None = None,
        arrays: Mapping[str, Array] | None = None,
    ) -> None:
        self.arrays = {each.name: tensor_array(each) for each in model.graph.initializer}
        self.model, self.opset = _without_tensors(model), opset_of(model)
        inputs = [each for each in self.model.graph.input if each.name not in self.arrays]
        self.arrays.update(_fixed(inputs, constants or {}), **arrays or {})
        self.inputs = [each for each in inputs if each.name not in self.arrays]
        self.declared: dict[str, Shape] = {each.name: _declared(each) for each in self.inputs}
        self.shapes = _sizes(self.declared, examples)
        arguments = Nest(NestKind.TUPLE, tuple(map(_tensor, self.inputs)))
        self.input_tree = Nest(NestKind.TUPLE, (arguments, Nest(NestKind.DICT)))
        self.output_tree = self.outputs_of([None] * len(self.model.graph.output))

    def outputs_of(self, dtypes: Sequence[np.dtype[Any] | None]) -> Nest:
        """What a call gives, where the file does not say of these dtypes."""
        values = zip(self.model.graph.output, dtypes, strict=True)
        outputs = tuple(_tensor(*pair) for pair in values)
        return outputs[0] if len(outputs) == 1 else Nest(NestKind.TUPLE, outputs)


def _without_tensors(model: ModelProto) -> ModelProto:
    """A copy without its initialisers, which would stay in memory with any part of the model."""
    light = type(model)(ir_version=model.ir_version, opset_import=model.opset_import)
    light.graph.name = model.graph.name
    light.graph.node.extend(model.graph.node)
    light.graph.input.extend(model.graph.input)
    light.graph.output.extend(model.graph.output)
    return light


class ImportedModel:
    """A model that was read. `graph(batch)` is its graph for a batch of that size."""

    def __init__(self, given: GivenModel, free_batch: bool) -> None:
        self._given = given
        self.input_tree = given.input_tree
        self.example_batch = next((shape[0] for shape in given.shapes.values() if shape), None)
        self._graphs = GraphsBySize()
        first = self._read(None)  # what is missing is said now
        self._graphs.get(None, lambda _: first.graph)
        self.output_tree = given.outputs_of(first.dtypes)
        self._sized: SizedBatch | None = None
        self.why_not_free = "free_batch=False" if not free_batch else self._mixing()

    @property
    def batch_is_free(self) -> bool:
        """Whether axis 0 of inputs and outputs is the batch and no sample touches another."""
        return not self.why_not_free

    def graph(self, batch: int | None = None) -> Graph:
        """With that batch, by default the example's."""
        if batch is None or batch == self.example_batch:
            return self._graph(None)
        return self._graph(batch) if self._sized is None else self._sized.graph(batch)

    def _graph(self, batch: int | None) -> Graph:
        return self._graphs.get(batch, lambda size: self._read(size).graph)

    def _read(self, batch: int | None) -> ReadGraph:
        shapes = {
            name: shape if batch is None else (batch, *shape[1:])
            for name, shape in self._given.shapes.items()
        }
        return read_graph(self._given.model.graph, self._given.opset, shapes, self._given.arrays)

    def _mixing(self) -> str:
        """Why the batch is not free, from the graphs of two batches."""
        for name, declared in self._given.declared.items():
            if not declared:
                return f"input {name} has no axes"
            if isinstance(declared[0], int):
                return self._of_other_sizes(f"axis 0 of input {name} is {declared[0]} in the file")
        if len({shape[0] for shape in self._given.shapes.values()}) != 1:
            return "axis 0 of its inputs differs"
        return why_fixed(self.graph, self.example_batch)[0]

    def _of_other_sizes(self, fixed: str) -> str:
        """Why the batch of a file that fixes its size is not free all the same, or nothing."""
        try:
            self._sized = SizedBatch(self._graph(None))
        except SamplesMixed as reason:
            return f"{fixed}, and {reason}"
        return ""


def _fixed(inputs: Sequence[Any], constants: Mapping[str, Any]) -> dict[str, Array]:
    """Constants in the dtypes of the inputs that they take the place of.

    Raises InvalidInput for a name that no input has, and for what the input does not hold.
    """
    declared = {each.name: each for each in inputs}
    found = {}
    for name, given in constants.items():
        if name not in declared:
            raise InvalidInput(f"constants has {name!r}; the inputs are {', '.join(declared)}")
        value = declared[name]
        dtype = dtype_of(value.type.tensor_type.elem_type, f"input {name}")
        array = np.asarray(given)
        is_number = array.dtype.kind in "biuf"
        if not is_number or (dtype.kind != "f" and not np.array_equal(array.astype(dtype), array)):
            raise InvalidInput(f"constants[{name!r}] is {given!r}, which {dtype} does not hold")
        _check_sizes(f"constants[{name!r}]", array.shape, _declared(value))
        found[name] = array.astype(dtype)
    return found


def _tensor(value: Any, made: np.dtype[Any] | None = None) -> Nest:
    """Of the dtype that the file says, or that it is made of where it says none."""
    if made is not None and not value.type.WhichOneof("value"):
        return tensor_of(made.name)
    try:
        return tensor_of(dtype_of(value.type.tensor_type.elem_type, value.name).name)
    except InvalidInput:  # reading the graph refuses it where it matters
        return TENSOR


def _declared(value: Any) -> Shape:
    """The sizes in the file: a number, a name, or None. Raises InvalidInput for a negative one."""
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        raise InvalidInput(f"input {value.name} has no shape in the file; export it with one")
    shape = tuple(
        axis.dim_value if axis.HasField("dim_value") else axis.dim_param or None
        for axis in kind.shape.dim
    )
    if any(isinstance(n, int) and n < 0 for n in shape):
        raise InvalidInput(f"input {value.name} has sizes {shape} in the file; export it again")
    return shape


def _sizes(declared: Mapping[str, Shape], examples: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """The sizes of each input: those of the example, or of the file with a batch of 1."""
    if not examples:
        return {name: _without_example(name, shape) for name, shape in declared.items()}
    if len(examples) != len(declared):
        raise InvalidInput(
            f"example_inputs has {len(examples)} arrays, the model {len(declared)} inputs "
            f"({', '.join(declared)}); give one for each, in that order"
        )
    found = {}
    for (name, shape), example in zip(declared.items(), examples, strict=True):
        sizes = tuple(to_array(example, name, takes_bools=True).shape)
        _check_sizes(f"example of {name}", sizes, shape)
        found[name] = sizes
    return found


def _check_sizes(what: str, sizes: tuple[int, ...], shape: Shape) -> None:
    """Raises InvalidInput for sizes that are not as the file has them."""
    fits = len(sizes) == len(shape) and all(
        not isinstance(wanted, int) or size == wanted
        for size, wanted in zip(sizes, shape, strict=True)
    )
    if not fits:
        raise InvalidInput(f"{what} has shape {sizes}; the model takes {shape}")


def _without_example(name: str, shape: Shape) -> tuple[int, ...]:
    sizes = [1 if axis == 0 and not isinstance(n, int) else n for axis, n in enumerate(shape)]
    for axis, size in enumerate(sizes):
        if not isinstance(size, int):
            raise InvalidInput(
                f"axis {axis} of input {name} is {size or 'open'} in the file; give example_inputs"
            )
    return tuple(size for size in sizes if isinstance(size, int))
