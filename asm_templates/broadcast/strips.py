"""Blocks of one input and four outputs on AVX2: two block rows to a vector, an input for each.

    vbroadcastss ymm13, [rcx+4*c]             the input of the lower strip
    vbroadcastss ymm14, [rcx+4*d]             and of the upper
    vblendps     ymm14, ymm14, ymm13, 0x0f    x[c] x[c] x[c] x[c] | x[d] x[d] x[d] x[d]
    vfmadd231ps  ymm0, ymm14, [rdx+32*n]      a block of each of two block rows
    vfmadd231ps  ymm4, ymm14, [rdx+32*m]      the same two inputs, of other block rows

Any two block rows may share a vector, so hardly a strip lies idle; `strip_pairing` pairs block
rows, and their inputs, for few loads. Strips are stored one by one. Short weights are stored as
float32. docs/kernels/broadcast.md explains its bounds.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.lowered import WEIGHT_BYTES, Counts, Work
from sparsejit.asm_templates.scheduling.strip_pairing import paired_block_rows, strip_steps
from sparsejit.asm_templates.shared import rows
from sparsejit.asm_templates.shared.activation import apply_activation
from sparsejit.asm_templates.shared.loops import fetch_redirects
from sparsejit.asm_templates.shared.storage import REACH, Stream, rounded
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler, line
from sparsejit.x86.operands import Literal, Memory, Register, rcx, rdi, rdx, rsi, xmm, ymm

KIND = "broadcast-4x1"
BLOCK_ROWS = 4
_SUMS, _LOWER, _BOTH, _FREE = 13, ymm(13), ymm(14), ymm(15)
_LANES, _VECTOR_BYTES, _LOWER_LANES = 8, 32, 0x0F
_REACH = 4  # vectors of weights to either side that a one-byte displacement reaches
_SPAN = 2 * REACH // 4  # inputs in reach of a one-byte displacement
_POOL, _X = rdx, rcx

_Numbers = npt.NDArray[np.integer]
_Flags = npt.NDArray[np.bool_]
_Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class _StripTile:
    """Vectors of two block rows that are summed up at once, and their steps in order.

    `held` (vectors, 2): the block rows of each vector. By step: the `vector`, its `lower` and
    `upper` input, and its weights, (steps, 8).
    """

    held: _Numbers
    vector: _Numbers
    lower: _Numbers
    upper: _Numbers
    weights: _Floats


@dataclass(frozen=True, eq=False)
class LoweredStrips:
    """A layer as tiles of straight-line code."""

    spec: MatVec
    tiles: list[_StripTile]
    counts: Counts


def expect(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Expected counts: a vector takes a step for each block of its fuller block row."""
    blocks = matrix.block_mask(BLOCK_ROWS)
    number = np.append(blocks.sum(axis=1), 0)
    steps = int(number[paired_block_rows(blocks)].max(axis=1).sum())
    pool_bytes = steps * _LANES * WEIGHT_BYTES[DType.FLOAT32]
    return Counts.of(matrix, target, DType.FLOAT32, Work(KIND, steps), pool_bytes)


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> LoweredStrips:
    """Lower to tiles; weights of any dtype become float32, since unpacking would take more code."""
    blocks = matrix.block_mask(BLOCK_ROWS)
    held = paired_block_rows(blocks)
    weights = np.pad(
        rounded(matrix.dense, spec.dtype),
        ((0, -matrix.out_features % BLOCK_ROWS + BLOCK_ROWS), (0, 0)),
    )
    by_block = weights.reshape(-1, BLOCK_ROWS, matrix.in_features).swapaxes(1, 2)
    tiles = [
        _tile(held[first : first + _SUMS], blocks, by_block) for first in range(0, len(held), _SUMS)
    ]
    return LoweredStrips(spec, tiles, expect(spec, matrix, target))


