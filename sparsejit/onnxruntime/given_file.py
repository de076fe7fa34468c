"""A model as it was given, a path or bytes, and what reads it: the onnx package, ONNX Runtime."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsejit.errors import MissingDependency, SparseJitError
from sparsejit.frontends.onnx.reading import SUFFIX, read_model
from sparsejit.frontends.onnx.sessions import runtime
from sparsejit.onnxruntime.capi.onnxruntime_pybind11_state import (
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
    own_errors,
)
from sparsejit.onnxruntime.declared import Declared, declared_by
from sparsejit.onnxruntime.settings import is_of_runtime

if TYPE_CHECKING:
    from onnx import ModelProto

_ORT_SUFFIX, _ORT_MARK = ".ort", b"ORTM"  # of ONNX Runtime's own format, bytes 4 to 8
_CPU = ["CPUExecutionProvider"]


class GivenFile:
    """The path or the bytes of a model.

    `is_onnx` is False for ONNX Runtime's own format.
    """

    def __init__(self, source: Any) -> None:
        """Raise TypeError for other sources, and NoSuchFile for a path without a file."""
        self.path: str | None = None
        if isinstance(source, str | os.PathLike):
            self.path, self._bytes = os.fspath(source), b""
            if not Path(self.path).is_file():
                raise NoSuchFile.saying(
                    f"Load model from {self.path} failed:Load model {self.path} failed. File "
                    "doesn't exist"
                )
            self.is_onnx = Path(self.path).suffix != _ORT_SUFFIX
            self._seen = self._state()
        elif isinstance(source, bytes):
            self._bytes = source
            self.is_onnx = source[4:8] != _ORT_MARK
        else:
            raise TypeError(f"Unable to load from type '{type(source)}'")
        self.title = "the model" if self.path is None else Path(self.path).name
        self._model: ModelProto | None = None

    def declared(self) -> Declared:
        """Read the model and return its surface.

        Raises MissingDependency without the onnx package, InvalidProtobuf for bytes that are no
        model, and InvalidGraph for a model that is not valid.
        """
        try:
            import onnx
        except ImportError as error:
            raise MissingDependency(
                "ONNX files need the onnx package: pip install 'sparsejit[onnx]'"
            ) from error
        try:
            if self.path is None:
                raw = onnx.ModelProto.FromString(self._bytes)
            else:
                raw = onnx.load(self.path)
        except Exception as error:  # of protobuf, whose types are not public
            failed = f"Load model from {self.title} failed:Protobuf parsing failed."
            raise InvalidProtobuf.saying(failed) from error
        found = declared_by(raw)
        try:
            self._model = read_model(raw)
        except SparseJitError as error:
            raise InvalidGraph.saying(f"This is an invalid model. {error}") from error
        return found

    @property
    def model(self) -> ModelProto:
        """The model that `declared` read."""
        assert self._model is not None
        return self._model

    def for_compiling(self) -> str | ModelProto:
        """Return the path, whose code may be cached, or the model where the file has changed."""
        if self.path is None or not self.path.endswith(SUFFIX) or self._state() != self._seen:
            return self.model
        return self.path

    def session(self, options: Any) -> Any:
        """Open a session of ONNX Runtime.

        Raises MissingDependency without the package, and ONNX Runtime's errors as our types.
        """
        package = runtime()
        own = options if is_of_runtime(options) else options.of_runtime(package)
        source = self._bytes if self.path is None else self.path
        with own_errors():
            return package.InferenceSession(source, own, providers=_CPU)

    def _state(self) -> tuple[int, ...] | None:
        try:
            found = os.stat(self.path or "")
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
