"""Conversion of images to bytes and back to float32, copies into phases, max pooling, and gaps.

    emit_to_bytes       float32 to bytes
    emit_to_floats      bytes to float32
    emit_phases         a copy of planes into the phases that windows with a stride read
    emit_byte_pooling   the largest byte of each window
    fill_gaps           the zero point in the gaps of planes

`emit_to_bytes`, for 16 positions:

    vmulps     zmm0, scale, [r8+64*j]        16 floats of a row
    vminps     zmm0, zmm0, largest           NaN becomes the largest, too
    vcvtps2dq  zmm0, zmm0                    ties to even
    vpaddd     zmm0, zmm0, zero point
    vpmaxsd    zmm0, zmm0, 0
    vpmovusdb  [r9+16*j], zmm0               16 bytes, at most 255
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sparsejit.asm_templates.convolution.int8_planes import (
    LINE,
    BytePhase,
    BytePlanes,
    ByteWindows,
    Gap,
    spread_bytes,
    store_line,
)
from sparsejit.asm_templates.shared.int8_inputs import (
    PACKED_ORDER,
    ByteRounding,
    DividingRounding,
    store_bytes,
)
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.masks import (
    TAIL_MASK,
    load_masked,
    set_tail_mask,
    store_masked,
    tail_mask,
)
from sparsejit.asm_templates.shared.rows import vector, zero
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
    ymm,
    zmm,
)

_X_ROW, _Y_ROW = r8, r9
_SAMPLES_LEFT, _CHANNELS_LEFT, _ROWS_LEFT, _VECTORS_LEFT = r10, rdx, rcx, r11
_LANES, _EIGHT = 16, 8
_NARROW = 32  # bytes of a vector of AVX2
_LARGEST = 1024.0  # in units of the scale: beyond any byte
_GAP = 11  # number of the register


@dataclass(frozen=True)
class ByteQuantisation:
    """Quantisation of bytes: a byte stands for (byte - zero_point) * scale."""

    scale: float
    zero_point: int


@dataclass(frozen=True)
class FloatRows:
    """Strides of a float image in bytes, from sample to sample, channel to channel, row to row.

    The elements of a row are contiguous; rows need not be.
    """

    sample: int
    channel: int
    row: int


class CallSteps(NamedTuple):
    """A scale, and a zero point of 0 to 255, that a call computes: float32 in memory.

    Registers of addresses are rdx, rcx or rax.
    """

    scale: Memory
    zero_point: Memory


def _rounding(asm: Assembler, steps: ByteQuantisation | CallSteps) -> ByteRounding:
    """Append code that loads the constants of a rounding; return it."""
    registers = [vector(asm, 12 + number) for number in range(4)]
    rounding = (DividingRounding if isinstance(steps, CallSteps) else ByteRounding)(*registers)
    place = asm.literal(np.array([_LARGEST], np.float32))
    asm.emit("vbroadcastss", rounding.largest, Literal(place))
    if isinstance(steps, CallSteps):
        asm.emit("vbroadcastss", rounding.reciprocal, steps.scale)
        asm.emit("vbroadcastss", rounding.zero_point, steps.zero_point)
        asm.emit("vcvtps2dq", rounding.zero_point, rounding.zero_point)
    else:
        place = asm.literal(np.array([np.float32(1) / np.float32(steps.scale)], np.float32))
        asm.emit("vbroadcastss", rounding.reciprocal, Literal(place))
        _spread(asm, rounding.zero_point, steps.zero_point)
    zero(asm, rounding.empty)
    return rounding


def emit_to_bytes(
    asm: Assembler, x: FloatRows, y: BytePlanes, steps: ByteQuantisation | CallSteps
) -> None:
    """Append code that rounds x at rdi to planes whose first position is at rsi, gaps included."""
    is_narrow, rounding = asm.target.isa == "avx2", _rounding(asm, steps)
    fill_planes(asm, y, steps.zero_point)
    parts, order = [ymm(number) for number in range(4)], ymm(4)
    if is_narrow:
        asm.emit("vmovdqu", order, Literal(asm.literal(PACKED_ORDER)))

    def sixteen(offset: int, floats: Memory, is_tail: bool) -> None:
        value, into = zmm(0), Memory(_Y_ROW, offset)
        loaded = value.masked(TAIL_MASK, zeroing=True) if is_tail else value
        asm.emit("vmovups", loaded, floats)
        rounding.store(asm, into.masked(TAIL_MASK) if is_tail else into, value, value)

    def eight(first: int, count: int) -> None:
        place, into = Memory(_X_ROW, 4 * first), Memory(_Y_ROW, first)
        if count == _EIGHT:
            rounding.store_narrow(asm, into, ymm(0), place)
            return
        load_masked(asm, ymm(0), tail_mask(asm, count, ymm(1)), place)
        rounding.store_narrow(asm, into, ymm(0), ymm(0), count)

    def narrow_row() -> None:
        whole = y.columns - y.columns % _NARROW
        for first in range(0, whole, _NARROW):
            floats = [Memory(_X_ROW, 4 * (first + _EIGHT * part)) for part in range(4)]
            rounding.store_four(asm, Memory(_Y_ROW, first), parts, floats, order)
        _by_eight(whole, y.columns, eight)

    def row() -> None:
        if is_narrow:
            narrow_row()
            return
        _by_sixteen(asm, y.columns, lambda n, tail: sixteen(16 * n, Memory(r8, 64 * n), tail))

    _rows(asm, y, (x.sample, x.channel, x.row), y.strides[:3], row)


def emit_to_floats(asm: Assembler, x: BytePlanes, y: FloatRows, steps: ByteQuantisation) -> None:
    """Append code that writes planes, whose first position is at rdi, as floats to y at rsi."""
    scale, shift = vector(asm, 12), vector(asm, 13)
    asm.emit("vbroadcastss", scale, Literal(asm.literal(np.array([steps.scale], np.float32))))
    _spread(asm, shift, steps.zero_point)

    def floats(first: int) -> Register:
        value = vector(asm, 0)
        asm.emit("vpmovzxbd", value, Memory(_X_ROW, first))
        asm.emit("vpsubd", value, value, shift)
        asm.emit("vcvtdq2ps", value, value)
        asm.emit("vmulps", value, value, scale)
        return value

    def sixteen(number: int, is_tail: bool) -> None:
        value, into = floats(16 * number), Memory(_Y_ROW, 64 * number)
        asm.emit("vmovups", into.masked(TAIL_MASK) if is_tail else into, value)

    def eight(first: int, count: int) -> None:
        value, into = floats(first), Memory(_Y_ROW, 4 * first)
        if count == _EIGHT:
            asm.emit("vmovups", into, value)
        else:
            store_masked(asm, into, tail_mask(asm, count, ymm(1)), value)

    def row() -> None:
        if asm.target.isa == "avx2":
            _by_eight(0, x.columns, eight)
        else:
            _by_sixteen(asm, x.columns, sixteen)

    _rows(asm, x, x.strides[:3], (y.sample, y.channel, y.row), row)


def emit_phases(asm: Assembler, x: BytePlanes, windows: ByteWindows, gap: Gap) -> None:
    """Append code that copies planes into phases, such as even and odd rows and columns.

    rdi: the planes; rsi: the windows' planes, whose gaps are filled with `gap`.
    """
    y, stride = windows.planes, windows.columns[0].stride
    fill_planes(asm, y, gap)
    is_narrow = asm.target.isa == "avx2"
    for number, phase in enumerate(() if is_narrow else windows.columns):
        _set_mask(asm, number, phase.count % (LINE // stride))

    def channel() -> None:
        for number, phase in enumerate(windows.rows):
            first = number * len(windows.columns) * y.channel
            asm.emit("lea", _X_ROW, Memory(rdi, phase.first * x.pitch))
            asm.emit("lea", _Y_ROW, Memory(rsi, first))

            def row(phase: BytePhase = phase) -> None:
                (_copy_narrow_row if is_narrow else _copy_row)(asm, windows)
                asm.emit("add", _X_ROW, phase.stride * x.pitch)
                asm.emit("add", _Y_ROW, y.pitch)

            repeat(asm, phase.count, _ROWS_LEFT, row)
        asm.emit("add", rdi, x.channel)
        asm.emit("add", rsi, windows.phases * y.channel)

    repeat(
        asm, x.samples, _SAMPLES_LEFT, lambda: repeat(asm, x.channels, _CHANNELS_LEFT, channel)
    )


def emit_byte_pooling(asm: Assembler, windows: ByteWindows, y: BytePlanes, gap: int) -> None:
    """Append code that writes the largest byte of each window of planes at rdi to planes at rsi."""
    x, largest, blended = windows.planes, vector(asm, 0), vector(asm, 1)
    around = vector(asm, _GAP)
    spread_bytes(asm, around, gap)
    fill_gaps(asm, y, rsi, around)
    masks, is_narrow = Literal(asm.literal(y.masks())), asm.target.isa == "avx2"
    move = "vmovdqu" if is_narrow else "vmovdqu64"

    def part(place: int) -> None:
        first, *others = windows.taps
        asm.emit(move, largest, Memory(rdi, place + first))
        for tap in others:
            asm.emit("vpmaxub", largest, largest, Memory(rdi, place + tap))
        asm.emit(move, blended, Memory(r8, place))
        if is_narrow:
            asm.emit("vpblendvb", blended, around, largest, blended)
        else:
            asm.emit("vpternlogd", blended, largest, around, 0xCA)
        asm.emit(move, Memory(rsi, place), blended)

    def line() -> None:
        for place in range(0, LINE, asm.target.vector_bytes):
            part(place)
        for register in (rdi, rsi, r8):
            asm.emit("add", register, LINE)

    def channel() -> None:
        asm.emit("lea", r8, masks)
        repeat(asm, y.vectors, _VECTORS_LEFT, line)
        asm.emit("add", rdi, windows.phases * x.channel - y.vectors * LINE)
        asm.emit("add", rsi, y.channel - y.vectors * LINE)

    repeat(
        asm, y.samples, _SAMPLES_LEFT, lambda: repeat(asm, y.channels, _CHANNELS_LEFT, channel)
    )


def fill_gaps(
    asm: Assembler, planes: BytePlanes, base: Register, gap: Register, before: bool = True
) -> None:
    """Append code that fills the bytes behind each channel's vectors of positions with `gap`.

    The planes are at `base`. `before`: fill the bytes before the first channel too. Clobbers rax
    and rcx.
    """
    for place in range(-planes.before if before else 0, 0, LINE):
        store_line(asm, base, place, gap)
    behind = range(planes.vectors * LINE, planes.channel, LINE)
    if not behind:
        return
    asm.emit("mov", rax, base)

    def channel() -> None:
        for place in behind:
            store_line(asm, rax, place, gap)
        asm.emit("add", rax, planes.channel)

    repeat(asm, planes.samples * planes.channels, rcx, channel)


def fill_planes(asm: Assembler, planes: BytePlanes, gap: Gap) -> None:
    """Append code that sets all bytes of the planes at rsi to `gap`. Clobbers rax and rcx."""
    around = vector(asm, _GAP)
    spread_bytes(asm, around, gap)
    asm.emit("lea", rax, Memory(rsi, -planes.before))

    def line() -> None:
        store_line(asm, rax, 0, around)
        asm.emit("add", rax, LINE)

    repeat(asm, planes.bytes // LINE, rcx, line)


def _rows(
    asm: Assembler,
    planes: BytePlanes,
    x: tuple[int, ...],
    y: tuple[int, ...],
    row: Callable[[], None],
) -> None:
    """Run `row` for every row; `x` and `y` are the strides (sample, channel, row) in bytes."""

    def one() -> None:
        row()
        asm.emit("add", _X_ROW, x[2])
        asm.emit("add", _Y_ROW, y[2])

    def channel() -> None:
        asm.emit("mov", _X_ROW, rdi)
        asm.emit("mov", _Y_ROW, rsi)
        repeat(asm, planes.rows, _ROWS_LEFT, one)
        asm.emit("add", rdi, x[1])
        asm.emit("add", rsi, y[1])

    def sample() -> None:
        repeat(asm, planes.channels, _CHANNELS_LEFT, channel)
        asm.emit("add", rdi, x[0] - planes.channels * x[1])
        asm.emit("add", rsi, y[0] - planes.channels * y[1])

    repeat(asm, planes.samples, _SAMPLES_LEFT, sample)


def _by_sixteen(asm: Assembler, columns: int, body: Callable[[int, bool], None]) -> None:
    """Call `body` for every sixteen elements of a row; the tail mask is set for the last ones."""
    whole, rest = divmod(columns, _LANES)
    for number in range(whole):
        body(number, False)
    if rest:
        set_tail_mask(asm, rest)
        body(whole, True)


def _by_eight(start: int, columns: int, body: Callable[[int, int], None]) -> None:
    """Call `body` for every eight elements of a row from `start` on, by first element and count.

    The last eight may overlap the elements before them; there are fewer in short rows alone.
    """
    if columns < _EIGHT:
        body(0, columns)
        return
    for first in range(start, columns, _EIGHT):
        body(min(first, columns - _EIGHT), _EIGHT)


def _copy_row(asm: Assembler, windows: ByteWindows) -> None:
    """Copy a row: each phase of its columns to the plane of that phase."""
    stride, y = windows.columns[0].stride, windows.planes
    step = LINE // stride
    for first in range(0, max(phase.count for phase in windows.columns), step):
        value = zmm(0)
        asm.emit("vmovdqu64", value, Memory(_X_ROW, stride * first))
        for number, phase in enumerate(windows.columns):
            into = Memory(_Y_ROW, number * y.channel + first)
            if first >= phase.count:
                continue
            if phase.count - first < step:
                into = into.masked(k(1 + number))
            if stride == 1:
                asm.emit("vmovdqu8", into, value)
                continue
            if phase.first:
                asm.emit("vpsrlw", value, value, 8)
            asm.emit("vpmovwb", into, value)


def _copy_narrow_row(asm: Assembler, windows: ByteWindows) -> None:
    """Copy a row with AVX2, 32 bytes of each phase at a time.

    Bytes behind the row are not touched: reading them again would wait for the stores before.
    """
    stride, y = windows.columns[0].stride, windows.planes
    loaded, parts = (ymm(0), ymm(1)), (ymm(2), ymm(3))
    for first in range(0, max(phase.count for phase in windows.columns), _NARROW):
        for number, register in enumerate(loaded[:stride]):
            asm.emit("vmovdqu", register, Memory(_X_ROW, stride * first + _NARROW * number))
        for number, phase in enumerate(windows.columns):
            if first >= phase.count:
                continue
            value = loaded[0]
            if stride > 1:
                for register, x in zip(parts, loaded, strict=True):
                    if phase.first:
                        asm.emit("vpsrlw", register, x, 8)
                    else:
                        asm.emit("vpand", register, x, _even_bytes(asm))
                value = parts[0]
                asm.emit("vpackuswb", value, *parts)
                asm.emit("vpermq", value, value, 0b11011000)
            into = Memory(_Y_ROW, number * y.channel + first)
            store_bytes(asm, into, value, min(_NARROW, phase.count - first))


def _even_bytes(asm: Assembler) -> Literal:
    """Ones in the lower byte of every 16 bits."""
    return Literal(asm.literal(np.full(_NARROW // 2, 255, np.int16)))


def _set_mask(asm: Assembler, number: int, count: int) -> None:
    """Set a k register to the mask of the `count` bytes that end a phase's rows. Clobbers rax."""
    asm.emit("mov", rax, (1 << count) - 1)
    asm.emit("kmovq", k(1 + number), rax)


def _spread(asm: Assembler, register: Register, number: int) -> None:
    """register = an int32 in every lane."""
    asm.emit("vpbroadcastd", register, Literal(asm.literal(np.array([number], np.int32))))


