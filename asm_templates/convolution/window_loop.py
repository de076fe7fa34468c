"""Windows over one channel each: their geometry, their tiles, and the work of one call."""

from dataclasses import dataclass

from sparsejit.asm_templates.convolution.geometry import Axis, column_runs, row_runs
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div

MOST_TAPS = 64  # of a kernel: a tile's code has all of them
_SUMS = {"avx512": 14, "avx2": 8}  # two FMA a cycle, four cycles each, keep eight under way
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
    """Whether there is a kernel for such windows."""
    return columns.stride <= 2 and rows.kernel * columns.kernel <= MOST_TAPS


@dataclass(frozen=True)
class DirectCounts:
    """Work of one call: vectors combined, loaded and stored; bytes of x and y."""

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
    """Return the rows and vectors of a tile."""
    every = ceil_div(loop.columns.positions, target.lanes)
    sums, tallest = _SUMS[target.isa], _TALLEST[target.isa]
    height = min(loop.rows.positions, tallest)
    width = min(every, sums // height, _MOST_VECTORS[target.isa][loop.columns.stride])
    return min(loop.rows.positions, sums // width), width
