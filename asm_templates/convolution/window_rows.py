"""Windows over one channel each, by rows: depthwise convolutions, and pooling to maxima or means.

    WindowLoop       the geometry of windows
    count_windows    the work of one call; `count_lanes`: with channels in the lanes
    tile_shape       the rows and vectors of a tile; `lane_tile`: with channels in the lanes
    RowWindows       the loops and loads that both kernels share
    emit_depthwise   taps multiplied and added
    emit_pooling     the largest or the mean of every window

Lanes are neighbouring positions of a row:

    vmovups zmm0, [r10+row+4*tap]    16 elements of a row of x, shifted by the tap, are combined
                                     with the row of y that reads them under tap 0 of its column,
                                     with the row above under tap 1, and so on

A tile is a few rows of y by a vector or two; each load serves the whole tile. Padding is never
read: loads at borders have masks, and rows beyond borders have no instructions. With a stride of 2,
two vectors of x are loaded, and their even and odd elements serve two taps.

A depthwise convolution:

    vmovups     zmm0, [r10+row+4*tap]   16 elements of a row of x, shifted by the tap
    vfmadd231ps zmm31, zmm0, zmm9       += for the row of y that reads them under tap 0,
    vfmadd231ps zmm30, zmm0, zmm12      for the row above under tap 1

The weights of small kernels stay in registers; large kernels load each weight with its product.

Where images have one axis, and the channels of a position lie side by side, lanes are channels: a
tile is as many positions as fit the registers, and weights are vectors.

The largest of every window:

    vmaxps zmm1, zmm31, zmm0     x if either is NaN
    vmaxps zmm31, zmm0, zmm31    the largest so far if either is NaN
    vorps  zmm31, zmm31, zmm1    NaN if either is NaN; else both are the same
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.geometry import (
    Axis,
    ColumnTile,
    ColumnVector,
    RowTile,
    TileRun,
    column_runs,
    row_runs,
)
from sparsejit.asm_templates.shared.activation import SCRATCH_PER_VECTOR, apply_activation
from sparsejit.asm_templates.shared.constants import load_constant
from sparsejit.asm_templates.shared.interleave import (
    load_parities,
    order_parts,
    part_by_parity,
    part_in_lanes,
)
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.masks import (
    TAIL_MASK,
    lane_mask,
    load_masked,
    set_mask,
    store_masked,
)
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.ir.spec import Activation
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    k,
    r8,
    r9,
    r10,
    r11,
    r12,
    r13,
    r14,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
)
from sparsejit.x86.routines import pop, push

MOST_TAPS = 64  # of a kernel: a tile's code has all of them
_SUMS = {"avx512": 14, "avx2": 8}  # two FMA a cycle, four cycles each, keep eight under way
_SUMS_UNDER_WAY = 8
_TALLEST = {"avx512": 7, "avx2": 4}
_MOST_VECTORS = {"avx512": {1: 8, 2: 2}, "avx2": {1: 2, 2: 2}}  # by stride


@dataclass(frozen=True)
class WindowLoop:
    """Windows over x (samples, channels, rows, columns): y has `multiplier` channels for each of x.

    Rows of x and y are contiguous; pitches are bytes from sample to sample, channel to channel, row
    to row.
    """

    samples: int
    channels: int
    multiplier: int
    rows: Axis
    columns: Axis
    x_pitches: tuple[int, int, int]
    y_pitches: tuple[int, int, int]


def can_run(rows: Axis, columns: Axis) -> bool:
    """Whether there is a kernel for windows along these axes."""
    return columns.stride <= 2 and rows.kernel * columns.kernel <= MOST_TAPS


@dataclass(frozen=True)
class DirectCounts:
    """Work of one call: vectors multiplied (or compared), loaded and stored; bytes of x and y."""

    products: int
    loads: int
    stores: int
    moved_bytes: int


def count_windows(loop: WindowLoop, target: Target) -> DirectCounts:
    """Return the work of one call of a kernel for these windows."""
    height, width = tile_shape(loop, target)
    loaded_rows, met, stored = 0, 0, 0
    for run in row_runs(loop.rows, height):
        tile = run.tile
        by_row = {row * loop.rows.stride + tap * loop.rows.dilation for row, tap in tile.taps}
        loaded_rows += run.count * len(by_row)
        met += run.count * len(tile.taps)
        stored += run.count * tile.rows
    runs = column_runs(loop.columns, target.lanes, width)
    vectors = sum(run.count * len(run.tile) for run in runs)
    loads = loop.columns.stride * len(tap_columns(loop.columns))
    planes = loop.samples * loop.channels * loop.multiplier
    x_bytes = 4 * loop.samples * loop.channels * loop.rows.size * loop.columns.size
    y_bytes = 4 * planes * loop.rows.positions * loop.columns.positions
    return DirectCounts(
        planes * met * loop.columns.kernel * vectors,
        planes * loaded_rows * loads * vectors,
        planes * stored * vectors,
        x_bytes + y_bytes,
    )


@dataclass(frozen=True)
class TapColumns:
    """Taps of neighbouring elements that share their loads, and the first one's offset."""

    offset: int
    taps: tuple[int, ...]


