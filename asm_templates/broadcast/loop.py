"""Blocks of one input and eight or sixteen consecutive outputs, in loops: little code.

    again: mov         r9, [rdx+2*slot]          columns of four slots, 16 bits each
           movzx       eax, r9w                  (before the other three: shr r9, 16)
           vmovups     zmm2, [rcx+64*slot]       weights, or their unpacking (`storage`)
           vfmadd231ps zmm31, zmm2, [rdi+4*rax]{1to16}     zmm30, ... in the next slots
           ...
           add rcx, bytes of weights; add rdx, bytes of columns; sub r8, 1; jnz again

A block row is the blocks of the same eight or sixteen outputs. Block rows are sorted by their
number of blocks; each loop takes the next few, a slot each, and runs until its longest ends; zero
weights pad the others. Any two block rows of eight outputs may share a zmm:

           vbroadcastss zmm0, [rdi+4*rax]        then movzx for the other block row's column
           vbroadcastss zmm0{k1}, [rdi+4*rax]    its input, in the upper lanes
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.lowered import WEIGHT_BYTES, Counts, Work
from sparsejit.asm_templates.shared.activation import apply_activation
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.asm_templates.shared.masks import set_mask
from sparsejit.asm_templates.shared.rows import store, vector, zero
from sparsejit.asm_templates.shared.storage import ByteArray, Storage
from sparsejit.asm_templates.shared.tiles import FloatArray, IntArray, Tile, add_chains
from sparsejit.ir.compressed_rows import distinct
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div, round_up
from sparsejit.x86.assembler import Assembler, Line, line
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    k,
    r8,
    r9,
    rax,
    rcx,
    rdi,
    rdx,
    rsi,
    word,
    ymm,
)

HALF = 8  # rows of the shorter block rows
UPPER_LANES = k(1)
# Accumulators of a loop: an FMA takes 4 cycles and two start in each. With 16, more block rows wait
# for a longer one.
SLOTS = 8
COLUMNS_AT_ONCE = 4
LOOP_SIZES = (8, 6, 4, 2, 1)  # accumulators; odd numbers would leave half a line of bfloat16 unused


@dataclass(frozen=True)
class LoopShape:
    """Size of a loop: `trips` turns over `accumulators` vectors of sums, each in `chains` parts."""

    accumulators: int
    chains: int
    trips: int

    @property
    def vectors(self) -> int:
        """Vectors of weights that it reads, padding included."""
        return self.accumulators * self.chains * self.trips


@dataclass(frozen=True, eq=False)
class _BlockRows:
    """The nonzero blocks (one input by `rows` outputs) of a matrix, block row after block row.

    The blocks of block row r are `starts[r]` up to `starts[r + 1]`; `columns` (blocks,) are their
    inputs, `weights` (blocks, rows) their weights.
    """

    rows: int
    starts: IntArray
    columns: IntArray
    weights: FloatArray


@dataclass(frozen=True, eq=False)
class _Loop:
    """One loop: the block rows that it sums up, and the columns and weights that it reads.

    `block_rows` (accumulators, parts): which block rows each accumulator holds, one or two.
    `columns` (trips, slots * parts), `weights` (trips, slots, lanes): by turn of the loop. Slots
    are the accumulators of chain 0, then of chain 1, and so on.
    """

    block_rows: IntArray
    chains: int
    columns: npt.NDArray[np.uint32]
    weights: FloatArray

    @property
    def tile(self) -> Tile:
        return Tile(0, len(self.block_rows), self.chains)


@dataclass(frozen=True, eq=False)
class Looped:
    """The outputs from some row on as loops, and the streams that they read.

    `height` rows make a block row; `weights` are cache lines, `columns` 16 or 32 bits each.
    """

    spec: MatVec
    storage: Storage
    height: int
    loops: list[_Loop]
    weights: ByteArray
    columns: npt.NDArray[np.unsignedinteger[Any]]
    counts: Counts


def expect(spec: MatVec, matrix: SparseMatrix, target: Target, first_row: int = 0) -> Counts:
    """Return expected counts: steps for vectors of weights that loops read, and for ends of loops.

    A vector of two block rows costs more. It reads two bytes of column for each block row in it.
    Outputs before `first_row` do not count.
    """
    height, prices = block_row_height(matrix, target), target.core.layouts
    shapes = planned_loops(matrix, target, first_row)
    vectors = sum(shape.vectors for shape in shapes)
    price = 1.0 if height == target.lanes else prices.halves
    steps = int(vectors * price) + prices.loop_ends * len(shapes)
    vector_bytes = target.lanes * WEIGHT_BYTES[spec.dtype] + 2 * (target.lanes // height)
    work = Work("broadcast-loop", steps)
    return Counts.of(matrix, target, spec.dtype, work, vectors * vector_bytes)


def lower(spec: MatVec, matrix: SparseMatrix, target: Target, first_row: int = 0) -> Looped:
    """Lower the outputs from `first_row` on, which must begin a vector."""
    storage = Storage(target, spec.dtype)
    height = block_row_height(matrix, target)
    parts = target.lanes // height
    loops = list(_loops(_block_rows(matrix, height, parts), parts, first_row // height, target))
    columns = np.uint16 if matrix.in_features <= 1 << 16 else np.uint32
    return Looped(
        spec,
        storage,
        height,
        loops,
        storage.lines(np.concatenate([storage.in_trips(loop.weights) for loop in loops])),
        np.concatenate([_padded(loop.columns).astype(columns) for loop in loops]),
        expect(spec, matrix, target, first_row),
    )


def emit(asm: Assembler, lowered: Looped) -> None:
    """Append the kernel of loops over blocks; see `families` for the contract."""
    storage = lowered.storage
    if lowered.height < asm.target.lanes:
        set_mask(asm, UPPER_LANES, 0xFF00)
    streams = (storage.literal(asm, lowered.weights), asm.literal(lowered.columns))
    for base, stream in zip((rcx, rdx), streams, strict=True):
        asm.emit("lea", base, Literal(stream))
    for loop in lowered.loops:
        _start(asm, lowered.spec, loop, lowered.height)
        storage.start(asm)
        _repeat(asm, storage, loop, lowered.columns.itemsize)
        _finish(asm, lowered.spec, loop, lowered.height)


def block_row_height(matrix: SparseMatrix, target: Target) -> int:
    """Return the height of the block rows that a matrix is cut into: a vector's lanes, or half."""
    lanes = target.lanes
    whole = matrix.block_count(lanes)
    halves = matrix.block_count(HALF) * HALF / lanes
    return lanes if lanes == HALF or whole <= target.core.layouts.halves * halves else HALF


