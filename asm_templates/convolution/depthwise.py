"""A convolution a channel: lanes are neighbouring positions of a row, taps lie in registers.

    vmovups     zmm0, [r10+row+4*tap]   16 elements of a row of x, shifted by the tap
    vfmadd231ps zmm31, zmm0, zmm9       for the row of y that meets it by tap 0 of its column,
    vfmadd231ps zmm30, zmm0, zmm12      the row above by tap 1, and so on

A tile is a few rows of y by a vector or two: what is loaded once serves all of them. The padding is
never read: loads at borders have masks, rows beyond them no instructions. With a stride of 2 two
vectors of x are loaded, and the even and the odd elements are two taps.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.depthwise_shape import (
    Depthwise,
    TapColumns,
    tap_columns,
    tile_shape,
)
from sparsejit.asm_templates.convolution.geometry import (
    ColumnTile,
    ColumnVector,
    RowTile,
    TileRun,
    column_runs,
    row_runs,
)
from sparsejit.asm_templates.shared.activation import apply_activation
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.rows import TAIL_MASK, lane_mask, vector, zero
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
    rax,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
)
from sparsejit.x86.stack import pop, push

_SAVED = (rbx, r12, r13, r14)
_SAMPLES_LEFT, _CHANNELS_LEFT, _OF_CHANNEL_LEFT, _ROWS_LEFT, _COLUMNS_LEFT = r14, r12, r13, rbx, rcx
_X_ROW, _Y_ROW, _X, _Y = r8, r9, r10, r11  # of a tile's rows, and of the tile
_KEPT_MASKS = range(1, 7)
_MOST_KEPT_TAPS = 12


def emit_depthwise(asm: Assembler, spec: Depthwise) -> None:
    """Append the kernel of x in rdi to y in rsi; keeps callee-saved registers."""
    _DepthwiseCode(asm, spec).emit()


class _DepthwiseCode:
    """Appends the code."""

    def __init__(self, asm: Assembler, spec: Depthwise) -> None:
        self.asm, self.spec = asm, spec
        self.wide = asm.target.isa == "avx512"
        self.lanes = asm.target.lanes
        self.columns = tap_columns(spec.columns)
        self.kernel = spec.rows.kernel * spec.columns.kernel
        self.stride = spec.columns.stride
        height, width = tile_shape(spec, asm.target)
        self.row_runs = row_runs(spec.rows, height)
        self.column_runs = column_runs(spec.columns, self.lanes, width)
        self.width, self.sums = width, height * width
        self._masks: dict[int, Register] = {}

    def emit(self) -> None:
        asm, spec = self.asm, self.spec
        push(asm, _SAVED)
        self._keep_constants()
        x_sample, x_channel, _ = spec.x_pitches
        y_sample, y_channel, _ = spec.y_pitches

        def of_channel() -> None:
            self._load_taps()
            for run in self.row_runs:
                self._row_run(run)
            asm.emit("add", rsi, y_channel)
            asm.emit("add", rdx, self._weight_bytes)

        def channel() -> None:
            repeat(asm, spec.multiplier, _OF_CHANNEL_LEFT, of_channel)
            asm.emit("add", rdi, x_channel)

        def sample() -> None:
            asm.emit("lea", rdx, Literal(weights))
            repeat(asm, spec.channels, _CHANNELS_LEFT, channel)
            asm.emit("add", rdi, x_sample - spec.channels * x_channel)
            asm.emit("add", rsi, y_sample - len(spec.taps) * y_channel)

        weights = asm.literal(self._weights)
        repeat(asm, spec.samples, _SAMPLES_LEFT, sample)
        pop(asm, _SAVED)

    @property
    def _weights(self) -> npt.NDArray[np.float32]:
        """Of each channel of y its taps, then its bias if there is one."""
        taps = self.spec.taps.reshape(len(self.spec.taps), -1)
        bias = self.spec.bias
        return taps if bias is None else np.concatenate([taps, bias[:, None]], axis=1)

    @property
    def _weight_bytes(self) -> int:
        return 4 * (self.kernel + (self.spec.bias is not None))

    @cached_property
    def _keeps_taps(self) -> bool:
        return self.wide and self.kernel <= _MOST_KEPT_TAPS

    def _sum(self, row: int, number: int) -> Register:
        return vector(self.asm, self.asm.target.vector_registers - 1 - row * self.width - number)

    def _tap(self, number: int) -> Register:
        """Where a tap is kept; the bias lies behind the last."""
        return vector(self.asm, self._free_registers + number)

    @property
    def _free_registers(self) -> int:
        """Below: what a tile loads. Then taps and the bias, if they are kept; patterns; sums."""
        kept = self.kernel + 1 if self._keeps_taps else 0
        patterns = 2 if self.wide and self.stride == 2 else 0
        return self.asm.target.vector_registers - self.sums - patterns - kept

    def _pattern(self, odd: int) -> Register:
        """AVX-512: the indices of the even, or odd, elements of two vectors."""
        return vector(self.asm, self.asm.target.vector_registers - self.sums - 2 + odd)

    def _keep_constants(self) -> None:
        """Bring masks and patterns into registers for the whole kernel."""
        asm = self.asm
        if not self.wide:
            return
        whole = (1 << self.lanes) - 1
        masks = sorted({mask for mask in self._all_masks() if 0 < mask < whole})
        for mask, number in zip(masks, _KEPT_MASKS, strict=False):
            self._masks[mask] = k(number)
            set_mask(asm, k(number), mask)
        if self.stride == 2:
            for odd in range(2):
                indices = np.arange(odd, 2 * self.lanes, 2, dtype=np.int32)
                asm.emit("vmovups", self._pattern(odd), Literal(asm.literal(indices)))

    def _all_masks(self) -> Iterator[int]:
        yield self._stored
        for run in self.column_runs:
            for place in run.tile:
                for some in self.columns:
                    for half in range(self.stride):
                        yield self._mask(place, some.offset + half * self.lanes)

    @property
    def _stored(self) -> int:
        """The mask of lanes that are positions."""
        return (1 << min(self.lanes, self.spec.columns.positions)) - 1

    def _mask(self, place: ColumnVector, offset: int) -> int:
        """The lanes of a load, so many elements on, that exist."""
        first = min(self.lanes, max(0, place.first - offset))
        end = min(self.lanes, max(0, place.end - offset))
        return max(0, (1 << end) - (1 << first))

    def _load_taps(self) -> None:
        if not self._keeps_taps:
            return
        for number in range(self.kernel + (self.spec.bias is not None)):
            self.asm.emit("vbroadcastss", self._tap(number), Memory(rdx, 4 * number))

    def _row_run(self, run: TileRun[RowTile]) -> None:
        asm, spec, tile = self.asm, self.spec, run.tile
        x_pitch, y_pitch = spec.x_pitches[2], spec.y_pitches[2]
        asm.emit("lea", _X_ROW, Memory(rdi, spec.rows.coordinate(run.first, 0) * x_pitch))
        asm.emit("lea", _Y_ROW, Memory(rsi, run.first * y_pitch))

        def body() -> None:
            for columns in self.column_runs:
                self._column_run(columns, tile)
            asm.emit("add", _X_ROW, run.step * spec.rows.stride * x_pitch)
            asm.emit("add", _Y_ROW, run.step * y_pitch)

        repeat(asm, run.count, _ROWS_LEFT, body)

    def _column_run(self, run: TileRun[ColumnTile], tile: RowTile) -> None:
        asm, places = self.asm, run.tile
        asm.emit("lea", _X, Memory(_X_ROW, 4 * self.spec.columns.coordinate(run.first, 0)))
        asm.emit("lea", _Y, Memory(_Y_ROW, 4 * run.first))

        def body() -> None:
            self._tile(tile, places)
            asm.emit("add", _X, 4 * run.step * self.stride)
            asm.emit("add", _Y, 4 * run.step)

        repeat(asm, run.count, _COLUMNS_LEFT, body)

    def _tile(self, tile: RowTile, places: tuple[ColumnVector, ...]) -> None:
        sums = [[self._sum(row, n) for n in range(len(places))] for row in range(tile.rows)]
        self._start([one for row in sums for one in row])
        axis = self.spec.rows
        meeting: dict[int, list[tuple[int, int]]] = {}
        for row, tap in tile.taps:
            meeting.setdefault(row * axis.stride + tap * axis.dilation, []).append((row, tap))
        for x_row, pairs in sorted(meeting.items()):
            for some in self.columns:
                loaded = self._load(x_row * self.spec.x_pitches[2], some, places)
                for number, column_tap in enumerate(some.taps):
                    for row, row_tap in pairs:
                        tap = row_tap * self.spec.columns.kernel + column_tap
                        self._multiply(tap, loaded[number], sums[row])
        self._finish(sums, places)

    def _start(self, sums: list[Register]) -> None:
        for total in sums:
            if self.spec.bias is None:
                zero(self.asm, total)
            elif self._keeps_taps:
                self.asm.emit("vmovaps", total, self._tap(self.kernel))
            else:
                self.asm.emit("vbroadcastss", total, Memory(rdx, 4 * self.kernel))

    def _multiply(self, tap: int, x: list[Register | None], sums: list[Register]) -> None:
        """Add a tap's products to a row of sums; None is a vector of padding."""
        asm, place = self.asm, Memory(rdx, 4 * tap)
        weight: Register | Memory
        if self._keeps_taps:
            weight = self._tap(tap)
        elif self.wide:
            weight = Memory(rdx, 4 * tap, broadcast=self.lanes)
        else:
            weight = vector(asm, self._free_registers - 1)
            asm.emit("vbroadcastss", weight, place)
        for total, element in zip(sums, x, strict=True):
            if element is not None:
                asm.emit("vfmadd231ps", total, element, weight)

    def _load(
        self, row_bytes: int, some: TapColumns, places: tuple[ColumnVector, ...]
    ) -> list[list[Register | None]]:
        """For each tap the vectors of x that it meets, in registers from 0 on."""
        taps: list[list[Register | None]] = [[] for _ in some.taps]
        for number, place in enumerate(places):
            address = row_bytes + 4 * (place.place * self.stride + some.offset)
            masks = [self._mask(place, some.offset + n * self.lanes) for n in range(self.stride)]
            if not any(masks):
                apart: list[Register | None] = [None] * len(taps)
            elif self.stride == 1:
                apart = [vector(self.asm, number)]
                self._load_vector(vector(self.asm, number), address, masks[0])
            else:
                apart = [*self._load_pair(3 * number, address, masks)]
            for tap, register in zip(taps, apart, strict=False):
                tap.append(register)
        return taps

    def _load_pair(self, first: int, address: int, masks: list[int]) -> tuple[Register, Register]:
        """The even and the odd elements of two vectors; takes three registers from the first on."""
        asm, (even, high, odd) = self.asm, (vector(self.asm, first + n) for n in range(3))
        self._load_vector(even, address, masks[0])
        self._load_vector(high, address + asm.target.vector_bytes, masks[1])
        if self.wide:
            asm.emit("vmovaps", odd, even)
            asm.emit("vpermt2ps", even, self._pattern(0), high)
            asm.emit("vpermt2ps", odd, self._pattern(1), high)
        else:
            asm.emit("vshufps", odd, even, high, 0xDD)
            asm.emit("vshufps", even, even, high, 0x88)
            for half in (even, odd):
                asm.emit("vpermpd", half, half, 0xD8)
        return even, odd

    def _load_vector(self, register: Register, offset: int, mask: int) -> None:
        """register = x there, zero where there is none."""
        asm, place = self.asm, Memory(_X, offset)
        if mask == (1 << self.lanes) - 1:
            asm.emit("vmovups", register, place)
        elif mask == 0:
            zero(asm, register)
        elif self.wide:
            asm.emit("vmovups", register.masked(self._in_k(mask), zeroing=True), place)
        else:
            lanes = np.where(mask >> np.arange(self.lanes) & 1, -1, 0).astype(np.int32)
            asm.emit("vmovups", register, Literal(asm.literal(lanes)))
            asm.emit("vmaskmovps", register, register, place)

    def _in_k(self, mask: int) -> Register:
        """A mask register; one that is not kept is set, which clobbers rax."""
        if mask in self._masks:
            return self._masks[mask]
        set_mask(self.asm, TAIL_MASK, mask)
        return TAIL_MASK

    def _finish(
        self, sums: list[list[Register]], places: tuple[ColumnVector, ...]
    ) -> None:
        """Apply the activation and store."""
        asm = self.asm
        free = [vector(asm, number) for number in range(self._free_registers)]
        apply_activation(asm, self.spec.activation, [one for row in sums for one in row], free)
        partial = self.spec.columns.positions < self.lanes
        if partial and not self.wide:
            asm.emit("vmovups", free[0], lane_mask(asm, self.spec.columns.positions))
        for row, vectors in enumerate(sums):
            for place, total in zip(places, vectors, strict=True):
                address = Memory(_Y, row * self.spec.y_pitches[2] + 4 * place.place)
                if not partial:
                    asm.emit("vmovups", address, total)
                elif self.wide:
                    asm.emit("vmovups", address.masked(self._in_k(self._stored)), total)
                else:
                    asm.emit("vmaskmovps", address, free[0], total)


def set_mask(asm: Assembler, register: Register, mask: int) -> None:
    """Bring a mask into a k register; clobbers rax."""
    asm.emit("mov", dword(rax), mask)
    asm.emit("kmovw", register, dword(rax))
