"""AMX on any processor: compiles and loads `tile_emulator.c` where the processor lacks it."""

import ctypes
import shutil
import subprocess
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from sparsejit.machine.target import Target
from sparsejit.runtime.program import allow_tiles

AMX = frozenset({"amx_tile", "amx_int8", "avx512_vbmi2"})
_COMPILER = shutil.which("cc") or shutil.which("gcc")
_MACHINE = Target.detect()
is_native = _MACHINE.instruction_sets >= AMX
needs_tiles = pytest.mark.skipif(
    not is_native and (_COMPILER is None or not _MACHINE.has("avx512_vbmi2")),
    reason="neither AMX nor a compiler and AVX-512 VBMI2 to emulate it",
)


def tile_target(**more: int) -> Target:
    """A target with AMX, of the caches named or the avx512 level's."""
    level = Target.named("avx512")
    return replace(level, instruction_sets=level.instruction_sets | AMX, **more)


def run_tiles() -> None:
    """Let this process execute AMX, natively or emulated; call it again in every child."""
    if is_native:
        allow_tiles()
    elif _library().emulate_tiles():
        raise OSError("no handler of SIGILL")


def emulated_instructions() -> int:
    """The number of instructions that the emulator has executed for this thread."""
    return 0 if is_native else int(_library().emulated_instructions())


@cache
def _library() -> ctypes.CDLL:
    source = Path(__file__).with_name("tile_emulator.c")
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "tile_emulator.so"
        command = [_COMPILER, "-O3", "-mavx2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        subprocess.run([*map(str, command), "-o", str(built), str(source)], check=True)
        library = ctypes.CDLL(str(built))
    library.emulated_instructions.restype = ctypes.c_long
    return library
