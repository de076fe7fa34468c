"""A copy of an image with its padding, in which every tap of a window is a fixed distance away.

    PaddedImage, emit_padding    the planes of the copy, and the code that writes it
    WindowPanels, window_panels  assignment of the positions to vectors
    store_panel                  a vector's sums to y, through the activation

Planes:

    row 0   0 x x x x | row 1   0 x x x x | ...        a gap of zeros serves both its neighbours

With a stride of 2 even and odd columns, and even and odd rows, are separate planes, in which
neighbouring positions read neighbouring elements. Stores may run over into elements that are
written later.

    tap 0   0 x x x | 0 x x x | ...      tap 1   x x x x | x x x x | ...      tap 2   x x x 0 | ...

Or each tap of a row has a plane without gaps, in which all positions of an image are consecutive.

Assignment of positions to vectors:

    along rows      one vector after the other in each row, the last of which overlaps
    across rows     vectors continue over the zeros between rows, whose lanes are left out of y
    in order        all rows as one, if planes of taps have no zeros between rows

A vector's offsets and masks lie in a table, an entry each:

    int32 bytes into a plane of x, int32 bytes into a plane of y, uint16 lanes kept, uint16 stored
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.geometry import Axis
from sparsejit.asm_templates.shared.activation import apply_activation
from sparsejit.asm_templates.shared.interleave import load_parities, part_by_parity
from sparsejit.asm_templates.shared.location import Location
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.masks import lane_mask, load_masked, store_masked
from sparsejit.asm_templates.shared.rows import load, vector, zero
from sparsejit.ir.spec import Activation
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div, round_up
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Memory,
    Register,
    k,
    r8,
    r9,
    r10,
    r11,
    rcx,
    rdi,
    rdx,
    rsi,
)

_CHANNELS_LEFT, _ROWS_LEFT, _SAMPLES_LEFT, _VECTORS_LEFT = rcx, rdx, r9, rdx
_X_ROW, _ROW, _FILLED = r8, r10, r11
_UNROLLED = 16  # vectors of zeros; more of them take a loop
MOST_COLUMNS = 1 << 13  # the code of a row has all its vectors
_SLACK = 16  # floats: a store runs over the end by fewer
_LINE = 16  # floats of a cache line


@dataclass(frozen=True)
class Phase:
    """Every stride-th element of a padded axis, from `number` on.

    It has `before` zeros, then `count` elements of the image, from element `first` on; windows read
    its first `needed` elements.
    """

    number: int
    before: int
    first: int
    count: int
    needed: int

    @property
    def after(self) -> int:
        """Zeros that are needed behind the elements."""
        return max(0, self.needed - self.before - self.count)


def phases(axis: Axis) -> list[Phase]:
    """Return the phases of an axis that at least one tap reads."""
    found = []
    offsets = [tap * axis.dilation for tap in range(axis.kernel)]
    for number in sorted({offset % axis.stride for offset in offsets}):
        reach = max(offset // axis.stride for offset in offsets if offset % axis.stride == number)
        needed = axis.positions + reach
        before = min(needed, max(0, ceil_div(axis.padding - number, axis.stride)))
        first = number + before * axis.stride - axis.padding
        last = axis.size - 1 - first
        count = min(needed - before, last // axis.stride + 1 if last >= 0 else 0)
        found.append(Phase(number, before, first, count, needed))
    return found


def tap_phases(axis: Axis) -> list[Phase]:
    """Return for each tap the elements that it reads, one for each position."""
    found = []
    for tap in range(axis.kernel):
        offset = tap * axis.dilation
        before = min(axis.positions, max(0, ceil_div(axis.padding - offset, axis.stride)))
        first = offset + before * axis.stride - axis.padding
        last = axis.size - 1 - first
        count = min(axis.positions - before, last // axis.stride + 1 if last >= 0 else 0)
        found.append(Phase(tap, before, first, count, axis.positions))
    return found


@dataclass(frozen=True)
class PaddedImage:
    """Layout of a padded copy of (samples, channels) images, in which taps are fixed distances.

    `x_pitches` are bytes of x from sample to sample, channel to channel, row to row.

    `by_tap`: each tap of a row has a plane of its own, in which positions are consecutive.

    A plane has rows of `pitch` floats. Zeros follow the last row that windows read: they pad the
    end of that row, and lanes that are no positions read them in place of subnormal numbers, which
    take a hundred times as long.
    """

    samples: int
    channels: int
    rows: Axis
    columns: Axis
    x_pitches: tuple[int, int, int]
    by_tap: bool = False

    @cached_property
    def row_phases(self) -> list[Phase]:
        return phases(self.rows)

    @cached_property
    def column_phases(self) -> list[Phase]:
        return tap_phases(self.columns) if self.by_tap else phases(self.columns)

    @cached_property
    def pitch(self) -> int:
        """Floats from row to row of a plane; zeros before a row also end the row before it."""
        if self.by_tap:
            return self.columns.positions
        filled = max(p.before + p.count for p in self.column_phases)
        shared = max(p.needed - p.before for p in self.column_phases)
        return max(filled, shared, self.columns.positions)

    @cached_property
    def plane(self) -> int:
        """Floats of a plane, with a margin for lanes and stores that run over the last row.

        Planes of taps are an odd number of cache lines apart: a position reads many of them.
        """
        rows = max(part.needed for part in self.row_phases)
        needed = max(part.needed for part in self.column_phases)
        floats = rows * self.pitch + max(0, needed - self.pitch) + _SLACK
        return (ceil_div(floats, _LINE) | 1) * _LINE if self.by_tap else floats

    @property
    def planes_a_channel(self) -> int:
        return len(self.row_phases) * len(self.column_phases)

    @property
    def channel(self) -> int:
        """Floats from one channel to the next."""
        return self.plane * self.planes_a_channel

    @property
    def floats(self) -> int:
        """Floats of all images, with a margin behind them for loads and stores."""
        beyond = max(part.needed for part in self.column_phases)
        return self.samples * self.channels * self.channel + beyond + 2 * _SLACK

    def tap_offsets(self) -> np.ndarray:
        """Return floats from a channel's first plane to each tap's element at position 0."""
        rows = _places(self.rows, self.row_phases)
        columns = _places(self.columns, self.column_phases)
        if self.by_tap:
            columns = [(tap, 0) for tap in range(self.columns.kernel)]
        each = (
            (row_plane * len(self.column_phases) + plane) * self.plane + down * self.pitch + right
            for (row_plane, down), (plane, right) in product(rows, columns)
        )
        return np.array(list(each))


def _places(axis: Axis, parts: list[Phase]) -> list[tuple[int, int]]:
    """Return for each tap the index of its phase, and its offset in the phase."""
    index = {part.number: n for n, part in enumerate(parts)}
    offsets = (tap * axis.dilation for tap in range(axis.kernel))
    return [(index[offset % axis.stride], offset // axis.stride) for offset in offsets]


def can_pad(rows: Axis, columns: Axis) -> bool:
    """Whether there is code that copies such an image; it depends on the columns alone."""
    return columns.stride <= 2 and columns.size <= MOST_COLUMNS


def emit_padding(asm: Assembler, image: PaddedImage) -> None:
    """Append the copy of x at rdi to planes at rsi."""
    _PaddingCode(asm, image).emit()


class _PaddingCode:
    """Appends code that copies images with padding; planes of a row phase share the loads of x."""

    def __init__(self, asm: Assembler, image: PaddedImage) -> None:
        self.asm, self.image = asm, image
        self.zero, self.lanes = vector(asm, 5), asm.target.lanes
        self.pair = image.columns.stride == 2
        self.patterns = vector(asm, 6), vector(asm, 7)

    def emit(self) -> None:
        asm, image = self.asm, self.image
        zero(asm, self.zero)
        if self.pair and asm.target.isa == "avx512":
            load_parities(asm, self.patterns)
        sample, channel_pitch, _ = image.x_pitches

        def channel() -> None:
            for number, part in enumerate(image.row_phases):
                self._plane_rows(part, 4 * number * len(image.column_phases) * image.plane)
            asm.emit("add", rdi, channel_pitch)
            asm.emit("add", rsi, 4 * image.channel)

        def each() -> None:
            repeat(asm, image.channels, _CHANNELS_LEFT, channel)
            asm.emit("add", rdi, sample - image.channels * channel_pitch)

        repeat(asm, image.samples, _SAMPLES_LEFT, each)

    def _plane_rows(self, part: Phase, offset: int) -> None:
        """Fill the planes of all column phases with the rows of one row phase."""
        asm, image = self.asm, self.image
        x_pitch, row_bytes = image.x_pitches[2], 4 * image.pitch
        for number in range(len(image.column_phases)):
            self._fill(rsi, offset + 4 * number * image.plane, part.before * image.pitch)
        asm.emit("lea", _X_ROW, Memory(rdi, part.first * x_pitch))
        asm.emit("lea", _ROW, Memory(rsi, offset + part.before * row_bytes))

        def row() -> None:
            for number, columns in enumerate(image.column_phases):
                self._fill(_ROW, 4 * number * image.plane, columns.before)
            self._elements()
            for number, columns in enumerate(image.column_phases):
                filled = columns.before + round_up(columns.count, self.lanes)
                gap = image.pitch - filled if columns.after else 0
                self._fill(_ROW, 4 * (number * image.plane + filled), gap)
            asm.emit("add", _X_ROW, image.rows.stride * x_pitch)
            asm.emit("add", _ROW, row_bytes)

        repeat(asm, part.count, _ROWS_LEFT, row)
        filled = part.before + part.count
        for number in range(len(image.column_phases)):
            at = offset + 4 * number * image.plane
            rest = image.plane - filled * image.pitch
            self._fill(rsi, at + filled * row_bytes, rest - self.lanes)
            asm.emit("vmovups", Memory(rsi, at + 4 * (image.plane - self.lanes)), self.zero)

    def _fill(self, base: Register, offset: int, floats: int) -> None:
        """Write zeros, `floats` rounded up to whole vectors."""
        asm, size, vectors = self.asm, self.asm.target.vector_bytes, ceil_div(floats, self.lanes)
        if vectors <= _UNROLLED:
            for number in range(max(0, vectors)):
                asm.emit("vmovups", Memory(base, offset + number * size), self.zero)
            return
        asm.emit("lea", _FILLED, Memory(base, offset))

        def one() -> None:
            asm.emit("vmovups", Memory(_FILLED), self.zero)
            asm.emit("add", _FILLED, size)

        repeat(asm, vectors, _VECTORS_LEFT, one)

    def _elements(self) -> None:
        """Copy the elements of a row to each phase's plane."""
        asm, image = self.asm, self.image
        loads: dict[int, list[tuple[int, Phase]]] = {}
        for plane, part in enumerate(image.column_phases):
            start = part.first - part.first % image.columns.stride
            loads.setdefault(start, []).append((plane, part))
        most = max(part.count for part in image.column_phases)
        for first, (start, parts) in product(range(0, most, self.lanes), loads.items()):
            if not any(first < part.count for _, part in parts):
                continue
            found = self._pair(2 * first + start) if self.pair else self._vector(first + start)
            for plane, part in parts:
                if first < part.count:
                    at = plane * image.plane + part.before + first
                    asm.emit("vmovups", Memory(_ROW, 4 * at), found[part.first - start])

    def _vector(self, first: int) -> tuple[Register, ...]:
        """Load a vector of elements, from `first` on."""
        register = vector(self.asm, 0)
        self._load(register, first)
        return (register,)

    def _pair(self, first: int) -> tuple[Register, ...]:
        """Load the even and the odd elements of two vectors, from `first` on."""
        asm, (even, high, odd) = self.asm, (vector(self.asm, n) for n in range(3))
        self._load(even, first)
        self._load(high, first + self.lanes)
        part_by_parity(asm, even, high, self.patterns, odd, odd_first=False)
        return even, odd

    def _load(self, register: Register, first: int) -> None:
        """register = elements of the row from `first` on; zeros beyond its end."""
        if first >= self.image.columns.size:
            zero(self.asm, register)
        else:
            load(self.asm, register, _X_ROW, first, self.image.columns.size, vector(self.asm, 3))


