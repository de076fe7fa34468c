"""Layouts of images in bytes between layers: planes of one channel, and planes of four.

    BytePlanes      a plane for each channel: rows one after another, with gaps
    windows_of      the windows over planes, in place or over a copy in phases
    ChannelFours    four channels side by side, which `vpdpbusd` reads without a copy
    emit_fours      the copy of planes to fours

Gaps hold the zero point:

    channel 0   x x x x x x x 0 x x x x x x x 0 ... 0 0 0 | channel 1   x x x x ...

A gap serves as the padding of the row before it and of the row after it; the bytes behind the last
row serve its channel and the next. So each tap of a window is a fixed distance from every position,
and 64 consecutive positions are a vector, whatever the length of rows.

Four channels side by side:

    channels 0 to 3   abcd abcd abcd ...  0000 ... | channels 4 to 7   abcd abcd ...

    a, b, c, d     = 64 positions of four channels, dwords transposed 4x4        vpermd
    e0, e1, e2, e3 = side by side, 16 positions each                             `interleaved`
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.geometry import Axis
from sparsejit.asm_templates.shared.interleave import interleaved
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.padding import CACHE_LINE_BYTES
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    VECTOR_BYTES,
    Literal,
    Memory,
    Register,
    dword,
    r8,
    r9,
    r10,
    rax,
    rcx,
    rdi,
    rsi,
    xmm,
    ymm,
    zmm,
)

LINE = CACHE_LINE_BYTES


def lines(size: int) -> int:
    """Return the number of cache lines that hold `size` bytes."""
    return ceil_div(size, LINE)


# A byte in gaps: a number, or a number that a call computes, float32 in memory.
Gap: TypeAlias = int | Memory


def spread_bytes(asm: Assembler, register: Register, gap: Gap) -> None:
    """register = a byte in every place. Clobbers rax where it is of the call."""
    if isinstance(gap, int):
        asm.emit("vpbroadcastd", register, Literal(asm.literal(np.full(4, gap, np.uint8))))
        return
    low = xmm(register.number)
    asm.emit("vcvttss2si", dword(rax), gap)
    asm.emit("vmovd", low, dword(rax))
    asm.emit("vpbroadcastb", register, low)


def store_line(asm: Assembler, base: Register, place: int, value: Register) -> None:
    """Store a cache line of copies of a vector of either width, `place` bytes behind `base`."""
    move = "vmovdqu64" if value.kind == "zmm" else "vmovdqu"
    for offset in range(0, LINE, VECTOR_BYTES[value.kind]):
        asm.emit(move, Memory(base, place + offset), value)


@dataclass(frozen=True)
class BytePlanes:
    """Layout of an image (samples, channels, rows, columns), one byte an element.

    pitch: bytes from row to row.
    reach: bytes that taps may read before a channel's first position, and behind its last.
    """

    samples: int
    channels: int
    rows: int
    columns: int
    pitch: int
    reach: int

    @classmethod
    def plain(cls, shape: tuple[int, ...], pitch: int | None = None) -> "BytePlanes":
        """Return planes for windows of at most 3x3, with gaps of one byte unless `pitch` is given.

        An image without a row axis has one row; its windows reach only beyond the row's ends.
        """
        samples, channels, *space = shape
        rows, columns = (1, *space)[-2:]
        pitch = columns + 1 if pitch is None else pitch
        reach = pitch + 1 if len(space) > 1 else pitch - columns
        return cls(samples, channels, rows, columns, pitch, reach)

    @property
    def used(self) -> int:
        """Bytes from a channel's first position to behind its last."""
        return (self.rows - 1) * self.pitch + self.columns

    @property
    def vectors(self) -> int:
        """Vectors of 64 positions in a channel, gaps included."""
        return lines(self.used)

    @cached_property
    def channel(self) -> int:
        """Bytes from channel to channel: an odd number of lines, to use all sets of L1."""
        return LINE * (lines(self.used + self.reach) | 1)

    @property
    def sample(self) -> int:
        return self.channels * self.channel

    @property
    def before(self) -> int:
        """Bytes before the first position."""
        return LINE * lines(self.reach)

    @property
    def bytes(self) -> int:
        """Bytes of all planes, with the margins before and behind them that vectors may read."""
        return 2 * self.before + self.samples * self.sample + LINE

    @property
    def strides(self) -> tuple[int, int, int, int]:
        return self.sample, self.channel, self.pitch, 1

    def masks(self) -> npt.NDArray[np.uint8]:
        """Return the masks (vectors, 64): 255 where a byte is a position, 0 in gaps."""
        place = np.arange(self.vectors * LINE)
        inside = (place % self.pitch < self.columns) & (place < self.used)
        return np.where(inside, 255, 0).astype(np.uint8).reshape(-1, LINE)


