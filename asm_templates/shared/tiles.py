"""Tiles: outputs that are held in registers at a time, with their partial sums.

A group is one vector of consecutive outputs (`target.lanes` rows). A tile is the groups whose
accumulators are in registers at once; the matrix is passed over tile after tile. Full tiles and a
small last one need fewer inputs, hence less code, than equal ones. A tile of few groups keeps
several partial sums (chains) of each, so that one multiplication need not wait for another:

    zmm31 zmm30 zmm29   chain 0 of groups 0 1 2
    zmm28 zmm27 zmm26   chain 1 of groups 0 1 2
    ...
    zmm0                free: the input; at the end all free registers serve the activation
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.shared.rows import finish_rows, start_rows, vector, zero
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Register, rsi

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float32]

# Registers that are never accumulators: 0 and 1 for inputs, and the scratch of an activation at the
# end (SCRATCH_PER_VECTOR).
INPUTS, RESERVED = 2, 3


@dataclass(frozen=True)
class Tile:
    """Groups `first` to `first + groups - 1`, each summed in `chains` accumulators."""

    first: int
    groups: int
    chains: int

    def accumulator(self, asm: Assembler, group: IntArray, chain: IntArray) -> Register:
        """Return the registers of the tile's groups and chains, counted from 0."""
        top = asm.target.vector_registers - 1
        return Register(vector(asm, 0).kind, top - (group + self.groups * chain))

    def registers(self, asm: Assembler) -> list[Register]:
        """Return the accumulators, chain after chain."""
        top = asm.target.vector_registers - 1
        return [vector(asm, top - number) for number in range(self.groups * self.chains)]


def tiles(
    target: Target, out_features: int, sums: int, at_most: int | None = None, spare: int = 0
) -> Iterator[Tile]:
    """Yield tiles over all outputs, as large as fits or `at_most` groups.

    A tile of fewer groups than `sums` has chains for at least `sums` accumulators, if they fit.
    Registers 2 to `spare` + 1 stay free besides the reserved.
    """
    capacity = tile_capacity(target, spare)
    largest = min(capacity, at_most or capacity)
    groups = ceil_div(out_features, target.lanes)
    for first in range(0, groups, largest):
        size = min(largest, groups - first)
        yield Tile(first, size, min(ceil_div(sums, size), capacity // size))


def tile_capacity(target: Target, spare: int) -> int:
    """Return the most accumulators of a tile, if `spare` registers stay free, as in `tiles`."""
    return target.vector_registers - max(RESERVED, INPUTS + spare)


def grouped(target: Target, matrix: SparseMatrix) -> FloatArray:
    """Return weights as (groups, lanes, in_features), with rows of zeros at the end."""
    lanes = target.lanes
    groups = ceil_div(matrix.out_features, lanes)
    padded = np.zeros((groups * lanes, matrix.in_features), np.float32)
    padded[: matrix.out_features] = matrix.dense
    return padded.reshape(groups, lanes, matrix.in_features)


def start(asm: Assembler, spec: MatVec, tile: Tile) -> None:
    """Put the bias, or zero, in the first chain and zero in the others."""
    for group in range(tile.groups):
        first_row = (tile.first + group) * asm.target.lanes
        start_rows(asm, spec, _one(asm, tile, group, 0), first_row)
        for chain in range(1, tile.chains):
            zero(asm, _one(asm, tile, group, chain))


def add_chains(asm: Assembler, tile: Tile) -> None:
    """Add the other chains of each group to its first, in pairs."""
    chains = tile.chains
    while chains > 1:
        half = ceil_div(chains, 2)
        for chain in range(half, chains):
            for group in range(tile.groups):
                total = _one(asm, tile, group, chain - half)
                asm.emit("vaddps", total, total, _one(asm, tile, group, chain))
        chains = half


def finish(asm: Assembler, spec: MatVec, tile: Tile) -> None:
    """Add up the chains, apply the activation and store the tile's outputs."""
    add_chains(asm, tile)
    sums = tile.registers(asm)[: tile.groups]
    free = [vector(asm, number) for number in range(asm.target.vector_registers - tile.groups)]
    finish_rows(asm, spec, sums, tile.first * asm.target.lanes, rsi, free)


def _one(asm: Assembler, tile: Tile, group: int, chain: int) -> Register:
    return vector(asm, asm.target.vector_registers - 1 - (group + tile.groups * chain))
