"""Conversions before and behind the tiles of AMX: x to bytes, int32 sums to outputs.

The arithmetic, and so every bit, is the same as in `gather.int8_boundary` for one column. Nothing
is transposed: in either layout, tiles of x and of sums have the layout of x and y.

    feature-major   x rows of four inputs, a lane a column; sums rows of outputs
    batch-major     x rows of columns, 64 inputs each; sums rows of columns, a lane an output
"""

import numpy as np

from sparsejit.asm_templates.batch.amx_layout import ROW_BYTES, ROWS, TILE_BYTES
from sparsejit.asm_templates.gather.int8_boundary import (
    SCALE_SCRATCH,
    emit_integers,
    emit_scale,
)
from sparsejit.asm_templates.shared.activation import apply_activation
from sparsejit.asm_templates.shared.int8_inputs import (
    begin_largest,
    broadcast,
    emit_scale_of,
    pack_to_bytes,
    to_int32,
)
from sparsejit.asm_templates.shared.loops import counted_down, repeat
from sparsejit.ir.spec import Layout, MatMul
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    k,
    r8,
    r9,
    r11,
    rax,
    rcx,
    rdi,
    rdx,
    xmm,
    zmm,
)

# Mask of the existing lanes in a column of tiles.
LANE_MASK = k(1)
# Arguments of the subroutine of `emit_finish`: sums, y, scales of rows, number of rows.
SUMS, Y, ROW_SCALES, ROWS_LEFT = rdx, r11, rcx, rax
# By lanes: the scales of all rows, and the bias (batch-major only).
LANE_SCALES, LANE_BIAS = zmm(4), zmm(5)
# Arguments of `quantise_columns` and `quantise_row`: x (rdi, as in int8_boundary) and its tiles.
X, X_TILES = rdi, r9

_AT_ONCE = 4  # rows of sums
_SCRATCH = [zmm(number) for number in range(6, 32)]
_PARTS = [zmm(number) for number in range(4)]
_LARGEST = [zmm(number) for number in range(4, 8)]
_RECIPROCAL, _SCALE, _MAGNITUDE, _LOWEST, _ORDER = (zmm(number) for number in range(8, 13))
# One byte of each of four groups in turn, 16 in all.
_FOURS = np.tile(np.arange(16, dtype=np.int8).reshape(4, 4).T.ravel(), 4)


def begin_quantising(asm: Assembler, spec: MatMul) -> None:
    """Load the constants that all columns of x share."""
    broadcast(asm, _LOWEST, np.full(4, spec.each.least_integer, np.int8))
    if spec.layout is Layout.FEATURE_MAJOR:
        asm.emit("vmovups", _ORDER, Literal(asm.literal(_FOURS)))


def quantise_columns(asm: Assembler, spec: MatMul, scales: Memory) -> None:
    """Append code that quantises columns of a feature-major x into tiles, four inputs a row.

    The columns are the lanes of LANE_MASK, the tiles lie at X_TILES. Dynamic scales go to `scales`.
    Clobbers X_TILES, r8 and rcx.
    """
    if spec.each.x_steps is None:
        _scales_of_columns(asm, spec)
        asm.emit("vmovups", scales, _SCALE)
    else:
        emit_scale(asm, spec.each, _RECIPROCAL, _SCALE, [])
    fours, rest = divmod(spec.in_features, len(_PARTS))
    asm.emit("mov", r8, X)
    repeat(asm, fours, rcx, lambda: _four_inputs(asm, spec, len(_PARTS)))
    if rest:
        _four_inputs(asm, spec, rest)


def _scales_of_columns(asm: Assembler, spec: MatMul) -> None:
    """Compute the reciprocal and the scale of each column, from its largest magnitude."""
    begin_largest(asm, _LARGEST, _MAGNITUDE)

    def turn(count: int) -> None:
        for part, largest in zip(_PARTS[:count], _LARGEST, strict=False):
            masked = part.masked(LANE_MASK, zeroing=True)
            asm.emit("vandps", masked, _MAGNITUDE, Memory(r8))
            asm.emit("add", r8, 4 * spec.pitch)
            asm.emit("vpmaxud", largest, largest, part)

    fours, rest = divmod(spec.in_features, len(_PARTS))
    asm.emit("mov", r8, X)
    repeat(asm, fours, rcx, lambda: turn(len(_PARTS)))
    turn(rest)
    first, *others = _LARGEST
    for register in others:
        asm.emit("vpmaxud", first, first, register)
    emit_scale_of(asm, first, _RECIPROCAL, _SCALE)


def _four_inputs(asm: Assembler, spec: MatMul, count: int) -> None:
    """Quantise a row of a tile of x with `count` inputs from r8 to X_TILES; both advance."""
    for part in _PARTS[:count]:
        masked = part.masked(LANE_MASK, zeroing=True)
        asm.emit("vmulps", masked, _RECIPROCAL, Memory(r8))
        asm.emit("add", r8, 4 * spec.pitch)
        to_int32(asm, spec.each, part)
    for part in _PARTS[count:]:
        asm.emit("vpxord", part, part, part)
    _pack(asm, spec)
    asm.emit("vpshufb", _PARTS[0], _PARTS[0], _ORDER)
    asm.emit("vmovups", Memory(X_TILES), _PARTS[0])
    asm.emit("add", X_TILES, ROW_BYTES)


