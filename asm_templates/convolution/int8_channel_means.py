"""Means of channels of bytes, and products of each channel of bytes with a number.

    vpsadbw  zmm1, zmm2, [rdi]          eight sums of eight bytes each; zmm2 is zero
    vpaddq   zmm0, zmm0, zmm1

Gaps hold the zero point; the sum subtracts the zero point once for every byte, gaps included.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sparsejit.asm_templates.convolution.int8_conversions import ByteQuantisation, fill_gaps
from sparsejit.asm_templates.convolution.int8_planes import (
    LINE,
    BytePlanes,
    load_order,
    narrow_order,
)
from sparsejit.asm_templates.convolution.int8_results import (
    MASK,
    ByteEpilogue,
    ByteResults,
    NarrowByteResults,
)
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
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
    xmm,
    ymm,
    zmm,
)
from sparsejit.x86.routines import slots

SCALES = rdx  # address of the channels' numbers
_CHANNELS_LEFT, _VECTORS_LEFT = r9, rax
_X, _Y, _MASKS = r8, r10, r11
_ORDER = zmm(17)
_LANES, _QUARTERS = 16, 4


class ResultRow(NamedTuple):
    """Scale and bias on the stack, 4 bytes each, laid out as the row that `ByteResults` reads."""

    unused: Memory
    scale: Memory
    bias: Memory


_ROW, _STACK = ResultRow(*slots(rsp, len(ResultRow._fields), step=4)), 24
_CONSTANTS = Memory(rsp, 16)
_NARROW_GAP = ymm(15)


def emit_channel_means(asm: Assembler, x: BytePlanes, steps: ByteQuantisation) -> None:
    """Append code that writes the mean of each channel at rdi to consecutive floats at rsi."""
    total, summed, none = (vector(asm, number) for number in range(3))
    step = asm.target.vector_bytes
    share = np.float32(steps.scale / (x.rows * x.columns))
    place = asm.literal(np.array([share], np.float32))
    zero(asm, none)

    def line() -> None:
        for place in range(0, LINE, step):
            asm.emit("vpsadbw", summed, none, Memory(_X, place))
            asm.emit("vpaddq", total, total, summed)
        asm.emit("add", _X, LINE)

    def channel() -> None:
        zero(asm, total)
        asm.emit("mov", _X, rdi)
        repeat(asm, x.vectors, _VECTORS_LEFT, line)
        if step == LINE:
            asm.emit("vextracti64x4", ymm(1), total, 1)
            asm.emit("vpaddq", ymm(0), ymm(0), ymm(1))
        asm.emit("vextracti128", xmm(1), ymm(0), 1)
        asm.emit("vpaddq", xmm(0), xmm(0), xmm(1))
        asm.emit("vpshufd", xmm(1), xmm(0), 0b01001110)
        asm.emit("vpaddq", xmm(0), xmm(0), xmm(1))
        asm.emit("vmovd", dword(rcx), xmm(0))
        asm.emit("sub", dword(rcx), x.vectors * LINE * steps.zero_point)
        asm.emit("vcvtsi2ss", xmm(0), xmm(0), dword(rcx))
        asm.emit("vmulss", xmm(0), xmm(0), Literal(place))
        asm.emit("vmovss", Memory(rsi), xmm(0))
        asm.emit("add", rsi, 4)
        asm.emit("add", rdi, x.channel)

    for sample in range(x.samples):
        repeat(asm, x.channels, _CHANNELS_LEFT, channel)
        if sample + 1 < x.samples:
            asm.emit("add", rdi, x.sample - x.channels * x.channel)


@dataclass(frozen=True)
class ByteScaling:
    """Product of each channel of planes x with a number, into planes y of the same positions."""

    x: BytePlanes
    y: BytePlanes
    x_steps: ByteQuantisation
    y_steps: ByteQuantisation
    is_first: bool = True


def emit_scaled_channels(asm: Assembler, scaling: ByteScaling) -> None:
    """Append code that multiplies each channel at rdi by its float at SCALES, to planes at rsi."""
    x, y = scaling.x, scaling.y
    asm.emit("sub", rsp, _STACK)
    finish, gap = _scaled_results(asm, ByteEpilogue(scaling.y_steps.zero_point, cuts=True))
    ratio = np.float32(scaling.x_steps.scale / scaling.y_steps.scale)
    numbers = asm.literal(np.array([ratio, -scaling.x_steps.zero_point], np.float32))
    fill_gaps(asm, y, rsi, gap, scaling.is_first)

    def line() -> None:
        finish()
        for register in (_X, _Y, _MASKS):
            asm.emit("add", register, LINE)

    def channel() -> None:
        asm.emit("vmovss", xmm(0), Memory(SCALES))
        asm.emit("vmulss", xmm(0), xmm(0), Literal(numbers))
        asm.emit("vmovss", _ROW.scale, xmm(0))
        asm.emit("vmulss", xmm(0), xmm(0), Literal(numbers + 4))
        asm.emit("vmovss", _ROW.bias, xmm(0))
        asm.emit("mov", _X, rdi)
        asm.emit("mov", _Y, rsi)
        asm.emit("lea", _MASKS, Literal(asm.literal(y.masks())))
        repeat(asm, y.vectors, _VECTORS_LEFT, line)
        for register, step in ((rdi, x.channel), (rsi, y.channel), (SCALES, 4)):
            asm.emit("add", register, step)

    for sample in range(x.samples):
        repeat(asm, x.channels, _CHANNELS_LEFT, channel)
        if sample + 1 < x.samples:
            asm.emit("add", rdi, x.sample - x.channels * x.channel)
            asm.emit("add", rsi, y.sample - y.channels * y.channel)
    asm.emit("add", rsp, _STACK)


def _scaled_results(
    asm: Assembler, epilogue: ByteEpilogue
) -> tuple[Callable[[], None], Register]:
    """Load constants; return what appends the code of 64 positions, and the gap's register."""
    sums, lanes = [vector(asm, number) for number in range(_QUARTERS)], asm.target.lanes

    def load(place: int) -> None:
        for number, total in enumerate(sums):
            asm.emit("vpmovzxbd", total, Memory(_X, place + lanes * number))

    if asm.target.isa == "avx2":
        narrow = NarrowByteResults(asm, epilogue)
        place = asm.literal(narrow.constants())
        asm.emit("lea", rcx, Literal(place))
        asm.emit("mov", _CONSTANTS, rcx)
        narrow.load_gap(_NARROW_GAP, rcx)
        order = narrow_order(asm)

        def halves() -> None:
            for place in (0, LINE // 2):
                load(place)
                y, mask = (Memory(base, place) for base in (_Y, _MASKS))
                narrow.finish(sums, rsp, y, y, _CONSTANTS, mask, order)

        return halves, _NARROW_GAP
    results = ByteResults(asm, epilogue)
    asm.emit("lea", rcx, Literal(asm.literal(epilogue.constants())))
    results.load_constants(rcx)
    load_order(asm, _ORDER)

    def whole() -> None:
        asm.emit("vmovdqu64", MASK, Memory(_MASKS))
        load(0)
        results.finish(sums, rsp, Memory(_Y), Memory(_Y), _CONSTANTS, _ORDER)

    return whole, results.gap
