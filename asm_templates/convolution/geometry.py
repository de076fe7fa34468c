"""Windows of a convolution along one axis, and tiles of its positions.

    positions   0 1 2 3 4 5 6 ...        of the output
    coordinate  position * stride + tap * dilation - padding, of the input

Tiles that differ only in their place form a run: one piece of code in a loop over the places. Tiles
at a border differ, because parts of their input do not exist.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from sparsejit.whole_numbers import ceil_div


@dataclass(frozen=True)
class Axis:
    """One spatial axis: elements of the input, positions of the output, and the window."""

    size: int
    positions: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    def coordinate(self, position: int, tap: int) -> int:
        """Return the input element under a tap at a position; it may lie in the padding."""
        return position * self.stride + tap * self.dilation - self.padding

    def part(self, first: int, end: int) -> tuple["Axis", int, int]:
        """Return the axis of positions `first` to `end` - 1, over the elements that they read.

        Also return the range of these elements: the first, and the end.
        """
        start = max(0, self.coordinate(first, 0))
        stop = min(self.size, self.coordinate(end - 1, self.kernel - 1) + 1)
        padding = start - self.coordinate(first, 0)
        own = replace(self, size=stop - start, positions=end - first, padding=padding)
        return own, start, stop

    def exists(self, coordinate: int) -> bool:
        """Whether a coordinate is an element, not padding."""
        return 0 <= coordinate < self.size


@dataclass(frozen=True)
class RowTile:
    """Consecutive rows of positions; `taps` are the pairs (row, tap) over existing elements."""

    rows: int
    taps: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ColumnVector:
    """A vector of positions: its place in the tile, and the elements it may read.

    Elements are counted from the coordinate of its first position under tap 0. Elements `first` to
    `end` - 1 exist.
    """

    place: int
    first: int
    end: int


Tile = TypeVar("Tile")
ColumnTile: TypeAlias = tuple[ColumnVector, ...]


@dataclass(frozen=True)
class TileRun(Generic[Tile]):
    """Equal tiles, computed by one loop: `count` of them, `step` positions apart, from `first`."""

    first: int
    count: int
    step: int
    tile: Tile


def row_runs(axis: Axis, most: int) -> list[TileRun[RowTile]]:
    """Cut an axis of output rows into tiles of at most `most` rows, and equal tiles into runs."""
    parts = np.array_split(np.arange(axis.positions), ceil_div(axis.positions, most))
    tiles = []
    for part in parts:
        first, rows = int(part[0]), range(len(part))
        taps = (
            (row, tap)
            for row in rows
            for tap in range(axis.kernel)
            if axis.exists(axis.coordinate(first + row, tap))
        )
        tiles.append((first, RowTile(len(part), tuple(taps))))
    return _runs(tiles)


def column_runs(axis: Axis, lanes: int, vectors: int) -> list[TileRun[ColumnTile]]:
    """Cut output columns into tiles of at most `vectors` vectors, and equal tiles into runs.

    The last vector overlaps the one before.
    """
    starts = [*range(0, axis.positions - lanes, lanes), max(0, axis.positions - lanes)]
    reach = lanes * axis.stride + (axis.kernel - 1) * axis.dilation
    tiles = []
    for number in range(0, len(starts), vectors):
        own = starts[number : number + vectors]
        before = [axis.coordinate(start, 0) for start in own]
        tile = (
            ColumnVector(start - own[0], max(0, -c), min(reach, axis.size - c))
            for start, c in zip(own, before, strict=True)
        )
        tiles.append((own[0], tuple(tile)))
    return _runs(tiles)


def _runs(tiles: Sequence[tuple[int, Tile]]) -> list[TileRun[Tile]]:
    """Merge neighbouring equal tiles, each given with its first position, into regular runs."""
    runs: list[TileRun[Tile]] = []
    for first, tile in tiles:
        last = runs[-1] if runs else None
        if last is not None and last.tile == tile:
            step = (first - last.first) // last.count
            follows = last.first + last.count * step == first
            if last.count == 1 or (step == last.step and follows):
                runs[-1] = TileRun(last.first, last.count + 1, step, tile)
                continue
        runs.append(TileRun(first, 1, 0, tile))
    return runs
