"""An ONNX model as graphs of any batch."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.frontends.arrays import Array, to_array
from sparsejit.frontends.batch_axis import (
    GraphsBySize,
    InputAxes,
    SizedBatch,
    SizedInput,
    batch_first,
    common_axes,
    free_batch_of,
    likely_axes,
    named_axes,
)
from sparsejit.frontends.nesting import (
    TENSOR,
    Nest,
    NestKind,
    maps_of,
    named,
    tensor_of,
    texts_of,
    with_open_axes,
)
from sparsejit.frontends.onnx.interpreting import OutputDtype, ReadGraph, read_graph
from sparsejit.frontends.onnx.reading import (
    dtype_of,
    initialised,
    numpy_dtype_of,
    opset_of,
    read_model,
    size_of,
    tensors_of,
)
from sparsejit.frontends.onnx.words import Words, is_text, zip_keys
from sparsejit.frontends.states import ModelInterface, interface_of
from sparsejit.ir.dtypes import TEXT, Dtype
from sparsejit.ir.graph import BatchAxes, Graph
from sparsejit.ir.operator import SamplesMixed

if TYPE_CHECKING:
    from onnx import ModelProto

Shape = tuple[int | str | None, ...]


def import_onnx(
    source: str | Path | ModelProto,
    example_inputs: Sequence[Any] = (),
    free_batch: bool = True,
    constants: Mapping[str, Any] | None = None,
    axes: InputAxes | None = None,
) -> ImportedModel:
    """Read an ONNX model: the path of an .onnx file, or a ModelProto.

    Example inputs give sizes that the file leaves open, in the order of its inputs; without them
    the batch is 1. With `free_batch` the batch may have any length if the file leaves it open or
    has several samples, and if no sample affects another. `axes` has the batch axis of each input,
    if they are known. Inputs named in `constants` have these values, and calls do not give them any
    more. Raises the errors of `reading.read_model`, InvalidInput for examples that do not fit, and
    UnsupportedOperator, which lists the nodes that have no mapping.
    """
    given = GivenModel(read_model(source), tuple(example_inputs), constants or {})
    return ImportedModel(given, free_batch, axes)


@dataclass(frozen=True)
class DeclaredInput:
    """An input of a file: name, dtype and sizes; an open size is a name, or None without one."""

    name: str
    dtype: np.dtype[Any]
    shape: Shape


def declared_inputs(source: str | Path | ModelProto) -> list[DeclaredInput]:
    """The inputs that a call gives, in the order of the file. Raises the errors of `read_model`."""
    graph = read_model(source).graph
    held = initialised(graph)
    return [
        DeclaredInput(
            each.name,
            numpy_dtype_of(each.type.tensor_type.elem_type, f"input {each.name}"),
            _declared(each),
        )
        for each in graph.input
        if each.name not in held
    ]


class GivenModel:
    """An ONNX model, with the sizes of its inputs and the known arrays that it is read for.

    Inputs are a tuple, in the order of the file; a single output is no tuple, several are one.
    `arrays` are known in addition to the initialisers of the file.
    """

    def __init__(
        self,
        model: ModelProto,
        examples: tuple[Any, ...] = (),
        constants: Mapping[str, Any] | None = None,
        arrays: Mapping[str, Array] | None = None,
    ) -> None:
        self.arrays = tensors_of(model.graph)
        self.words = Words.of(model.graph)
        self._keys = zip_keys(model.graph.node)
        self.model, self.opset = _without_tensors(model), opset_of(model)
        inputs = [each for each in self.model.graph.input if each.name not in self.arrays]
        self.arrays.update(_fixed(inputs, constants or {}), **arrays or {})
        self.inputs = [each for each in inputs if each.name not in self.arrays]
        self.declared: dict[str, Shape] = {each.name: _declared(each) for each in self.inputs}
        arguments = Nest(NestKind.TUPLE, tuple(map(self._tensor, self.inputs)))
        nests = zip(self.inputs, arguments.items, strict=True)
        texts = {each.name for each, nest in nests if nest.dtype == TEXT.name}
        self.shapes = _sizes(self.declared, examples, texts)
        self.input_tree = Nest(NestKind.TUPLE, (arguments, Nest(NestKind.DICT)))
        self.output_tree = self.outputs_of([None] * len(self.model.graph.output))

    def outputs_of(self, dtypes: Sequence[OutputDtype]) -> Nest:
        """Nest of a call's outputs; `dtypes` are used where the file declares none.

        A sequence is a list of its tensors.
        """
        values = zip(self.model.graph.output, dtypes, strict=True)
        outputs = tuple(named(self._tensor(*pair), pair[0].name) for pair in values)
        return outputs[0] if len(outputs) == 1 else Nest(NestKind.TUPLE, outputs)

    def _tensor(self, value: Any, made: OutputDtype = None) -> Nest:
        """A tensor of the file's dtype, or of the dtype `made` where the file declares none."""
        if value.name in self._keys:
            return maps_of(self._keys[value.name], TENSOR)
        if isinstance(made, tuple):
            return Nest(NestKind.LIST, tuple(map(self._of_dtype, made)))
        if not value.type.WhichOneof("value"):
            return self._of_dtype(made)
        try:
            return self._of_dtype(dtype_of(value.type.tensor_type.elem_type, value.name))
        except InvalidInput:  # reading the graph refuses it where it matters
            return TENSOR

    def _of_dtype(self, dtype: Dtype | None) -> Nest:
        if is_text(dtype):
            return texts_of(self.words.texts)
        return TENSOR if dtype is None else tensor_of(dtype.name)