ENTRY_BYTES = 12
_ENTRY = np.dtype([("x", "<i4"), ("y", "<i4"), ("kept", "<u2"), ("stored", "<u2")])
_KEPT, _STORED = k(1), k(2)


@dataclass(frozen=True, eq=False)
class WindowPanels:
    """Assignment of an image's output positions to vectors: a table with an entry for each vector.

    Vectors run `across` rows or along them, and have at most `width` positions.
    """

    table: npt.NDArray[np.void]
    across: bool
    width: int

    @property
    def count(self) -> int:
        return len(self.table)


def window_panels(image: PaddedImage, target: Target) -> WindowPanels:
    """Return the assignment of positions to the fewest vectors.

    They run across rows only where lanes can be left out, with AVX-512.
    """
    if image.by_tap:
        return _in_order(image, target.lanes)
    along = _along_rows(image, target.lanes)
    if target.isa != "avx512":
        return along
    across = _across_rows(image, target.lanes)
    return across if across.count < along.count else along


def _along_rows(image: PaddedImage, lanes: int) -> WindowPanels:
    columns = image.columns.positions
    starts = _starts(columns, lanes)
    rows = np.arange(image.rows.positions)[:, None]
    return _overlapping(rows * image.pitch + starts, rows * columns + starts, min(columns, lanes))


