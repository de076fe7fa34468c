"""Blocks of one input and eight or sixteen consecutive outputs: broadcast the input, multiply.

Outputs are the lanes of accumulators that stay in registers. The columns of W are visited in
turn; a column's input is broadcast once and then multiplied into every accumulator that has
weights there:

    vbroadcastss zmm0, [rdx+4*column]         x[column] in all lanes             7 bytes, 1 uop
    vfmadd231ps  zmm31, zmm0, [rcx+64*step]   outputs 0..15 += x * weights       7 bytes, 1 uop
    vfmadd231ps  zmm30{k1}, zmm0, [rcx+...]   outputs 16..23 only                7 bytes, 1 uop

Zen 5 starts two such loads a cycle, so a step costs half a cycle while weights are in L1; from
L2 on, the 64 bytes a step (45-63 bytes a cycle) bind instead. The weights lie in the pool in the
order in which they are used, and the base registers move ahead of them, so that displacements
take one byte.

A 1x8 block is half a zmm. Where both halves of an accumulator have weights, one step does both;
where one has, the step is masked, and two such steps share the 64 bytes of one pool line: no
byte is read that is not a weight, and no load crosses a cache line.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.rows import finish_rows, start_rows, vector, zero
from sparsejit.assembler import Assembler, Line, line
from sparsejit.matrix import SparseMatrix
from sparsejit.operands import Literal, Memory, Register, dword, k, rax, rcx, rdi, rdx, rsi
from sparsejit.spec import MatVec

_IntArray = npt.NDArray[np.int64]

BLOCK_ROWS = 8
LOW_HALF, HIGH_HALF = k(1), k(2)

# Registers left free for the activation that finishes a tile, the broadcast input among them.
SCRATCH = {"avx512": 6, "avx2": 4}
# FMA latency times throughput on Zen 5 and Golden Cove: sums that must be under way at once.
CHAINS = 8


@dataclass(frozen=True, eq=False)
class _Steps:
    """Multiplications of one tile in order; arrays of equal length.

    `kept` (steps, parts) says which 8-row parts of the accumulator have weights, `line` is the
    line of the pool they lie in.
    """

    column: _IntArray
    group: _IntArray
    kept: npt.NDArray[np.bool_]
    line: _IntArray


def emit_avx512(asm: Assembler, spec: MatVec, matrix: SparseMatrix) -> None:
    """Append y = activation(W x + bias) for AVX-512; see `table.py` for the contract."""
    for mask, bits in ((LOW_HALF, 0x00FF), (HIGH_HALF, 0xFF00)):
        asm.emit("mov", dword(rax), bits)
        asm.emit("kmovw", mask, dword(rax))
    _emit_tiles(asm, spec, matrix)


def emit_avx2(asm: Assembler, spec: MatVec, matrix: SparseMatrix) -> None:
    """Append y = activation(W x + bias) for AVX2; see `table.py` for the contract."""
    _emit_tiles(asm, spec, matrix)


def _emit_tiles(asm: Assembler, spec: MatVec, matrix: SparseMatrix) -> None:
    weights = _grouped(matrix, asm.target.lanes)
    capacity = asm.target.vector_registers - SCRATCH[asm.target.isa]
    groups = len(weights)
    tiles = -(-groups // capacity)
    bounds = [groups * tile // tiles for tile in range(tiles + 1)]
    for first, last in pairwise(bounds):
        _emit_tile(asm, spec, weights[first:last], first * asm.target.lanes)


def _grouped(matrix: SparseMatrix, lanes: int) -> npt.NDArray[np.float32]:
    """Weights as (groups, parts, 8, in_features): a group is one accumulator."""
    groups = -(-matrix.out_features // lanes)
    padded = np.zeros((groups * lanes, matrix.in_features), np.float32)
    padded[: matrix.out_features] = matrix.dense
    return padded.reshape(groups, lanes // BLOCK_ROWS, BLOCK_ROWS, matrix.in_features)


def _emit_tile(
    asm: Assembler, spec: MatVec, weights: npt.NDArray[np.float32], first_row: int
) -> None:
    groups = len(weights)
    top = asm.target.vector_registers - 1
    capacity = asm.target.vector_registers - SCRATCH[asm.target.isa]
    chains = min(-(-CHAINS // groups), capacity // groups)
    for group in range(groups):
        first = first_row + group * asm.target.lanes
        start_rows(asm, spec, vector(asm, top - group), first)
    for extra in range(groups, groups * chains):
        zero(asm, vector(asm, top - extra))
    steps = _order(weights)
    _stamp(asm, steps, _pool(asm, weights, steps), chains, groups)
    for extra in range(groups, groups * chains):
        total = vector(asm, top - extra % groups)
        asm.emit("vaddps", total, total, vector(asm, top - extra))
    accumulators = [vector(asm, top - group) for group in range(groups)]
    free = [vector(asm, number) for number in range(asm.target.vector_registers - groups)]
    finish_rows(asm, spec, accumulators, first_row, rsi, free)


def _order(weights: npt.NDArray[np.float32]) -> _Steps:
    kept = np.any(weights != 0, axis=2)
    column, group = np.nonzero(kept.any(axis=1).T)
    parts = kept[group, :, column]
    return _Steps(column, group, parts, _lines(parts))


def _lines(kept: npt.NDArray[np.bool_]) -> _IntArray:
    """Pool line of each step: the n-th low and the n-th high half share the earlier one's."""
    line_of = np.arange(len(kept))
    if kept.shape[1] == 2:
        low = np.flatnonzero(kept[:, 0] & ~kept[:, 1])
        high = np.flatnonzero(kept[:, 1] & ~kept[:, 0])
        pairs = min(len(low), len(high))
        low, high = low[:pairs], high[:pairs]
        line_of[low] = line_of[high] = np.minimum(low, high)
    return np.unique(line_of, return_inverse=True)[1]


