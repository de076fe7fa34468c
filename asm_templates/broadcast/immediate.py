"""Weights as 32-bit immediates in the instruction stream; the pool holds no weights.

    mov   eax, imm32                       scattered weights, one at a time   5 bytes
    vmovd xmm0, eax                                                           5 bytes
    vfmadd231ss xmm16, xmm0, [rdx+4*column]                                   7 bytes

    push imm32          eight times (AVX2: four), the last output first       5 bytes each
    ...                 63 more steps of pushes (AVX2: 127)
    vbroadcastss zmm0, [rdx+4*column]      columns of consecutive outputs
    vfmadd231ps  zmm31, zmm0, [rsp+64*step]

A push is 64 bits wide: the weight, and its sign repeated. The even lanes of an accumulator are the
sums; the odd lanes collect 0 * x or NaN * x, which are quiet and never read. Pushes go far ahead,
because a load cannot be forwarded from eight stores (docs/kernels/broadcast.md).
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.lowered import Counts, Work
from sparsejit.asm_templates.shared.interleave import load_parities, part_by_parity
from sparsejit.asm_templates.shared.rows import finish_rows, start_rows, vector, zero
from sparsejit.asm_templates.shared.storage import addresses
from sparsejit.asm_templates.shared.tiles import RESERVED, FloatArray, IntArray
from sparsejit.ir.compressed_rows import CompressedRows, distinct
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler, line
from sparsejit.x86.operands import (
    Memory,
    Register,
    dword,
    rax,
    rdi,
    rdx,
    rsi,
    rsp,
    xmm,
    ymm,
    zmm,
)

PUSHES_AHEAD = 512


@dataclass(frozen=True, eq=False)
class Immediate:
    """A layer with immediates as weights; `pushed`: they are pushed to the stack and read there."""

    spec: MatVec
    weights: SparseMatrix
    pushed: bool
    counts: Counts


def expect(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Expected counts: nonzero weights, none in the pool; unless pushed, a step for each output."""
    steps = matrix.nnz if _is_pushed(matrix, target) else matrix.nnz + matrix.out_features
    return Counts.of(matrix, target, spec.dtype, Work("immediate", steps), 0)


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> Immediate:
    """Lower a layer; its weights are pushed if its blocks of half a vector are full enough."""
    pushed = _is_pushed(matrix, target)
    return Immediate(spec, matrix, pushed, expect(spec, matrix, target))


