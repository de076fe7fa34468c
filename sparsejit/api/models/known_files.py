"""Models whose files were compiled before: found by the file's bytes, without reading the model.

An entry of the code cache has the model's arguments and options, and the keys of its code. The file
stays open, so that the graph can be read when it is needed.
"""

import hashlib
import os
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sparsejit.api.models import code_cache
from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.api.models.model_file import (
    nest_from_data,
    nest_to_data,
    settings_from_data,
    settings_to_data,
    sizes_from_data,
    sizes_to_data,
)
from sparsejit.api.models.variant import TiledGraph, kept_variant
from sparsejit.errors import DamagedFile, InvalidInput, SparseJitError
from sparsejit.ir.state import State, check_states

# Bytes of an ONNX file before the name of an external file of tensors.
_BESIDE = b"\n\x08location\x12"
# A file may be written twice within one tick of the file system's clock.
_SETTLED_NS = 2_000_000_000
_PIECE_BYTES = 4 << 20
_UNREADABLE = (OSError, ValueError, TypeError, AttributeError, ImportError)
_MISREAD = (KeyError, TypeError, ValueError, AttributeError, DamagedFile)
Made = TypeVar("Made")
Graphs = Callable[["OpenFile"], Sequence[Sequence[TiledGraph]]]


class OpenFile:
    """A file that is held open; `path` leads to it even if it is renamed or removed."""

    def __init__(self, name: str | os.PathLike[str]) -> None:
        """Open the file. Raises OSError where it cannot be read."""
        self.name = str(name)
        self._handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        weakref.finalize(self, os.close, self._handle)

    @property
    def path(self) -> Path:
        return Path(f"/proc/self/fd/{self._handle}")

    def digest(self) -> str | None:
        """Return the digest of its bytes; None for an empty file, or one with external tensors.

        As in git, a file counts as unchanged while its times and its size are the same.
        """
        found = os.fstat(self._handle)
        seen = code_cache.digest_of(
            *("seen", found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns),
            found.st_ctime_ns,
        )
        known = code_cache.recall(seen)
        if known is not None and isinstance(known.get("digest"), str):
            return str(known["digest"]) or None
        if not found.st_size:
            return None
        digest = self._digest()
        if time.time_ns() - found.st_ctime_ns > _SETTLED_NS:
            code_cache.remember(seen, {"digest": digest})
        return digest or None

    def _digest(self) -> str:
        """Return the digest of all bytes; "" for a file that names external files."""
        seen, end = hashlib.sha256(), b""
        with self.path.open("rb", buffering=0) as content:
            while piece := content.read(_PIECE_BYTES):
                if _BESIDE in end + piece[: len(_BESIDE)] or _BESIDE in piece:
                    return ""
                seen.update(piece)
                end = piece[-len(_BESIDE) :]
        return seen.hexdigest()


def compiled_or_cached(
    file: str | os.PathLike[str],
    asked: Callable[[], object],
    make: Callable[[], Made],
    graphs: Graphs,
) -> Made | CompiledModel:
    """Return a file's model from the code cache, or compile it with `make` and cache it.

    asked: returns everything else that the model depends on, for `code_cache.digest_of`.
    graphs: reads the graphs of the model's variants again, each for its tiles.
    Raises the errors of `make`.
    """
    source = key = digest = None
    if code_cache.most_bytes():
        try:
            source = OpenFile(file)
            digest = source.digest()
            key = digest and code_cache.digest_of("file", Path(file).stem, digest, asked())
        except _UNREADABLE:  # `make` raises the error
            key = None
    if source is None or not key:
        return make()
    found = _recalled(key, source, digest, graphs)
    if found is not None:
        return found
    model = make()
    about = _about(model) if isinstance(model, CompiledModel) else None
    if about is not None:
        code_cache.remember(key, about)
    return model


def _about(model: CompiledModel) -> dict[str, Any] | None:
    """Return the header of a model for the code cache; None where its code is not cached."""
    variants, inputs, outputs, settings, sizes, makes_others = model.parts
    keys = [variant.key for variant in variants]
    if None in keys or makes_others or any(state.initial is not None for state in model.states):
        return None
    try:
        return {
            "inputs": nest_to_data(inputs, "inputs"),
            "outputs": nest_to_data(outputs, "outputs"),
            "settings": settings_to_data(settings),
            "options": code_cache.digest_of(settings.resolved()),
            "name": variants[0].program.name,
            "keys": keys,
            "shrinking": model.shrinking,
            "sizes": sizes_to_data(sizes),
            "states": [vars(state) for state in model.states],
        }
    except InvalidInput:
        return None


def _recalled(
    key: str, source: OpenFile, digest: str | None, graphs: Graphs
) -> CompiledModel | None:
    about = code_cache.recall(key)
    if about is None:
        return None
    try:
        settings = settings_from_data(about["settings"])
        options = settings.resolved()
        if not code_cache.is_kept(options) or about["options"] != code_cache.digest_of(options):
            return None
        variants = []
        for number, code_key in enumerate(about["keys"]):
            again = _Again(source, digest, graphs, number)
            variant = kept_variant(code_key, options, about["name"], again.graphs)
            if variant is None:
                return None
            variants.append(variant)
        inputs, outputs = (nest_from_data(about[side], side) for side in ("inputs", "outputs"))
        shrinking = str(about.get("shrinking", ""))
        sizes = sizes_from_data(about["sizes"])
        states = [State(**state) for state in about["states"]]
        for variant in variants:
            check_states(variant.interface, states, variant.tile)
        return CompiledModel(
            variants, inputs, outputs, settings, sizes=sizes, shrinking=shrinking, states=states
        )
    except _MISREAD:
        return None


class _Again:
    """A source of a variant's graphs that reads them from the model's file, if it is unchanged."""

    def __init__(self, source: OpenFile, digest: str | None, graphs: Graphs, number: int) -> None:
        self._source, self._digest = source, digest
        self._read, self._number = graphs, number

    def graphs(self) -> Sequence[TiledGraph]:
        """Return the graphs. Raises InvalidInput where the file has changed since compilation."""
        remedy = f"{self._source.name} was changed after it was compiled; compile it again"
        if self._source.digest() != self._digest:
            raise InvalidInput(remedy)
        try:
            return self._read(self._source)[self._number]
        except SparseJitError as error:
            raise InvalidInput(f"{remedy} ({error})") from error
