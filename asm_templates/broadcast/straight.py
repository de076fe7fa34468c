"""Blocks of one input and eight or sixteen consecutive outputs: broadcast the input, multiply.

    BlockSteps      the order of a tile's steps, and their pool lines
    lower, emit     the layer as tiles of straight-line code, and their code

Order of steps, one for each vector of outputs in a column:

    column       0   0   0   1   1   1          A, B: two 1x8 blocks side by side, full lines
    step         A   c.  .d  B   .e  .f         c d: halves of one column share a line
    line         0   1   1   2   3   .          e, f: halves that are left, paired with others

The columns of W are visited in turn; accumulators of a tile's outputs stay in registers (`tiles`):

    vbroadcastss zmm0, [rdx+4*column]         x[column] in all lanes             7 bytes, 1 load
    vfmadd231ps  zmm31, zmm0, [rcx+64*line]   outputs 0..15 += x * weights       7 bytes, 1 load
    vfmadd231ps  zmm30{k1}, zmm0, [rcx+...]   outputs 16..23 only: one 1x8 block of two

Two masked steps share the 64 bytes of one pool line, so that only weights are read. On a core with
`halves_share_loads` they follow each other:

    vmovups      zmm2, [rcx+64*line]          each line once, and in order
    vfmadd231ps  zmm31{k1}, zmm3, zmm2        zmm3: the input, of another column than zmm0

On other cores loads bind if weights fit L1; there four inputs share a load:

    vbroadcastf32x4 zmm1, [rdx+4*column]      x[column .. column+3], four times  7 bytes, 1 load
    vpermilps zmm0, zmm1, 0x55                x[column+1] in all lanes           7 bytes

docs/kernels/broadcast.md explains its bounds, and the gain of each of these.
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.lowered import WEIGHT_BYTES, Counts, Work
from sparsejit.asm_templates.shared.loops import fetch_redirects
from sparsejit.asm_templates.shared.masks import set_mask
from sparsejit.asm_templates.shared.padding import stride_padding
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.asm_templates.shared.storage import (
    UNPACKING_REGISTERS,
    WEIGHT,
    ByteArray,
    Storage,
    addresses,
    stored_dtype,
)
from sparsejit.asm_templates.shared.tiles import (
    INPUTS,
    BoolArray,
    FloatArray,
    IntArray,
    Tile,
    finish,
    start,
    tile_capacity,
    tiles,
)
from sparsejit.ir.compressed_rows import CompressedRows, count_distinct, distinct
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler, Line, line
from sparsejit.x86.operands import Literal, Memory, Register, k, r9, rcx, rdi, rdx

BLOCK_ROWS = 8


@dataclass(frozen=True, eq=False)
class BlockSteps:
    """The multiplications of one tile in order, as arrays with an entry a step.

    A step multiplies the input `column` by a vector of weights, for the `group` of outputs. `kept`
    (steps, parts): the 8-row parts of the group that have weights. `line`: the line of the pool
    that holds them. `again`: the input belongs to an earlier column and is loaded again.
    """

    column: IntArray
    group: IntArray
    kept: BoolArray
    line: IntArray
    again: BoolArray

    @property
    def current(self) -> IntArray:
        """By step: the column whose input the main register of inputs holds.

        A step with `again` takes its input from another register; in that step the main register
        already holds the input of the next step.
        """
        return np.where(self.again, np.roll(self.column, -1), self.column)


def in_order_of_columns(weights: CompressedRows, lanes: int) -> BlockSteps:
    """The steps of a tile's weights, column after column."""
    groups = ceil_div(weights.shape[0], lanes)
    found, step = _steps(weights, lanes)
    column, group = np.divmod(found, groups)
    parts = np.zeros((len(found), lanes // BLOCK_ROWS), bool)
    parts[step, weights.rows % lanes // BLOCK_ROWS] = True
    order = _halves_together(column, parts)
    column, parts = column[order], parts[order]
    lines, again = _lines(column, parts), np.zeros(len(order), bool)
    return BlockSteps(column, group[order], parts, lines, again)


def _steps(weights: CompressedRows, lanes: int) -> tuple[IntArray, IntArray]:
    """Return column * groups + group of each step, and the step of each weight."""
    groups = ceil_div(weights.shape[0], lanes)
    numbers = weights.columns * groups + weights.rows // lanes
    return distinct(numbers, weights.shape[1] * groups)


def in_order_of_lines(steps: BlockSteps) -> BlockSteps:
    """Return the steps reordered so that two that share a pool line follow each other.

    The earlier one moves to the later one's place.
    """
    count = len(steps.line)
    latest = np.zeros(count, np.int64)
    latest[steps.line] = np.arange(count)
    order = np.argsort(latest[steps.line], kind="stable")
    column, line_of = steps.column[order], steps.line[order]
    again = np.append(line_of[1:] == line_of[:-1], False) & (np.roll(column, -1) != column)
    lines = np.cumsum(np.diff(line_of, prepend=-1) != 0) - 1
    return BlockSteps(column, steps.group[order], steps.kept[order], lines, again)


def _halves_together(column: IntArray, kept: BoolArray) -> IntArray:
    """Return the order of steps, by column, in which a column's low and high halves alternate.

    Its n-th step for a low half alone is just before its n-th step for a high half alone.
    """
    high = ~kept[:, 0]
    rank = np.zeros(len(kept), np.int64)
    for half in (high, ~kept[:, -1]):
        before: IntArray = np.cumsum(half) - half
        rank[half] = (before - before[np.searchsorted(column, column)])[half]
    return np.lexsort((high, rank, column))


def _lines(column: IntArray, kept: BoolArray) -> IntArray:
    """Return the pool line of each step.

    Two adjacent halves of a column share a line; then the n-th low and n-th high half that are left
    share one.
    """
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


def lines_of_weights(weights: CompressedRows, steps: BlockSteps, lanes: int) -> FloatArray:
    """Return a tile's weights as they lie in the pool, (lines, lanes)."""
    groups = ceil_div(weights.shape[0], lanes)
    order = np.argsort(steps.column * groups + steps.group)
    _, step = _steps(weights, lanes)
    lines = int(steps.line.max(initial=-1)) + 1
    pool = np.zeros((lines, lanes), np.float32)
    pool[steps.line[order][step], weights.rows % lanes] = weights.values
    return pool


LOW_HALF, HIGH_HALF = k(1), k(2)
# Bytes of code for a byte of weights, at least, where bfloat16 lines are loaded once.
_CODE_A_WEIGHT_BYTE = 0.6
SUMS = 8  # independent accumulators at least: an FMA takes 4 cycles and two start in each


@dataclass(frozen=True, eq=False)
class StraightTile:
    """A tile, its steps, and the cache lines that they read.

    `fours`: by step, whether its input shares a load with its neighbours. `lines_once`: the
    bfloat16 weights of a line share its load.
    """

    tile: Tile
    steps: BlockSteps
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
    """Expected counts: steps of all outputs."""
    float32_bytes = block_bytes(matrix, DType.FLOAT32)
    stored = stored_dtype("broadcast", spec.dtype, float32_bytes, target)
    work = Work("broadcast", count_steps(matrix, target, stored, matrix.out_features))
    return Counts.of(matrix, target, stored, work, block_bytes(matrix, stored), padded=True)


def count_steps(matrix: SparseMatrix, target: Target, dtype: DType, rows: int) -> int:
    """Count the steps of the first `rows` outputs, in whole vectors.

    There is one for each block, of one input by a vector of outputs, that holds a nonzero. Each
    tile broadcasts its inputs again, at a third of a step's cost.
    """
    block_row, column = matrix.blocks(target.lanes)
    blocks = int(np.searchsorted(block_row, ceil_div(rows, target.lanes)))
    tile = block_row[:blocks] // tile_capacity(target, UNPACKING_REGISTERS[dtype])
    inputs = count_distinct(tile * matrix.in_features + column[:blocks], matrix.size)
    return blocks + inputs // 3


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> Straight:
    """Lower all outputs; inputs may share loads if the weights fit L1."""
    counts = expect(spec, matrix, target)
    weights = counts.pool_bytes
    storage = Storage(target, counts.stored, stride_padding(weights, target), spec.dtype)
    in_l1 = weights <= target.l1d_bytes and spec.dtype is not DType.FLOAT16
    by_fours = in_l1 and not target.core.halves_share_loads
    once = _CODE_A_WEIGHT_BYTE * weights <= target.l1i_bytes
    own = lower_rows(storage, matrix, matrix.out_features, by_fours=by_fours, lines_once=once)
    return Straight(spec, storage, own, counts)


def block_bytes(matrix: SparseMatrix, dtype: DType, rows: int | None = None) -> int:
    """Return the bytes of the first rows' blocks (None: all rows), without stride padding."""
    block_row, _ = matrix.blocks(BLOCK_ROWS)
    end = len(block_row) if rows is None else np.searchsorted(block_row, ceil_div(rows, BLOCK_ROWS))
    return WEIGHT_BYTES[dtype] * BLOCK_ROWS * int(end)


def lower_rows(
    storage: Storage,
    matrix: SparseMatrix,
    rows: int,
    *,
    by_fours: bool = False,
    lines_once: bool = False,
) -> list[StraightTile]:
    """Lower the first `rows` outputs, whole vectors unless they are all, to tiles.

    `lines_once`: the bfloat16 weights of a line share its load in each tile that reads its lines in
    order. `by_fours`: inputs share loads in the other tiles.
    """
    lanes = storage.target.lanes
    by_line = halves_share_loads(matrix, storage.target)
    spare = _earlier_input(storage) - INPUTS + 1 if by_line else storage.registers
    lowered = []
    for tile in tiles(storage.target, rows, SUMS, spare=spare):
        own = matrix.rows(tile.first * lanes, (tile.first + tile.groups) * lanes).nonzeros
        steps = in_order_of_columns(own, lanes)
        if by_line:
            steps = in_order_of_lines(steps)
        in_order = bool(np.all(np.diff(steps.line) >= 0))
        once = lines_once and in_order and storage.dtype is DType.BFLOAT16
        fours = _whole_fours(steps.column, matrix.in_features) & (by_fours and not once)
        lines = storage.lines(lines_of_weights(own, steps, lanes))
        lowered.append(StraightTile(tile, steps, fours, once, lines))
    return lowered


def emit(asm: Assembler, lowered: Straight) -> None:
    """Append the straight-line kernel for blocks of one input; see `families` for the contract."""
    if asm.target.isa == "avx512":
        for mask, bits in ((LOW_HALF, 0x00FF), (HIGH_HALF, 0xFF00)):
            set_mask(asm, mask, bits)
    storage = lowered.storage
    for part in lowered.tiles:
        start(asm, lowered.spec, part.tile)
        storage.start(asm)
        _multiply(asm, storage, part, storage.literal(asm, part.lines))
        finish(asm, lowered.spec, part.tile)


def halves_share_loads(matrix: SparseMatrix, target: Target) -> bool:
    """Whether two steps of half a vector (eight outputs) each share one load of their weights.

    They do if some blocks of eight outputs are alone in a vector, and the core gains by it.
    """
    vectors = matrix.block_count(target.lanes)
    has_halves = matrix.block_count(BLOCK_ROWS) < vectors * (target.lanes // BLOCK_ROWS)
    return has_halves and target.core.halves_share_loads


def _earlier_input(storage: Storage) -> int:
    """Number of the register for an earlier column's input, behind the registers for weights."""
    return WEIGHT + max(storage.registers, 1)


def _whole_fours(column: IntArray, in_features: int) -> BoolArray:
    """By step: whether its aligned four inputs all exist and at least three of them are used."""
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
    new_column = np.diff(steps.current, prepend=-1) != 0
    chain = (np.cumsum(new_column) - 1) % tile.chains
    accumulator = tile.accumulator(asm, steps.group, chain)
    x, half = vector(asm, 0), operand
    is_half: BoolArray = ~np.all(steps.kept, axis=1)
    if asm.target.core.halves_share_loads and storage.dtype is DType.FLOAT32:
        loads, half = storage.unpacked(asm, steps.line, place)
        unpack = [_only(each, is_half) for each in loads]
    either = x._replace(number=np.where(steps.again, _earlier_input(storage), x.number))
    asm.stamp(
        len(steps.column),
        [
            fetch_redirects(len(steps.column), asm.target),
            line("lea", rcx, Literal(pool + weights.base), when=weights.moves),
            *_inputs(asm, x, steps.current, part.fours),
            *_earlier_inputs(vector(asm, _earlier_input(storage)), steps),
            *(_only(each, new_line) for each in unpack),
            *_products(steps.kept, accumulator, either, operand, half),
        ],
    )


def _only(item: Line, when: BoolArray) -> Line:
    """Return the line (an instruction for each step), restricted to the steps in `when`."""
    return item._replace(when=when if item.when is None else item.when & when)


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


def _earlier_inputs(x: Register, steps: BlockSteps) -> list[Line]:
    """x = the input of an earlier column, before the first of the steps that use it."""
    at = np.flatnonzero(steps.again)
    if not len(at):
        return []
    at = at[np.diff(steps.column[at], prepend=-1) != 0]
    inputs = addresses(steps.column[at] * 4, 4)
    base, displacement = np.zeros((2, len(steps.column)), np.int64)
    new, moves = np.zeros((2, len(steps.column)), bool)
    base[at], displacement[at], new[at] = inputs.base, inputs.displacement, True
    moves[at] = inputs.moves
    return [
        line("lea", r9, Memory(rdi, base), when=moves),
        line("vbroadcastss", x, Memory(r9, displacement), when=new),
    ]


def _products(
    kept: BoolArray,
    accumulator: Register,
    x: Register,
    weights: Register | Memory,
    half: Register | Memory,
) -> list[Line]:
    """Return lines that multiply x by each step's weights: whole vectors, or a low or high half."""
    if kept.shape[1] == 1:
        return [line("vfmadd231ps", accumulator, x, weights)]
    low, high = kept.T
    low_half, high_half = accumulator.masked(LOW_HALF), accumulator.masked(HIGH_HALF)
    return [
        line("vfmadd231ps", accumulator, x, weights, when=low & high),
        line("vfmadd231ps", low_half, x, half, when=low & ~high),
        line("vfmadd231ps", high_half, x, half, when=high & ~low),
    ]
