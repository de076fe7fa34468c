"""Writes exported functions: an object or shared object file, and its C header."""

import os
from pathlib import Path

from sparsejit.artefact.exported import ExportedFunction, c_name
from sparsejit.artefact.header import c_header
from sparsejit.artefact.object_file import object_file
from sparsejit.artefact.shared_object import shared_object
from sparsejit.errors import InvalidInput
from sparsejit.files import atomic_path, check_writable, checked_path

PathLike = str | os.PathLike[str]


def export(function: ExportedFunction, path: PathLike, header: PathLike | None = None) -> None:
    """Write an object (.o) or shared object (.so) file, and its C header (.h) where one is named.

    Raises InvalidInput for other suffixes and files that cannot be written; MissingDependency where
    a .so file needs a linker that is not there, and CompileError where the linker fails.
    """
    check_export(path, header)
    content = object_file(function)
    if Path(path).suffix == ".so":
        content = shared_object(content, Path(path).name)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
    if header is not None:
        with atomic_path(header) as temporary:
            temporary.write_text(c_header(function))


def check_export(path: PathLike, header: PathLike | None = None) -> None:
    """Raise what `export` would raise for these names, before there is anything to export."""
    c_name(path)
    check_writable(_with_suffix(path, ".o", ".so"))
    if header is not None:
        check_writable(_with_suffix(header, ".h"))


def _with_suffix(path: PathLike, *allowed: str) -> Path:
    if checked_path(path).suffix not in allowed:
        kinds = " or ".join(allowed)
        example = f"model{allowed[0]}"
        raise InvalidInput(f"{os.fspath(path)!r} is no {kinds} file; name one, such as {example}")
    return Path(path)