def quantise_row(asm: Assembler, spec: MatMul, scale: Memory) -> None:
    """Append code that quantises one column of a batch-major x, 64 inputs to each tile.

    The column is the row of x at X. Its bytes become a row of each tile from X_TILES on; a dynamic
    scale goes to `scale`. Clobbers rax.
    """
    scratch = [*_PARTS, *_LARGEST][:SCALE_SCRATCH]
    emit_scale(asm, spec.each, _RECIPROCAL, _SCALE, scratch)
    if spec.each.x_steps is None:
        asm.emit("vmovss", scale, xmm(_SCALE.number))
    for number, first in enumerate(range(0, spec.in_features, ROW_BYTES)):
        for part, register in enumerate(_PARTS):
            emit_integers(asm, spec.each, register, first + part * ROWS, _RECIPROCAL)
        _pack(asm, spec)
        asm.emit("vmovups", Memory(X_TILES, number * TILE_BYTES), _PARTS[0])


def _pack(asm: Assembler, spec: MatMul) -> None:
    """Append code that packs the four int32 registers of _PARTS into the first, as int8.

    With a fixed scale no byte is below the least integer, -127.
    """
    pack_to_bytes(asm, _PARTS)
    if spec.each.x_steps is not None:
        asm.emit("vpmaxsb", _PARTS[0], _PARTS[0], _LOWEST)


def emit_finish(asm: Assembler, spec: MatMul, bias_distance: int | None) -> None:
    """Append the subroutine that turns a tile of SUMS into ROWS_LEFT rows of y.

    `bias_distance`: bytes from the scale of an output to its bias; None without a bias. Advances
    SUMS, Y and ROW_SCALES, and counts ROWS_LEFT down.
    """
    fours, ones, end = (asm.label(name) for name in ("fours", "ones", "end"))
    asm.emit("sub", dword(ROWS_LEFT), _AT_ONCE)
    asm.jump("jl", ones)
    asm.bind(fours)
    _finish_rows(asm, spec, bias_distance, _AT_ONCE)
    asm.emit("sub", dword(ROWS_LEFT), _AT_ONCE)
    asm.jump("jge", fours)
    asm.bind(ones)
    asm.emit("add", dword(ROWS_LEFT), _AT_ONCE)
    asm.jump("jz", end)
    with counted_down(asm, dword(ROWS_LEFT)):
        _finish_rows(asm, spec, bias_distance, 1)
    asm.bind(end)
    asm.emit("ret")


def _finish_rows(asm: Assembler, spec: MatMul, bias_distance: int | None, count: int) -> None:
    registers = [zmm(number) for number in range(count)]
    feature_major = spec.layout is Layout.FEATURE_MAJOR
    scale = _scale_columns if feature_major else _scale_rows
    for number, register in enumerate(registers):
        asm.emit("vcvtdq2ps", register, Memory(SUMS, ROW_BYTES * number))
        scale(asm, spec, register, Memory(ROW_SCALES, 4 * number, broadcast=ROWS), bias_distance)
    apply_activation(asm, spec.each.activation, registers, _SCRATCH)
    pitch = 4 * (spec.pitch if feature_major else spec.y_features)
    for register in registers:
        asm.emit("vmovups", Memory(Y).masked(LANE_MASK), register)
        asm.emit("add", Y, pitch)
    asm.emit("add", SUMS, ROW_BYTES * count)
    asm.emit("add", ROW_SCALES, 4 * count)


def _scale_columns(
    asm: Assembler, spec: MatMul, register: Register, scale: Memory, bias_distance: int | None
) -> None:
    """Append code that scales a register of sums whose lanes are columns of x (feature-major).

    The register is one output: its scale, at `scale`, and its bias, `bias_distance` bytes behind,
    are the same in all lanes; LANE_SCALES are the columns' scales.
    """
    dynamic = spec.each.x_steps is None
    if bias_distance is None:
        asm.emit("vmulps", register, register, scale)
        if dynamic:
            asm.emit("vmulps", register, register, LANE_SCALES)
        return
    bias = Memory(scale.base, scale.displacement + bias_distance, broadcast=ROWS)
    if dynamic:
        asm.emit("vmulps", register, register, scale)
    else:
        asm.emit("vbroadcastss", LANE_SCALES, Memory(scale.base, scale.displacement))
    asm.emit("vfmadd213ps", register, LANE_SCALES, bias)


def _scale_rows(
    asm: Assembler, spec: MatMul, register: Register, scale: Memory, bias_distance: int | None
) -> None:
    """Append code that scales a register of sums whose lanes are outputs (batch-major).

    The register is one column of x, whose own scale is at `scale`, the same for all lanes.
    LANE_SCALES and LANE_BIAS are of the outputs.
    """
    dynamic = spec.each.x_steps is None
    if bias_distance is None:
        asm.emit("vmulps", register, register, LANE_SCALES)
        if dynamic:
            asm.emit("vmulps", register, register, scale)
    elif dynamic:
        asm.emit("vmulps", register, register, LANE_SCALES)
        asm.emit("vfmadd132ps", register, LANE_BIAS, scale)
    else:
        asm.emit("vfmadd213ps", register, LANE_SCALES, LANE_BIAS)
