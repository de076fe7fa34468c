"""Blocks of one input and eight or sixteen consecutive outputs: broadcast the input, multiply.

The columns of W are visited in turn; accumulators of a tile's outputs stay in registers (`tiles`):

    vbroadcastss zmm0, [rdx+4*column]         x[column] in all lanes             7 bytes, 1 load
    vfmadd231ps  zmm31, zmm0, [rcx+64*line]   outputs 0..15 += x * weights       7 bytes, 1 load
    vfmadd231ps  zmm30{k1}, zmm0, [rcx+...]   outputs 16..23 only: one 1x8 block of two

Two masked steps share the 64 bytes of one pool line, so that no byte is read that is not a weight.
Where weights fit L1, loads bind, and four inputs share one:

    vbroadcastf32x4 zmm1, [rdx+4*column]      x[column .. column+3], four times  7 bytes, 1 load
    vpermilps zmm0, zmm1, 0x55                x[column+1] in all lanes           7 bytes

docs/kernels/broadcast.md has what bounds it and what each of these gains.
"""

from dataclasses import dataclass, replace

import numpy as np

from sparsejit.asm_templates.lowered import WEIGHT_BYTES, Counts, Work
from sparsejit.asm_templates.shared.padding import stride_padding
from sparsejit.asm_templates.shared.redirects import fetch_redirects
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.asm_templates.shared.storage import UNPACKING_REGISTERS, ByteArray, Storage
from sparsejit.asm_templates.shared.stream import addresses
from sparsejit.asm_templates.shared.tiles import (
    BoolArray,
    FloatArray,
    IntArray,
    Tile,
    finish,
    grouped,
    start,
    tile_capacity,
    tiles,
)
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler, Line, line
from sparsejit.x86.operands import Literal, Memory, Register, dword, k, rax, rcx, rdi, rdx

BLOCK_ROWS = 8
LOW_HALF, HIGH_HALF = k(1), k(2)
# Code over weights where bfloat16 lines are loaded once, at the least.
_CODE_A_WEIGHT_BYTE = 0.6
SUMS = 8  # under way at once: an FMA takes 4 cycles and two start in each


@dataclass(frozen=True, eq=False)
class _BlockSteps:
    """The multiplications of one tile in order: arrays of one entry a step.

    `kept` (steps, parts) says which 8-row parts of the group have weights, `line` which line of
    the pool holds them.
    """

    column: IntArray
    group: IntArray
    kept: BoolArray
    line: IntArray


@dataclass(frozen=True, eq=False)
class StraightTile:
    """A tile, its steps, and the cache lines they read.

    `fours` says which steps' inputs share a load with their neighbours; `lines_once` whether the
    bfloat16 weights of a line share its load.
    """

    tile: Tile
    steps: _BlockSteps
    fours: BoolArray
    lines_once: bool
    lines: ByteArray


@dataclass(frozen=True, eq=False)
class Straight:
    """A layer as tiles of straight-line code."""

    spec: MatVec
    storage: Storage
    tiles: list[StraightTile]
    counts: Counts


