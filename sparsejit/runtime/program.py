"""Builds native functions: emits the code around kernel bodies and maps it into memory."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

from sparsejit.errors import InvalidInput
from sparsejit.files import atomic_path, check_writable
from sparsejit.machine.target import Target
from sparsejit.native.copying import SharedCode
from sparsejit.native.executable_memory import ExecutableMemory, write_perf_map
from sparsejit.runtime.common_weights import CommonWeights
from sparsejit.runtime.tiles import allow_tiles
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.image import Image

_serial = count()


class Program(SharedCode):
    """One native function: its image, the memory it runs from, and its address."""

    def __init__(self, name: str, image: Image, memory: ExecutableMemory) -> None:
        """Take an image and the memory that holds its content.

        Raises UnsupportedTarget where the code needs AMX and the system does not let this process
        use it.
        """
        if image.uses("ldtilecfg"):
            allow_tiles()
        self.name = name
        self.memory = memory
        self.image = replace(image, content=memory.view(image.size))
        _report(self)

    @property
    def pointer(self) -> int:
        """Address of the function, valid while this object lives."""
        return self.memory.address


def build(
    name: str,
    target: Target,
    body: Callable[[Assembler], None],
    ask_ahead: int = 0,
    listed: bool = True,
    common: CommonWeights | None = None,
) -> Program:
    """Emit `body` as a System V function; it must keep callee-saved registers itself.

    ask_ahead: prefetch distance of straight code for the code ahead of it, in bytes (`Assembler`).
    listed: whether the image keeps the data of its listing; always where SPARSEJIT_DUMP is set.
    common: the weights that it shares with earlier functions, or later functions with it.

    The function ends with `vzeroupper`: without it, dirty upper halves slow down the caller's next
    SSE code (Intel Optimization Manual 15.3.1; measured eight times slower after a peer's JIT).
    Raises InvalidInput where SPARSEJIT_DUMP names no folder that can be written to, and
    UnsupportedTarget where the code needs AMX and the system does not let this process use it.
    """
    literals = None if common is None else common.literals
    asm = Assembler(target, ask_ahead, listed or dump_folder() is not None, literals)
    body(asm)
    asm.emit("vzeroupper")
    asm.emit("ret")
    memories = []

    def executable(size: int, fill: Callable[[memoryview], None]) -> memoryview:
        within, beside = (None, None) if common is None else (common.neighbourhood, common.memory)
        memories.append(ExecutableMemory.filled(size, fill, within, beside))
        return memories[0].view(size)

    program = Program(name, asm.finish(executable), *memories)
    if common is not None:
        common.written(program.memory)
    return program


def _report(program: Program) -> None:
    """Name the code for `perf` if SPARSEJIT_DEBUG >= 2; write code, listing to SPARSEJIT_DUMP."""
    if debug_level() >= 2:
        write_perf_map(program.pointer, program.image.code_bytes, f"sparsejit:{program.name}")
    folder = dump_folder()
    if folder is not None:
        stem = f"{next(_serial):04d}-{re.sub(r'[^A-Za-z0-9_.-]+', '_', program.name)}"
        with atomic_path(folder / f"{stem}.bin") as path:
            path.write_bytes(program.image.data)
        with atomic_path(folder / f"{stem}.lst") as path:
            path.write_text("\n".join(program.image.listing()) + "\n")


def dump_folder() -> Path | None:
    """Return the folder that SPARSEJIT_DUMP names; None where it is not set.

    Raises InvalidInput for a folder that cannot be written to.
    """
    name = os.environ.get("SPARSEJIT_DUMP")
    if not name:
        return None
    try:
        return check_writable(Path(name) / "kernel.lst").parent
    except InvalidInput as error:
        raise InvalidInput(f"SPARSEJIT_DUMP={name}: {error}, or unset it") from error


def debug_level() -> int:
    """Return SPARSEJIT_DEBUG as a number, at most 4; 0 where it is no number."""
    text = os.environ.get("SPARSEJIT_DEBUG", "0")
    return min(int(text), 4) if text.isdigit() else 0