@dataclass(frozen=True)
class BytePhase:
    """Every `stride`-th row or column from `first` on: `count` of them."""

    first: int
    stride: int
    count: int


@dataclass(frozen=True)
class ByteWindows:
    """The planes that a convolution's windows read, and where its taps lie in them.

    A channel has `phases` planes, one for each phase of rows and of columns (see `rows`,
    `columns`). `taps`: bytes from a position in a channel's first plane to the element under each
    tap. `in_place`: the planes are the image itself.
    """

    planes: BytePlanes
    rows: tuple[BytePhase, ...]
    columns: tuple[BytePhase, ...]
    taps: tuple[int, ...]
    in_place: bool = False

    @property
    def phases(self) -> int:
        return len(self.rows) * len(self.columns)

    @property
    def met_bytes(self) -> int:
        """Bytes of the planes under the windows of one vector of positions, in whole lines."""
        ends = {(tap + end) // LINE for tap in self.taps for end in (0, LINE - 1)}
        return LINE * self.planes.channels // self.phases * len(ends)

    def places(self, together: int) -> npt.NDArray[np.int64]:
        """Return the byte offset of every input, each tap of each channel.

        With `together` above 1, of each tap in each group of `together` channels side by side.
        """
        groups = np.arange(ceil_div(ceil_div(self.planes.channels, self.phases), together))
        apart = self.phases * self.planes.channel
        return together * (groups[:, None] * apart + np.array(self.taps)).reshape(-1)


def windows_of(planes: BytePlanes, rows: Axis, columns: Axis, gap_fits: bool = True) -> ByteWindows:
    """Return windows over an image: in place if possible, else over a copy in phases."""
    found = windows_in_place(planes, rows, columns) if gap_fits else None
    return found or windows_in_phases(planes.samples, planes.channels, rows, columns)


def windows_in_place(image: BytePlanes, rows: Axis, columns: Axis) -> ByteWindows | None:
    """Return windows over the image itself; None if gaps are too small or a stride exceeds 1."""
    (row_phases, row_taps), (column_phases, column_taps) = map(_along, (rows, columns))
    if rows.stride > 1 or columns.stride > 1:
        return None
    steps = [step for _, step in column_taps]
    needed = max(image.columns - min(0, *steps, 0), columns.positions + max(1, *steps))
    taps = [down * image.pitch + step for _, down in row_taps for step in steps]
    if image.pitch < needed or _reach(image, taps, rows, columns) > image.reach:
        return None
    return ByteWindows(image, row_phases, column_phases, tuple(taps), in_place=True)


def windows_in_phases(samples: int, channels: int, rows: Axis, columns: Axis) -> ByteWindows:
    """Return windows over a copy: for a stride of 2, even and odd rows and columns lie apart."""
    (row_phases, row_taps), (column_phases, column_taps) = map(_along, (rows, columns))
    steps = [step for _, step in column_taps]
    widest = max(1, *(phase.count for phase in column_phases))
    pitch = max(widest - min(0, *steps, 0), columns.positions + max(1, *steps))
    count = channels * len(row_phases) * len(column_phases)
    tallest = max(1, *(phase.count for phase in row_phases))
    plain = BytePlanes.plain((samples, count, tallest, widest), pitch)
    inside = [down * pitch + step for _, down in row_taps for step in steps]
    reach = _reach(plain, inside, rows, columns)
    planes = BytePlanes(samples, count, tallest, widest, pitch, max(plain.reach, reach))
    taps = tuple(
        (row * len(column_phases) + column) * planes.channel + down * pitch + step
        for row, down in row_taps
        for column, step in column_taps
    )
    return ByteWindows(planes, row_phases, column_phases, taps)


def _reach(image: BytePlanes, taps: list[int], rows: Axis, columns: Axis) -> int:
    """Return the most bytes that windows read before a channel's positions, or behind them."""
    last = (rows.positions - 1) * image.pitch + columns.positions - 1
    return max(0, -min(taps), last + max(taps) - (image.used - 1))


def _along(axis: Axis) -> tuple[tuple[BytePhase, ...], list[tuple[int, int]]]:
    """Return the phases of an axis, and for each tap the index of its phase and its offset."""
    places = [tap * axis.dilation - axis.padding for tap in range(axis.kernel)]
    numbers = sorted({place % axis.stride for place in places})
    farthest = axis.positions - 1 + max(place // axis.stride for place in places)
    phases = tuple(
        BytePhase(n, axis.stride, max(0, min(farthest + 1, ceil_div(axis.size - n, axis.stride))))
        for n in numbers
    )
    return phases, [(numbers.index(p % axis.stride), p // axis.stride) for p in places]


_TOGETHER = 4
_ORDER, _GAP = zmm(12), 13  # the latter's number


@dataclass(frozen=True)
class ChannelFours:
    """Layout of an image in bytes with four channels side by side, `planes` being the plain one.

    `phases` planes belong to a channel. Channels missing from the last four hold the gap's value:
    taps of the next sample may read them.
    """

    planes: BytePlanes
    phases: int = 1

    @property
    def channels(self) -> int:
        return self.planes.channels // self.phases

    @property
    def four(self) -> int:
        """Bytes from a plane of four channels to the next."""
        return _TOGETHER * self.planes.channel

    @property
    def sample(self) -> int:
        return ceil_div(self.channels, _TOGETHER) * self.phases * self.four

    @property
    def before(self) -> int:
        """Bytes before the first position."""
        return _TOGETHER * self.planes.before

    @property
    def bytes(self) -> int:
        """Bytes of all planes, with the margins before and behind them that vectors may read."""
        return 2 * self.before + self.planes.samples * self.sample + _TOGETHER * LINE


def emit_fours(asm: Assembler, y: ChannelFours, gap: Gap) -> None:
    """Append the copy of the planes at rdi to fours at rsi, and their gap before the first."""
    planes = y.planes
    apart, is_narrow = y.phases * planes.channel, asm.target.isa == "avx2"
    around = vector(asm, _GAP)
    if not is_narrow:
        load_order(asm, _ORDER)
    spread_bytes(asm, around, gap)
    asm.emit("lea", rax, Memory(rsi, -y.before))

    def before() -> None:
        store_line(asm, rax, 0, around)
        asm.emit("add", rax, LINE)

    repeat(asm, y.before // LINE, rcx, before)

    def four(count: int) -> None:
        def line() -> None:
            (_narrow_line if is_narrow else _line)(asm, count, apart)
            asm.emit("add", rdi, LINE)
            asm.emit("add", rsi, _TOGETHER * LINE)

        repeat(asm, apart // LINE, r10, line)
        asm.emit("add", rdi, (count - 1) * apart)

    def sample() -> None:
        whole, rest = divmod(y.channels, _TOGETHER)
        repeat(asm, whole, r9, lambda: four(_TOGETHER))
        if rest:
            four(rest)

    repeat(asm, planes.samples, r8, sample)


def _line(asm: Assembler, count: int, apart: int) -> None:
    """Copy 64 positions of `count` channels, at most four."""
    inputs = [zmm(number) for number in range(4, 8)]
    for number, register in enumerate(inputs):
        if number < count:
            asm.emit("vpermd", register, _ORDER, Memory(rdi, number * apart))
        else:
            asm.emit("vmovdqa64", register, zmm(_GAP))
    for number, register in interleaved(asm, inputs, [zmm(number) for number in range(8, 12)]):
        asm.emit("vmovdqu64", Memory(rsi, number * LINE), register)


def _narrow_line(asm: Assembler, count: int, apart: int) -> None:
    """Copy 64 positions of `count` channels with AVX2."""
    narrow_fours(asm, rsi, [Memory(rdi, number * apart) for number in range(count)])


def narrow_fours(asm: Assembler, into: Register, places: Sequence[Memory]) -> None:
    """Copy 64 bytes from each of at most four places with AVX2, side by side, in two halves.

    Missing ones are bytes of the gap. Interleaving leaves the lower and upper 16 of 32 positions in
    the halves of registers.
    """
    half = LINE // 2
    for part in (0, half):
        inputs = [ymm(number) for number in range(4, 8)]
        for register, place in zip_longest(inputs, places):
            if place is not None:
                at = place._replace(displacement=place.displacement + part)
                asm.emit("vmovdqu", register, at)
            else:
                asm.emit("vmovdqa", register, ymm(_GAP))
        made = interleaved(asm, inputs, [ymm(number) for number in range(8, 12)])
        first, second, third, fourth = (register for _, register in made)
        for number, (low, high) in enumerate(((first, second), (third, fourth)) * 2):
            which = 0x31 if number > 1 else 0x20
            asm.emit("vperm2i128", ymm(0), low, high, which)
            asm.emit("vmovdqu", Memory(into, _TOGETHER * part + number * half), ymm(0))


def load_order(asm: Assembler, register: Register) -> None:
    """Load the indices with which `vpermd` transposes 16 dwords as a 4x4 matrix."""
    order = np.arange(16, dtype=np.int32).reshape(4, 4).T.reshape(-1)
    asm.emit("vmovdqu64", register, Literal(asm.literal(order, LINE)))


def narrow_order(asm: Assembler) -> Literal:
    """AVX2: the indices with which `vpermd` transposes 8 dwords, two rows of four.

    They put in order what `vpackssdw` and `vpackuswb` made of registers of consecutive positions.
    """
    return Literal(asm.literal(np.arange(8, dtype=np.int32).reshape(2, 4).T.reshape(-1)))
