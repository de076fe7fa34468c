"""Sessions of ONNX Runtime, an optional package, for nodes that sparsejit does not compile."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sparsejit.errors import CompileError, DamagedFile, InvalidInput, MissingDependency
from sparsejit.runtime.python_objects import ArrayType

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto, TypeProto

_PACKAGE = "onnxruntime"
# The package, or None without one, once another module has its name.
_kept: list[Any] = []
_MOST_BYTES = 1 << 31  # The limit of protobuf.
# Dtypes of arrays that go in and out as they lie in memory.
_DTYPES = (
    *("bool", "float16", "float32", "float64"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)
_FATAL = 4  # Its errors are reported; its log would repeat them.


def runtime() -> Any:
    """Return ONNX Runtime's package, also where another module has its name.

    Raises MissingDependency without the package.
    """
    found = _kept[0] if _kept else _imported()
    if found is None:
        raise MissingDependency(
            "fallback=\"onnxruntime\" needs ONNX Runtime: pip install 'sparsejit[onnxruntime]'"
        )
    return found


def replace_runtime(modules: Mapping[str, ModuleType]) -> None:
    """Let `import onnxruntime` give other modules, by their names; `runtime` keeps the package.

    Modules of the package that have no replacement can still be imported.
    """
    if not _kept:
        _kept.append(_imported())
        if _kept[0] is not None:
            modules[_PACKAGE].__path__.extend(_kept[0].__path__)
    sys.modules.update(modules)


def _imported() -> Any:
    try:
        import onnxruntime
    except ImportError:
        return None
    return onnxruntime


def open_session(model: bytes, threads: int = 1) -> Any:
    """Open a session of ONNX Runtime on the processor, for a model as bytes.

    Raises MissingDependency without the package, and CompileError, in its words, where it cannot
    run the model.
    """
    onnxruntime = runtime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = _FATAL
    options.use_deterministic_compute = True
    # Spinning threads would keep the cores that the next part's threads need.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of many types, which are not public
        raise CompileError(f"ONNX Runtime cannot run it: {words_of(error)}") from error


def words_of(error: Exception) -> str:
    """Message of ONNX Runtime, without the name and number of the error."""
    return re.sub(
        r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error).strip().partition("\n")[0]
    )


def model_bytes(model: ModelProto) -> bytes:
    """Serialise a model for ONNX Runtime. Raises InvalidInput for a model too large for a file."""
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
    """Types of a model's outputs by name, as ONNX Runtime infers them before it runs.

    Raises the errors of `open_session`.
    """
    session = open_session(model_bytes(model))
    return {
        each.name: _type_proto(each.type, each.shape or _no_axes(model, each.name))
        for each in session.get_outputs()
    }


def _type_proto(text: str, shape: Sequence[int | str | None] | None) -> TypeProto:
    """Parse a type as ONNX Runtime writes it: tensor(float), seq(tensor(float))."""
    from onnx import TensorProto
    from onnx.helper import make_sequence_type_proto, make_tensor_type_proto

    outer, _, inner = text.removesuffix(")").partition("(")
    if outer == "tensor":
        return make_tensor_type_proto(TensorProto.DataType.Value(inner.upper()), shape)
    if outer == "seq":
        return make_sequence_type_proto(_type_proto(inner, None))
    raise CompileError(f"its result is {text}; only tensors and sequences of tensors are kept")


def _no_axes(model: ModelProto, name: str) -> tuple[int, ...] | None:
    """() for an output without axes; None where the number of axes is not known."""
    from onnx.shape_inference import infer_shapes

    kinds = {each.name: each.type for each in infer_shapes(model).graph.output}
    is_known = kinds[name].tensor_type.HasField("shape")
    return () if is_known and not kinds[name].tensor_type.shape.dim else None


def array_type(value: Any) -> ArrayType | None:
    """Numpy type of a session's input or output, unknown sizes as None; None for other types.

    A value without axes looks like one with an unknown number of axes.
    """
    name = str(value.type).removeprefix("tensor(").removesuffix(")")
    dtype = {"float": "float32", "double": "float64"}.get(name, name)
    if dtype not in _DTYPES:
        return None
    shape = tuple(n if isinstance(n, int) else None for n in value.shape)
    return ArrayType(dtype, shape, value.name)


def of_unknown_rank(model: bytes) -> set[str]:
    """Names of a model's inputs and outputs that are declared without a number of axes."""
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
    """All constants, also in graphs within nodes."""
    yield from graph.initializer
    for each in graph.sparse_initializer:
        yield from (each.values, each.indices)
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        yield from (attribute.t, *attribute.tensors)
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)
        for region in (attribute.g, *attribute.graphs):
            yield from _tensors_of(region)
