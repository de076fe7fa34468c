"""Depthwise convolutions from bytes to bytes with AVX2: two neighbouring taps at a time.

    pair_taps         the weights of all channels, in pairs
    emit_tap_pairs    the kernel

`int8_pair_code` is the code; a row is a channel. Both taps of a pair lie side by side:

    stride 2    16 windows in a row are 32 bytes; a1 has the next 16, or the next row's
    stride 1    32 bytes are every other window; a1 has those between, from a byte on

A weight may be shared by the pairs to its left and to its right, so that these fit 16 bits.
"""

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.int8_convolution import LARGEST_PAIR
from sparsejit.asm_templates.convolution.int8_depthwise import (
    ByteChannelWindows,
    LoweredByteDepthwise,
    fill_channels,
)
from sparsejit.asm_templates.convolution.int8_pair_code import (
    HALF,
    LOADED,
    Binned,
    LoweredPairs,
    PairCode,
    RowNumbers,
    RowTurns,
    WeightPairs,
    X,
    Y,
    emit_pairs,
    first_bins,
    in_even_bins,
    lowered_rows,
    turns_of_positions,
)
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Memory, Register, rsi, xmm

_Integers = npt.NDArray[np.integer]

_MOST_SHAPES = 4
# Bytes 0, 8, 1, 9 ... of each half: positions between each other.
_ALTERNATING = np.tile(np.arange(16).reshape(2, 8).T.reshape(-1), 2).astype(np.uint8)