def _tile(held: _Numbers, blocks: _Flags, weights: _Floats) -> _StripTile:
    """Return the tile of the block rows `held` (vectors, 2), with its steps.

    `blocks`: which blocks hold a nonzero; `weights`: (block rows + 1, inputs, 4).
    """
    used = np.append(blocks, np.zeros_like(blocks[:1]), axis=0)[held]
    vector, lower, upper = strip_steps(used, _SPAN)
    own = weights[held[vector], np.stack([lower, upper], axis=1)]
    return _StripTile(held, vector, lower, upper, own.reshape(-1, _LANES))


def emit(asm: Assembler, lowered: LoweredStrips) -> None:
    """Append the kernel for blocks of 4x1; see `families` for the contract."""
    stream = Stream(asm, _POOL, _VECTOR_BYTES, _REACH)
    stream.point(asm.literal(np.concatenate([part.weights for part in lowered.tiles])))
    for part in lowered.tiles:
        sums = [ymm(number) for number in range(len(part.held))]
        _start(asm, lowered.spec, part.held, sums)
        _multiply(asm, stream, part)
        apply_activation(asm, lowered.spec.activation, sums, [_LOWER, _BOTH, _FREE])
        _store(asm, part.held, sums, lowered.spec.out_features)


def _start(asm: Assembler, spec: MatVec, held: _Numbers, sums: list[Register]) -> None:
    """Set sums to the bias of their block rows, or to zero."""
    if spec.bias is None:
        for register in sums:
            rows.zero(asm, register)
        return
    outputs = BLOCK_ROWS * held[:, :, None] + np.arange(BLOCK_ROWS)
    padded = np.append(spec.bias, np.float32(0))
    place = asm.literal(padded[np.minimum(outputs, spec.out_features)])
    for number, register in enumerate(sums):
        asm.emit("vmovups", register, Literal(place + number * _VECTOR_BYTES))


def _multiply(asm: Assembler, stream: Stream, part: _StripTile) -> None:
    count, lower, upper = len(part.vector), part.lower, part.upper
    window = lower // _SPAN
    middle = window * _SPAN + _SPAN // 2
    other, differs = np.diff(lower, prepend=-1) != 0, lower != upper
    fresh = differs & (other | (np.diff(upper, prepend=-1) != 0))
    near = upper // _SPAN == window
    beside = Memory(_X, 4 * np.where(near, upper - middle, 0))
    operand = ymm(np.where(differs, _BOTH.number, _LOWER.number))
    places = np.arange(count)
    asm.count(steps=count)
    asm.stamp(
        count,
        [
            fetch_redirects(count, asm.target),
            line("lea", _X, Memory(rdi, 4 * middle), when=np.diff(window, prepend=-1) != 0),
            line("vbroadcastss", _LOWER, Memory(_X, 4 * (lower - middle)), when=other),
            line("vbroadcastss", _BOTH, beside, when=fresh & near),
            line("vbroadcastss", _BOTH, Memory(rdi, 4 * upper), when=fresh & ~near),
            line("vblendps", _BOTH, _BOTH, _LOWER, _LOWER_LANES, when=fresh),
            stream.move(places),
            line("vfmadd231ps", ymm(part.vector), operand, stream.at(places)),
        ],
    )
    stream.leave(count)


def _store(asm: Assembler, held: _Numbers, sums: list[Register], out_features: int) -> None:
    """Store each strip at its outputs; the last block row may be partial."""
    free, last = xmm(_FREE.number), ceil_div(out_features, BLOCK_ROWS)
    for register, block_rows in zip(sums, held.tolist(), strict=True):
        low = xmm(register.number)
        for strip, block_row in enumerate(block_rows):
            first = BLOCK_ROWS * block_row
            if strip and first + BLOCK_ROWS <= out_features:
                asm.emit("vextractf128", Memory(rsi, 4 * first), register, strip)
            elif block_row < last:
                if strip:
                    asm.emit("vextractf128", low, register, strip)
                rows.store(asm, low, rsi, first, out_features, free)
