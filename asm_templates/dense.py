"""What is not sparse: every weight, in a loop whose code stays small.

The weights of a tile (`tiles`) are packed column by column, so that the loop reads one
ascending stream; each input is broadcast once a tile:

    again: vbroadcastss zmm0, [rdx+4*u]               x[column + u], u = 0 .. unroll - 1
           vfmadd231ps  zmm31, zmm0, [rcx+64*line]    16 outputs, once a group
           ...
           add rcx, bytes of the weights just used
           add rdx, 4*unroll
           sub rax, 1; jnz again

Seven bytes and one uop a multiplication; two a cycle while the weights are in L1, and
from L2 on the 45-63 bytes a cycle that L2 gives (26-31 from L3).
"""

import numpy as np

from sparsejit.asm_templates.rows import vector
from sparsejit.asm_templates.tiles import Tile, finish, grouped, start, tiles
from sparsejit.assembler import Assembler, line
from sparsejit.matrix import SparseMatrix
from sparsejit.operands import Literal, Memory, rax, rcx, rdi, rdx
from sparsejit.spec import MatVec

SUMS = 16  # under way at once: those of a loop's turn, so that its bookkeeping is a small share


def emit_avx512(asm: Assembler, spec: MatVec, matrix: SparseMatrix) -> None:
    """Append the kernel for AVX-512; see `table` for the contract."""
    _emit_tiles(asm, spec, matrix)


def emit_avx2(asm: Assembler, spec: MatVec, matrix: SparseMatrix) -> None:
    """Append the kernel for AVX2; see `table` for the contract."""
    _emit_tiles(asm, spec, matrix)


def _emit_tiles(asm: Assembler, spec: MatVec, matrix: SparseMatrix) -> None:
    weights = grouped(asm, matrix)
    for tile in tiles(asm, matrix.out_features, SUMS):
        own = weights[tile.first : tile.first + tile.groups]
        asm.emit("lea", rcx, Literal(asm.literal(own.transpose(2, 0, 1))))
        asm.emit("mov", rdx, rdi)
        start(asm, spec, tile)
        _columns(asm, tile, matrix.in_features)
        finish(asm, spec, tile)


def _columns(asm: Assembler, tile: Tile, in_features: int) -> None:
    turns, rest = divmod(in_features, tile.chains)
    if turns:
        asm.emit("mov", rax, turns)
        again = asm.label("again")
        asm.bind(again)
        _turn(asm, tile, tile.chains)
        asm.emit("add", rcx, tile.chains * tile.groups * asm.target.vector_bytes)
        asm.emit("add", rdx, 4 * tile.chains)
        asm.emit("sub", rax, 1)
        asm.jump("jnz", again)
    _turn(asm, tile, rest)


def _turn(asm: Assembler, tile: Tile, columns: int) -> None:
    """Multiply `columns` inputs from rdx by their weights from rcx, each in its own chain."""
    chain, group = np.divmod(np.arange(columns * tile.groups), tile.groups)
    place = np.arange(columns * tile.groups) * asm.target.vector_bytes
    x, accumulator = vector(asm, 0), tile.accumulator(asm, group, chain)
    asm.stamp(
        columns * tile.groups,
        [
            line("vbroadcastss", x, Memory(rdx, 4 * chain), when=group == 0),
            line("vfmadd231ps", accumulator, x, Memory(rcx, place)),
        ],
    )