def _is_pushed(matrix: SparseMatrix, target: Target) -> bool:
    return matrix.block_fill(target.lanes // 2) >= target.core.layouts.pushed


def emit(asm: Assembler, lowered: Immediate) -> None:
    """Append the kernel with weights as immediates; see `families` for the contract."""
    spec, lanes = lowered.spec, asm.target.lanes
    groups = ceil_div(spec.out_features, lanes)
    capacity = (asm.target.vector_registers - RESERVED) // 2 if lowered.pushed else 1
    for first in range(0, groups, capacity):
        count = min(capacity, groups - first)
        own = lowered.weights.rows(first * lanes, (first + count) * lanes).nonzeros
        if lowered.pushed:
            _add_pushed(asm, own, 2 * count)
            sums = _close_ranks(asm, count)
        else:
            _add_one_by_one(asm, own)
            sums = [_gather_rows(asm)]
        _finish(asm, spec, sums, first)


def _finish(asm: Assembler, spec: MatVec, sums: list[Register], first_group: int) -> None:
    """Bias, activation and store of row vectors that hold plain sums."""
    taken = {int(register.number) for register in sums}
    registers = range(asm.target.vector_registers)
    free = [vector(asm, number) for number in registers if number not in taken]
    first_row = first_group * asm.target.lanes
    if spec.bias is not None:
        for position, register in enumerate(sums):
            start_rows(asm, spec, free[0], first_row + position * asm.target.lanes)
            asm.emit("vaddps", register, register, free[0])
    finish_rows(asm, spec, sums, first_row, rsi, free)


def _bits(weights: FloatArray) -> IntArray:
    return weights.view(np.uint32).astype(np.int64)


def _input_unit(asm: Assembler) -> int:
    return 4 if asm.target.isa == "avx512" else 1


def _scalar_sum(asm: Assembler, row: int | IntArray) -> Register:
    """The register of one row's sum in a group, in the upper half of the register file."""
    return xmm(row + asm.target.lanes)


def _add_one_by_one(asm: Assembler, weights: CompressedRows) -> None:
    """Sum a group's rows, each in a register of its own."""
    for lane in range(asm.target.lanes):
        zero(asm, _scalar_sum(asm, lane))
    order = np.lexsort((weights.rows, weights.columns))
    column, row = weights.columns[order], weights.rows[order]
    inputs = addresses(column * 4, _input_unit(asm))
    place = Memory(rdx, inputs.displacement)
    asm.stamp(
        len(column),
        [
            line("lea", rdx, Memory(rdi, inputs.base), when=inputs.moves),
            line("mov", dword(rax), _bits(weights.values[order])),
            line("vmovd", xmm(0), dword(rax)),
            line("vfmadd231ss", _scalar_sum(asm, row), xmm(0), place),
        ],
    )


def _gather_rows(asm: Assembler) -> Register:
    """Join the scalar sums of a group into one vector: pairs, fours, eights, sixteen."""
    first = int(_scalar_sum(asm, 0).number)
    wide = asm.target.isa == "avx512"
    joins = [("vunpcklps", xmm), ("vunpcklpd", xmm), ("vinsertf32x4", ymm), ("vinsertf64x4", zmm)]
    if not wide:
        joins = [*joins[:2], ("vinsertf128", ymm)]
    for level, (mnemonic, kind) in enumerate(joins):
        for row in range(0, asm.target.lanes, 2 << level):
            low, high = first + row, first + row + (1 << level)
            if kind is xmm:
                asm.emit(mnemonic, xmm(low), xmm(low), xmm(high))
            else:
                part = xmm(high) if kind is ymm else ymm(high)
                asm.emit(mnemonic, kind(low), kind(low), part, 1)
    return vector(asm, first)


def _pushed_sum(asm: Assembler, half: int | IntArray) -> Register:
    """The register of the sums of half a group, in the even lanes."""
    return Register(vector(asm, 0).kind, asm.target.vector_registers - 1 - half)


def _add_pushed(asm: Assembler, weights: CompressedRows, halves: int) -> None:
    """Append the products of pushed weights, summed up by halves of a group of outputs."""
    for position in range(halves):
        zero(asm, _pushed_sum(asm, position))
    rows = asm.target.lanes // 2
    numbers = weights.columns * halves + weights.rows // rows
    found, block = distinct(numbers, weights.shape[1] * halves)
    column, half = np.divmod(found, halves)
    pushed = np.zeros((len(found), rows), np.float32)
    pushed[block, weights.rows % rows] = weights.values
    ahead = PUSHES_AHEAD // rows
    for first in range(0, len(column), ahead):
        steps = slice(first, first + ahead)
        _push_and_multiply(asm, pushed[steps], column[steps], half[steps])


def _push_and_multiply(
    asm: Assembler, weights: FloatArray, column: IntArray, half: IntArray
) -> None:
    count, rows = weights.shape
    bits = _bits(weights)
    asm.stamp(count, [line("push", bits[:, row]) for row in reversed(range(rows))])
    inputs = addresses(column * 4, _input_unit(asm))
    pushed = Memory(rsp, (count - 1 - np.arange(count)) * rows * 8)
    x = vector(asm, 0)
    new_column = np.diff(column, prepend=-1) != 0
    asm.stamp(
        count,
        [
            line("lea", rdx, Memory(rdi, inputs.base), when=inputs.moves),
            line("vbroadcastss", x, Memory(rdx, inputs.displacement), when=new_column),
            line("vfmadd231ps", _pushed_sum(asm, half), x, pushed),
        ],
    )
    asm.emit("lea", rsp, Memory(rsp, count * rows * 8))


def _close_ranks(asm: Assembler, groups: int) -> list[Register]:
    """Bring the even lanes of each group's two halves into one vector."""
    low = [_pushed_sum(asm, 2 * group) for group in range(groups)]
    high = [_pushed_sum(asm, 2 * group + 1) for group in range(groups)]
    patterns = [zmm(0)]
    if asm.target.isa == "avx512":
        load_parities(asm, patterns)
    for first, second in zip(low, high, strict=True):
        part_by_parity(asm, first, second, patterns)
    return low