def _in_order(image: PaddedImage, lanes: int) -> WindowPanels:
    positions = image.rows.positions * image.columns.positions
    starts = _starts(positions, lanes)
    return _overlapping(starts, starts, min(positions, lanes))


def _starts(positions: int, lanes: int) -> npt.NDArray[np.int64]:
    """Return the first position of each vector; the last vector overlaps the one before."""
    return np.array([*range(0, positions - lanes, lanes), max(0, positions - lanes)])


def _overlapping(
    x: npt.NDArray[np.int64], y: npt.NDArray[np.int64], width: int
) -> WindowPanels:
    """Return panels of `width` positions each that begin at elements x of a plane and y of y."""
    table = np.zeros(x.shape, _ENTRY)
    table["x"], table["y"] = 4 * x, 4 * y
    table["kept"] = table["stored"] = (1 << width) - 1
    return WindowPanels(table.ravel(), False, width)


def _across_rows(image: PaddedImage, lanes: int) -> WindowPanels:
    rows, columns = image.rows.positions, image.columns.positions
    vectors = ceil_div((rows - 1) * image.pitch + columns, lanes)
    place = np.arange(vectors * lanes).reshape(vectors, lanes)
    row, column = np.divmod(place, image.pitch)
    kept = (row < rows) & (column < columns)
    counts = kept.sum(axis=1)
    table = np.zeros(vectors, _ENTRY)
    table["x"], table["y"] = 4 * place[:, 0], 4 * (np.cumsum(counts) - counts)
    table["kept"] = (kept << np.arange(lanes)).sum(axis=1)
    table["stored"] = (1 << counts) - 1
    return WindowPanels(table[counts > 0], True, lanes)


