"""A shared object, linked from the object file by the system's linker, without libc."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from sparsejit.errors import CompileError, MissingDependency

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