def _pool(asm: Assembler, weights: npt.NDArray[np.float32], steps: _Steps) -> int:
    lines = int(steps.line.max(initial=-1)) + 1
    pool = np.zeros((lines, *weights.shape[1:3]), np.float32)
    for part in range(weights.shape[1]):
        chosen = steps.kept[:, part]
        source = weights[steps.group[chosen], part, :, steps.column[chosen]]
        pool[steps.line[chosen], part] = source
    return asm.literal(pool)


def _stamp(asm: Assembler, steps: _Steps, pool: int, chains: int, groups: int) -> None:
    """The tile's multiplications, each base register moved where a displacement would not fit."""
    new_column = np.diff(steps.column, prepend=-1) != 0
    chain = (np.cumsum(new_column) - 1) % chains
    number = asm.target.vector_registers - 1 - (steps.group + chain * groups)
    line_bytes = asm.target.vector_bytes
    weight_base, weight, weight_moves = _windows(
        steps.line * line_bytes, 256 * (line_bytes if asm.target.isa == "avx512" else 1)
    )
    input_base, place, input_moves = _windows(
        steps.column * 4, 256 * (4 if asm.target.isa == "avx512" else 1)
    )
    x = vector(asm, 0)
    lines = [
        line("lea", rcx, Literal(pool + weight_base), when=weight_moves),
        line("lea", rdx, Memory(rdi, input_base), when=input_moves),
        line("vbroadcastss", x, Memory(rdx, place), when=new_column),
    ]
    asm.stamp(len(number), lines + _multiplications(asm, steps, number, x, Memory(rcx, weight)))


def _windows(address: _IntArray, span: int) -> tuple[_IntArray, _IntArray, npt.NDArray[np.bool_]]:
    """Bases, one-byte displacements from them, and where the base differs from the step before."""
    window = address // span
    return window * span + span // 2, address % span - span // 2, np.diff(window, prepend=-1) != 0


def _multiplications(
    asm: Assembler, steps: _Steps, number: _IntArray, x: Register, weights: Memory
) -> list[Line]:
    accumulator = vector(asm, 0)
    accumulator = Register(accumulator.kind, number)
    if steps.kept.shape[1] == 1:
        return [line("vfmadd231ps", accumulator, x, weights)]
    low, high = steps.kept.T
    return [
        line("vfmadd231ps", accumulator, x, weights, when=low & high),
        line("vfmadd231ps", accumulator.masked(LOW_HALF), x, weights, when=low & ~high),
        line("vfmadd231ps", accumulator.masked(HIGH_HALF), x, weights, when=high & ~low),
    ]