def set_masks(asm: Assembler, panels: WindowPanels, entry: Register, number: int = 0) -> None:
    """Load a vector's masks from its table entry into k registers, for `store_panel`."""
    if asm.target.isa == "avx512":
        if panels.across:
            asm.emit("kmovw", _KEPT, Memory(entry, number * ENTRY_BYTES + 8))
        asm.emit("kmovw", _STORED, Memory(entry, number * ENTRY_BYTES + 10))


@dataclass(frozen=True)
class AddedOperand:
    """An operand that is added to y before the activation, and y; both have the same layout."""

    operand: Location
    y: Location

    def point(self, asm: Assembler, place: Register, y_place: Register, spare: Register) -> None:
        """place = the address in the operand that matches y_place in y; clobbers `spare`."""
        self.operand.point(asm, place)
        self.y.point(asm, spare)
        asm.emit("sub", place, spare)
        asm.emit("add", place, y_place)


def store_panel(
    asm: Assembler,
    panels: WindowPanels,
    activation: Activation,
    sums: list[tuple[Register, Memory]],
    free: list[Register],
    added: Register | None = None,
) -> None:
    """Append code that stores vectors of sums to y, through the activation.

    `sums`: registers with their places in y. `free` are at least three registers to clobber.
    `added` is the address of the added operand, whose layout is y's.
    """
    if panels.across:
        for total, _ in sums:
            asm.emit("vcompressps", total.masked(_KEPT, zeroing=True), total)
    wide, partial = asm.target.isa == "avx512", panels.width < asm.target.lanes
    masked = wide and (panels.across or partial)
    if added is not None:
        for total, place in sums:
            _add(asm, panels, total, place._replace(base=added), free, masked)
    apply_activation(asm, activation, [total for total, _ in sums], free)
    if partial and not wide:
        asm.emit("vmovups", free[0], lane_mask(asm, panels.width))
    for total, place in sums:
        if masked or partial:
            store_masked(asm, place, _STORED if masked else free[0], total)
        else:
            asm.emit("vmovups", place, total)


def _add(
    asm: Assembler,
    panels: WindowPanels,
    total: Register,
    place: Memory,
    free: list[Register],
    masked: bool,
) -> None:
    """total += the operand at `place`, in the lanes that are stored."""
    if masked:
        load_masked(asm, free[0], _STORED, place)
    elif panels.width < asm.target.lanes:
        asm.emit("vmovups", free[0], lane_mask(asm, panels.width))
        load_masked(asm, free[0], free[0], place)
    else:
        asm.emit("vaddps", total, total, place)
        return
    asm.emit("vaddps", total, total, free[0])
