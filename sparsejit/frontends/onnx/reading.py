"""ONNX files, read, checked and converted by the onnx package.

    check, converted   checks and conversion, without checks that ONNX Runtime does not make
    read_model         a model in an opset that is mapped, with tensors in files beside it
    size_of            the size of an axis
    tensors_of         the constants of a graph, by name

ONNX Runtime's optimiser writes operators of its own among ONNX's, and outputs may lack types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.errors import DamagedFile, InvalidInput, MissingDependency
from sparsejit.files import existing_file
from sparsejit.ir.dtypes import BFLOAT16, Dtype
from sparsejit.ir.values import Array

if TYPE_CHECKING:
    from onnx import (
        GraphProto,
        ModelProto,
        NodeProto,
        SparseTensorProto,
        TensorProto,
        ValueInfoProto,
    )

STANDARD_DOMAINS = ("", "ai.onnx")
# ONNX Runtime's operators in ONNX's domain, with the first opset that has an operator of that name.
_OF_ONNX_RUNTIME = {"LayerNormalization": 17, "SimplifiedLayerNormalization": math.inf}
# The package's converter crashes at these operators if they follow operators of other domains. They
# are the same from opset 9 to the newest.
_NOT_CONVERTED = {"EyeLike": math.inf}
_ANY_ELEMENT = 1
_UNCHECKED_DOMAIN = "com.microsoft"


def check(model: ModelProto, opset: int) -> None:
    """Check a model, and leave it as it was. Raises the package's ValidationError."""
    import onnx

    with ExitStack() as undo:
        _set_apart(model, opset, undo.callback, _OF_ONNX_RUNTIME)
        _complete(model.graph.output, undo.callback)
        onnx.checker.check_model(model)


def converted(model: ModelProto, opset: int, to: int) -> ModelProto:
    """Return the model in another opset. Raises the errors of the package's converter."""
    from onnx.version_converter import convert_version

    apart = _OF_ONNX_RUNTIME | _NOT_CONVERTED
    with ExitStack() as undo:
        _set_apart(model, opset, undo.callback, apart)
        made = convert_version(model, to)
    for node in all_nodes(made.graph):  # that domain has no operators of these names
        if node.domain == _UNCHECKED_DOMAIN and node.op_type in apart:
            node.ClearField("domain")
    return made


def _set_apart(
    model: ModelProto, opset: int, undo: Callable[..., Any], since: Mapping[str, float]
) -> None:
    """Move operators of opsets before `since` to a domain that the package does not check."""
    apart = [
        node
        for node in all_nodes(model.graph)
        if opset < since.get(node.op_type, 0) and node.domain in STANDARD_DOMAINS
    ]
    for node in apart:
        if node.HasField("domain"):
            undo(setattr, node, "domain", node.domain)
        else:
            undo(node.ClearField, "domain")
        node.domain = _UNCHECKED_DOMAIN
    if apart and all(each.domain != _UNCHECKED_DOMAIN for each in model.opset_import):
        model.opset_import.add(domain=_UNCHECKED_DOMAIN, version=1)
        undo(model.opset_import.pop)


def _complete(outputs: Iterable[ValueInfoProto], undo: Callable[..., Any]) -> None:
    """Give outputs without a full type a stand-in that the package's checker accepts.

    It is compared with nothing. `undo` gets the calls that remove it again.
    """
    for each in outputs:
        value, kind = each.type, each.type.tensor_type
        if not each.HasField("type"):
            undo(each.ClearField, "type")
        elif value.WhichOneof("value") is None:
            undo(value.ClearField, "tensor_type")
        elif value.HasField("tensor_type") and not kind.HasField("shape"):
            undo(kind.ClearField, "shape")
        else:
            continue
        if not value.HasField("tensor_type"):
            kind.elem_type = _ANY_ELEMENT
        kind.shape.SetInParent()


def all_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph, and the graphs within its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for region in (attribute.g, *attribute.graphs):
                yield from all_graphs(region)


def all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """The nodes of a graph, and of the graphs within them."""
    return (node for each in all_graphs(graph) for node in each.node)


SUFFIX = ".onnx"
# Older opsets than CONVERTED_TO are converted to it where the onnx package can: its evaluator
# computes constants of older ones wrongly (Unsqueeze with axes as an attribute). Opsets from
# _OLDEST_MAPPED on are mapped as they are, opsets from OLDEST_OPSET on can be converted.
OLDEST_OPSET, _OLDEST_MAPPED, CONVERTED_TO = 7, 11, 13
_RESIZED = ("Resize", "Upsample")
_MODES_BEFORE = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "outwards"}
# Exporters write these names for open sizes, which are unrelated to each other.
_NO_NAMES = ("", "?", "-1")