def planned_loops(matrix: SparseMatrix, target: Target, first_row: int = 0) -> list[LoopShape]:
    """Return the loops that a matrix takes, for the planner."""
    rows = block_row_height(matrix, target)
    block_row, _ = matrix.blocks(rows)
    counts = np.bincount(block_row, minlength=ceil_div(matrix.out_features, rows))
    longest_first = np.sort(counts[first_row // rows :])[::-1]
    return loop_shapes(longest_first[:: target.lanes // rows], target.core.layouts.loop_ends)


def _block_rows(matrix: SparseMatrix, rows: int, multiple: int) -> _BlockRows:
    """Block rows of a matrix, and empty ones until their number is a multiple of `multiple`."""
    count = ceil_div(matrix.out_features, rows * multiple) * multiple
    nonzeros = matrix.nonzeros
    numbers = nonzeros.rows // rows * matrix.in_features + nonzeros.columns
    found, block = distinct(numbers, matrix.size)
    block_row, columns = np.divmod(found, matrix.in_features)
    weights = np.zeros((len(found), rows), np.float32)
    weights[block, nonzeros.rows % rows] = nonzeros.values
    return _BlockRows(rows, np.searchsorted(block_row, np.arange(count + 1)), columns, weights)


def _loops(
    block_rows: _BlockRows, parts: int, begin: int, target: Target
) -> Iterator[_Loop]:
    """Yield the loops over the block rows from number `begin` on, the fullest block rows first."""
    counts = np.diff(block_rows.starts)
    longest_first = begin + np.argsort(-counts[begin:], kind="stable")
    accumulators = longest_first.reshape(-1, parts)
    first = 0
    for shape in loop_shapes(counts[accumulators[:, 0]], target.core.layouts.loop_ends):
        own = accumulators[first : first + shape.accumulators]
        yield _loop(block_rows, own, shape.chains, shape.trips)
        first += shape.accumulators


def loop_shapes(blocks: IntArray, ends: int) -> list[LoopShape]:
    """Cut accumulators into the loops that cost least.

    `blocks`: the number of blocks of each accumulator, largest first; `ends`: steps to start and to
    leave a loop.
    """
    cheapest: list[tuple[int, LoopShape | None]] = [(0, None)]
    for end in range(1, len(blocks) + 1):
        choices = []
        for size in (size for size in LOOP_SIZES if size <= end):
            chains = SLOTS // size
            shape = LoopShape(size, chains, ceil_div(int(blocks[end - size]), chains))
            choices.append((cheapest[end - size][0] + shape.vectors + ends, shape))
        cheapest.append(min(choices, key=lambda choice: choice[0]))
    shapes: list[LoopShape] = []
    end = len(blocks)
    while last := cheapest[end][1]:
        shapes.append(last)
        end -= last.accumulators
    return shapes[::-1]


def _loop(block_rows: _BlockRows, own: IntArray, chains: int, trips: int) -> _Loop:
    rows = block_rows.rows
    columns = np.zeros((trips, chains, *own.shape), np.uint32)
    weights = np.zeros((*columns.shape, rows), np.float32)
    for (accumulator, part), block_row in np.ndenumerate(own):
        used = slice(block_rows.starts[block_row], block_rows.starts[block_row + 1])
        trip, chain = np.divmod(np.arange(used.stop - used.start), chains)
        columns[trip, chain, accumulator, part] = block_rows.columns[used]
        weights[trip, chain, accumulator, part] = block_rows.weights[used]
    slots, parts = chains * own.shape[0], own.shape[1]
    return _Loop(
        own,
        chains,
        columns.reshape(trips, slots * parts),
        weights.reshape(trips, slots, parts * rows),
    )


def _padded(columns: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Flatten columns (trips, any), each trip padded with zeros to COLUMNS_AT_ONCE."""
    missing = -columns.shape[1] % COLUMNS_AT_ONCE
    return np.pad(columns, ((0, 0), (0, missing))).reshape(-1)


def _start(asm: Assembler, spec: MatVec, loop: _Loop, rows: int) -> None:
    """Put the bias, or zero, in the first chain and zero in the others."""
    for slot, accumulator in enumerate(loop.tile.registers(asm)):
        if spec.bias is None or slot >= len(loop.block_rows):
            zero(asm, accumulator)
            continue
        at = (loop.block_rows[slot][:, None] * rows + np.arange(rows)).reshape(-1)
        bias = np.append(spec.bias, np.float32(0))[np.minimum(at, spec.out_features)]
        asm.emit("vmovups", accumulator, Literal(asm.literal(bias)))


def _repeat(asm: Assembler, storage: Storage, loop: _Loop, column_bytes: int) -> None:
    trips, slots = loop.weights.shape[:2]
    if not trips:
        return
    with counted_down(asm, r8, trips):
        asm.stamp(slots, _slot_lines(asm, storage, loop, column_bytes))
        asm.emit("add", rcx, storage.trip_bytes(slots))
        columns = loop.columns.shape[1]
        asm.emit("add", rdx, column_bytes * round_up(columns, COLUMNS_AT_ONCE))


def _slot_lines(
    asm: Assembler, storage: Storage, loop: _Loop, column_bytes: int
) -> list[Line]:
    parts, slot = loop.block_rows.shape[1], np.arange(loop.weights.shape[1])
    chain, position = np.divmod(slot, len(loop.block_rows))
    accumulator = loop.tile.accumulator(asm, position, chain)
    unpack, weights = storage.unpacked(asm, slot, Memory(rcx, storage.place(slot)))
    column = [_column(slot * parts + part, column_bytes) for part in range(parts)]
    x, chosen = vector(asm, 0), Memory(rdi, 0, index=rax, scale=4)
    if asm.target.isa == "avx512" and parts == 1:
        everywhere = Memory(rdi, 0, index=rax, scale=4, broadcast=asm.target.lanes)
        return [*column[0], *unpack, line("vfmadd231ps", accumulator, weights, everywhere)]
    inputs = [*column[0], line("vbroadcastss", x, chosen)]
    if parts == 2:
        inputs += [*column[1], line("vbroadcastss", x.masked(UPPER_LANES), chosen)]
    return [*inputs, *unpack, line("vfmadd231ps", accumulator, weights, x)]


def _column(number: IntArray, column_bytes: int) -> list[Line]:
    """Return lines: rax = column `number` of those that a turn of the loop reads, before its step.

    If columns have 16 bits, one load brings four to r9.
    """
    if column_bytes == 4:
        return [line("mov", dword(rax), Memory(rdx, 4 * number))]
    first = number % COLUMNS_AT_ONCE == 0
    return [
        line("mov", r9, Memory(rdx, 2 * number), when=first),
        line("shr", r9, 16, when=~first),
        line("movzx", dword(rax), word(r9)),
    ]


def _finish(asm: Assembler, spec: MatVec, loop: _Loop, rows: int) -> None:
    """Add up the chains, apply the activation and store each block row where it belongs."""
    add_chains(asm, loop.tile)
    accumulators = loop.tile.registers(asm)[: len(loop.block_rows)]
    free = [vector(asm, n) for n in range(asm.target.vector_registers - len(accumulators))]
    apply_activation(asm, spec.activation, accumulators, free)
    for accumulator, block_rows in zip(accumulators, loop.block_rows, strict=True):
        for part, block_row in enumerate(block_rows):
            half = part if len(block_rows) > 1 else None
            _store_block_row(asm, spec, accumulator, half, block_row * rows)


def _store_block_row(
    asm: Assembler, spec: MatVec, accumulator: Register, part: int | None, first: int
) -> None:
    """Store an accumulator, or half of it, as outputs from `first` on, up to the last output."""
    if first >= spec.out_features:
        return
    source = accumulator
    if part is not None:
        source = ymm(0)
        asm.emit("vextractf32x8", source, accumulator, part)
    store(asm, source, rsi, int(first), spec.out_features, vector(asm, 1))
