"""AMX and AVX512-FP16 on any processor with AVX-512: compiles and loads `instruction_emulator.c`
where the processor lacks them."""

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
HALVES = frozenset({"avx512_fp16"})
_COMPILER = shutil.which("cc") or shutil.which("gcc")
_MACHINE = Target.detect()
is_native = _MACHINE.instruction_sets >= AMX
halves_are_native = _MACHINE.instruction_sets >= HALVES
needs_tiles = pytest.mark.skipif(
    not is_native and (_COMPILER is None or not _MACHINE.has("avx512_vbmi2")),
    reason="neither AMX nor a compiler and AVX-512 VBMI2 to emulate it",
)
needs_halves = pytest.mark.skipif(
    not halves_are_native and (_COMPILER is None or _MACHINE.isa != "avx512"),
    reason="neither AVX512-FP16 nor a compiler and AVX-512 to emulate it",
)


def tile_target(**more: int) -> Target:
    """A target with AMX, of the caches named or the avx512 level's."""
    return _target(AMX, **more)


def halves_target(**more: int) -> Target:
    """A target with AVX512-FP16, of the caches named or the avx512 level's."""
    return _target(HALVES, **more)


def _target(sets: frozenset[str], **more: int) -> Target:
    level = Target.named("avx512")
    return replace(level, instruction_sets=level.instruction_sets | sets, **more)


def run_tiles() -> None:
    """Let this process execute AMX, natively or emulated; call it again in every child."""
    if is_native:
        allow_tiles()
    else:
        _emulate()


def run_halves() -> None:
    """Let this process execute AVX512-FP16; call it again in every child."""
    if not halves_are_native:
        _emulate()


def _emulate() -> None:
    if _library().emulate():
        raise OSError("no handler of SIGILL")


def emulated_instructions() -> int:
    """The number of instructions that the emulator has executed for this thread."""
    return int(_library().emulated_instructions())


@cache
def _library() -> ctypes.CDLL:
    source = Path(__file__).with_name("instruction_emulator.c")
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "instruction_emulator.so"
        command = [_COMPILER, "-O3", "-mavx2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        subprocess.run([*map(str, command), "-o", str(built), str(source)], check=True)
        library = ctypes.CDLL(str(built))
    library.emulated_instructions.restype = ctypes.c_long
    return library
