"""ONNX Runtime's interface over compiled code: replace the import, and nothing else.

>>> import sparsejit.onnxruntime as ort
>>> session = ort.InferenceSession("model.onnx")
>>> outputs = session.run(None, {"x": x})

Names that are not here are ONNX Runtime's own, where it is installed.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from sparsejit.errors import MissingDependency
from sparsejit.frontends.onnx.sessions import runtime
from sparsejit.onnxruntime.declared import ModelMetadata, NodeArg
from sparsejit.onnxruntime.session import PROVIDERS, InferenceSession
from sparsejit.onnxruntime.settings import (
    DefaultSettings,
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
)
from sparsejit.onnxruntime.values import IOBinding, OrtValue

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]
_IMITATED = "1.23.0"  # the version whose interface this is, where ONNX Runtime is not installed

try:
    __version__ = version("onnxruntime")
except PackageNotFoundError:
    __version__ = _IMITATED


def get_available_providers() -> list[str]:
    """Return the names of the devices that run models: the processor."""
    return list(PROVIDERS)


def get_all_providers() -> list[str]:
    """Return the same as `get_available_providers`."""
    return list(PROVIDERS)


def get_device() -> str:
    """Return "CPU"."""
    return "CPU"


def get_version_string() -> str:
    """Return the version of ONNX Runtime whose interface this is."""
    return __version__


def get_build_info() -> str:
    """Return a line about this package."""
    return f"sparsejit, with the interface of ONNX Runtime {__version__}"


def set_default_logger_severity(severity: int) -> None:
    """Set the least severe messages that sessions log, 0 verbose to 4 fatal errors."""
    DefaultSettings.severity = int(severity)


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accept a number, without effect."""


def set_seed(seed: int) -> None:
    """Accept a number, without effect: compiled code has no random numbers."""


def disable_telemetry_events() -> None:
    """Do nothing: there is no telemetry."""


def enable_telemetry_events() -> None:
    """Do nothing: there is no telemetry."""


def __getattr__(name: str) -> Any:
    """Return a name of ONNX Runtime's package."""
    try:
        return getattr(runtime(), name)
    except (MissingDependency, AttributeError):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
