"""An int8 batch by the tiles of AMX: 16 by 16 int32 sums of 64 products at a time.

    TileFrame   the kernel's stack frame, with the tile configuration that it restores
    emit        the kernel

The loops:

    for each chunk of columns:              x -> tiles of bytes in the workspace
      for each strip of 32 outputs:
        for each two tiles of columns:
          for each 64 inputs of the strip:  four tdpbssd on two tiles of weights and two of x
          sums -> workspace -> y

Compressed weights are expanded with the strip's first tiles of columns and kept for the others.

    kmovq      k2, [bits]                   which of 64 weights are not zero
    vpexpandb  zmm0{k2}{z}, [weights]       each to its place
    vmovups    [tile], zmm0

The configuration of tiles is restored at the end. docs/kernels/batch.md explains the limits.
"""

from functools import partial

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.batch import amx_ends
from sparsejit.asm_templates.batch.amx_ends import (
    LANE_BIAS,
    LANE_MASK,
    LANE_SCALES,
    ROW_SCALES,
    ROWS_LEFT,
    SUMS,
    X_TILES,
    X,
    Y,
)
from sparsejit.asm_templates.batch.amx_layout import (
    ROW_BYTES,
    ROWS,
    STRIP_TILES,
    TILE_BYTES,
    LoweredTiles,
)
from sparsejit.asm_templates.shared.loops import counted_down, repeat
from sparsejit.asm_templates.shared.masks import set_tail_mask
from sparsejit.ir.spec import Layout, MatMul
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    k,
    r8,
    r9,
    r10,
    r11,
    r12,
    r13,
    r14,
    r15,
    rax,
    rbp,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
    rsp,
    tmm,
    zmm,
)
from sparsejit.x86.routines import make_room, pop, push

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
        """Reserve 64 bits of the frame; return their address."""
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
    """Return the 64 bytes that `ldtilecfg` reads: palette 1, with full tiles.

    If the batch is short and batch-major, tiles of x and of sums have a row for each column.
    """
    configuration = np.zeros(64, np.uint8)
    configuration[0] = 1
    configuration[16:32:2] = ROW_BYTES
    rows = configuration[48:56]
    rows[:] = ROWS
    if spec.layout is Layout.BATCH_MAJOR:
        rows[:SUM_TILES] = rows[SUM_TILES + STRIP_TILES :] = min(ROWS, spec.batch)
    return configuration


_PITCH = r10  # of every tile in memory: 64
# A strip: its weights, their bits, its steps, its part of y, the scales of its outputs.
_WEIGHTS, _BITS, _STEPS, _STRIP_Y, _SCALES = rbx, r12, r13, r15, rdi
# Some tiles of columns: tiles of x, their scales, their part of y.
_COLUMNS_X, _X_SCALES, _COLUMNS_Y = rsi, rbp, r14
# A step: dense tiles of weights, the address of the next step, the number of steps left.
_TILES, _NEXT_STEP, _STEPS_LEFT = r8, r9, rcx
_EXPANDED, _NONZERO = zmm(0), k(2)


def emit(asm: Assembler, lowered: LoweredTiles) -> None:
    """Append the kernel for an int8 batch. x and y must not overlap; see `batch_families`."""
    _TileCode(asm, lowered).emit()