def _without_tensors(model: ModelProto) -> ModelProto:
    """A copy without its initialisers, which would stay in memory with any part of the model."""
    light = type(model)(ir_version=model.ir_version, opset_import=model.opset_import)
    light.graph.name = model.graph.name
    light.graph.node.extend(model.graph.node)
    light.graph.input.extend(model.graph.input)
    light.graph.output.extend(model.graph.output)
    return light


class ImportedModel:
    """A model that was read. `graph(batch)` is its graph for a batch of that size.

    If the batch is free, it is axis 0 in the graph, whatever its axis in the model.
    """

    def __init__(
        self, given: GivenModel, free_batch: bool, axes: InputAxes | None = None
    ) -> None:
        self._given = given
        self.input_tree = given.input_tree
        self._axes: InputAxes = (0,) * len(given.shapes)
        self.example_batch = next((shape[0] for shape in given.shapes.values() if shape), None)
        self._graphs = GraphsBySize()
        first = self._read(None)  # missing operators are reported now
        self._graphs.get(None, lambda _: first.graph)
        self.output_tree = with_open_axes(given.outputs_of(first.dtypes), first.graph.open_axes)
        self._sized: SizedBatch | None = None
        self._found: BatchAxes | None = None
        self.why_not_free = "free_batch=False" if not free_batch else self._mixing(axes)

    @property
    def batch_is_free(self) -> bool:
        """Whether inputs and outputs have a batch and no sample touches another."""
        return self._found is not None

    @property
    def interface(self) -> ModelInterface:
        """The inputs and outputs by their names in the file."""
        return interface_of(self.input_tree, self.output_tree, [*self._given.shapes])

    def graph(self, batch: int | None = None) -> Graph:
        """The graph for that batch, by default the example's."""
        graph = self._of_size(batch)
        return graph if self._found is None else batch_first(graph, self._found)

    def _of_size(self, batch: int | None) -> Graph:
        """The graph for that batch, on the axes that the model has it on."""
        if batch is None or batch == self.example_batch:
            return self._graphs.get(None, lambda _: self._read(None).graph)
        if self._sized is not None:
            return self._sized.graph(batch)
        return self._graphs.get(batch, lambda size: self._read(size).graph)

    def _read(self, batch: int | None) -> ReadGraph:
        pairs = zip(self._given.shapes.items(), self._axes, strict=True)
        shapes = {
            name: shape
            if batch is None or axis is None
            else (*shape[:axis], batch, *shape[axis + 1 :])
            for (name, shape), axis in pairs
        }
        given = self._given
        return read_graph(given.model.graph, given.opset, shapes, given.arrays, given.words)

    def _mixing(self, axes: InputAxes | None) -> str:
        """Reason why the batch is not free, on the likeliest axes; empty if it is free."""
        first, example_batch = "", self.example_batch
        for choice in self._choices() if axes is None else [axes]:
            try:
                self._found = self._with_batch(choice)
                return ""
            except SamplesMixed as reason:
                first = first or str(reason)
        self._axes, self.example_batch = (0,) * len(self._axes), example_batch
        self._graphs = self._graphs.with_example_alone()
        return first or "no input has axes"

    def _choices(self) -> Iterator[InputAxes]:
        """Batch axes to try, each once, likelier ones first."""
        shapes = self._given.shapes
        names = [
            {axis: size for axis, size in enumerate(shape) if isinstance(size, str)}
            for shape in self._given.declared.values()
        ]
        pairs = zip(shapes.values(), names, strict=True)
        inputs = [SizedInput(shape, named) for shape, named in pairs]
        sure = [axes for axes in (common_axes(inputs), named_axes(inputs)) if axes is not None]
        yield from dict.fromkeys(sure)
        yield from (axes for axes in likely_axes(self._of_size(None)) if axes not in sure)

    def _with_batch(self, axes: InputAxes) -> BatchAxes:
        """Find the batch axes, given the inputs' axes. Raises SamplesMixed if there are none."""
        sizes = [
            (name, axis, self._given.shapes[name][axis])
            for name, axis in zip(self._given.shapes, axes, strict=True)
            if axis is not None
        ]
        if len({size for _, _, size in sizes}) != 1:
            raise SamplesMixed("its inputs have batches of several sizes")
        self._axes, self.example_batch = axes, sizes[0][2]
        self._graphs = self._graphs.with_example_alone()
        for name, axis, size in sizes:
            if isinstance(self._given.declared[name][axis], int):
                try:
                    self._sized = SizedBatch(self._of_size(None), axes)
                except SamplesMixed as reason:
                    fixed = f"axis {axis} of input {name} is {size} in the file"
                    raise SamplesMixed(f"{fixed}, and {reason}") from None
                return self._sized.axes
        return free_batch_of(self._of_size, self.example_batch, axes).axes


