"""The tiles of Winograd's F(2x2, 3x3) in the planes of an image, and blocks of tiles.

    x       planes of even and odd rows and columns, so that neighbouring tiles read neighbours
    tiles   row after row of a plane, gaps between rows included; a block is consecutive tiles
    y       each row of tiles in vectors of its own, two rows of y from each
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.geometry import Axis
from sparsejit.asm_templates.convolution.padded_image import PaddedImage
from sparsejit.asm_templates.shared.padding import CACHE_LINE_BYTES
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div

SIDE = 4  # of a tile's input
_MOST_LINES = 15  # cache lines of tiles in a block: more gain nothing
# A block: offset into a plane of x in bytes; number of its vectors of outputs, and the byte offset
# of the first one's row in the table of outputs.
BLOCK_ROW = np.dtype([("x", "<i4"), ("count", "<i4"), ("first", "<i8")])
# A vector of tiles: offsets into M and y in bytes, and masks of the stored lanes of four vectors of
# outputs: bits for AVX-512, byte offsets into `SLIDING` for AVX2.
OUTPUTS_ROW = np.dtype([("m", "<i4"), ("y", "<i4"), ("stored", "<i4", 4)])
SLIDING = np.repeat([-1, 0], 8).astype(np.int32)


@dataclass(frozen=True, eq=False)
class TileBlocks:
    """Blocks of `tiles` neighbouring tiles in a plane of x, and their tables."""

    tiles: int
    rows: npt.NDArray[np.void]
    outputs: npt.NDArray[np.void]


def winograd_image(image: PaddedImage) -> PaddedImage:
    """Return the planes that are read: 4x4 windows, two apart."""

    def tiles(axis: Axis) -> Axis:
        return replace(axis, kernel=SIDE, stride=2, positions=ceil_div(axis.positions, 2))

    return replace(image, rows=tiles(image.rows), columns=tiles(image.columns))


def cut_tiles(image: PaddedImage, outputs: int, target: Target) -> TileBlocks:
    """Cut the tiles into blocks whose V and M fit half of L2."""
    read, line = winograd_image(image), CACHE_LINE_BYTES // 4
    rows, columns = read.rows.positions, read.columns.positions
    tiles = (rows - 1) * read.pitch + columns
    every = ceil_div(tiles, line)
    fitting = target.l2_bytes // 2 // (SIDE * SIDE * (image.channels + outputs) * CACHE_LINE_BYTES)
    count = ceil_div(every, max(3, min(_MOST_LINES, fitting)))
    size = line * ceil_div(every, count)
    starts = [min(first, max(0, line * every - size)) for first in range(0, tiles, size)]
    table = np.zeros(len(starts), BLOCK_ROW)
    outputs_rows: list[tuple[int, int, tuple[int, ...]]] = []
    for number, start in enumerate(starts):
        own = _outputs(image, read, range(number * size, (number + 1) * size), start, target)
        before = len(outputs_rows)
        outputs_rows += own
        table[number] = 4 * start, len(outputs_rows) - before, before * OUTPUTS_ROW.itemsize
    return TileBlocks(size, table, np.array(outputs_rows, OUTPUTS_ROW))


def _outputs(
    image: PaddedImage, read: PaddedImage, own: range, start: int, target: Target
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield the rows of `OUTPUTS_ROW` for the tiles `own` of the block that begins at `start`."""
    height, width, lanes = image.rows.positions, image.columns.positions, target.lanes
    last = min(read.rows.positions - 1, (own.stop - 1) // read.pitch)
    for row in range(own.start // read.pitch, last + 1):
        first = max(0, own.start - row * read.pitch)
        end = min(read.columns.positions, own.stop - row * read.pitch)
        for column in range(first, end, lanes):
            wide = min(2 * min(lanes, end - column), width - 2 * column)
            low, high = min(wide, lanes), max(0, wide - lanes)
            below = 2 * row + 1 < height
            counts = low, high, low * below, high * below
            m = 4 * (row * read.pitch + column - start)
            yield m, 4 * 2 * (row * width + column), tuple(_lanes(n, target) for n in counts)


def _lanes(count: int, target: Target) -> int:
    """Return the mask of the first `count` lanes, as in `OUTPUTS_ROW`."""
    return (1 << count) - 1 if target.isa == "avx512" else 4 * (8 - count)