def taps_in_pairs(weights: npt.NDArray[np.int8]) -> WeightPairs:
    """Return the fewest pairs for weights (channels, rows, columns) that fit 16 bits each.

    From left to right, a pair takes all of its first tap's weight that is left, and as much of the
    next one's as fits.
    """
    rows, columns = weights.shape[1:]
    left = weights.astype(np.int64).reshape(-1, columns)
    found: list[tuple[_Integers, int, _Integers]] = []
    for column in range(columns):
        first = left[:, column]
        lines = np.flatnonzero(first)
        both = np.zeros((len(lines), 2), np.int64)
        both[:, 0] = first[lines]
        if column + 1 < columns:
            second = left[lines, column + 1]
            room = np.where(second * both[:, 0] > 0, LARGEST_PAIR - np.abs(both[:, 0]), 255)
            both[:, 1] = np.sign(second) * np.minimum(np.abs(second), room)
            left[lines, column + 1] -= both[:, 1]
        elif column:  # reads no byte behind the window
            both = both[:, ::-1]
        found.append((lines, max(0, column - (column + 1 == columns)), both))
    line = np.concatenate([lines for lines, _, _ in found])
    column_of = np.concatenate([np.full(len(lines), column) for lines, column, _ in found])
    both = np.concatenate([both for _, _, both in found])
    order = np.argsort(line, kind="stable")
    places = np.stack([line % rows, column_of], axis=1)
    return WeightPairs(line // rows, places, both).some(order)


def has_room(windows: ByteChannelWindows) -> bool:
    """Whether a channel of the result has room for whole vectors behind its last row.

    If not, they reach into the next channel, which must be computed later.
    """
    y = windows.y
    width = HALF // together(windows)
    return windows.is_whole or y.used + -y.columns % width <= y.channel


def together(windows: ByteChannelWindows) -> int:
    """Return the rows of the result in a turn: two if each has at most 16 windows."""
    is_narrow = windows.stride[1] == 2 and 2 * windows.y.columns <= HALF
    return 2 if is_narrow and windows.y.rows > 1 else 1


def turns_of(windows: ByteChannelWindows) -> RowTurns:
    """Return the turns that compute a channel."""
    y, lines = windows.y, together(windows)
    if windows.is_whole:
        return turns_of_positions(y)
    down = windows.stride[0] * windows.x.pitch
    chunks = range(0, y.columns, HALF)
    return RowTurns(chunks, ceil_div(y.rows, lines), lines, y.rows % lines, down, y.pitch)


def bins_of_taps(weights: npt.NDArray[np.int8]) -> Binned:
    """Return the pairs of weights (channels, rows, columns) in as many bins as they take."""
    pairs, channels = taps_in_pairs(weights), len(weights)
    bins = first_bins(pairs.row, _signed(pairs.weights), channels, LARGEST_PAIR)
    return in_even_bins(pairs, bins, channels)


def _signed(pairs: _Integers) -> _Integers:
    """Return the sums of the positive and of the negative weights of pairs, (..., 2)."""
    return np.stack([np.maximum(pairs, 0).sum(axis=-1), np.maximum(-pairs, 0).sum(axis=-1)], -1)


def pair_taps(lowered: LoweredByteDepthwise) -> LoweredPairs:
    """Return a depthwise convolution with its weights in pairs, as the code reads them."""
    windows = lowered.windows
    x, y = windows.x, windows.y
    weights = lowered.weights.reshape(-1, *windows.taps)
    binned = bins_of_taps(weights)
    channel = np.arange(len(weights))
    numbers = RowNumbers(channel * x.channel, channel * y.channel, lowered.ends)

    row, column = binned.pairs.places.T
    offsets = (row * x.pitch + column)[:, None]
    rows = lowered_rows(binned, numbers, offsets, _MOST_SHAPES if has_room(windows) else 1)
    return LoweredPairs(rows, lowered.epilogue, x, y, windows.first, windows.is_first)


def emit_tap_pairs(asm: Assembler, lowered: LoweredPairs, windows: ByteChannelWindows) -> None:
    """Append the depthwise convolution of bytes: x at rdi, y at rsi."""
    emit_pairs(asm, lowered, _TapPairCode(asm, lowered, windows))


class TapCode(PairCode):
    """Common to the code of depthwise convolutions: turns, and the order of windows in them."""

    def __init__(
        self, asm: Assembler, lowered: LoweredPairs, windows: ByteChannelWindows
    ) -> None:
        super().__init__(asm, lowered, turns_of(windows))
        self.windows, self.lines = windows, together(windows)
        self.key = self.key, windows

    @property
    def between(self) -> int:
        """Bytes from the windows of the first accumulator of a bin to the windows of the second."""
        if self.windows.stride[1] == 1:
            return 1
        return self.turns.down if self.lines == 2 else HALF

    def fill(self, gap: Register) -> None:
        if self.turns.whole:
            super().fill(gap)
        else:
            fill_channels(self.asm, self.windows.y, rsi, gap, self.windows.is_first)

    def masks(self) -> npt.NDArray[np.uint8]:
        y = self.windows.y
        if self.turns.whole:
            return super().masks()
        width = HALF // self.lines
        place = np.arange(ceil_div(y.columns, width) * width)
        return np.tile(np.where(place < y.columns, 255, 0), self.lines).astype(np.uint8)

    def order(self, made: Register) -> None:
        self.asm.emit("vpermq", made, made, 0b11011000)

    def store(self, made: Register, place: int) -> None:
        asm, lower = self.asm, xmm(made.number)
        if self.lines == 1:
            super().store(made, place)
            return
        asm.emit("vmovdqu", Memory(Y), lower)
        asm.emit("vextracti128", lower, made, 1)
        asm.emit("vmovdqu", Memory(Y, self.turns.pitch), lower)


class _TapPairCode(TapCode):
    """Appends the code of a depthwise convolution by pairs of taps."""

    def __init__(
        self, asm: Assembler, lowered: LoweredPairs, windows: ByteChannelWindows
    ) -> None:
        super().__init__(asm, lowered, windows)
        self.alternating = Literal(asm.literal(_ALTERNATING))

    def load(self, pair: int, place: int, count: int) -> None:
        offset = self.offset(pair, 0, count)
        for loaded, apart in zip(LOADED, (0, self.between), strict=True):
            at = place * self.windows.stride[1] + apart
            self.asm.emit("vmovdqu", loaded, Memory(X, at, offset))

    def order(self, made: Register) -> None:
        if self.windows.stride[1] == 1:
            self.asm.emit("vpshufb", made, made, self.alternating)
        else:
            super().order(made)
