"""ONNX Runtime, an optional package, for what sparsejit does not compile."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sparsejit.errors import CompileError, DamagedFile, InvalidInput, MissingDependency
from sparsejit.runtime.python_objects import ArrayType

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto, TypeProto

_MOST_BYTES = 1 << 31  # What protobuf writes.
# What goes in and out as it lies in memory.
_DTYPES = (
    *("bool", "float16", "float32", "float64"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)
_FATAL = 4  # What it raises is said; its log would say so again.


def open_session(model: bytes, threads: int = 1) -> Any:
    """A session of ONNX Runtime on the processor, for a model as bytes.

    Raises MissingDependency without the package, and CompileError, in its words, where it cannot
    run the model.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependency(
            "fallback=\"onnxruntime\" needs ONNX Runtime: pip install 'sparsejit[onnxruntime]'"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = _FATAL
    options.use_deterministic_compute = True
    # Its threads would keep the cores that the next part's threads want.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of many types, which are not public
        raise CompileError(f"ONNX Runtime cannot run it: {words_of(error)}") from error


def words_of(error: Exception) -> str:
    """What ONNX Runtime says, without the name and number of the error."""
    return re.sub(
        r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error).strip().partition("\n")[0]
    )


def model_bytes(model: ModelProto) -> bytes:
    """The model as ONNX Runtime reads it. Raises InvalidInput for one beyond what a file holds."""
    from onnx.helper import find_min_ir_version_for

    # The onnx package writes newer formats than ONNX Runtime may read.
    model.ir_version = find_min_ir_version_for(model.opset_import, ignore_unknown=True)
    if model.ByteSize() >= _MOST_BYTES:
        raise InvalidInput(
            "nodes that are left to ONNX Runtime read 2 GB of constants or more, which one ONNX "
            "model does not hold; write these nodes with others"
        )
    return bytes(model.SerializeToString())


def result_types(model: ModelProto) -> dict[str, TypeProto]:
    """What ONNX Runtime says of a model's outputs, by their names, before it runs.

    Raises as `open_session` does.
    """
    session = open_session(model_bytes(model))
    return {
        each.name: _type_proto(each.type, each.shape or _no_axes(model, each.name))
        for each in session.get_outputs()
    }


def _type_proto(text: str, shape: Sequence[int | str | None] | None) -> TypeProto:
    """A type as ONNX Runtime writes it: tensor(float), seq(tensor(float))."""
    from onnx import TensorProto
    from onnx.helper import make_sequence_type_proto, make_tensor_type_proto

    outer, _, inner = text.removesuffix(")").partition("(")
    if outer == "tensor":
        return make_tensor_type_proto(TensorProto.DataType.Value(inner.upper()), shape)
    if outer == "seq":
        return make_sequence_type_proto(_type_proto(inner, None))
    raise CompileError(f"its result is {text}; only tensors and sequences of them are kept")


def _no_axes(model: ModelProto, name: str) -> tuple[int, ...] | None:
    """No axes, if that is what an output has; None where their number is not known."""
    from onnx.shape_inference import infer_shapes

    kinds = {each.name: each.type for each in infer_shapes(model).graph.output}
    is_known = kinds[name].tensor_type.HasField("shape")
    return () if is_known and not kinds[name].tensor_type.shape.dim else None


def array_type(value: Any) -> ArrayType | None:
    """An input or output of a session as numpy has it, unknown sizes as None; else nothing.

    What has no axes, and what has an unknown number of them, look alike.
    """
    name = str(value.type).removeprefix("tensor(").removesuffix(")")
    dtype = {"float": "float32", "double": "float64"}.get(name, name)
    if dtype not in _DTYPES:
        return None
    shape = tuple(n if isinstance(n, int) else None for n in value.shape)
    return ArrayType(dtype, shape, value.name)


def of_unknown_rank(model: bytes) -> set[str]:
    """The inputs and outputs of a model that are declared without a number of axes."""
    from onnx import ModelProto

    graph = ModelProto.FromString(model).graph
    values = (*graph.input, *graph.output)
    return {each.name for each in values if not each.type.tensor_type.HasField("shape")}


def check_whole(model: bytes) -> None:
    """Raise DamagedFile for bytes that are no ONNX model, or that would read another file."""
    try:
        import onnx
    except ImportError as error:
        raise MissingDependency(
            "a model with nodes in ONNX Runtime needs the onnx package: pip install "
            "'sparsejit[onnxruntime]'"
        ) from error
    try:
        read = onnx.ModelProto.FromString(model)
    except Exception as error:  # of protobuf, whose types are not public
        raise DamagedFile("has a part that is no model of ONNX") from error
    tensors = _tensors_of(read.graph)
    if len(read.functions) or any(x.data_location == onnx.TensorProto.EXTERNAL for x in tensors):
        raise DamagedFile("has a part with functions, or whose constants are elsewhere")


def _tensors_of(graph: GraphProto) -> Iterator[TensorProto]:
    """All constants, also those of graphs within nodes."""
    yield from graph.initializer
    for each in graph.sparse_initializer:
        yield from (each.values, each.indices)
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        yield from (attribute.t, *attribute.tensors)
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)
        for region in (attribute.g, *attribute.graphs):
            yield from _tensors_of(region)
