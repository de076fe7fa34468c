"""Native functions: code around kernel bodies, in memory, with weights and permissions.

    allow_tiles     permission for AMX tiles, which Linux gives to a process only on request
    CommonWeights   weights that native functions of one model share: literals in the memory of
                    earlier ones
    Program         a native function, mapped into memory
    build           emits the code around a kernel's body

Permission: Documentation/arch/x86/xstate.rst of the Linux kernel. Children inherit it; a process
that has it needs larger alternate signal stacks, so it is asked for only where the processor has
AMX.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput, UnsupportedTarget
from sparsejit.files import atomic_path, check_writable
from sparsejit.machine.target import Target, must_ask
from sparsejit.native.copying import SharedCode
from sparsejit.native.executable_memory import ExecutableMemory, Neighbourhood, write_perf_map
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.image import CommonLiterals, Image

_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM = 158, 0x1023
_TILE_DATA = 18  # the number of the tiles' state in XCR0

_libc = ctypes.CDLL(None, use_errno=True)


@cache
def refusal() -> str | None:
    """Ask Linux, once a process, to allow AMX tiles; return the reason of a refusal, or None."""
    if not _libc.syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _TILE_DATA):
        return None
    code = ctypes.get_errno()
    return (
        "the system does not let this process use AMX tiles (arch_prctl: "
        f"{errno.errorcode.get(code, code)} {os.strerror(code)}); allow that call, enlarge "
        "alternate signal stacks, or choose strategy='auto' and target='native'"
    )


def allow_tiles() -> None:
    """Ask Linux to let this process use AMX tiles. Raises UnsupportedTarget where it refuses."""
    why = refusal()
    if why is not None:
        raise UnsupportedTarget(why)


must_ask(("amx_tile", "amx_int8", "amx_bf16"), refusal)


Array = npt.NDArray[Any]


class CommonWeights:
    """Weights in memory that native functions of one model share, and the addresses of these.

    The first function's weights are shared; so are the weights of a later one that is kept
    (`keep`). All these functions lie in one neighbourhood. Raises CompileError where the system
    refuses its addresses.
    """

    def __init__(self) -> None:
        self.neighbourhood = Neighbourhood()
        self.literals = CommonLiterals(self.neighbourhood.first)
        self.memory: ExecutableMemory | None = None  # holds the memory of earlier functions alive
        self._newest: ExecutableMemory | None = None

    @property
    def is_there(self) -> bool:
        """Whether a function has been built whose literals others can share."""
        return self.literals.is_there

    def written(self, memory: ExecutableMemory) -> None:
        """Record the memory of a new function; the first one's literals are shared from now on."""
        self._newest = memory
        if self.memory is None:
            self.keep()

    def keep(self) -> None:
        """Let further functions share the literals of the newest function, too."""
        self.literals.keep()
        self.memory = self._newest

    def view_of(self, array: Array) -> Array | None:
        """Return an equal array in the memory of one of the functions; None where none has it."""
        address, newest = self.literals.address_of(array), self._newest
        if address is None or newest is None or not array.flags.c_contiguous:
            return None
        found = np.frombuffer(newest.view(array.nbytes, address), array.dtype)
        found = found.reshape(array.shape)
        return found if np.array_equal(_bytes_of(found), _bytes_of(array)) else None


def _bytes_of(array: Array) -> npt.NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


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
    prefetch_distance: int = 0,
    listed: bool = True,
    common: CommonWeights | None = None,
    beside: ExecutableMemory | None = None,
) -> Program:
    """Emit `body` as a System V function; it must keep callee-saved registers itself.

    prefetch_distance: bytes from straight code to the code that it prefetches (`Assembler`).
    listed: whether the image keeps the data of its listing; always where SPARSEJIT_DUMP is set.
    common: the weights that it shares with earlier functions, or later functions with it.
    beside: the memory of code that it calls, which lives as long; without `common`.

    The function ends with `vzeroupper`: without it, dirty upper halves slow down the caller's next
    SSE code (Intel Optimization Manual 15.3.1; measured eight times slower after a peer's JIT).
    Raises InvalidInput where SPARSEJIT_DUMP names no folder that can be written to, and
    UnsupportedTarget where the code needs AMX and the system does not let this process use it.
    """
    literals = None if common is None else common.literals
    asm = Assembler(target, prefetch_distance, listed or dump_folder() is not None, literals)
    body(asm)
    asm.emit("vzeroupper")
    asm.emit("ret")
    memories = []

    def executable(size: int, fill: Callable[[memoryview], None]) -> memoryview:
        places = (None, beside) if common is None else (common.neighbourhood, common.memory)
        memories.append(ExecutableMemory.filled(size, fill, *places))
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
