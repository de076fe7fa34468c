"""Exported functions as files: an object or shared object, and a C header, also for C++.

    c_header        the header: sizes, error codes, prototypes
    shared_object   a shared object, linked by the system's linker from the object file, no libc
    export          writes the files

    MODEL_HASH            digest of all that the header says
    #define model_run     model_run_1f0c...     the name that the linker looks for

An object has its functions under both names. So a program that was compiled with one header does
not link with the object of another interface, and `dlsym` finds the short name.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from sparsejit.artefact.entry_points import entry_points, object_code
from sparsejit.artefact.exported import OK, UNSUPPORTED_CPU, ExportedFunction, Macro, c_name
from sparsejit.artefact.object_files import LINUX, system_named
from sparsejit.errors import CompileError, InvalidInput, MissingDependency
from sparsejit.files import atomic_path, check_writable, checked_path

_HASH_DIGITS = 16


def interface_hash(function: ExportedFunction) -> str:
    """Return the hash that header and object share.

    Other weights of the same network change it only where sizes or needs of the code change.
    """
    return hashlib.sha256(_text(function, "").encode()).hexdigest()[:_HASH_DIGITS]


def c_header(function: ExportedFunction) -> str:
    """Return the text of the .h file."""
    return _text(function, interface_hash(function))


def _text(function: ExportedFunction, digest: str) -> str:
    prefix, points = function.name.upper(), entry_points(function)
    types = "".join(f"{line}\n" for line in (*function.types, "") if function.types)
    codes = (
        Macro("OK", OK, "a function has done its work"),
        Macro("UNSUPPORTED_CPU", UNSUPPORTED_CPU, "it did nothing: a feature above is missing"),
    )
    needs = " ".join(sorted(function.instruction_sets))
    macros = "\n".join(_define(prefix, macro) for macro in (*codes, *function.macros))
    about = "\n".join(f" * {line}" for line in function.about)
    tiles = _TILES if "amx_tile" in function.instruction_sets else ""
    names = [f"{function.name}_{point.name}" for point in points]
    renamed = "\n".join(f"#define {name} {name}_{digest}" for name in names)
    functions = "\n".join(
        "".join(f"/* {line} */\n" for line in point.about) + f"int {name}({point.parameters});"
        for name, point in zip(names, points, strict=True)
    )
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

#include <stddef.h>

{macros}

/* This header and its object file have this hash in common; others do not link. */
#define {prefix}_HASH "{digest}"
{renamed}

#ifdef __cplusplus
extern "C" {{
#endif

{types}{functions}

#ifdef __cplusplus
}}
#endif

#endif
"""


_TILES = """\
 * The first call asks Linux to let this process use the tiles of AMX: arch_prctl with
 * ARCH_REQ_XCOMP_PERM. If Linux refuses, it returns UNSUPPORTED_CPU.
"""


def _define(prefix: str, macro: Macro) -> str:
    value = str(macro.value) if macro.value >= 0 else f"({macro.value})"
    return f"#define {prefix}_{macro.name} {value} /* {macro.meaning} */"


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
    """Raise the errors of `export` for these names, before there is anything to export."""
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