def is_onnx(model: Any) -> bool:
    """Whether it is the path of an .onnx file, or an onnx.ModelProto."""
    if isinstance(model, str | Path):
        return str(model).endswith(SUFFIX)
    return type(model).__name__ == "ModelProto"


def model_name(model: str | Path | ModelProto) -> str:
    """Name of an ONNX model: its file's, or its graph's."""
    if isinstance(model, str | Path):
        return Path(model).stem
    return str(model.graph.name) or "model"


def read_model(source: str | Path | ModelProto) -> ModelProto:
    """Read a model, with tensors in files beside it; its own functions are inlined.

    Raises MissingDependency without the onnx package, InvalidInput where there is no such file and
    for an opset that is not known or cannot be converted, and DamagedFile for a file that is no
    valid model.
    """
    try:
        import onnx
    except ImportError as error:
        raise MissingDependency(
            "ONNX files need the onnx package: pip install 'sparsejit[onnx]'"
        ) from error
    from onnx.inliner import inline_local_functions

    if isinstance(source, str | Path):
        existing_file(source, "the .onnx file in it")
    name = str(source) if isinstance(source, str | Path) else "the model"
    try:
        model = onnx.load(str(source)) if isinstance(source, str | Path) else source
        check(model, opset_of(model))
        _read_text(model)
        model = _converted(model, name)
        return inline_local_functions(model) if len(model.functions) else model
    except FileNotFoundError as error:
        raise InvalidInput(f"{error.filename or name} is missing; check the path") from error
    except InvalidInput:
        raise
    except Exception as error:  # of protobuf and of the checker, whose types are not public
        reason = str(error).strip().partition("\n")[0]
        raise DamagedFile(
            f"{name} is not a valid ONNX model ({reason}); export it again"
        ) from error


def _read_text(message: Any) -> None:
    """Raise UnicodeDecodeError where a name is no text, which protobuf gives as bytes.

    Tensors are left out: their data would be copied.
    """
    for field, value in message.ListFields():
        each_value = list(value) if isinstance(value, Sequence) and field.is_repeated else [value]
        if field.type == field.TYPE_STRING:
            for each in each_value:
                _ = each.decode() if isinstance(each, bytes) else each
        elif field.message_type is not None and field.message_type.name != "TensorProto":
            for each in each_value:
                _read_text(each)


def opset_of(model: ModelProto) -> int:
    """The opset in which a model uses ONNX's own operators."""
    versions = [each.version for each in model.opset_import if each.domain in STANDARD_DOMAINS]
    return max(versions, default=CONVERTED_TO)


def newest_opset() -> int:
    """The newest opset that the onnx package knows."""
    from onnx.defs import onnx_opset_version

    return int(onnx_opset_version())


def _converted(model: ModelProto, name: str) -> ModelProto:
    """The model in an opset that is mapped. Raises InvalidInput where it cannot be converted."""
    import onnx
    from onnx.version_converter import ConvertError

    opset, newest = opset_of(model), newest_opset()
    if not OLDEST_OPSET <= opset <= newest:
        remedy = "install a newer onnx" if opset > newest else "export it again"
        raise InvalidInput(
            f"{name} has opset {opset}; sparsejit reads {OLDEST_OPSET} to {newest} with onnx "
            f"{onnx.__version__}: {remedy}"
        )
    if opset >= CONVERTED_TO:
        return model
    nodes = all_nodes(model.graph)
    resized = [node.output[0] for node in nodes if node.op_type in _RESIZED and node.output]
    try:
        made = converted(model, opset, CONVERTED_TO)
        for graph in all_graphs(made.graph):
            _keep_hardmax(graph)
        if opset < _OLDEST_MAPPED:
            _keep_positions(made.graph, resized)
        return made
    except (ConvertError, RuntimeError) as error:
        if opset >= _OLDEST_MAPPED:
            return model
        raise InvalidInput(
            f"{name} has opset {opset}, which onnx cannot convert to {CONVERTED_TO} "
            f"({str(error).strip().splitlines()[-1]}); export it again with {CONVERTED_TO}"
        ) from error


