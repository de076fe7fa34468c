"""Systems that exported code can be for: a row for each."""

from collections.abc import Callable
from typing import NamedTuple

from sparsejit.artefact.coff_file import coff_file
from sparsejit.artefact.elf_file import elf_file
from sparsejit.artefact.exported import ObjectCode
from sparsejit.artefact.mach_o_file import mach_o_file
from sparsejit.errors import InvalidInput


class System(NamedTuple):
    """An operating system on x86-64.

    name: the name by which users choose it; `cmake_name` is CMake's.
    suffixes: the suffixes of files for it, the usual one first.
    write: the writer of its object files.
    is_microsoft: whether its functions have Microsoft's calling convention; else System V's.
    asks_for_tiles: whether exported code can ask it for AMX tiles.
    saves_on_demand: whether XCR0 lacks the state of AVX-512 until a thread uses it, as on macOS.
    """

    name: str
    cmake_name: str
    suffixes: tuple[str, ...]
    write: Callable[[ObjectCode], bytes]
    is_microsoft: bool = False
    asks_for_tiles: bool = False
    saves_on_demand: bool = False


LINUX = System("linux", "Linux", (".o", ".so"), elf_file, asks_for_tiles=True)
SYSTEMS = {
    system.name: system
    for system in (
        LINUX,
        System("windows", "Windows", (".obj",), coff_file, is_microsoft=True),
        System("macos", "Darwin", (".o",), mach_o_file, saves_on_demand=True),
    )
}


def system_named(name: str) -> System:
    """Return the system of this name. Raises InvalidInput for other names."""
    if not isinstance(name, str) or name not in SYSTEMS:
        raise InvalidInput(f"system is {name!r}; choose one of {', '.join(SYSTEMS)}")
    return SYSTEMS[name]
