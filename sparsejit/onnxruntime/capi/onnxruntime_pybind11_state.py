"""The error types of ONNX Runtime, under the names of its extension module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sparsejit.errors import SparseJitError

_PACKAGE = "onnxruntime."


class OnnxRuntimeError(SparseJitError):
    """Base class of ONNX Runtime's errors; the message opens with a number and a name, as theirs.

    Attributes:
        number: ONNX Runtime's number of the error
        title: its name in messages
    """

    number, title = 1, "FAIL"

    @classmethod
    def saying(cls, message: object) -> OnnxRuntimeError:
        """Return the error with ONNX Runtime's opening."""
        return cls(f"[ONNXRuntimeError] : {cls.number} : {cls.title} : {message}")


class Fail(OnnxRuntimeError):
    """Any other failure."""


class InvalidArgument(OnnxRuntimeError):
    """An input has another name, dtype or shape than the model declares."""

    number, title = 2, "INVALID_ARGUMENT"


class NoSuchFile(OnnxRuntimeError):
    """The model's file does not exist."""

    number, title = 3, "NO_SUCHFILE"


class NoModel(OnnxRuntimeError):
    """A session has no model."""

    number, title = 4, "NO_MODEL"


class EngineError(OnnxRuntimeError):
    """A provider fails."""

    number, title = 5, "ENGINE_ERROR"


class RuntimeException(OnnxRuntimeError):
    """A call fails while the model runs."""

    number, title = 6, "RUNTIME_EXCEPTION"


class InvalidProtobuf(OnnxRuntimeError):
    """The model's bytes cannot be parsed."""

    number, title = 7, "INVALID_PROTOBUF"


class ModelLoaded(OnnxRuntimeError):
    """A session has a model already."""

    number, title = 8, "MODEL_LOADED"


class NotImplemented(OnnxRuntimeError):  # noqa: A001, ONNX Runtime's name
    """An operator has no implementation."""

    number, title = 9, "NOT_IMPLEMENTED"


class InvalidGraph(OnnxRuntimeError):
    """The model is no valid graph."""

    number, title = 10, "INVALID_GRAPH"


class EPFail(OnnxRuntimeError):
    """A provider refuses the model."""

    number, title = 11, "EP_FAIL"


class NotFound(OnnxRuntimeError):
    """A thing that a session asks for does not exist."""

    number, title = 13, "NOT_FOUND"


def refused(message: str) -> OnnxRuntimeError:
    """Return the error of a model that no engine here can run."""
    return NotImplemented.saying(message)


@contextmanager
def own_errors() -> Iterator[None]:
    """Context that turns ONNX Runtime's errors into the types of this module with their names."""
    try:
        yield
    except Exception as error:  # of types that are not public
        own = globals().get(type(error).__name__)
        if own is None or not type(error).__module__.startswith(_PACKAGE):
            raise
        raise own(str(error)) from error