def tap_columns(axis: Axis) -> list[TapColumns]:
    """Return the taps that share loads: with a stride of 2, an even offset and the next one."""
    if axis.stride == 1 or axis.dilation > 1:
        return [TapColumns(tap * axis.dilation, (tap,)) for tap in range(axis.kernel)]
    odd = axis.padding % 2  # the elements at even coordinates, which often lie at even addresses
    first = [TapColumns(0, (0,))] if odd else []
    pairs = range(odd, axis.kernel, 2)
    return first + [TapColumns(t, tuple(range(t, min(t + 2, axis.kernel)))) for t in pairs]


def tile_shape(loop: WindowLoop, target: Target) -> tuple[int, int]:
    """Return the output rows, and the vectors of output columns, of a tile."""
    every = ceil_div(loop.columns.positions, target.lanes)
    sums, tallest = _SUMS[target.isa], _TALLEST[target.isa]
    height = min(loop.rows.positions, tallest)
    width = min(every, sums // height, _MOST_VECTORS[target.isa][loop.columns.stride])
    return min(loop.rows.positions, sums // width), width


_SAVED = (rbx, r12, r13, r14)
_SAMPLES_LEFT, _CHANNELS_LEFT, _OF_CHANNEL_LEFT, _ROWS_LEFT, _COLUMNS_LEFT = r14, r12, r13, rbx, rcx
_X_ROW, _Y_ROW, _X, _Y = r8, r9, r10, r11  # of a tile's rows, and of the tile
_KEPT_MASKS = range(1, 7)


class RowWindows(ABC):
    """Appends the loops and loads; subclasses combine a tile's elements.

    Subclasses may use rdx, and the `kept` registers from `kept_register(0)` on.
    """

    def __init__(
        self, asm: Assembler, loop: WindowLoop, kept: int, shape: tuple[int, int] | None = None
    ) -> None:
        self.asm, self.loop = asm, loop
        self.wide = asm.target.isa == "avx512"
        self.lanes = asm.target.lanes
        self.stride = loop.columns.stride
        self.columns = tap_columns(loop.columns)
        height, width = shape or tile_shape(loop, asm.target)
        self.row_runs = row_runs(loop.rows, height)
        self.column_runs = column_runs(loop.columns, self.lanes, width)
        self.width, sums = width, height * width
        self._first_sum = asm.target.vector_registers - sums
        first_pattern = self._first_sum - (2 if self.wide and self.stride == 2 else 0)
        self._patterns = [vector(asm, number) for number in range(first_pattern, self._first_sum)]
        # Registers in order: elements that a tile loads, subclasses' registers, patterns, sums.
        self.free_registers = first_pattern - kept
        self._masks: dict[int, Register] = {}

    @abstractmethod
    def begin_sample(self) -> None:
        """Append code before the first channel of a sample."""

    @abstractmethod
    def begin_channel(self) -> None:
        """Append code before a channel of y."""

    @abstractmethod
    def end_channel(self) -> None:
        """Append code after a channel of y."""

    @abstractmethod
    def fill(self, register: Register) -> None:
        """Append code: register = the value that padding has in all lanes."""

    @abstractmethod
    def start(self, sums: list[Register]) -> None:
        """Append code that sets a tile's sums to their first value, such as the bias."""

    @abstractmethod
    def combine(self, tap: int, x: list[Register | None], sums: list[Register]) -> None:
        """Append code that combines the vectors `x` under a tap with the sums of a row of outputs.

        A multiply-add or a maximum, for instance. None stands for a vector of padding.
        """

    @abstractmethod
    def finish(self, sums: list[Register], free: list[Register]) -> None:
        """Append code that turns a tile's sums into outputs; `free` registers may be clobbered."""

    def emit(self) -> None:
        """Append the kernel: x at rdi, y at rsi; keeps callee-saved registers."""
        asm, loop = self.asm, self.loop
        push(asm, _SAVED)
        self._keep_constants()
        x_sample, x_channel, _ = loop.x_pitches
        y_sample, y_channel, _ = loop.y_pitches

        def of_channel() -> None:
            self.begin_channel()
            for run in self.row_runs:
                self._row_run(run)
            asm.emit("add", rsi, y_channel)
            self.end_channel()

        def channel() -> None:
            repeat(asm, loop.multiplier, _OF_CHANNEL_LEFT, of_channel)
            asm.emit("add", rdi, x_channel)

        def sample() -> None:
            self.begin_sample()
            repeat(asm, loop.channels, _CHANNELS_LEFT, channel)
            asm.emit("add", rdi, x_sample - loop.channels * x_channel)
            asm.emit("add", rsi, y_sample - loop.channels * loop.multiplier * y_channel)

        repeat(asm, loop.samples, _SAMPLES_LEFT, sample)
        pop(asm, _SAVED)

    def kept_register(self, number: int) -> Register:
        """Return a register that a subclass keeps for the whole kernel, or for a channel."""
        return vector(self.asm, self.free_registers + number)

    def _sum(self, row: int, number: int) -> Register:
        return vector(self.asm, self.asm.target.vector_registers - 1 - row * self.width - number)

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
            load_parities(asm, self._patterns)

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
        return (1 << min(self.lanes, self.loop.columns.positions)) - 1

    def _mask(self, place: ColumnVector, offset: int) -> int:
        """Return the mask of existing elements in a load at an offset, in elements."""
        first = min(self.lanes, max(0, place.first - offset))
        end = min(self.lanes, max(0, place.end - offset))
        return max(0, (1 << end) - (1 << first))

    def _row_run(self, run: TileRun[RowTile]) -> None:
        asm, loop, tile = self.asm, self.loop, run.tile
        x_pitch, y_pitch = loop.x_pitches[2], loop.y_pitches[2]
        asm.emit("lea", _X_ROW, Memory(rdi, loop.rows.coordinate(run.first, 0) * x_pitch))
        asm.emit("lea", _Y_ROW, Memory(rsi, run.first * y_pitch))

        def body() -> None:
            for columns in self.column_runs:
                self._column_run(columns, tile)
            asm.emit("add", _X_ROW, run.step * loop.rows.stride * x_pitch)
            asm.emit("add", _Y_ROW, run.step * y_pitch)

        repeat(asm, run.count, _ROWS_LEFT, body)

    def _column_run(self, run: TileRun[ColumnTile], tile: RowTile) -> None:
        asm, places = self.asm, run.tile
        asm.emit("lea", _X, Memory(_X_ROW, 4 * self.loop.columns.coordinate(run.first, 0)))
        asm.emit("lea", _Y, Memory(_Y_ROW, 4 * run.first))

        def body() -> None:
            self._tile(tile, places)
            asm.emit("add", _X, 4 * run.step * self.stride)
            asm.emit("add", _Y, 4 * run.step)

        repeat(asm, run.count, _COLUMNS_LEFT, body)

    def _tile(self, tile: RowTile, places: ColumnTile) -> None:
        sums = [[self._sum(row, n) for n in range(len(places))] for row in range(tile.rows)]
        self.start([one for row in sums for one in row])
        axis = self.loop.rows
        meeting: dict[int, list[tuple[int, int]]] = {}
        for row, tap in tile.taps:
            meeting.setdefault(row * axis.stride + tap * axis.dilation, []).append((row, tap))
        for x_row, pairs in sorted(meeting.items()):
            for some in self.columns:
                loaded = self._load(x_row * self.loop.x_pitches[2], some, places)
                for number, column_tap in enumerate(some.taps):
                    for row, row_tap in pairs:
                        tap = row_tap * self.loop.columns.kernel + column_tap
                        self.combine(tap, loaded[number], sums[row])
        self._finish(sums, places)

    def _load(
        self, row_bytes: int, some: TapColumns, places: ColumnTile
    ) -> list[list[Register | None]]:
        """Append loads of the vectors of x that some taps read; return their registers by tap."""
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
                apart = [*self._load_pair(3 * number, address, masks, len(taps))]
            for tap, register in zip(taps, apart, strict=False):
                tap.append(register)
        return taps

    def _load_pair(
        self, first: int, address: int, masks: list[int], wanted: int
    ) -> list[Register]:
        """Load the even elements of two vectors, and the odd ones if `wanted` is 2.

        Uses three registers, from `first` on. On AVX2 they are in the order of `part_in_lanes`.
        """
        asm, (even, high, odd) = self.asm, (vector(self.asm, first + n) for n in range(3))
        self._load_vector(even, address, masks[0])
        self._load_vector(high, address + asm.target.vector_bytes, masks[1])
        others = odd if wanted > 1 else None
        if self.wide:
            part_by_parity(asm, even, high, self._patterns, others)
        else:
            part_in_lanes(asm, even, high, others)
        return [even, odd][:wanted]

    def _load_vector(self, register: Register, offset: int, mask: int) -> None:
        """register = x at `offset`, and the value of padding in lanes outside `mask`."""
        asm, place = self.asm, Memory(_X, offset)
        if mask == (1 << self.lanes) - 1:
            asm.emit("vmovups", register, place)
            return
        self.fill(register)
        if mask and self.wide:
            asm.emit("vmovups", register.masked(self._in_k(mask)), place)
        elif mask:
            exists, loaded = (vector(asm, self.free_registers - n) for n in (1, 2))
            lanes = np.where(mask >> np.arange(self.lanes) & 1, -1, 0).astype(np.int32)
            asm.emit("vmovups", exists, Literal(asm.literal(lanes)))
            load_masked(asm, loaded, exists, place)
            asm.emit("vblendvps", register, register, loaded, exists)

    def _in_k(self, mask: int) -> Register:
        """Return the mask's k register; setting a mask that is not kept clobbers rax."""
        if mask in self._masks:
            return self._masks[mask]
        set_mask(self.asm, TAIL_MASK, mask)
        return TAIL_MASK

    def _finish(self, sums: list[list[Register]], places: ColumnTile) -> None:
        asm = self.asm
        free = [vector(asm, number) for number in range(self.free_registers)]
        every = [one for row in sums for one in row]
        self.finish(every, free)
        if self.stride == 2 and not self.wide:
            for total in every:
                order_parts(asm, total)
        partial = self.loop.columns.positions < self.lanes
        if partial and not self.wide:
            asm.emit("vmovups", free[0], lane_mask(asm, self.loop.columns.positions))
        for row, vectors in enumerate(sums):
            for place, total in zip(places, vectors, strict=True):
                address = Memory(_Y, row * self.loop.y_pitches[2] + 4 * place.place)
                if not partial:
                    asm.emit("vmovups", address, total)
                else:
                    mask = self._in_k(self._stored) if self.wide else free[0]
                    store_masked(asm, address, mask, total)


def registers_to_keep(loop: WindowLoop, target: Target) -> int:
    """Return the vector registers left beside a tile's sums, its loads, and patterns."""
    height, width = tile_shape(loop, target)
    is_strided = loop.columns.stride == 2
    patterns = 2 if is_strided and target.isa == "avx512" else 0
    return target.vector_registers - height * width - width * (3 if is_strided else 1) - patterns


_MOST_KEPT_TAPS = 12


@dataclass(frozen=True, eq=False)
class Depthwise:
    """A depthwise convolution: each channel of x has `multiplier` kernels, each for a channel of y.

    y[n, c * multiplier + m] = activation(bias + kernel[c * multiplier + m] over x[n, c]). `taps`
    (channels * multiplier, kernel rows, kernel columns) and `bias` are float32. `in_lanes`: the
    channels lie side by side, and images have columns alone, whose pitches stand in place of rows'.
    """

    loop: WindowLoop
    taps: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32] | None
    activation: Activation
    in_lanes: bool = False


def emit_depthwise(asm: Assembler, spec: Depthwise) -> None:
    """Append a depthwise convolution: x at rdi, y at rsi; keeps callee-saved registers."""
    (_LaneCode if spec.in_lanes else _DepthwiseCode)(asm, spec).emit()


class _DepthwiseCode(RowWindows):
    """Appends a depthwise convolution; rdx points at a channel's taps, which its bias follows."""

    def __init__(self, asm: Assembler, spec: Depthwise) -> None:
        self.spec, self.kernel = spec, spec.taps[0].size
        room = min(_MOST_KEPT_TAPS + 1, registers_to_keep(spec.loop, asm.target))
        self.keeps = asm.target.isa == "avx512" and self.kernel + 1 <= room  # and the bias
        super().__init__(asm, spec.loop, self.kernel + 1 if self.keeps else 0)
        taps = spec.taps.reshape(len(spec.taps), -1)
        each = taps if spec.bias is None else np.concatenate([taps, spec.bias[:, None]], axis=1)
        self.weights, self.weight_bytes = asm.literal(each), each[0].nbytes

    def begin_sample(self) -> None:
        self.asm.emit("lea", rdx, Literal(self.weights))

    def begin_channel(self) -> None:
        if self.keeps:
            for number in range(self.weight_bytes // 4):
                place = Memory(rdx, 4 * number)
                self.asm.emit("vbroadcastss", self.kept_register(number), place)

    def end_channel(self) -> None:
        self.asm.emit("add", rdx, self.weight_bytes)

    def fill(self, register: Register) -> None:
        zero(self.asm, register)

    def start(self, sums: list[Register]) -> None:
        for total in sums:
            if self.spec.bias is None:
                zero(self.asm, total)
            elif self.keeps:
                self.asm.emit("vmovaps", total, self.kept_register(self.kernel))
            else:
                self.asm.emit("vbroadcastss", total, Memory(rdx, 4 * self.kernel))

    def combine(self, tap: int, x: list[Register | None], sums: list[Register]) -> None:
        asm, weight = self.asm, self._weight(tap)
        for total, element in zip(sums, x, strict=True):
            if element is not None:
                asm.emit("vfmadd231ps", total, element, weight)

    def _weight(self, tap: int) -> Register | Memory:
        if self.keeps:
            return self.kept_register(tap)
        if self.wide:
            return Memory(rdx, 4 * tap, broadcast=self.lanes)
        weight = vector(self.asm, self.free_registers - 1)
        self.asm.emit("vbroadcastss", weight, Memory(rdx, 4 * tap))
        return weight

    def finish(self, sums: list[Register], free: list[Register]) -> None:
        apply_activation(self.asm, self.spec.activation, sums, free)


def can_lie_in_lanes(rows: Axis, columns: Axis, multiplier: int) -> bool:
    """Whether there is a kernel with channels in the lanes: images have columns alone."""
    is_alone = rows == Axis(1, 1, 1, 1, 0, 1)
    return is_alone and multiplier == 1 and columns.kernel <= MOST_TAPS


def lane_tile(taps: int, positions: int, target: Target) -> tuple[int, bool]:
    """Return the positions of a tile with channels in the lanes, and whether weights stay.

    Weights stay in registers if a tile has enough sums beside them to hide the time of an FMA.
    """
    others = {"avx512": max(1 + taps, SCRATCH_PER_VECTOR), "avx2": SCRATCH_PER_VECTOR + taps}
    fitting = target.vector_registers - others[target.isa]
    keeps = fitting >= min(positions, _SUMS_UNDER_WAY)
    return min(positions, fitting if keeps else _SUMS[target.isa]), keeps


def _lane_loop(loop: WindowLoop) -> WindowLoop:
    """Return a loop over one channel: columns of `loop` are its rows, channels its columns."""
    side_by_side = Axis(loop.channels, loop.channels, 1, 1, 0, 1)
    (x_sample, _, x_row), (y_sample, _, y_row) = loop.x_pitches, loop.y_pitches
    return replace(
        loop,
        channels=1,
        rows=loop.columns,
        columns=side_by_side,
        x_pitches=(x_sample, 0, x_row),
        y_pitches=(y_sample, 0, y_row),
    )


def count_lanes(loop: WindowLoop, target: Target) -> DirectCounts:
    """Return the work of one call with channels in the lanes."""
    axis = loop.columns
    height, keeps = lane_tile(axis.kernel, axis.positions, target)
    vectors = loop.samples * ceil_div(loop.channels, target.lanes)
    products = loads = 0
    for run in row_runs(axis, height):
        tile = run.tile
        elements = {row * axis.stride + tap * axis.dilation for row, tap in tile.taps}
        products += run.count * len(tile.taps)
        loads += run.count * (len(elements) + (axis.kernel if keeps else len(tile.taps)))
    moved = 4 * loop.samples * loop.channels * (axis.size + axis.positions)
    return DirectCounts(vectors * products, vectors * loads, vectors * axis.positions, moved)


class _LaneCode(RowWindows):
    """Appends a depthwise convolution; rdx points at the weights of a vector of channels."""

    def __init__(self, asm: Assembler, spec: Depthwise) -> None:
        self.spec, loop = spec, spec.loop
        self.taps = loop.columns.kernel
        height, self.keeps = lane_tile(self.taps, loop.columns.positions, asm.target)
        super().__init__(asm, _lane_loop(loop), self.taps if self.keeps else 0, (height, 1))
        weights = spec.taps.reshape(loop.channels, self.taps).T
        rows = weights if spec.bias is None else np.concatenate([weights, spec.bias[None]])
        missing = max(0, self.lanes - loop.channels)
        padded = np.ascontiguousarray(np.pad(rows, ((0, 0), (0, missing))), np.float32)
        self.weights, self.weight_row = asm.literal(padded), padded[0].nbytes

    def begin_sample(self) -> None:
        """Append nothing: weights are found from the place of a tile."""

    def begin_channel(self) -> None:
        """Append nothing: all channels are columns."""

    def end_channel(self) -> None:
        """Append nothing: all channels are columns."""

    def fill(self, register: Register) -> None:
        zero(self.asm, register)

    def start(self, sums: list[Register]) -> None:
        asm = self.asm
        asm.emit("lea", rdx, Literal(self.weights))
        asm.emit("add", rdx, _X)
        asm.emit("sub", rdx, _X_ROW)
        if self.keeps:
            for tap in range(self.taps):
                asm.emit("vmovups", self.kept_register(tap), self._place(tap))
        for total in sums:
            if self.spec.bias is None:
                zero(asm, total)
            else:
                asm.emit("vmovups", total, self._place(self.taps))

    def combine(self, tap: int, x: list[Register | None], sums: list[Register]) -> None:
        weight = self.kept_register(tap) if self.keeps else self._place(tap)
        for total, element in zip(sums, x, strict=True):
            if element is not None:
                self.asm.emit("vfmadd231ps", total, element, weight)

    def _place(self, tap: int) -> Memory:
        return Memory(rdx, self.weight_row * tap)

    def finish(self, sums: list[Register], free: list[Register]) -> None:
        kept = [self.kept_register(tap) for tap in range(self.taps if self.keeps else 0)]
        apply_activation(self.asm, self.spec.activation, sums, free + kept)


@dataclass(frozen=True)
class WindowPooling:
    """The largest element of each window or, if `share` is given, its sum times `share`."""

    loop: WindowLoop
    share: float | None


def emit_pooling(asm: Assembler, spec: WindowPooling) -> None:
    """Append the kernel: x at rdi, y at rsi; keeps callee-saved registers."""
    _PoolingCode(asm, spec).emit()


class _PoolingCode(RowWindows):
    """Appends the code; keeps the value of padding in a register."""

    def __init__(self, asm: Assembler, spec: WindowPooling) -> None:
        super().__init__(asm, spec.loop, 1)
        self.share, self.padding = spec.share, self.kept_register(0)

    def begin_sample(self) -> None:
        if self.share is None:
            load_constant(self.asm, self.padding, -np.inf)
        else:
            zero(self.asm, self.padding)

    def begin_channel(self) -> None:
        """Append nothing: pooling is the same for every channel."""

    def end_channel(self) -> None:
        """Append nothing: pooling is the same for every channel."""

    def fill(self, register: Register) -> None:
        self.asm.emit("vmovaps", register, self.padding)

    def start(self, sums: list[Register]) -> None:
        for total in sums:
            self.fill(total)

    def combine(self, tap: int, x: list[Register | None], sums: list[Register]) -> None:
        asm, spare = self.asm, vector(self.asm, self.free_registers - 1)
        for total, element in zip(sums, x, strict=True):
            if element is None:
                continue
            if self.share is not None:
                asm.emit("vaddps", total, total, element)
                continue
            asm.emit("vmaxps", spare, total, element)
            asm.emit("vmaxps", total, element, total)
            asm.emit("vorps", total, total, spare)

    def finish(self, sums: list[Register], free: list[Register]) -> None:
        if self.share is not None:
            load_constant(self.asm, free[0], self.share)
            for total in sums:
                self.asm.emit("vmulps", total, total, free[0])
