"""Depthwise convolutions from bytes to bytes with AVX-VNNI: four taps of a row at a time.

    words_of          the words of a window: four taps of a row, or of its last column
    word_taps         the weights of all channels, in words
    emit_tap_words    the kernel

`int8_pair_code` has the loops, and the code that turns sums into bytes. For 32 windows, stride 1:

    x      = 32 bytes of a row, from a word's first tap on    vmovdqu ymm10, [r10+tap]
    e      = bytes p to p+3 of 4 windows, in each half        vpshufb ymm11, ymm10, pattern
    sum0  += vpdpbusd e, w                                    sum1, sum2: 4 and 8 bytes on
    sum3  += the same of the 32 bytes from 12 on

so that packing leaves the windows in order. With a stride of 2 the sums are of 32 bytes each, 8
apart, whose halves have 4 windows. Where rows have one tap more than words hold, four of these, one
below the other, are interleaved into e0 .. e3, as in `int8_convolution`.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from sparsejit.asm_templates.convolution.int8_convolution import NARROW_PRODUCT
from sparsejit.asm_templates.convolution.int8_depthwise import (
    ByteChannelWindows,
    LoweredByteDepthwise,
)
from sparsejit.asm_templates.convolution.int8_pair_code import (
    HALF,
    SUMS,
    LoweredPairs,
    Shape,
    ShapedRows,
    X,
    emit_pairs,
    record_type,
)
from sparsejit.asm_templates.convolution.int8_tap_pairs import TapCode
from sparsejit.asm_templates.shared.rows import zero
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Memory, Register, ymm

_TAPS = 4  # of a word
_OWN = tuple(ymm(number) for number in range(4))  # sums, until the ones before are stored
_LOADED, _PICKED, _WEIGHT, _PATTERN = ymm(10), ymm(11), ymm(14), ymm(15)
_INTERLEAVED = tuple(ymm(number) for number in range(10, 15))
_STEP = 4  # bytes between the windows of two sums
_MOST_AMONG = 4  # words among the ends of the sums before


class TapWord(NamedTuple):
    """Up to four taps from a row and column on: side by side, or one below the other (`down`)."""

    row: int
    column: int
    down: bool = False


def words_of(windows: ByteChannelWindows) -> list[TapWord]:
    """Return the words that have all taps of a window."""
    (rows, columns), is_dense = windows.taps, windows.stride[1] == 1
    below = rows - rows % _TAPS if is_dense and columns % _TAPS == 1 else 0
    last = columns - 1
    across = [TapWord(row, c) for row in range(rows) for c in range(0, columns, _TAPS)]
    kept = [word for word in across if word.row >= below or word.column < last]
    return kept + [TapWord(row, last, down=True) for row in range(0, below, _TAPS)]


def word_taps(lowered: LoweredByteDepthwise) -> LoweredPairs:
    """Return a depthwise convolution with its weights in words, as the code reads them."""
    windows, channels = lowered.windows, lowered.channels
    words, number = words_of(windows), np.arange(len(channels))
    records = np.zeros(len(channels), record_type(len(words), 0))
    records["row"] = channels["row"]
    records["row"]["offset"] = number * windows.y.channel
    records["x"] = number * windows.x.channel
    weights = lowered.weights.reshape(-1, *windows.taps)
    for place, (row, column, down) in enumerate(words):
        line, first = (weights[:, :, column], row) if down else (weights[:, row], column)
        four = line[:, first : first + _TAPS]
        records["pair"]["weight"][:, place, : four.shape[1]] = four
    rows = [ShapedRows((len(words),), records)]
    planes = windows.x, windows.y
    return LoweredPairs(rows, lowered.epilogue, *planes, windows.first, windows.is_first)


def words_operations(windows: ByteChannelWindows) -> float:
    """Return the vector instructions that make sums of 32 windows."""
    loads = 2 if windows.stride[1] == 1 else len(SUMS)
    each = (1.0 + loads + 2 * len(SUMS), 1.0 + 2 + 3 * len(SUMS))  # across and down
    return sum(each[word.down] for word in words_of(windows)) + 2 * len(SUMS)


def emit_tap_words(asm: Assembler, lowered: LoweredPairs, windows: ByteChannelWindows) -> None:
    """Append the depthwise convolution of bytes: x at rdi, y at rsi."""
    emit_pairs(asm, lowered, _TapWordCode(asm, lowered, windows))


class _TapWordCode(TapCode):
    """Appends the code of a depthwise convolution by four taps of a row."""

    offsets = 0  # all channels have the same taps
    product: ClassVar[str] = NARROW_PRODUCT

    def load_constants(self) -> None:
        self.asm.emit("vmovdqu", _PATTERN, self._pattern(0))

    def _pattern(self, first: int) -> Literal:
        """Return the bytes `first` on of four windows, four of each."""
        window = np.arange(_TAPS)[:, None] * self.windows.stride[1]
        half = first + window + np.arange(_TAPS)
        return Literal(self.asm.literal(np.tile(half.reshape(-1), 2).astype(np.uint8), HALF))

    def order(self, made: Register) -> None:
        if self.windows.stride[1] > 1:
            super().order(made)

    def _sums(self, shape: Shape, chunk: int, previous: int | None) -> None:
        asm, words = self.asm, list(enumerate(words_of(self.windows)))
        with asm.held() as added:
            for total in _OWN:
                zero(asm, total)
            for number, word in words[:_MOST_AMONG]:
                self._word(number, word, chunk)
        if previous is None:
            asm.emit_spread([], added)
        else:
            self._finish(previous, added)
        for number, word in words[_MOST_AMONG:]:
            self._word(number, word, chunk)
        for total, own in zip(SUMS, _OWN, strict=True):
            asm.emit("vmovdqa", total, own)

    def _word(self, number: int, word: TapWord, chunk: int) -> None:
        """Add the products of four taps to the sums of 32 windows."""
        asm, windows, weight = self.asm, self.windows, self._pair(number, 0)
        first = word.row * windows.x.pitch + word.column + chunk * windows.stride[1]
        if word.down:
            self._down(first, weight)
            return
        asm.emit("vpbroadcastd", _WEIGHT, weight)
        for sum_number, total in enumerate(_OWN):
            self._load(first, sum_number)
            asm.emit(self.product, total, _PICKED, _WEIGHT)

    def _down(self, first: int, weight: Memory) -> None:
        """Add the products of four taps below each other."""
        asm, (a, low, c, high, last) = self.asm, _INTERLEAVED
        pitch = self.windows.x.pitch
        for upper, lower, place in ((a, low, first), (c, high, first + 2 * pitch)):
            other = Memory(X, place + pitch)
            asm.emit("vmovdqu", upper, Memory(X, place))
            asm.emit("vpunpcklbw", lower, upper, other)
            asm.emit("vpunpckhbw", upper, upper, other)
        asm.emit("vpunpcklwd", last, low, high)
        asm.emit("vpunpckhwd", low, low, high)
        asm.emit("vpunpcklwd", high, a, c)
        asm.emit("vpunpckhwd", a, a, c)
        asm.emit("vpbroadcastd", c, weight)
        for total, four in zip(_OWN, (last, low, high, a), strict=True):
            asm.emit(self.product, total, four, c)

    def _load(self, first: int, number: int) -> None:
        """Pick the bytes of the windows of a sum from those that are loaded, or load others."""
        asm, step = self.asm, _STEP * number
        if self.windows.stride[1] > 1:
            line, half = divmod(number, 2)
            place = first + line * self.between + 2 * _STEP * half
            asm.emit("vmovdqu", _PICKED, Memory(X, place))
            asm.emit("vpshufb", _PICKED, _PICKED, _PATTERN)
        elif number == len(_OWN) - 1:
            asm.emit("vmovdqu", _PICKED, Memory(X, first + step))
            asm.emit("vpshufb", _PICKED, _PICKED, _PATTERN)
        else:
            if not number:
                asm.emit("vmovdqu", _LOADED, Memory(X, first))
            pattern = self._pattern(step) if number else _PATTERN
            asm.emit("vpshufb", _PICKED, _LOADED, pattern)
