"""Blocks of one input: outputs in straight-line code as far as L1 holds it, the others in loops.

Straight-line code (`broadcast`) broadcasts an input once for all blocks that a tile has of it, but
costs 7 to 20 bytes a step, and beyond L1 code binds. Loops (`broadcast-loop`) load an input for
each block, and take hardly any code. So each has its share; 1024x1024 at 5 % in 1x16 blocks:

    outputs      0 ...................... 879 880 .. 1023           float32, 983 ns (1280 in loops)
                 straight, 31 of L1's 32 KB   loops

    outputs      0 .... 319 320 ..................... 1023          bfloat16, 758 ns (858 in loops)
                 straight   loops

Short weights that lie in one line share its load here, which takes code: 749 ns instead of 824.
Between two lines of straight-line weights lies one never read. With one after every third instead
(`padding`), float32 takes 1058 ns and bfloat16 796. In AVX2 code is longer and nothing gained.
"""

from dataclasses import replace

import numpy as np

from sparsejit.asm_templates.broadcast import loop, straight
from sparsejit.asm_templates.shared.padding import ALTERNATE, DENSE, StridePadding
from sparsejit.asm_templates.shared.storage import UNPACKING_REGISTERS, Storage
from sparsejit.asm_templates.shared.tiles import tile_capacity
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler

# Of L1. A tenth more and bfloat16 loses up to 8 %, float32 3.
CODE_SHARES = {DType.FLOAT32: 1.0, DType.FLOAT16: 0.8, DType.BFLOAT16: 0.8}
# Code of a step and its share of jumps, of an input in a tile, and of a block row in loops.
_STEP_BYTES = {DType.FLOAT32: 7.5, DType.FLOAT16: 13.5, DType.BFLOAT16: 16.5}
_INPUT_BYTES = 7
_BLOCK_ROW_BYTES = 48


def emit(asm: Assembler, spec: MatVec, matrix: SparseMatrix) -> None:
    """Append the kernel, for AVX-512; see `table` for the contract."""
    storage = Storage(asm, spec.dtype)
    padding = _padding(straight.block_bytes(storage, matrix), asm.target)
    rows = straight_rows(matrix, asm.target, spec.dtype)
    straight.emit_rows(replace(storage, padding=padding), spec, matrix, rows, lines_once=True)
    if rows < matrix.out_features:
        loop.emit(asm, spec, matrix, rows)


def straight_rows(matrix: SparseMatrix, target: Target, dtype: DType) -> int:
    """Outputs in straight-line code, which with the loops' code fits L1: whole vectors, or all."""
    used = matrix.block_mask(target.lanes)
    capacity = tile_capacity(target, UNPACKING_REGISTERS[dtype])
    looped_bytes = _BLOCK_ROW_BYTES * target.lanes // loop.block_row_height(matrix, target.lanes)
    room = CODE_SHARES[dtype] * target.l1i_bytes - looped_bytes * len(used)
    for first in range(0, len(used), capacity):
        tile = used[first : first + capacity]
        steps = tile.sum(axis=1).cumsum()
        inputs = np.logical_or.accumulate(tile).sum(axis=1)
        not_looped = np.arange(1, len(tile) + 1)
        code_bytes = _STEP_BYTES[dtype] * steps + _INPUT_BYTES * inputs - looped_bytes * not_looped
        fitting = int((code_bytes <= room).sum())
        if fitting < len(tile):
            return (first + fitting) * target.lanes
        room -= code_bytes[-1]
    return matrix.out_features


def _padding(block_bytes: int, target: Target) -> StridePadding:
    """1024x3072 at 4 % (500 KB) gains 4 % by padding lines, 1536x1536 at 7 % (660 KB) loses 10."""
    return ALTERNATE if target.l1d_bytes < block_bytes <= target.l2_bytes // 2 else DENSE
