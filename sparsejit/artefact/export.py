"""Exported functions as files: an object or shared object, and a C header.

    shared_object   a shared object, linked by the system's linker from the object file, no libc
    export          writes the files
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from sparsejit.artefact.c_header import c_header, interface_hash
from sparsejit.artefact.entry_points import object_code
from sparsejit.artefact.exported import ExportedFunction, c_name
from sparsejit.artefact.object_files import LINUX, system_named
from sparsejit.errors import CompileError, InvalidInput, MissingDependency
from sparsejit.files import atomic_path, check_writable, checked_path

# All of these take the options below.
LINKERS = ("ld", "ld.lld", "ld.gold", "mold")


def shared_object(object_code: bytes, soname: str) -> bytes:
    """Return the contents of the .so file; it has the global symbols of the object file.

    Raises MissingDependency where there is no linker, and CompileError where it fails.
    """
    linker = _find_linker()
    with tempfile.TemporaryDirectory(prefix="sparsejit-") as folder:
        source, result = Path(folder) / "code.o", Path(folder) / "code.so"
        source.write_bytes(object_code)
        options = ["-shared", "-z", "noexecstack", "-z", "now", "-soname", soname]
        done = subprocess.run(
            [linker, *options, "-o", str(result), str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise CompileError(
                f"{linker} cannot link {soname}: {done.stderr.strip()}; export a .o file instead"
            )
        return result.read_bytes()


def _find_linker() -> str:
    """Return the path of the system's linker. Raises MissingDependency where there is none."""
    for name in LINKERS:
        path = shutil.which(name)
        if path is not None:
            return path
    raise MissingDependency(
        f"a .so file needs a linker, and none of {', '.join(LINKERS)} is on PATH; "
        "install binutils, or export a .o file, which needs none"
    )


PathLike = str | os.PathLike[str]


def export(
    function: ExportedFunction,
    path: PathLike,
    header: PathLike | None = None,
    system: str = LINUX.name,
) -> None:
    """Write an object or shared object (.so) file, and its C header (.h) where one is named.

    Raises InvalidInput for other suffixes, code that the system cannot run, and files that cannot
    be written; MissingDependency where a .so file needs a linker that is not there, and
    CompileError where the linker fails.
    """
    check_export(path, header, system)
    chosen = system_named(system)
    content = chosen.write(object_code(function, chosen, interface_hash(function)))
    if Path(path).suffix == ".so":
        content = shared_object(content, Path(path).name)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
    if header is not None:
        with atomic_path(header) as temporary:
            temporary.write_text(c_header(function))


def check_export(
    path: PathLike, header: PathLike | None = None, system: str = LINUX.name
) -> None:
    """Raise what `export` would raise for these names, before there is anything to export."""
    c_name(path)
    chosen = system_named(system)
    check_writable(_with_suffix(path, f" for {chosen.name}", *chosen.suffixes))
    if header is not None:
        check_writable(_with_suffix(header, "", ".h"))


def _with_suffix(path: PathLike, purpose: str, *allowed: str) -> Path:
    if checked_path(path).suffix not in allowed:
        kinds = " or ".join(allowed)
        example = f"model{allowed[0]}"
        raise InvalidInput(
            f"{os.fspath(path)!r} is no {kinds} file{purpose}; name one, such as {example}"
        )
    return Path(path)
