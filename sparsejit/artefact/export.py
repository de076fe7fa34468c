"""Exported functions as files: an object or shared object, and a C header.

    shared_object   a shared object, linked by the system's linker from the object file, no libc
    c_header        the C header: sizes, error codes, the prototype; also for C++
    export          writes the files
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from sparsejit.artefact.exported import OK, UNSUPPORTED_CPU, ExportedFunction, Macro, c_name
from sparsejit.artefact.object_file import object_file
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


def c_header(function: ExportedFunction) -> str:
    """Return the text of the .h file."""
    prefix = function.name.upper()
    codes = (
        Macro("OK", OK, "run has written its outputs"),
        Macro("UNSUPPORTED_CPU", UNSUPPORTED_CPU, "run did nothing: a feature above is missing"),
    )
    needs = " ".join(sorted(function.instruction_sets))
    macros = "\n".join(_define(prefix, macro) for macro in (*codes, *function.macros))
    about = "\n".join(f" * {line}" for line in function.about)
    tiles = _TILES if "amx_tile" in function.instruction_sets else ""
    return f"""\
/* Made by sparsejit.
 *
{about}
 *
 * Any number of threads may call it at once. It calls no library.
{tiles} * The processor and the operating system must have:
 *   {needs}
 */
#ifndef {prefix}_H
#define {prefix}_H

{macros}

#ifdef __cplusplus
extern "C" {{
#endif

int {function.symbol}({function.parameters});

#ifdef __cplusplus
}}
#endif

#endif
"""


_TILES = """\
 * Its first call asks Linux to let this process use the tiles of AMX: arch_prctl with
 * ARCH_REQ_XCOMP_PERM. If Linux refuses, it returns UNSUPPORTED_CPU.
"""


def _define(prefix: str, macro: Macro) -> str:
    value = str(macro.value) if macro.value >= 0 else f"({macro.value})"
    return f"#define {prefix}_{macro.name} {value} /* {macro.meaning} */"


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
