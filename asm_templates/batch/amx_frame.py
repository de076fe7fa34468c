"""The stack frame of an AMX kernel, and the tile configuration that it restores."""

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.batch.amx_layout import (
    ROW_BYTES,
    ROWS,
    STRIP_TILES,
    TILE_BYTES,
    LoweredTiles,
)
from sparsejit.ir.spec import Layout, MatMul
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    dword,
    r12,
    r13,
    r14,
    r15,
    rax,
    rbp,
    rbx,
    rdi,
    rsi,
    rsp,
)
from sparsejit.x86.stack import make_room, pop, push

COLUMN_TILES = 2  # of x, multiplied at once
SUM_TILES = STRIP_TILES * COLUMN_TILES  # tiles 0 to 3; then two of weights, two of x
_SAVED = (rbx, rbp, r12, r13, r14, r15, rdi, rsi)
_SLOTS = 8


class TileFrame:
    """The workspace of a kernel, as offsets from the stack pointer, in bytes.

    `sums` holds stored tiles of sums, `scales` the scales of a chunk of x, `strip` the expanded
    weights of a strip, or of one step if no further columns need them, `x` the tiles of a chunk.
    """

    def __init__(self, asm: Assembler, lowered: LoweredTiles, chunk: int) -> None:
        self.asm, self.spec = asm, lowered.spec
        columns, inputs = ceil_div(chunk, ROWS), ceil_div(lowered.spec.in_features, ROW_BYTES)
        compressed = lowered.bits is not None
        kept = lowered.most_steps if columns > COLUMN_TILES else min(1, lowered.most_steps)
        self.sums = 0
        self._slots = SUM_TILES * TILE_BYTES
        self._configuration = Memory(rsp, self._slots + 8 * _SLOTS)
        self.scales = self._slots + 8 * _SLOTS + 64
        self.strip = self.scales + 4 * ROWS * columns
        self.x = self.strip + (kept * STRIP_TILES * TILE_BYTES if compressed else 0)
        self._bytes = self.x + columns * inputs * TILE_BYTES
        self._used = 0
        self._caller = self.slot()

    def slot(self) -> Memory:
        """Return a further place for 64 bits."""
        assert self._used < _SLOTS
        self._used += 1
        return Memory(rsp, self._slots + 8 * (self._used - 1))

    def enter(self) -> None:
        """Save registers, make room, save the tiles' configuration and set a new one.

        Clobbers rax and rbp.
        """
        asm = self.asm
        push(asm, _SAVED)
        asm.emit("mov", rbp, rsp)
        make_room(asm, self._bytes)
        asm.emit("mov", self._caller, rbp)
        asm.emit("sttilecfg", self._configuration)
        asm.emit("lea", rax, Literal(asm.literal(_configuration(self.spec))))
        asm.emit("ldtilecfg", Memory(rax))

    def leave(self) -> None:
        """Restore registers and configuration; if there was none, release the tiles."""
        asm, other, done = self.asm, self.asm.label("other"), self.asm.label("done")
        asm.emit("mov", dword(rax), self._configuration)
        asm.emit("and", dword(rax), 0xFF)  # the palette
        asm.jump("jnz", other)
        asm.emit("tilerelease")
        asm.jump("jmp", done)
        asm.bind(other)
        asm.emit("ldtilecfg", self._configuration)
        asm.bind(done)
        asm.emit("mov", rsp, self._caller)
        pop(asm, _SAVED)

    def add(self, place: Memory, number: int) -> None:
        """Add to a number in memory; flags are as the sum sets them. Clobbers rax."""
        self.asm.emit("mov", rax, place)
        self.asm.emit("add", rax, number)
        self.asm.emit("mov", place, rax)


def _configuration(spec: MatMul) -> npt.NDArray[np.uint8]:
    """Return palette 1 with full tiles; batch-major tiles of x and sums have a row a column."""
    configuration = np.zeros(64, np.uint8)
    configuration[0] = 1
    configuration[16:32:2] = ROW_BYTES
    rows = configuration[48:56]
    rows[:] = ROWS
    if spec.layout is Layout.BATCH_MAJOR:
        rows[:SUM_TILES] = rows[SUM_TILES + STRIP_TILES :] = min(ROWS, spec.batch)
    return configuration
