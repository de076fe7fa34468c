"""Depthwise convolutions from bytes to bytes: four taps of a row of the window at a time.

    x            = 64 bytes of a row                        vmovdqu64 zmm4, [rdi+row+32*v]
    e            = bytes p to p+3 of 16 positions p         vpermb zmm8, pattern, zmm4
    sum0 .. sum3 += vpdpbusd e, w                           w: four weights of the channel

    stride 1: 64 consecutive positions of the image, across rows
    stride 2: every other p, one row of the result at a time

A byte permutation takes the four taps of each position from one unaligned load. A load serves 32
positions, or 16 with a stride of 2.
"""

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.geometry import Axis
from sparsejit.asm_templates.convolution.int8_conversions import fill_gaps
from sparsejit.asm_templates.convolution.int8_convolution import ROW
from sparsejit.asm_templates.convolution.int8_planes import (
    LINE,
    BytePlanes,
    lines,
    load_order,
    store_line,
)
from sparsejit.asm_templates.convolution.int8_results import MASK, ByteEpilogue, ByteResults
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.rows import zero
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
    rax,
    rcx,
    rdi,
    rdx,
    rsi,
    rsp,
    zmm,
)
from sparsejit.x86.routines import call_routine, pop, push

_FOUR, _LANES, _QUARTERS = 4, 16, 4
_CHANNELS, _MASKS, _X, _Y = r8, r9, r10, r11
_CHANNELS_LEFT, _RUNS_LEFT = rdx, rax
_ORDER = zmm(18)
# Registers that `ByteResults.finish` leaves alone: patterns take the first, weights the others.
_LASTING = [zmm(number) for number in (17, 30, 15, 19, 12, 11, 10, 9)]
_LOADED, _FOURS = [zmm(number) for number in range(4, 8)], [zmm(n) for n in (8, 13, 14, 16)]
_STORED = k(2)
_MOST_STRIDE, _MOST_TAPS = 2, 16
_CONSTANTS = Memory(rsp, 0)


@dataclass(frozen=True)
class ByteChannelWindows:
    """Windows of a depthwise convolution over byte planes `x` to planes `y`, without a copy.

    The gaps of x are large enough to be the padding.

    taps: rows and columns of a window.
    first: bytes from the first position of x to the element under the first window's first tap.
    stride: rows and columns from window to window.
    is_first: whether to fill the gap before the first channel.
    """

    x: BytePlanes
    y: BytePlanes
    taps: tuple[int, int]
    first: int
    stride: tuple[int, int]
    is_first: bool = True

    @property
    def fours(self) -> int:
        """Groups of four taps in a row of a window."""
        return ceil_div(self.taps[1], _FOUR)

    @property
    def groups(self) -> int:
        """Groups of four taps in a window."""
        return self.taps[0] * self.fours

    @property
    def is_whole(self) -> bool:
        """Whether y has the positions and gaps of x: stride 1 and the same pitch."""
        return self.stride == (1, 1) and self.x.pitch == self.y.pitch


@dataclass(frozen=True, eq=False)
class LoweredByteDepthwise:
    """A depthwise convolution of bytes: windows, and each channel's weights, scale and biases.

    `weights` are (channels, taps), `ends` (channels, 3): the scale and two biases.
    """

    windows: ByteChannelWindows
    weights: npt.NDArray[np.int8]
    ends: npt.NDArray[np.floating]
    epilogue: ByteEpilogue

    @property
    def channels(self) -> npt.NDArray[np.void]:
        """The records of the channels, as the code reads them."""
        rows, columns = self.windows.taps
        fours = self.windows.fours * _FOUR
        weights = np.zeros((len(self.weights), rows, fours), np.int8)
        weights[:, :, :columns] = self.weights.reshape(-1, rows, columns)
        channels = np.zeros(len(weights), np.dtype([("row", ROW), ("weight", "i1", rows * fours)]))
        for number, name in enumerate(("scale", "bias", "late")):
            channels["row"][name] = self.ends[:, number]
        channels["weight"] = weights.reshape(len(weights), -1)
        return channels