class _TileCode:
    """Appends the AMX kernel's code: chunks of columns, strips of outputs, products, ends."""

    def __init__(self, asm: Assembler, lowered: LoweredTiles) -> None:
        self.asm, self.lowered, self.spec = asm, lowered, lowered.spec
        spec = lowered.spec
        self.feature_major = spec.layout is Layout.FEATURE_MAJOR
        self.x_tiles = ceil_div(spec.in_features, ROW_BYTES)  # of one tile of columns
        self.chunk = min(spec.batch, lowered.counts.chunk_columns)
        self.frame = TileFrame(asm, lowered, self.chunk)
        slots = [self.frame.slot() for _ in range(7)]
        self.chunk_x, self.chunk_y, self.chunks_left, self.strips_left = slots[:4]
        self.pairs_left, self.outputs_left, self.columns_left = slots[4:]
        self.finish = asm.label("finish")
        # Bytes of y from one tile of outputs, and of columns, to the next.
        pitch = 4 * ROWS * (spec.pitch if self.feature_major else spec.y_features)
        self.y_steps = (pitch, 4 * ROWS) if self.feature_major else (4 * ROWS, pitch)
        pool = lowered.scales if lowered.bias is None else np.append(lowered.scales, lowered.bias)
        self.scales = Literal(asm.literal(pool))
        self.bias_distance = None if lowered.bias is None else lowered.scales.nbytes
        self.weights = Literal(asm.literal(lowered.weights))
        self.bits = None if lowered.bits is None else Literal(asm.literal(lowered.bits))
        self.steps = Literal(asm.literal(lowered.steps))

    def emit(self) -> None:
        asm = self.asm
        self.frame.enter()
        asm.emit("mov", self.chunk_x, rdi)
        asm.emit("mov", self.chunk_y, rsi)
        asm.emit("mov", dword(_PITCH), ROW_BYTES)
        chunks, rest = divmod(self.spec.batch, self.chunk)
        repeat(asm, chunks, self.chunks_left, partial(self._chunk, self.chunk))
        if rest:
            self._chunk(rest)
        self.frame.leave()
        end = asm.label("end")
        asm.jump("jmp", end)
        asm.bind(self.finish)
        amx_ends.emit_finish(asm, self.spec, self.bias_distance)
        asm.bind(end)

    def _chunk(self, columns: int) -> None:
        """Append the code of a chunk: `columns` columns of y; advance x and y past them."""
        asm, spec = self.asm, self.spec
        asm.emit("mov", X, self.chunk_x)
        asm.emit("lea", X_TILES, Memory(rsp, self.frame.x))
        asm.emit("lea", _X_SCALES, Memory(rsp, self.frame.scales))
        amx_ends.begin_quantising(asm, spec)
        self._quantise(columns)
        self._set_columns_left(columns)
        asm.emit("mov", _STRIP_Y, self.chunk_y)
        asm.emit("lea", _SCALES, self.scales)
        asm.emit("lea", _WEIGHTS, self.weights)
        asm.emit("lea", _STEPS, self.steps)
        if self.bits is not None:
            asm.emit("lea", _BITS, self.bits)
        asm.emit("mov", dword(rax), spec.out_features)
        asm.emit("mov", self.outputs_left, rax)
        whole, rest = divmod(len(self.lowered.scales) // ROWS, STRIP_TILES)
        repeat(asm, whole, self.strips_left, partial(self._strip, STRIP_TILES, columns))
        if rest:
            self._strip(rest, columns)
        x_bytes, y_bytes = (4, 4) if self.feature_major else (
            4 * spec.in_features, 4 * spec.y_features
        )  # fmt: skip
        self.frame.add(self.chunk_x, columns * x_bytes)
        self.frame.add(self.chunk_y, columns * y_bytes)

    def _set_columns_left(self, columns: int) -> None:
        self.asm.emit("mov", dword(rax), columns)
        self.asm.emit("mov", self.columns_left, rax)

    def _quantise(self, columns: int) -> None:
        """Append code that writes x of `columns` columns as int8 tiles, tile after tile."""
        tiles, rest = divmod(columns, ROWS)
        if not self.feature_major:
            repeat(self.asm, tiles, rdx, lambda: self._quantise_rows(ROWS))
            if rest:
                self._quantise_rows(rest)
            return
        for count, lanes in ((tiles, ROWS), (1, rest)):
            if count * lanes == 0:
                continue
            set_tail_mask(self.asm, lanes, LANE_MASK)
            repeat(self.asm, count, rdx, self._quantise_columns)

    def _quantise_columns(self) -> None:
        asm = self.asm
        asm.emit("mov", r11, X_TILES)
        amx_ends.quantise_columns(asm, self.spec, Memory(_X_SCALES))
        asm.emit("lea", X_TILES, Memory(r11, self.x_tiles * TILE_BYTES))
        asm.emit("add", _X_SCALES, 4 * ROWS)
        asm.emit("add", X, 4 * ROWS)

    def _quantise_rows(self, rows: int) -> None:
        asm = self.asm

        def row() -> None:
            amx_ends.quantise_row(asm, self.spec, Memory(_X_SCALES))
            asm.emit("add", X_TILES, ROW_BYTES)
            asm.emit("add", _X_SCALES, 4)
            asm.emit("add", X, 4 * self.spec.in_features)

        repeat(asm, rows, rcx, row)
        asm.emit("add", X_TILES, self.x_tiles * TILE_BYTES - rows * ROW_BYTES)

    def _strip(self, height: int, columns: int) -> None:
        """Append the code of `height` tiles of 16 outputs each, for all columns of the chunk."""
        asm = self.asm
        asm.emit("lea", _COLUMNS_X, Memory(rsp, self.frame.x))
        asm.emit("lea", _X_SCALES, Memory(rsp, self.frame.scales))
        asm.emit("mov", _COLUMNS_Y, _STRIP_Y)
        tiles = ceil_div(columns, ROWS)
        expands = self.bits is not None
        if expands:
            width = min(tiles, COLUMN_TILES)
            tiles -= width
            self._columns(height, width, expands=True, kept=tiles > 0)
        pair = partial(self._columns, height, COLUMN_TILES)
        repeat(asm, tiles // COLUMN_TILES, self.pairs_left, pair)
        if tiles % COLUMN_TILES:
            self._columns(height, tiles % COLUMN_TILES)
        self._set_columns_left(columns)
        if not expands:
            asm.emit("mov", _WEIGHTS, _TILES)
        asm.emit("mov", _STEPS, _NEXT_STEP)
        asm.emit("add", _SCALES, 4 * ROWS * height)
        asm.emit("add", _STRIP_Y, height * self.y_steps[0])
        self.frame.add(self.outputs_left, -ROWS * height)

    def _columns(
        self, height: int, width: int, expands: bool = False, kept: bool = False
    ) -> None:
        """Append the code of `height` tiles of outputs by `width` tiles of columns, from sums to y.

        `expands`: expand the strip's compressed weights first; `kept`: keep them for further
        columns.
        """
        asm, done = self.asm, self.asm.label("done")
        for number in range(height * width):
            asm.emit("tilezero", tmm(number))
        if self.bits is not None:
            asm.emit("lea", _TILES, Memory(rsp, self.frame.strip))
        else:
            asm.emit("mov", _TILES, _WEIGHTS)
        asm.emit("mov", dword(_STEPS_LEFT), Memory(_STEPS))
        asm.emit("lea", _NEXT_STEP, Memory(_STEPS, 4))
        asm.emit("test", dword(_STEPS_LEFT), dword(_STEPS_LEFT))
        asm.jump("jz", done)
        with counted_down(asm, dword(_STEPS_LEFT)):
            if expands:
                self._expand(height)
            self._multiply(height, width)
            if kept or not expands:
                asm.emit("add", _TILES, height * TILE_BYTES)
            asm.emit("add", _NEXT_STEP, 4)
        asm.bind(done)
        self._finish(height, width)
        self.frame.add(self.columns_left, -ROWS * width)
        asm.emit("add", _COLUMNS_X, width * self.x_tiles * TILE_BYTES)
        asm.emit("add", _X_SCALES, 4 * ROWS * width)
        asm.emit("add", _COLUMNS_Y, width * self.y_steps[1])

    def _expand(self, height: int) -> None:
        """Expand the next compressed weights into the step's tiles."""
        asm = self.asm
        for row in range(height * ROWS):
            bits = Memory(_BITS, 8 * row)
            asm.emit("kmovq", _NONZERO, bits)
            asm.emit("popcnt", rax, bits)
            asm.emit("vmovups", _EXPANDED, Memory(_WEIGHTS))
            asm.emit("vpexpandb", _EXPANDED.masked(_NONZERO, zeroing=True), _EXPANDED)
            asm.emit("vmovups", Memory(_TILES, ROW_BYTES * row), _EXPANDED)
            asm.emit("add", _WEIGHTS, rax)
        asm.emit("add", _BITS, 8 * height * ROWS)

    def _multiply(self, height: int, width: int) -> None:
        """Append a step of 64 inputs: `height` tiles of weights by `width` tiles of x, into sums.

        Each tile is loaded just before its first use.
        """
        asm = self.asm
        weights = [tmm(SUM_TILES + row) for row in range(height)]
        columns = [tmm(SUM_TILES + STRIP_TILES + column) for column in range(width)]
        asm.emit("mov", dword(rax), Memory(_NEXT_STEP))
        asm.emit("add", rax, _COLUMNS_X)
        for row, weight in enumerate(weights):
            asm.emit("tileloadd", weight, Memory(_TILES, row * TILE_BYTES, index=_PITCH))
            for column, x in enumerate(columns):
                if row == 0:
                    distance = column * self.x_tiles * TILE_BYTES
                    asm.emit("tileloadd", x, Memory(rax, distance, index=_PITCH))
                left, right = (weight, x) if self.feature_major else (x, weight)
                asm.emit("tdpbssd", tmm(row * width + column), left, right)

    def _finish(self, height: int, width: int) -> None:
        """Turn sums into y, tile by tile."""
        asm = self.asm
        for number in range(height * width):
            place = Memory(rsp, self.frame.sums + number * TILE_BYTES, index=_PITCH)
            asm.emit("tilestored", place, tmm(number))
        for number in range(height * width):
            row, column = divmod(number, width)
            outputs, columns = (self.outputs_left, row), (self.columns_left, column)
            rows, lanes = (outputs, columns) if self.feature_major else (columns, outputs)
            self._most_16(rdx, *lanes)
            asm.emit("mov", dword(rax), -1)
            asm.emit("bzhi", dword(rax), dword(rax), dword(rdx))
            asm.emit("kmovw", LANE_MASK, dword(rax))
            self._most_16(ROWS_LEFT, *rows)
            self._point_at_scales(64 * row, 64 * column)
            asm.emit("lea", SUMS, Memory(rsp, self.frame.sums + number * TILE_BYTES))
            y_row, y_column = self.y_steps
            asm.emit("lea", Y, Memory(_COLUMNS_Y, row * y_row + column * y_column))
            asm.jump("call", self.finish)

    def _most_16(self, register: Register, left: Memory, tiles_before: int) -> None:
        """Append code: register = the rows or lanes that exist in a tile, 0 to 16. Clobbers rcx.

        It is the count in memory at `left` minus `tiles_before` tiles of 16, at most 16.
        """
        asm = self.asm
        asm.emit("mov", register, left)
        asm.emit("sub", register, ROWS * tiles_before)
        asm.emit("mov", dword(rcx), ROWS)
        asm.emit("cmp", register, rcx)
        asm.emit("cmova", register, rcx)

    def _point_at_scales(self, of_outputs: int, of_columns: int) -> None:
        """Append code that sets the scales of a tile of sums: a pointer for rows, a lane vector.

        `of_outputs`, `of_columns`: byte offsets of the tile in the scales of outputs and of columns
        of x.
        """
        asm = self.asm
        outputs, columns = Memory(_SCALES, of_outputs), Memory(_X_SCALES, of_columns)
        rows, lanes = (outputs, columns) if self.feature_major else (columns, outputs)
        asm.emit("lea", ROW_SCALES, rows)
        asm.emit("vmovups", LANE_SCALES, lanes)
        if self.bias_distance is not None and not self.feature_major:
            bias = Memory(_SCALES, of_outputs + self.bias_distance)
            asm.emit("vmovups", LANE_BIAS, bias)
