"""Inputs of windows by four, side by side: each position's own bytes, whatever the taps.

    TapFours           the layout, with the place of each input
    fitting_order      inputs in an order in which neighbours' weights seldom exceed 16 bits
    emit_tap_fours     the copy of planes to it

    inputs 0 to 3   abcd abcd abcd ...   a: channel 0 under the first tap of each position
    inputs 4 to 7   efgh efgh efgh ...   b: under the second

So a convolution of any windows is a 1x1 convolution whose quads read four inputs by one aligned
offset. Every input is copied once for each tap that reads it: where many rows share few inputs, as
in the first layer of a net, a quad without interleaving saves more than that.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.int8_convolution import LARGEST_PAIR, QUAD
from sparsejit.asm_templates.convolution.int8_planes import (
    LINE,
    BytePhase,
    BytePlanes,
    ByteWindows,
    ChannelFours,
    narrow_fours,
)
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.ir.compressed_rows import CompressedRows
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, r9, r10, rax, rdi, rsi

MOST_INPUTS = 256
_POSITION, _INTO, _LINES_LEFT = rax, r9, r10


@dataclass(frozen=True, eq=False)
class TapFours:
    """Inputs by four for windows over byte planes.

    x: the planes that windows read.
    order: the inputs in the order in which they lie side by side.
    places: bytes from a position to each of them.
    y: the inputs as channels of an image, side by side by four.
    """

    x: BytePlanes
    order: npt.NDArray[np.int64]
    places: tuple[int, ...]
    y: ChannelFours

    @property
    def windows(self) -> ByteWindows:
        """The 1x1 windows over the inputs."""
        planes = self.y.planes
        rows, columns = (BytePhase(0, 1, count) for count in (planes.rows, planes.columns))
        return ByteWindows(planes, (rows,), (columns,), (0,))


def tap_fours(windows: ByteWindows, y: BytePlanes, order: npt.NDArray[np.int64]) -> TapFours:
    """Return the inputs of windows by four, in this order, for a result with planes like y."""
    planes = BytePlanes(y.samples, len(order), y.rows, y.columns, y.pitch, 0)
    places = tuple(windows.places(1)[order].tolist())
    return TapFours(windows.planes, order, places, ChannelFours(planes))


def fitting_order(weights: CompressedRows) -> npt.NDArray[np.int64]:
    """Return the inputs of int8 weights (out, inputs), those next to each other that fit best.

    Two inputs fit a row if their weights have opposite signs, or magnitudes that sum to at most
    128. From the input with the fewest partners on, each takes the partner that fits most rows.
    """
    dense = weights.dense().astype(np.int64)
    inputs = dense.shape[1]
    misfits = np.zeros((inputs, inputs), np.int64)
    for row in dense:
        is_large = np.abs(row)[:, None] + np.abs(row) > LARGEST_PAIR
        misfits += is_large & (np.sign(row)[:, None] == np.sign(row))
    np.fill_diagonal(misfits, np.iinfo(np.int64).max // inputs)
    left, found = list(np.argsort(-misfits.sum(axis=1), kind="stable")), []
    while left:
        first = left.pop(0)
        found.append(first)
        if left:
            second = min(left, key=lambda other: misfits[first, other])
            left.remove(second)
            found.append(second)
    return np.array(found, np.int64)


def in_order(weights: CompressedRows, order: npt.NDArray[np.int64]) -> CompressedRows:
    """Return weights (out, inputs) with their inputs in this order."""
    place = np.argsort(order)
    return CompressedRows.of_places(
        weights.shape, weights.rows, place[weights.columns], weights.values
    )


def emit_tap_fours(asm: Assembler, fours: TapFours) -> None:
    """Append the copy of planes at rdi to inputs by four at rsi, with AVX2.

    A last four with fewer inputs repeats them; their weights are zeros.
    """
    planes, y = fours.x, fours.y
    for sample in range(planes.samples):
        for number, first in enumerate(range(0, len(fours.places), QUAD)):
            some = np.resize(fours.places[first : first + QUAD], QUAD).tolist()
            asm.emit("lea", _POSITION, Memory(rdi, sample * planes.sample))
            asm.emit("lea", _INTO, Memory(rsi, sample * y.sample + number * y.four))

            def line(some: list[int] = some) -> None:
                narrow_fours(asm, _INTO, [Memory(_POSITION, place) for place in some])
                asm.emit("add", _POSITION, LINE)
                asm.emit("add", _INTO, QUAD * LINE)

            repeat(asm, y.planes.vectors, _LINES_LEFT, line)
