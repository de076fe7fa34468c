"""Check that the argument of `compile` is a model, with a remedy for common other objects."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from sparsejit.api.compiled import Explained
from sparsejit.errors import InvalidInput
from sparsejit.frontends.model_source import is_opened, read_source
from sparsejit.frontends.onnx import is_onnx
from sparsejit.frontends.torch_export import is_program

_WEIGHTS = "give the module with these weights; compile_matrix takes a file with one layer"
# Remedies for a file in place of a model, by its suffix.
_FILES = {
    ".sjit": "use sparsejit.load({path!r})",
    **dict.fromkeys((".pt", ".safetensors"), _WEIGHTS),
}
_MODELS = "give a torch.nn.Module, an .onnx or .pt2 file, or a fitted estimator"


def opened(model: Any, inputs: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """A model and its example inputs, read where the model is a .pt2 file or names a factory.

    Inputs that are given take the place of those that the file has.
    """
    if not is_opened(model):
        return model, inputs, kwargs
    source = read_source(str(model))
    if inputs is None and not kwargs:
        return source.model, source.args, source.kwargs
    return source.model, inputs, kwargs


def check_model(model: Any) -> None:
    """Raise InvalidInput unless `model` is a torch module or program, or an ONNX model."""
    if is_onnx(model) or is_program(model) or _is_module(model):
        return
    if isinstance(model, str | os.PathLike):
        path = os.fspath(model)
        remedy = _FILES.get(Path(os.fsdecode(path)).suffix, _MODELS).format(path=path)
        raise InvalidInput(f"the model is a path, {path!r}; {remedy}")
    if isinstance(model, Explained):
        raise InvalidInput(f"the model is compiled already: {model.title}; call it")
    if isinstance(model, type):
        raise InvalidInput(f"the model is the class {model.__name__}; give an instance of it")
    raise InvalidInput(f"the model is a {type(model).__name__}; {_MODELS}")


def _is_module(model: Any) -> bool:
    """Whether it is a module of torch; does not import torch."""
    nn = sys.modules.get("torch.nn")
    return nn is not None and isinstance(model, nn.Module)
