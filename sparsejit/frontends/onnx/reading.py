"""ONNX files, read and checked by the onnx package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.errors import DamagedFile, InvalidInput, MissingDependency
from sparsejit.ir.graph import Array

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

SUFFIX = ".onnx"
OLDEST_OPSET, NEWEST_OPSET = 11, 21
_STANDARD_DOMAINS = ("", "ai.onnx")


def is_onnx(model: Any) -> bool:
    """Whether it is the path of an .onnx file, or an onnx.ModelProto."""
    if isinstance(model, str | Path):
        return str(model).endswith(SUFFIX)
    return type(model).__name__ == "ModelProto"


def model_name(model: str | Path | ModelProto) -> str:
    """What an ONNX model is called: its file, or its graph."""
    if isinstance(model, str | Path):
        return Path(model).stem
    return str(model.graph.name) or "model"


def read_model(source: str | Path | ModelProto) -> ModelProto:
    """The model, with tensors in files beside it, and its own functions written out.

    Raises MissingDependency without the onnx package, InvalidInput where there is no such file and
    for an opset that is not known, and DamagedFile for a file that is no valid model.
    """
    try:
        import onnx
    except ImportError as error:
        raise MissingDependency("ONNX files need the onnx package: pip install onnx") from error
    from onnx.inliner import inline_local_functions

    name = str(source) if isinstance(source, str | Path) else "the model"
    try:
        model = onnx.load(str(source)) if isinstance(source, str | Path) else source
        onnx.checker.check_model(model)
        opset_of(model, name)
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


def opset_of(model: ModelProto, name: str) -> int:
    """The version of ONNX's own operators. Raises InvalidInput for one that is not known."""
    versions = [each.version for each in model.opset_import if each.domain in _STANDARD_DOMAINS]
    opset = max(versions, default=0)
    if not OLDEST_OPSET <= opset <= NEWEST_OPSET:
        raise InvalidInput(
            f"{name} has opset {opset}; sparsejit reads {OLDEST_OPSET} to {NEWEST_OPSET}: convert "
            f"it with onnx.version_converter.convert_version(model, {NEWEST_OPSET})"
        )
    return opset


def tensor_array(tensor: TensorProto) -> Array:
    """What a tensor of the file holds. Raises DamagedFile where it has not what its sizes say."""
    from onnx.numpy_helper import to_array

    try:
        return to_array(tensor)
    except (KeyError, TypeError, ValueError, OverflowError, MemoryError) as error:
        raise DamagedFile(
            f"tensor {tensor.name or 'of a node'} of sizes {list(tensor.dims)} and type "
            f"{tensor.data_type} cannot be read ({error}); export the model again"
        ) from error


def dtype_of(number: int, whose: str) -> np.dtype[Any]:
    """The dtype that ONNX numbers so. Raises InvalidInput for a number that names none."""
    from onnx.helper import tensor_dtype_to_np_dtype

    try:
        return np.dtype(tensor_dtype_to_np_dtype(number))
    except KeyError:
        raise InvalidInput(
            f"{whose} has the type {number}, which ONNX does not know; export the model again"
        ) from None