def byte_channel_windows(
    x: BytePlanes, y_shape: tuple[int, ...], rows: Axis, columns: Axis
) -> ByteChannelWindows | None:
    """Return the windows over an image without a copy, to planes of shape `y_shape`.

    Return None if the image's gaps are too small for the padding, or there is no such code.
    """
    is_dense = rows.dilation == columns.dilation == 1
    if not is_dense or columns.stride > _MOST_STRIDE or columns.kernel > _MOST_TAPS:
        return None
    right, below = (
        max(0, (axis.positions - 1) * axis.stride - axis.padding + axis.kernel - axis.size)
        for axis in (columns, rows)
    )
    gap, pitch = max(columns.padding, right), x.pitch
    if pitch - x.columns < gap or max(rows.padding, below) * pitch + gap > x.reach:
        return None
    stride = rows.stride, columns.stride
    y = BytePlanes.plain(y_shape, pitch if stride == (1, 1) else None)
    first = -rows.padding * pitch - columns.padding
    return ByteChannelWindows(x, y, (rows.kernel, columns.kernel), first, stride)


def gaps_for(rows: Axis, columns: Axis, x: BytePlanes) -> BytePlanes:
    """Return the layout of planes of x with gaps large enough for windows along both axes."""
    right, below = (
        max(0, (axis.positions - 1) * axis.stride - axis.padding + axis.kernel - axis.size)
        for axis in (columns, rows)
    )
    gap = max(1, columns.padding, right)
    pitch = x.columns + gap
    reach = max(1, rows.padding, below) * pitch + gap
    return BytePlanes(x.samples, x.channels, x.rows, x.columns, pitch, reach)


def emit_byte_depthwise(asm: Assembler, lowered: LoweredByteDepthwise) -> None:
    """Append the depthwise convolution of bytes: x at rdi, y at rsi. Layers share its code."""
    asm.emit("lea", _CHANNELS, Literal(asm.literal(lowered.channels)))
    asm.emit("lea", rcx, Literal(asm.literal(lowered.epilogue.constants())))
    code = _ByChannelCode(asm, lowered.windows, lowered.epilogue)
    call_routine(asm, code.key, lambda asm: code.emit())


