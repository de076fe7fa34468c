"""From weights to a callable kernel, and from models to native functions."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsejit.api.compile_layer import compile_matrix
    from sparsejit.api.compile_model import compile_model
    from sparsejit.api.compiled_estimator import CompiledEstimator
    from sparsejit.api.kernel import Kernel
    from sparsejit.api.load import load
    from sparsejit.api.model import CompiledModel
    from sparsejit.api.parted_model import PartedModel

__all__ = [
    "CompiledEstimator",
    "CompiledModel",
    "Kernel",
    "PartedModel",
    "compile_matrix",
    "compile_model",
    "load",
]

# The module of each name, imported when the name is first used.
_MODULES = {
    "CompiledEstimator": "compiled_estimator",
    "CompiledModel": "model",
    "Kernel": "kernel",
    "PartedModel": "parted_model",
    "compile_matrix": "compile_layer",
    "compile_model": "compile_model",
    "load": "load",
}


def __getattr__(name: str) -> Any:
    """Import and return a name of `__all__`."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
