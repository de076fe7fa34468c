"""Storage of the weights of a tile of panels, and the loads that bring them to their products."""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.batch.row_tiles import BoolArray, IntArray, Products
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.asm_templates.shared.stream import addresses
from sparsejit.x86.assembler import Assembler, Line, line
from sparsejit.x86.operands import Literal, Memory, r10, rcx, xmm


@dataclass(frozen=True, eq=False)
class TileWeights:
    """A tile's weights in the pool: from `pool` on loaded singly, from `fours` on by four."""

    by_four: BoolArray
    pool: int
    fours: int


def tile_weights(asm: Assembler, tile: Products, shared: float) -> TileWeights:
    """Put a tile's weights into the pool; a share of them is loaded by four."""
    by_four = _come_by_four(tile, shared, asm.target.isa == "avx512")
    pool = asm.literal(tile.weight[~by_four])
    fours = asm.literal(np.append(tile.weight[by_four], np.zeros(4, tile.weight.dtype)))
    return TileWeights(by_four, pool, fours)


def _come_by_four(tile: Products, shared: float, wide: bool) -> BoolArray:
    """Return whether each weight is loaded by four; AVX-512 does so for all inputs used once."""
    rank = np.cumsum(~tile.alone)
    chosen = ~tile.alone & (np.floor(rank * shared) > np.floor((rank - 1) * shared))
    return chosen | tile.alone if wide else chosen


def weights_by_four(asm: Assembler, weights: TileWeights) -> list[Line]:
    """Return the lines that load these weights by four and bring each into vector 1."""
    wide, by_four = asm.target.isa == "avx512", weights.by_four
    rank: IntArray = np.cumsum(by_four) - by_four
    places = addresses(rank // 4 * 16, 16 if wide else 1)
    weight, four = vector(asm, 1), vector(asm, 2)
    load = "vbroadcastf32x4" if wide else "vbroadcastf128"
    begins = by_four & (rank % 4 == 0)
    return [
        line("lea", r10, Literal(weights.fours + places.base), when=places.moves),
        line(load, four, Memory(r10, places.displacement), when=begins),
        line("vbroadcastss", weight, xmm(2), when=begins),
        line("vpermilps", weight, four, rank % 4 * 0x55, when=by_four & ~begins),
    ]


def weights_one_by_one(
    asm: Assembler, weights: TileWeights
) -> tuple[list[Line], Memory]:
    """Return the lines that address the other weights, and their memory operand.

    In AVX-512 the operand is a broadcast.
    """
    wide, own = asm.target.isa == "avx512", ~weights.by_four
    rank: IntArray = np.cumsum(own) - own
    places = addresses(4 * rank, 4 if wide else 1)
    move = line("lea", rcx, Literal(weights.pool + places.base), when=places.moves)
    return [move], Memory(rcx, places.displacement, broadcast=16 if wide else 0)