class _ByChannelCode:
    """Appends the code of a depthwise convolution of bytes, channel after channel."""

    def __init__(self, asm: Assembler, windows: ByteChannelWindows, epilogue: ByteEpilogue) -> None:
        self.asm, self.windows, self.results = asm, windows, ByteResults(asm, epilogue)
        self.key: Hashable = "byte depthwise", windows, epilogue.code
        self.record = ROW.itemsize + _FOUR * windows.groups
        # A load serves the positions of two quarters; with a stride of 2, of one.
        self.shared = 2 // windows.stride[1]
        lasting = iter(_LASTING)
        self.patterns = [
            [next(lasting) for _ in range(self.shared)] for _ in range(windows.fours)
        ]
        self.weights = [*lasting]

    def emit(self) -> None:
        """Append the code for all channels, one after the other."""
        asm, x, y = self.asm, self.windows.x, self.windows.y
        push(asm, (rcx,))
        self.results.load_constants(rcx)
        lanes, taps = np.arange(_LANES)[:, None], np.arange(_FOUR)
        for four, registers in enumerate(self.patterns):
            for part, register in enumerate(registers):
                first = _LANES * part + _FOUR * four
                pattern = (first + self.windows.stride[1] * lanes + taps).astype(np.uint8)
                asm.emit("vmovdqu64", register, Literal(asm.literal(pattern.reshape(-1))))
        load_order(asm, _ORDER)
        fill = fill_gaps if self.windows.is_whole else fill_channels
        fill(asm, y, rsi, self.results.gap, self.windows.is_first)

        def channel() -> None:
            self._channel()
            asm.emit("add", rdi, x.channel)
            asm.emit("add", rsi, y.channel)
            asm.emit("add", _CHANNELS, self.record)

        for sample in range(x.samples):
            repeat(asm, x.channels, _CHANNELS_LEFT, channel)
            if sample + 1 < x.samples:
                asm.emit("add", rdi, x.sample - x.channels * x.channel)
                asm.emit("add", rsi, y.sample - y.channels * y.channel)
                asm.emit("sub", _CHANNELS, x.channels * self.record)
        pop(asm, (rcx,))

    def _weight(self, number: int) -> Memory:
        return Memory(_CHANNELS, ROW.itemsize + _FOUR * number)

    @property
    def _keeps_weights(self) -> bool:
        return self.windows.groups <= len(self.weights)

    def _channel(self) -> None:
        asm, windows, y = self.asm, self.windows, self.windows.y
        if self._keeps_weights:
            for number in range(windows.groups):
                asm.emit("vpbroadcastd", self.weights[number], self._weight(number))
        asm.emit("lea", _X, Memory(rdi, windows.first))
        asm.emit("mov", _Y, rsi)
        if windows.is_whole:
            asm.emit("lea", _MASKS, Literal(asm.literal(y.masks())))
            repeat(asm, y.vectors, _RUNS_LEFT, self._vector)
        else:
            repeat(asm, y.rows, _RUNS_LEFT, self._row)

    def _vector(self) -> None:
        """Compute 64 positions, gaps included."""
        asm = self.asm
        asm.emit("vmovdqu64", MASK, Memory(_MASKS))
        self._sums(0, _QUARTERS)
        self._finish(_QUARTERS, Memory(_Y))
        for register in (_X, _Y, _MASKS):
            asm.emit("add", register, LINE)

    def _row(self) -> None:
        """Compute a row of the result; its end is stored under a mask."""
        asm, windows = self.asm, self.windows
        for first in range(0, windows.y.columns, LINE):
            count = min(LINE, windows.y.columns - first)
            quarters = ceil_div(count, _LANES)
            quarters = quarters if quarters < 3 else _QUARTERS
            self._sums(first * windows.stride[1], quarters)
            asm.emit("mov", rcx, (1 << count) - 1)
            asm.emit("kmovq", _STORED, rcx)
            self._finish(quarters, Memory(_Y, first).masked(_STORED))
        asm.emit("add", _X, windows.stride[0] * windows.x.pitch)
        asm.emit("add", _Y, windows.y.pitch)

    def _sums(self, place: int, quarters: int) -> None:
        """Compute the sums of `quarters` times 16 positions, from `place` bytes behind _X on."""
        asm, windows = self.asm, self.windows
        for number in range(quarters):
            zero(asm, zmm(number))
        for row in range(windows.taps[0]):
            for number in range(ceil_div(quarters, self.shared)):
                at = Memory(_X, place + row * windows.x.pitch + 2 * _LANES * number)
                asm.emit("vmovdqu64", _LOADED[number], at)
            for four, patterns in enumerate(self.patterns):
                weight = self._operand(row * windows.fours + four)
                for quarter in range(quarters):
                    number, part = divmod(quarter, self.shared)
                    asm.emit("vpermb", _FOURS[quarter], patterns[part], _LOADED[number])
                    asm.emit("vpdpbusd", zmm(quarter), _FOURS[quarter], weight)

    def _operand(self, number: int) -> Register | Memory:
        if self._keeps_weights:
            return self.weights[number]
        return self._weight(number)._replace(broadcast=_LANES)

    def _finish(self, quarters: int, y: Memory) -> None:
        sums = [zmm(number) for number in range(quarters)]
        self.results.finish(sums, _CHANNELS, y, y, _CONSTANTS, _ORDER)


def fill_channels(
    asm: Assembler, planes: BytePlanes, base: Register, gap: Register, before: bool = True
) -> None:
    """Append code that fills all channels with `gap`, and with `before` the bytes before them.

    Clobbers rax and rcx.
    """
    behind = planes.samples * planes.channels * planes.channel
    start = planes.before if before else 0
    asm.emit("lea", rcx, Memory(base, -start))

    def line() -> None:
        store_line(asm, rcx, 0, gap)
        asm.emit("add", rcx, LINE)

    repeat(asm, lines(behind + start), rax, line)