def expect(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Steps of all outputs."""
    work = Work("broadcast", count_steps(matrix, target, spec.dtype, matrix.out_features))
    weights = block_bytes(matrix, spec.dtype)
    return Counts.of(matrix, target, spec.dtype, work, weights, padded=True)


def count_steps(matrix: SparseMatrix, target: Target, dtype: DType, rows: int) -> int:
    """Blocks of one input by a vector of outputs that hold a nonzero, and a share for inputs.

    Each tile broadcasts its inputs anew, at a third of a step's price. Of the first `rows`, whole
    vectors, or of all.
    """
    used = matrix.block_mask(target.lanes)[: -(-rows // target.lanes)]
    tile = tile_capacity(target, UNPACKING_REGISTERS[dtype])
    inputs = sum(int(used[at : at + tile].any(axis=0).sum()) for at in range(0, len(used), tile))
    return int(used.sum()) + inputs // 3


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> Straight:
    """All outputs; where weights fit L1, inputs share loads."""
    weights = block_bytes(matrix, spec.dtype)
    storage = Storage(target, spec.dtype, stride_padding(weights, target))
    by_fours = weights <= target.l1d_bytes and spec.dtype is not DType.FLOAT16
    once = _CODE_A_WEIGHT_BYTE * weights <= target.l1i_bytes
    own = lower_rows(storage, matrix, matrix.out_features, by_fours=by_fours, lines_once=once)
    return Straight(spec, storage, own, expect(spec, matrix, target))


def block_bytes(matrix: SparseMatrix, dtype: DType, rows: int | None = None) -> int:
    """What the blocks of the first rows, or of all, take without stride padding."""
    blocks = matrix.block_mask(BLOCK_ROWS)[: None if rows is None else -(-rows // BLOCK_ROWS)]
    return WEIGHT_BYTES[dtype] * BLOCK_ROWS * int(blocks.sum())


def lower_rows(
    storage: Storage,
    matrix: SparseMatrix,
    rows: int,
    *,
    by_fours: bool = False,
    lines_once: bool = False,
) -> list[StraightTile]:
    """Tiles for the first `rows` outputs, whole vectors unless they are all.

    `lines_once`: the bfloat16 weights of a line share its load in each tile that reads its lines in
    order. `by_fours`: inputs share loads in the other tiles.
    """
    weights = grouped(storage.target, matrix)
    parts = weights.reshape(len(weights), -1, BLOCK_ROWS, matrix.in_features)
    lowered = []
    for tile in tiles(storage.target, rows, SUMS, spare=storage.registers):
        own = parts[tile.first : tile.first + tile.groups]
        steps = _order(own)
        in_order = bool(np.all(np.diff(steps.line) >= 0))
        once = lines_once and in_order and storage.dtype is DType.BFLOAT16
        fours = _whole_fours(steps.column, matrix.in_features) & (by_fours and not once)
        lines = storage.lines(_lines_of_weights(own, steps))
        lowered.append(StraightTile(tile, steps, fours, once, lines))
    return lowered


def emit(asm: Assembler, lowered: Straight) -> None:
    """Append the kernel; see `table` for the contract."""
    if asm.target.isa == "avx512":
        for mask, bits in ((LOW_HALF, 0x00FF), (HIGH_HALF, 0xFF00)):
            asm.emit("mov", dword(rax), bits)
            asm.emit("kmovw", mask, dword(rax))
    storage = lowered.storage
    for part in lowered.tiles:
        start(asm, lowered.spec, part.tile)
        storage.start(asm)
        _multiply(asm, storage, part, storage.literal(asm, part.lines))
        finish(asm, lowered.spec, part.tile)


def _order(weights: FloatArray) -> _BlockSteps:
    kept = np.any(weights != 0, axis=2)
    column, group = np.nonzero(kept.any(axis=1).T)
    parts = kept[group, :, column]
    order = _mates_together(column, parts)
    column, parts = column[order], parts[order]
    return _BlockSteps(column, group[order], parts, _lines(column, parts))


def _mates_together(column: IntArray, kept: BoolArray) -> IntArray:
    """Order of the steps in which the n-th low half of a column precedes its n-th high half."""
    high = ~kept[:, 0]
    rank = np.zeros(len(kept), np.int64)
    for half in (high, ~kept[:, -1]):
        before: IntArray = np.cumsum(half) - half
        rank[half] = (before - before[np.searchsorted(column, column)])[half]
    return np.lexsort((high, rank, column))


def _lines(column: IntArray, kept: BoolArray) -> IntArray:
    """Pool line of each step: mates share one, then the n-th low and n-th high half left over."""
    line_of = np.arange(len(kept))
    low, high = ~kept[:, -1], ~kept[:, 0]
    mate = high & np.roll(low, 1) & (np.diff(column, prepend=-1) == 0)
    line_of[mate] -= 1
    single = ~(mate | np.roll(mate, -1))
    lows, highs = np.flatnonzero(low & single), np.flatnonzero(high & single)
    pairs = min(len(lows), len(highs))
    lows, highs = lows[:pairs], highs[:pairs]
    line_of[lows] = line_of[highs] = np.minimum(lows, highs)
    return np.unique(line_of, return_inverse=True)[1]


def _lines_of_weights(weights: FloatArray, steps: _BlockSteps) -> FloatArray:
    lines = int(steps.line.max(initial=-1)) + 1
    pool = np.zeros((lines, *weights.shape[1:3]), np.float32)
    for part in range(weights.shape[1]):
        chosen = steps.kept[:, part]
        source = weights[steps.group[chosen], part, :, steps.column[chosen]]
        pool[steps.line[chosen], part] = source
    return pool.reshape(lines, weights.shape[1] * BLOCK_ROWS)


def _whole_fours(column: IntArray, in_features: int) -> BoolArray:
    """Per step: whether its aligned four inputs are all there and three of them are used."""
    used = np.zeros(4 * (int(column.max(initial=0)) // 4 + 1), bool)
    used[column] = True
    whole = used.reshape(-1, 4).sum(axis=1) >= 3
    whole[in_features // 4 :] = False
    return whole[column // 4]


def _multiply(asm: Assembler, storage: Storage, part: StraightTile, pool: int) -> None:
    steps, tile = part.steps, part.tile
    weights = addresses(storage.place(steps.line), storage.displacement_unit)
    place = Memory(rcx, weights.displacement)
    unpack, operand = storage.operand(asm, steps.line, place, part.lines_once)
    new_line = np.diff(steps.line, prepend=-1) != 0
    new_column = np.diff(steps.column, prepend=-1) != 0
    chain = (np.cumsum(new_column) - 1) % tile.chains
    accumulator = tile.accumulator(asm, steps.group, chain)
    x = vector(asm, 0)
    asm.stamp(
        len(steps.column),
        [
            fetch_redirects(len(steps.column), asm.target),
            line("lea", rcx, Literal(pool + weights.base), when=weights.moves),
            *_inputs(asm, x, steps.column, part.fours),
            *(_only(each, new_line) for each in unpack),
            *_products(steps.kept, accumulator, x, operand),
        ],
    )


def _only(item: Line, when: BoolArray) -> Line:
    """The line, left out of further rows."""
    return replace(item, when=when if item.when is None else item.when & when)


def _inputs(asm: Assembler, x: Register, column: IntArray, fours: BoolArray) -> list[Line]:
    """x = the column's input in all lanes, before the first step of each column."""
    evex = asm.target.isa == "avx512"
    inputs = addresses(column * 4, 4 if evex else 1)
    new_column, new_four = (np.diff(index, prepend=-1) != 0 for index in (column, column // 4))
    four = vector(asm, 1)
    place = inputs.displacement
    load_four = "vbroadcastf32x4" if evex else "vbroadcastf128"
    return [
        line("lea", rdx, Memory(rdi, inputs.base), when=inputs.moves),
        line(load_four, four, Memory(rdx, place - place % 16), when=new_four & fours),
        line("vpermilps", x, four, column % 4 * 0x55, when=new_column & fours),
        line("vbroadcastss", x, Memory(rdx, place), when=new_column & ~fours),
    ]


def _products(
    kept: BoolArray, accumulator: Register, x: Register, weights: Register | Memory
) -> list[Line]:
    if kept.shape[1] == 1:
        return [line("vfmadd231ps", accumulator, x, weights)]
    low, high = kept.T
    low_half, high_half = accumulator.masked(LOW_HALF), accumulator.masked(HIGH_HALF)
    return [
        line("vfmadd231ps", accumulator, x, weights, when=low & high),
        line("vfmadd231ps", low_half, x, weights, when=low & ~high),
        line("vfmadd231ps", high_half, x, weights, when=high & ~low),
    ]
