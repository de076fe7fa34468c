"""ONNX Runtime's package `capi`, from which libraries import error types.

Modules that are not here are ONNX Runtime's own, where it is installed.
"""

from __future__ import annotations

from typing import Any

from sparsejit.errors import MissingDependency
from sparsejit.frontends.onnx.sessions import runtime


def __getattr__(name: str) -> Any:
    """Return a module of ONNX Runtime's package."""
    try:
        return getattr(runtime().capi, name)
    except (MissingDependency, AttributeError):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
