"""A model that was given, and the surface that it declares, as ONNX Runtime shows it.

    declared_by   the inputs, outputs and metadata
    GivenFile     holds the path or the bytes, and opens them: by the onnx package or ONNX Runtime
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.errors import MissingDependency, SparseJitError
from sparsejit.frontends.onnx.reading import SUFFIX, initialised, read_model, size_of
from sparsejit.frontends.onnx.sessions import runtime
from sparsejit.onnxruntime.capi.onnxruntime_pybind11_state import (
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
    own_errors,
)
from sparsejit.onnxruntime.settings import is_of_runtime

if TYPE_CHECKING:
    from onnx import ModelProto, TypeProto, ValueInfoProto

_NO_VERSION = (1 << 63) - 1
_TYPES = {"FLOAT": "float", "DOUBLE": "double"}
_DTYPES = {"float": "float32", "double": "float64", "string": "str"}


@dataclass(frozen=True)
class NodeArg:
    """An input or an output: name, type and shape; an open size is a name, or None without one."""

    name: str
    type: str
    shape: list[int | str | None]

    @property
    def of_dicts(self) -> bool:
        """Whether its values are dicts, one for each sample, as a ZipMap makes them."""
        return self.type.startswith("seq(map(")

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The dtype of its arrays; None where numpy has none."""
        kind = self.type.removeprefix("tensor(").removesuffix(")")
        try:
            return np.dtype(_DTYPES.get(kind, kind))
        except TypeError:
            return None


@dataclass(frozen=True)
class ModelMetadata:
    """The descriptions in a file.

    Attributes:
        producer_name: the exporter
        graph_name: the name of the graph
        domain: the name space of the model
        description: the model's text
        graph_description: the graph's text
        version: the model's version
        custom_metadata_map: further texts by key
    """

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Declared:
    """Inputs, outputs and metadata that a model declares.

    `overridable` are inputs with a value in the file; `ranked` inputs whose number of axes is
    declared; `named` the names of the axes of open sizes, by input.
    """

    inputs: list[NodeArg]
    outputs: list[NodeArg]
    overridable: list[NodeArg]
    about: ModelMetadata
    ranked: frozenset[str]
    named: Mapping[str, Mapping[int, str]]


def declared_by(model: ModelProto) -> Declared:
    """Return the inputs, outputs and metadata that a model declares."""
    held = initialised(model.graph)
    inputs = [each for each in model.graph.input if each.name not in held]
    overridable = [each for each in model.graph.input if each.name in held]
    ranked = frozenset(each.name for each in inputs if _is_ranked(each))
    return Declared(
        [*map(_shown, inputs)],
        [*map(_shown, _complete_outputs(model))],
        [*map(_shown, overridable)],
        _about(model),
        ranked,
        {each.name: _named_axes(each) for each in inputs},
    )


def _about(model: ModelProto) -> ModelMetadata:
    return ModelMetadata(
        model.producer_name,
        model.graph.name,
        model.domain,
        model.doc_string,
        model.graph.doc_string,
        model.model_version if model.HasField("model_version") else _NO_VERSION,
        {each.key: each.value for each in model.metadata_props},
    )


def _complete_outputs(model: ModelProto) -> list[ValueInfoProto]:
    """Return the outputs, with inferred types where the file declares none."""
    outputs = list(model.graph.output)
    if all(_is_ranked(each) for each in outputs):
        return outputs
    from onnx.shape_inference import infer_shapes

    try:
        return list(infer_shapes(model).graph.output)
    except Exception:  # of protobuf, for models too large to infer
        return outputs


def _is_ranked(value: ValueInfoProto) -> bool:
    return value.type.WhichOneof("value") != "tensor_type" or value.type.tensor_type.HasField(
        "shape"
    )


def _shown(value: ValueInfoProto) -> NodeArg:
    axes = value.type.tensor_type.shape.dim
    return NodeArg(value.name, _type_of(value.type), [_size(axis) for axis in axes])


def _size(axis: Any) -> int | str | None:
    if axis.HasField("dim_value"):
        return int(axis.dim_value) if axis.dim_value >= 0 else None
    return str(axis.dim_param) or None


