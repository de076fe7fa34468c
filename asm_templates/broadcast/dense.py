"""Dense layers: all weights, zeros included, in a loop whose code stays small.

The weights of a tile (`tiles`) are packed column by column, so that the loop reads one
ascending stream; each input is broadcast once a tile:

    again: vbroadcastss zmm0, [rdx+4*u]               x[column + u], u = 0 .. unroll - 1
           vfmadd231ps  zmm31, zmm0, [rcx+64*line]    16 outputs, once a group, 7 bytes
           ...
           add rcx, bytes of the weights just used
           add rdx, 4*unroll
           sub rax, 1; jnz again

docs/kernels/broadcast.md explains its bounds, and why tiles take half the registers.
"""

from dataclasses import dataclass, replace

import numpy as np

from sparsejit.asm_templates.lowered import WEIGHT_BYTES, Counts, Work
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.asm_templates.shared.padding import (
    CACHE_LINE_BYTES,
    DENSE,
    StridePadding,
    stride_padding,
)
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.asm_templates.shared.storage import ByteArray, Storage
from sparsejit.asm_templates.shared.tiles import FloatArray, Tile, finish, grouped, start, tiles
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler, line
from sparsejit.x86.operands import Literal, Memory, rax, rcx, rdi, rdx

SUMS = 16  # accumulators in a trip of the loop, so that its bookkeeping is a small share
_ENOUGH_GROUPS = 5  # groups that use an input, from which on its broadcast costs no time
_FOURS = StridePadding(4, 5)
PREFETCH_BYTES = 4096  # distance of prefetches, where weights come from beyond L2


@dataclass(frozen=True, eq=False)
class DenseTile:
    """A tile, the format of its weights, and their cache lines in order of use."""

    tile: Tile
    storage: Storage
    lines: ByteArray


@dataclass(frozen=True, eq=False)
class Dense:
    """A layer as loops over all its weights, which are prefetched if they lie beyond L2."""

    spec: MatVec
    tiles: list[DenseTile]
    prefetch: bool
    counts: Counts


def expect(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Return expected counts: a step for each vector of weights, zeros included.

    If there are few outputs, steps that wait for broadcasts are added.
    """
    groups = ceil_div(matrix.out_features, target.lanes)
    steps = groups * matrix.in_features
    narrow = max(0, _ENOUGH_GROUPS - groups) * matrix.in_features
    work = Work("dense", steps), Work("dense-narrow", narrow)
    pool_bytes = steps * target.lanes * WEIGHT_BYTES[spec.dtype]
    return Counts.of(matrix, target, spec.dtype, work[: 1 + (narrow > 0)], pool_bytes)


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> Dense:
    """Lower a layer to tiles of at most half the registers."""
    counts, weights = expect(spec, matrix, target), grouped(target, matrix)
    unpadded = Storage(target, spec.dtype)
    half = target.vector_registers // 2
    lowered = []
    for tile in tiles(target, matrix.out_features, SUMS, half, unpadded.registers):
        storage = replace(unpadded, padding=_padding(unpadded, tile, counts.pool_bytes))
        own = weights[tile.first : tile.first + tile.groups]
        lowered.append(DenseTile(tile, storage, storage.lines(_in_order(storage, tile, own))))
    return Dense(spec, lowered, counts.pool_bytes > target.l2_bytes, counts)


def emit(asm: Assembler, lowered: Dense) -> None:
    """Append the kernel of a dense layer; see `families` for the contract."""
    for part in lowered.tiles:
        asm.emit("lea", rcx, Literal(part.storage.literal(asm, part.lines)))
        asm.emit("mov", rdx, rdi)
        start(asm, lowered.spec, part.tile)
        part.storage.start(asm)
        _columns(asm, part, lowered.spec.in_features, lowered.prefetch)
        finish(asm, lowered.spec, part.tile)


def _padding(storage: Storage, tile: Tile, weight_bytes: int) -> StridePadding:
    """Return padding for weights from L2 whose trips are whole fours of lines, else DENSE.

    Elsewhere padding loses: 100 KB of float32 would take 690 ns instead of 580, trips of 21 lines
    2080 instead of 1760.
    """
    target = storage.target
    trip_bytes = tile.groups * tile.chains * target.lanes * storage.weight_bytes
    far = weight_bytes > 5 * target.l1d_bytes // 2 and stride_padding(weight_bytes, target) != DENSE
    return _FOURS if far and trip_bytes % (_FOURS.run * CACHE_LINE_BYTES) == 0 else DENSE


def _in_order(storage: Storage, tile: Tile, weights: FloatArray) -> FloatArray:
    """Return weights (groups, lanes, in_features) as vectors (any, lanes) in order of use."""
    vectors = weights.transpose(2, 0, 1).reshape(-1, weights.shape[1])
    trip = tile.chains * tile.groups
    whole = len(vectors) // trip * trip
    trips = vectors[:whole].reshape(-1, trip, vectors.shape[1])
    return np.concatenate([storage.in_trips(trips), vectors[whole:]])


def _columns(asm: Assembler, part: DenseTile, in_features: int, prefetch: bool) -> None:
    tile = part.tile
    trips, rest = divmod(in_features, tile.chains)
    if trips:
        with counted_down(asm, rax, trips):
            _trip(asm, part, tile.chains, prefetch)
            asm.emit("add", rcx, part.storage.trip_bytes(tile.chains * tile.groups))
            asm.emit("add", rdx, 4 * tile.chains)
    _trip(asm, part, rest, prefetch=False)


def _trip(asm: Assembler, part: DenseTile, columns: int, prefetch: bool) -> None:
    """Append a turn of the loop: multiply `columns` inputs from rdx by their weights from rcx.

    Each input's products go to a chain (partial sums) of their own.
    """
    tile, storage = part.tile, part.storage
    number = np.arange(columns * tile.groups)
    chain, group = np.divmod(number, tile.groups)
    place = storage.place(number)
    new_line = np.diff(place // CACHE_LINE_BYTES, prepend=-1) != 0
    unpack, operand = storage.operand(asm, number, Memory(rcx, place), consecutive=True)
    x, accumulator = vector(asm, 0), tile.accumulator(asm, group, chain)
    lines = [
        line("vbroadcastss", x, Memory(rdx, 4 * chain), when=group == 0),
        *unpack,
        line("vfmadd231ps", accumulator, x, operand),
    ]
    if prefetch:
        ahead = Memory(rcx, place + PREFETCH_BYTES)
        lines.append(line("prefetcht0", ahead, when=new_line))
    asm.stamp(len(number), lines)