def _keep_positions(graph: GraphProto, resized: Sequence[str]) -> None:
    """Give converted nodes the positions that Resize and Upsample had before opset 11.

    onnx's converter leaves them to the defaults of opset 11, which differ.
    """
    from onnx.helper import make_attribute

    for node in all_nodes(graph):
        if node.op_type == "Resize" and node.output[0] in resized:
            for name, mode in _MODES_BEFORE.items():
                node.attribute.append(make_attribute(name, mode))


def _keep_hardmax(graph: GraphProto) -> None:
    """Write a converted Hardmax over all axes from its own axis on, as it was before opset 13.

    onnx's converter does so for Softmax alone.
    """
    from onnx.helper import make_node

    if all(node.op_type != "Hardmax" for node in graph.node):
        return
    nodes = []
    for node in graph.node:
        if node.op_type != "Hardmax":
            nodes.append(node)
            continue
        (x, y), axis = (node.input[0], node.output[0]), 1
        for attribute in node.attribute:
            axis = attribute.i if attribute.name == "axis" else axis
        nodes += [
            make_node("Shape", [x], [f"{y} shape"], name=node.name),
            make_node("Flatten", [x], [f"{y} rows"], name=node.name, axis=axis),
            make_node("Hardmax", [f"{y} rows"], [f"{y} marks"], name=node.name, axis=1),
            make_node("Reshape", [f"{y} marks", f"{y} shape"], [y], name=node.name),
        ]
    del graph.node[:]
    graph.node.extend(nodes)


def size_of(axis: Any) -> int | str | None:
    """The size of an axis, the name of a size that is open, or None for one without a name.

    A negative size is open, as in ONNX Runtime.
    """
    if axis.HasField("dim_value"):
        return int(axis.dim_value) if axis.dim_value >= 0 else None
    name = str(axis.dim_param)
    return None if name in _NO_NAMES else name


def tensor_array(tensor: TensorProto) -> Array:
    """The array of a tensor of the file. Raises DamagedFile where its data do not fit its sizes."""
    from onnx.numpy_helper import to_array

    try:
        return to_array(tensor)
    except (KeyError, TypeError, ValueError, OverflowError, MemoryError) as error:
        raise DamagedFile(
            f"tensor {tensor.name or 'of a node'} of sizes {list(tensor.dims)} and type "
            f"{tensor.data_type} cannot be read ({error}); export the model again"
        ) from error


def initialised(graph: GraphProto) -> set[str]:
    """The names of initialisers."""
    sparse = {each.values.name for each in graph.sparse_initializer}
    return sparse.union(each.name for each in graph.initializer)


def tensors_of(graph: GraphProto) -> dict[str, Array]:
    """The initialisers of a graph by name, sparse ones with their zeros. Raises as tensor_array."""
    found = {each.name: tensor_array(each) for each in graph.initializer}
    for sparse in graph.sparse_initializer:
        found[sparse.values.name] = sparse_array(sparse)
    return found


def sparse_array(tensor: SparseTensorProto) -> Array:
    """The dense array of a sparse tensor. Raises DamagedFile for places beyond its sizes."""
    values, places = tensor_array(tensor.values), tensor_array(tensor.indices)
    shape = tuple(tensor.dims)
    made = np.zeros(shape, values.dtype)
    try:
        if places.ndim == 2:
            places = np.ravel_multi_index(tuple(places.T), shape)
        if places.size and not 0 <= places.min() <= places.max() < made.size:
            raise ValueError("a place is beyond its sizes")
        made.reshape(-1)[places] = values
    except ValueError as error:
        raise DamagedFile(
            f"sparse tensor {tensor.values.name} of sizes {list(shape)} cannot be read ({error}); "
            "export the model again"
        ) from error
    return made


def dtype_of(number: int, whose: str) -> Dtype:
    """The dtype that ONNX gives this number. Raises InvalidInput for a number that names none."""
    dtype = numpy_dtype_of(number, whose)
    return BFLOAT16 if dtype.name == BFLOAT16.name else dtype


def numpy_dtype_of(number: int, whose: str) -> np.dtype[Any]:
    """The dtype of arrays, of the ml_dtypes package where numpy has none. Raises as `dtype_of`."""
    from onnx.helper import tensor_dtype_to_np_dtype

    try:
        return np.dtype(tensor_dtype_to_np_dtype(number))
    except KeyError:
        raise InvalidInput(
            f"{whose} has the type {number}, which ONNX does not define; export the model again"
        ) from None
