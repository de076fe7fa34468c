"""Blocks of one input: outputs in straight-line code as far as L1 holds it, the others in loops.

    outputs      0 ...................... 879 880 .. 1023     1024x1024, float32
                 straight, as L1 holds        in loops

Straight-line code (`straight`) broadcasts an input once for all blocks that a tile has of it, but
costs 7 to 20 bytes a step, and beyond L1 code binds. Loops (`loop`) load an input for each block,
and take hardly any code. Where it gains, straight-line weights lie in every other line; the lines
between are never read. Short weights in one line share its load. Figures:
docs/kernels/broadcast.md.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from sparsejit.asm_templates.broadcast import loop, straight
from sparsejit.asm_templates.lowered import Counts, Work
from sparsejit.asm_templates.shared.padding import ALTERNATE, DENSE, StridePadding
from sparsejit.asm_templates.shared.storage import UNPACKING_REGISTERS, Storage
from sparsejit.asm_templates.shared.tiles import tile_capacity
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler

# Share of L1 that code may fill; a tenth more code is slower, above all with short weights.
CODE_SHARES = {DType.FLOAT32: 1.0, DType.FLOAT16: 0.8, DType.BFLOAT16: 0.8}
# Bytes of code of a step with its share of redirects, of an input in a tile, and of a block row in
# loops.
_STEP_BYTES = {DType.FLOAT32: 7.5, DType.FLOAT16: 13.5, DType.BFLOAT16: 16.5}
_STEP_BYTES_OF_HALVES = 9.6  # float32, where halves share loads
_INPUT_BYTES = 7
_BLOCK_ROW_BYTES = 48


@dataclass(frozen=True, eq=False)
class Mixed:
    """The first outputs in straight-line code, and the others, if there are any, in loops."""

    straight: straight.Straight
    looped: loop.Looped | None
    counts: Counts


def expect(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Expected counts: steps of straight-line code and of loops."""
    return _counts(spec, matrix, target, straight_rows(matrix, target, spec.dtype))


def _counts(spec: MatVec, matrix: SparseMatrix, target: Target, rows: int) -> Counts:
    """Counts of both parts, with `rows` outputs in straight-line code; loops count as no code."""
    steps = straight.count_steps(matrix, target, spec.dtype, rows)
    work = [Work("broadcast-mixed", steps)]
    pool_bytes = straight.block_bytes(matrix, spec.dtype, rows)
    if rows < matrix.out_features:
        looped = loop.expect(spec, matrix, target, rows)
        work += [replace(part, runs=math.inf) for part in looped.work]
        pool_bytes += looped.pool_bytes
    return Counts.of(matrix, target, spec.dtype, tuple(work), pool_bytes, padded=True)


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> Mixed:
    """Lower the first outputs to straight-line code, up to the share of L1, the rest to loops."""
    rows = straight_rows(matrix, target, spec.dtype)
    counts = _counts(spec, matrix, target, rows)
    padding = _padding(straight.block_bytes(matrix, spec.dtype), target)
    storage = Storage(target, spec.dtype, padding)
    tiles = straight.lower_rows(storage, matrix, rows, lines_once=True)
    looped = loop.lower(spec, matrix, target, rows) if rows < matrix.out_features else None
    return Mixed(straight.Straight(spec, storage, tiles, counts), looped, counts)


def emit(asm: Assembler, lowered: Mixed) -> None:
    """Append the AVX-512 kernel: straight-line code, then loops; `families` has the contract."""
    straight.emit(asm, lowered.straight)
    if lowered.looped is not None:
        loop.emit(asm, lowered.looped)


def straight_rows(matrix: SparseMatrix, target: Target, dtype: DType) -> int:
    """Return how many outputs become straight-line code: as many as its code, with loops', fits L1.

    They are whole vectors, or all outputs.
    """
    block_row, column = matrix.blocks(target.lanes)
    starts = np.searchsorted(block_row, np.arange(ceil_div(matrix.out_features, target.lanes) + 1))
    groups = len(starts) - 1
    capacity = tile_capacity(target, UNPACKING_REGISTERS[dtype])
    looped_bytes = _BLOCK_ROW_BYTES * target.lanes // loop.block_row_height(matrix, target)
    room = CODE_SHARES[dtype] * target.l1i_bytes - looped_bytes * groups
    step_bytes = _STEP_BYTES[dtype]
    if dtype is DType.FLOAT32 and straight.halves_share_loads(matrix, target):
        step_bytes = _STEP_BYTES_OF_HALVES
    for first in range(0, groups, capacity):
        ends = starts[first : first + capacity + 1]
        own = column[ends[0] : ends[-1]]
        _, first_uses = np.unique(own, return_index=True)
        steps = ends[1:] - ends[0]
        inputs = np.searchsorted(np.sort(first_uses), steps)
        not_looped = np.arange(1, len(steps) + 1)
        code_bytes = step_bytes * steps + _INPUT_BYTES * inputs - looped_bytes * not_looped
        fitting = int((code_bytes <= room).sum())
        if fitting < len(steps):
            return (first + fitting) * target.lanes
        room -= code_bytes[-1]
    return matrix.out_features


def _padding(block_bytes: int, target: Target) -> StridePadding:
    """Return the padding lines among straight-line weights, if their `block_bytes` gain by it.

    They do between L1 and half of L2, on some cores: every other line is then left empty. 1024x3072
    at 4 % (500 KB) gains 4 % from it, 1536x1536 at 7 % (660 KB) loses 10 %.
    """
    near_l2 = target.l1d_bytes < block_bytes <= target.l2_bytes // 2
    return ALTERNATE if target.core.padding and near_l2 else DENSE