def _fixed(inputs: Sequence[Any], constants: Mapping[str, Any]) -> dict[str, Array]:
    """Constants in the dtypes of the inputs that they replace.

    Raises InvalidInput for a name that no input has, and for a value that the input does not hold.
    """
    declared = {each.name: each for each in inputs}
    found = {}
    for name, given in constants.items():
        if name not in declared:
            raise InvalidInput(f"constants has {name!r}; the inputs are {', '.join(declared)}")
        value = declared[name]
        number = value.type.tensor_type.elem_type
        dtype = numpy_dtype_of(number, f"input {name}")
        array = np.asarray(given)
        is_number = array.dtype.kind in "biuf"
        is_rounded = dtype_of(number, f"input {name}").kind == "f"
        if not is_number or not (is_rounded or np.array_equal(array.astype(dtype), array)):
            raise InvalidInput(f"constants[{name!r}] is {given!r}, which {dtype} does not hold")
        _check_sizes(f"constants[{name!r}]", array.shape, _declared(value))
        found[name] = array.astype(dtype)
    return found


def _declared(value: Any) -> Shape:
    """The sizes in the file: a number, a name, or None. Raises InvalidInput where it has none."""
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        raise InvalidInput(f"input {value.name} has no shape in the file; export it with one")
    return tuple(map(size_of, kind.shape.dim))


def _sizes(
    declared: Mapping[str, Shape], examples: Sequence[Any], texts: Container[str]
) -> dict[str, tuple[int, ...]]:
    """Sizes of each input: the example's, or the file's with a batch of 1; `texts` take strings."""
    if not examples:
        batch = {shape[0] for shape in declared.values() if shape and isinstance(shape[0], str)}
        return {name: _without_example(name, shape, batch) for name, shape in declared.items()}
    if len(examples) != len(declared):
        raise InvalidInput(
            f"example_inputs has {len(examples)} arrays, the model {len(declared)} inputs "
            f"({', '.join(declared)}); give one for each, in that order"
        )
    found = {}
    for (name, shape), example in zip(declared.items(), examples, strict=True):
        is_of_texts = name in texts and isinstance(example, np.ndarray) and is_text(example.dtype)
        array = example if is_of_texts else to_array(example, name, takes_bools=True)
        sizes = tuple(array.shape)
        _check_sizes(f"example of {name}", sizes, shape)
        found[name] = sizes
    return found


def _check_sizes(what: str, sizes: tuple[int, ...], shape: Shape) -> None:
    """Raise InvalidInput for sizes that differ from the file's."""
    fits = len(sizes) == len(shape) and all(
        not isinstance(wanted, int) or size == wanted
        for size, wanted in zip(sizes, shape, strict=True)
    )
    if not fits:
        raise InvalidInput(f"{what} has shape {sizes}; the model takes {shape}")


def _without_example(name: str, shape: Shape, batch: Container[str]) -> tuple[int, ...]:
    """Sizes with a batch of 1 where it is open: axis 0, or an axis with a name in `batch`."""
    sizes = [
        1 if (axis == 0 and not isinstance(n, int)) or n in batch else n
        for axis, n in enumerate(shape)
    ]
    for axis, size in enumerate(sizes):
        if not isinstance(size, int):
            raise InvalidInput(
                f"axis {axis} of input {name} is {size or 'open'} in the file; give example_inputs"
            )
    return tuple(size for size in sizes if isinstance(size, int))