def _named_axes(value: ValueInfoProto) -> dict[int, str]:
    """Return names of the axes of open sizes; an axis without a name has one of its own."""
    sizes = [size_of(axis) for axis in value.type.tensor_type.shape.dim]
    return {
        axis: size or f"{value.name}[{axis}]"
        for axis, size in enumerate(sizes)
        if not isinstance(size, int)
    }


def _type_of(kind: TypeProto) -> str:
    which = kind.WhichOneof("value")
    if which == "sequence_type":
        return f"seq({_type_of(kind.sequence_type.elem_type)})"
    if which == "optional_type":
        return f"optional({_type_of(kind.optional_type.elem_type)})"
    if which == "map_type":
        key = _element(kind.map_type.key_type)
        return f"map({key},{_type_of(kind.map_type.value_type)})"
    if which == "sparse_tensor_type":
        return f"sparse_tensor({_element(kind.sparse_tensor_type.elem_type)})"
    return f"tensor({_element(kind.tensor_type.elem_type)})"


def _element(number: int) -> str:
    from onnx import TensorProto

    name = TensorProto.DataType.Name(number)
    return _TYPES.get(name, name.lower())


_ORT_SUFFIX, _ORT_MARK = ".ort", b"ORTM"  # of ONNX Runtime's own format, bytes 4 to 8
_CPU = ["CPUExecutionProvider"]


class GivenFile:
    """The path or the bytes of a model.

    `is_onnx` is False for ONNX Runtime's own format.
    """

    def __init__(self, source: Any) -> None:
        """Raise TypeError for other sources, and NoSuchFile for a path without a file."""
        self.path: str | None = None
        if isinstance(source, str | os.PathLike):
            self.path, self._bytes = os.fspath(source), b""
            if not Path(self.path).is_file():
                raise NoSuchFile.saying(
                    f"Load model from {self.path} failed:Load model {self.path} failed. File "
                    "doesn't exist"
                )
            self.is_onnx = Path(self.path).suffix != _ORT_SUFFIX
            self._seen = self._state()
        elif isinstance(source, bytes):
            self._bytes = source
            self.is_onnx = source[4:8] != _ORT_MARK
        else:
            raise TypeError(f"Unable to load from type '{type(source)}'")
        self.title = "the model" if self.path is None else Path(self.path).name
        self._model: ModelProto | None = None

    def declared(self) -> Declared:
        """Read the model and return its inputs, outputs and metadata.

        Raises MissingDependency without the onnx package, InvalidProtobuf for bytes that are no
        model, and InvalidGraph for a model that is not valid.
        """
        try:
            import onnx
        except ImportError as error:
            raise MissingDependency(
                "ONNX files need the onnx package: pip install 'sparsejit[onnx]'"
            ) from error
        try:
            if self.path is None:
                raw = onnx.ModelProto.FromString(self._bytes)
            else:
                raw = onnx.load(self.path)
        except Exception as error:  # of protobuf, whose types are not public
            failed = f"Load model from {self.title} failed:Protobuf parsing failed."
            raise InvalidProtobuf.saying(failed) from error
        found = declared_by(raw)
        try:
            self._model = read_model(raw)
        except SparseJitError as error:
            raise InvalidGraph.saying(f"This is an invalid model. {error}") from error
        return found

    @property
    def model(self) -> ModelProto:
        """The model that `declared` read."""
        assert self._model is not None
        return self._model

    def for_compiling(self) -> str | ModelProto:
        """Return the path, whose code may be cached, or the model where the file has changed."""
        if self.path is None or not self.path.endswith(SUFFIX) or self._state() != self._seen:
            return self.model
        return self.path

    def session(self, options: Any) -> Any:
        """Open a session of ONNX Runtime.

        Raises MissingDependency without the package, and ONNX Runtime's errors as our types.
        """
        package = runtime()
        own = options if is_of_runtime(options) else options.of_runtime(package)
        source = self._bytes if self.path is None else self.path
        with own_errors():
            return package.InferenceSession(source, own, providers=_CPU)

    def _state(self) -> tuple[int, ...] | None:
        try:
            found = os.stat(self.path or "")
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
