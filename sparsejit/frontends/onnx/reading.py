"""ONNX files, read and checked by the onnx package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsejit.errors import DamagedFile, InvalidInput, MissingDependency

if TYPE_CHECKING:
    from onnx import ModelProto

SUFFIX = ".onnx"
OLDEST_OPSET, NEWEST_OPSET = 11, 21
_STANDARD_DOMAINS = ("", "ai.onnx")


def is_onnx(model: Any) -> bool:
    """Whether it is the path of an .onnx file, or an onnx.ModelProto."""
    if isinstance(model, str | Path):
        return str(model).endswith(SUFFIX)
    return type(model).__name__ == "ModelProto"


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
