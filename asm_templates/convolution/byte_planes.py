"""Images in bytes between layers: rows one after another, with gaps that hold the zero point.

    channel 0   x x x x x x x 0 x x x x x x x 0 ... 0 0 0 | channel 1   x x x x ...

A gap ends a row and begins the next; what lies behind the last row ends a channel and begins the
next. So each tap of a window is a fixed distance from its position, wherever that is, and 64
positions are a vector, whatever the rows.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.geometry import Axis
from sparsejit.asm_templates.shared.padding import CACHE_LINE_BYTES

LINE = CACHE_LINE_BYTES


def lines(size: int) -> int:
    """Whole cache lines that hold so many bytes."""
    return -(-size // LINE)


@dataclass(frozen=True)
class BytePlanes:
    """Where (samples, channels, rows, columns) lie, a byte each.

    pitch: bytes from row to row.
    reach: how far before and behind a position taps may lie.
    """

    samples: int
    channels: int
    rows: int
    columns: int
    pitch: int
    reach: int

    @classmethod
    def plain(cls, shape: tuple[int, ...], pitch: int | None = None) -> "BytePlanes":
        """For windows of 3x3 and less, with a gap of one byte unless a pitch is given.

        Images without rows are of one row, which windows leave at its ends alone.
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
        """How many vectors of 64 positions, gaps among them."""
        return lines(self.used)

    @cached_property
    def channel(self) -> int:
        """Bytes from channel to channel: an odd number of lines, which fall into all sets of L1."""
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
        """What all take, with what vectors may read behind the last position."""
        return 2 * self.before + self.samples * self.sample + LINE

    @property
    def strides(self) -> tuple[int, int, int, int]:
        return self.sample, self.channel, self.pitch, 1

    def masks(self) -> npt.NDArray[np.uint8]:
        """(vectors, 64): 255 where a byte is a position, 0 in gaps."""
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
    """The planes that windows read, of which `phases` belong to a channel, and where taps lie.

    taps: bytes from a position in a channel's first plane to what each tap meets.
    """

    planes: BytePlanes
    rows: tuple[BytePhase, ...]
    columns: tuple[BytePhase, ...]
    taps: tuple[int, ...]
    in_place: bool = False

    @property
    def phases(self) -> int:
        return len(self.rows) * len(self.columns)

    def places(self, together: int) -> npt.NDArray[np.int64]:
        """Where each tap meets so many channels side by side, channel by channel."""
        groups = np.arange(-(-self.planes.channels // self.phases // together))
        apart = self.phases * self.planes.channel
        return together * (groups[:, None] * apart + np.array(self.taps)).reshape(-1)


def windows_in_place(image: BytePlanes, rows: Axis, columns: Axis) -> ByteWindows | None:
    """Over an image as it lies; None where its gaps are too small or windows are not one apart."""
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
    """Over a copy: with a stride of 2, even and odd rows and columns are planes of their own."""
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
    """How far before and behind a channel's positions windows read."""
    last = (rows.positions - 1) * image.pitch + columns.positions - 1
    return max(0, -min(taps), last + max(taps) - (image.used - 1))


def _along(axis: Axis) -> tuple[tuple[BytePhase, ...], list[tuple[int, int]]]:
    """The phases of an axis, and of each tap which one it is in and how far along."""
    places = [tap * axis.dilation - axis.padding for tap in range(axis.kernel)]
    numbers = sorted({place % axis.stride for place in places})
    farthest = axis.positions - 1 + max(place // axis.stride for place in places)
    phases = tuple(
        BytePhase(n, axis.stride, max(0, min(farthest + 1, -(-(axis.size - n) // axis.stride))))
        for n in numbers
    )
    return phases, [(numbers.index(p % axis.stride), p // axis.stride) for p in places]
