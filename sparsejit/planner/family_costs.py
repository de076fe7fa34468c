"""How each family of kernels counts its steps, its bytes of literals, and what a step costs.

A step is the family's unit of work: a few instructions that repeat, with other operands each time.
Prices are of one Zen 5 core; `cost` makes a time of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.broadcast.loop import (
    LOOP_ENDS,
    PRICE_OF_HALVES,
    block_row_height,
    planned_loops,
)
from sparsejit.asm_templates.broadcast.mixed import straight_rows
from sparsejit.asm_templates.gather.int8_pairs import pairs_of
from sparsejit.asm_templates.gather.int8_permute import index_sharing_rows, sampled_steps
from sparsejit.asm_templates.gather.lookup_layout import STEPS, chunk_count
from sparsejit.asm_templates.gather.permute import machine_for
from sparsejit.asm_templates.gather.permute_machine import Machine
from sparsejit.asm_templates.gather.row_plan import RowPlan
from sparsejit.asm_templates.shared.tiles import RESERVED
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.machine.target import ISA_LEVELS, Target


@dataclass(frozen=True)
class StepPrice:
    """Price of one step of a family at one instruction set, and where the figures come from."""

    cycles: float
    code_bytes: float
    source: str


def permute_steps(matrix: SparseMatrix, target: Target, dtype: DType) -> int:
    """Steps and exchanges of rows grouped but not yet swapped, and what swaps save."""
    return RowPlan(matrix, _permute_machine(matrix, target, dtype)).expected_steps


def _permute_machine(matrix: SparseMatrix, target: Target, dtype: DType) -> Machine:
    return machine_for(MatVec(matrix.out_features, matrix.in_features, dtype=dtype), matrix, target)


def lane16_steps(matrix: SparseMatrix, target: Target, dtype: DType) -> int:
    """The most weights that a row of a group has in a register of inputs, summed."""
    rows, columns = (-(-size // 16) * 16 for size in matrix.dense.shape)
    used = np.zeros((rows, columns), bool)
    used[: matrix.out_features, : matrix.in_features] = matrix.dense != 0
    counts = used.reshape(rows // 16, 16, columns // 16, 16).sum(axis=3)
    return int(counts.max(axis=1).sum())


def lookup_steps(matrix: SparseMatrix, target: Target, dtype: DType) -> int:
    """Vectors of weights in the chunks that the look-up loop runs over."""
    return STEPS * chunk_count(matrix)


def lookup_bytes(matrix: SparseMatrix, target: Target, steps: int, weight: int) -> int:
    """A byte of index a weight, unless it lies in the weight; a chunk's place among the sums."""
    weights = steps * target.lanes * weight
    indices = steps * target.lanes
    far = weights + indices > target.l2_bytes
    return weights + (0 if far and weight == WEIGHT_BYTES[F32] else indices) + steps


def broadcast_steps(
    matrix: SparseMatrix, target: Target, dtype: DType, rows: int | None = None
) -> int:
    """Blocks of one input by an accumulator's rows that hold a nonzero, and a share for inputs.

    Each tile of accumulators (`tiles`) broadcasts its inputs anew, at a third of a step's price.
    Of the first `rows`, whole vectors, or of all.
    """
    vectors = None if rows is None else -(-rows // target.lanes)
    used, tile = matrix.block_mask(target.lanes)[:vectors], target.vector_registers - RESERVED
    inputs = sum(int(used[at : at + tile].any(axis=0).sum()) for at in range(0, len(used), tile))
    return int(used.sum()) + inputs // 3


def broadcast_loop_steps(
    matrix: SparseMatrix, target: Target, dtype: DType, first_row: int = 0
) -> int:
    """Vectors of weights, each at the price of its block rows, and the ends of the loops.

    Of the outputs from `first_row` on, which begins a vector.
    """
    whole = block_row_height(matrix, target.lanes) == target.lanes
    loops = planned_loops(matrix, target.lanes, first_row)
    vectors = sum(loop.vectors for loop in loops)
    return int(vectors * (1.0 if whole else PRICE_OF_HALVES)) + LOOP_ENDS * len(loops)


def broadcast_loop_bytes(
    matrix: SparseMatrix, target: Target, steps: int, weight: int, first_row: int = 0
) -> int:
    """A vector of weights and two bytes of column for each block row in it."""
    parts = target.lanes // block_row_height(matrix, target.lanes)
    vectors = sum(loop.vectors for loop in planned_loops(matrix, target.lanes, first_row))
    return vectors * (target.lanes * weight + 2 * parts)


def broadcast_mixed_steps(matrix: SparseMatrix, target: Target, dtype: DType) -> int:
    """Those in straight-line code and in loops."""
    return sum(_mixed_steps(matrix, target, dtype))


def broadcast_mixed_bytes(matrix: SparseMatrix, target: Target, steps: int, weight: int) -> int:
    """Blocks in straight-line code, and what the loops read; of float16 as of bfloat16."""
    rows = straight_rows(matrix, target, F32 if weight == WEIGHT_BYTES[F32] else BF16)
    straight = 8 * weight * int(matrix.block_mask(8)[: -(-rows // 8)].sum())
    return straight + broadcast_loop_bytes(matrix, target, steps, weight, rows)


def mixed_form(matrix: SparseMatrix, target: Target, dtype: DType) -> tuple[DType, float]:
    """Code is that of the straight-line steps."""
    straight, looped = _mixed_steps(matrix, target, dtype)
    return dtype, max(straight + looped, 1) / max(straight, 1)


def _mixed_steps(matrix: SparseMatrix, target: Target, dtype: DType) -> tuple[int, int]:
    """Steps in straight-line code, and those in loops as many times as they cost more."""
    rows = straight_rows(matrix, target, dtype)
    loop = FAMILY_COSTS["broadcast-loop"].prices[target.isa, dtype]
    line = FAMILY_COSTS["broadcast"].prices[target.isa, dtype]
    looped = broadcast_loop_steps(matrix, target, dtype, rows) * loop.cycles / line.cycles
    return broadcast_steps(matrix, target, dtype, rows), int(looped)


def dense_steps(matrix: SparseMatrix, target: Target, dtype: DType) -> int:
    """Vectors of weights, zeros included."""
    return -(-matrix.out_features // target.lanes) * matrix.in_features


def int8_permute_steps(matrix: SparseMatrix, target: Target, dtype: DType) -> int:
    """Steps, and what quantising x and finishing y cost in them."""
    return sampled_steps(matrix, target) + _int8_ends(matrix, target)


def int8_permute_bytes(matrix: SparseMatrix, target: Target, steps: int, weight: int) -> int:
    """A vector of weights and its indices a step; three vectors for 16 outputs."""
    step_bytes = 64 * weight + 64 // index_sharing_rows(matrix)
    return (steps - _int8_ends(matrix, target)) * step_bytes + 12 * matrix.out_features


def _int8_ends(matrix: SparseMatrix, target: Target) -> int:
    """20 for the step of x, one for sixteen inputs, four for as many outputs: 64x64 in 12 ns."""
    return 20 + (matrix.in_features + 4 * matrix.out_features) // target.lanes


def int8_pairs_steps(matrix: SparseMatrix, target: Target, dtype: DType) -> int:
    """Pairs of inputs by vectors of outputs that hold a nonzero, and what the rest costs in them.

    20 for the step of x, one and a half for the end of a vector of outputs.
    """
    vectors = -(-matrix.out_features // target.lanes)
    return pairs_of(matrix, target.lanes) + 20 + 3 * vectors // 2


def immediate_steps(matrix: SparseMatrix, target: Target, dtype: DType) -> int:
    """Nonzero weights."""
    return matrix.nnz


def as_given(matrix: SparseMatrix, target: Target, dtype: DType) -> tuple[DType, float]:
    """Weights are stored as asked for, and all code runs once."""
    return dtype, 1


def permute_form(matrix: SparseMatrix, target: Target, dtype: DType) -> tuple[DType, float]:
    """Within L1 short weights are stored as float32; folded code runs several times."""
    machine = _permute_machine(matrix, target, dtype)
    return machine.dtype, RowPlan(matrix, machine).runs_of_code


@dataclass(frozen=True)
class FamilyCost:
    """How a family counts its steps and its literals' bytes, and what a step costs.

    `pool_bytes` takes the matrix, the target, the steps and the bytes of a weight; `prices` are
    by instruction set and dtype. `form`, of the matrix, target and dtype, is the dtype in which
    weights are stored, whose price holds, and how often the code runs: all the steps in so many
    times less code. Code arrives `code_rate` times as fast as `Rates` says, which is of
    instructions of five bytes: longer ones carry more. A step takes `weights_a_lane` weights in
    each lane. `padded`: the pool has padding lines where they help.
    """

    steps: Callable[[SparseMatrix, Target, DType], int]
    pool_bytes: Callable[[SparseMatrix, Target, int, int], int]
    prices: dict[tuple[str, DType], StepPrice]
    form: Callable[[SparseMatrix, Target, DType], tuple[DType, float]] = as_given
    code_rate: float = 1.0
    weights_a_lane: int = 1
    padded: bool = False


F32, BF16, F16, INT8 = DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16, DType.INT8
WEIGHT_BYTES = {F32: 4, BF16: 2, F16: 2, INT8: 1}

FAMILY_COSTS: dict[str, FamilyCost] = {
    "permute": FamilyCost(
        permute_steps,
        # A vector of weights a step, and a vector of indices every six (ten) steps.
        lambda matrix, target, steps, weight: (
            steps * target.lanes * weight + steps * target.vector_bytes // 6
        ),
        {
            ("avx512", F32): StepPrice(0.85, 21, "A in 104 ns"),
            ("avx2", F32): StepPrice(0.78, 18.5, "A in 520 ns"),
            ("avx512", BF16): StepPrice(1.2, 28, "256x256 at 80 % in 235 ns, 1152x384 at 98 %"),
            ("avx2", BF16): StepPrice(1.2, 27, "256x256 at 90 % in 1x8 in 244 ns"),
            ("avx512", F16): StepPrice(1.25, 28, "A unpacked: 181 ns"),
            ("avx2", F16): StepPrice(1.3, 24.5, "256x256 at 90 % in 1x8 in 267 ns"),
        },
        permute_form,
        code_rate=1.4,
        padded=True,
    ),
    "lane16": FamilyCost(
        lane16_steps,
        lambda matrix, target, steps, weight: steps * target.vector_bytes,
        {
            ("avx512", F32): StepPrice(0.73, 19, "A-lane in 71 ns"),
            ("avx512", BF16): StepPrice(0.73, 19, "the same kernel as float32"),
        },
        padded=True,
    ),
    "lookup": FamilyCost(
        lookup_steps,
        lookup_bytes,
        {
            ("avx512", F32): StepPrice(1.7, 0.5, "C90 and C95 in 3140 and 2010 ns at 4.0 GHz"),
            ("avx512", BF16): StepPrice(1.55, 0.5, "C90 and C95 in 2840 and 1740 ns"),
            ("avx512", F16): StepPrice(1.9, 0.5, "C90 and C95 in 3500 and 2130 ns"),
        },
    ),
    "broadcast": FamilyCost(
        broadcast_steps,
        lambda matrix, target, steps, weight: 8 * weight * int(matrix.block_mask(8).sum()),
        {
            ("avx512", F32): StepPrice(0.62, 8.5, "B: 1560 steps, 13 KB of code in 215-260 ns"),
            ("avx2", F32): StepPrice(0.72, 8.5, "1152x384 and 1024x1024 at 50 to 80 % zero"),
            ("avx512", BF16): StepPrice(0.51, 13, "B: 20 KB of code in 173 ns; 1x16 0.62"),
            ("avx2", BF16): StepPrice(0.66, 15, "256x256 at 80 to 95 % zero"),
            ("avx512", F16): StepPrice(0.77, 13, "B: 19 KB of code in 266 ns; 1x16 0.86"),
            ("avx2", F16): StepPrice(0.61, 12, "256x256 at 80 to 95 % zero"),
        },
        code_rate=1.25,
        padded=True,
    ),
    "broadcast-loop": FamilyCost(
        broadcast_loop_steps,
        broadcast_loop_bytes,
        {
            ("avx512", F32): StepPrice(1.12, 1, "64x64; code is that of the block rows' ends"),
            ("avx2", F32): StepPrice(1.0, 1, "1152x384 at 80 to 95 % zero"),
            ("avx512", BF16): StepPrice(0.88, 1, "1024x1024 at 5 % in 1x16 in 760 ns"),
            ("avx2", BF16): StepPrice(0.95, 1, "256x256 and 1024x1024 at 50 to 95 % zero"),
            ("avx512", F16): StepPrice(1.0, 1, "1024x1024 at 5 % in 1x16 in 855 ns"),
            ("avx2", F16): StepPrice(0.97, 1, "256x256 and 1024x1024 at 50 to 95 % zero"),
        },
    ),
    "broadcast-mixed": FamilyCost(
        broadcast_mixed_steps,
        broadcast_mixed_bytes,
        {
            ("avx512", F32): StepPrice(0.62, 8.5, "as in broadcast; 1x16 in 983 ns"),
            ("avx512", BF16): StepPrice(0.51, 17, "1x16 in 758 ns, deck in 1947"),
            ("avx512", F16): StepPrice(0.77, 14, "1x16 in 885 ns"),
        },
        mixed_form,
        padded=True,
    ),
    "dense": FamilyCost(
        dense_steps,
        lambda matrix, target, steps, weight: steps * target.lanes * weight,
        {
            ("avx512", F32): StepPrice(0.6, 0.1, "64x64 in 37 ns; a loop, so hardly any code"),
            ("avx2", F32): StepPrice(0.57, 0.1, "64x64 in 67 ns"),
            ("avx512", BF16): StepPrice(0.65, 0.1, "256x256 in 640 ns"),
            ("avx2", BF16): StepPrice(0.6, 0.1, "256x256 and 1024x1024"),
            ("avx512", F16): StepPrice(0.87, 0.1, "256x256 in 828 ns"),
            ("avx2", F16): StepPrice(0.58, 0.1, "256x256 and 1024x1024"),
        },
    ),
    "int8-permute": FamilyCost(
        int8_permute_steps,
        int8_permute_bytes,
        {("avx512", INT8): StepPrice(1.0, 10, "A in 43 ns; 20 bytes, 5 where folded four times")},
        weights_a_lane=4,
        padded=True,
    ),
    "int8-pairs": FamilyCost(
        int8_pairs_steps,
        # Two weights a lane, and the place of their inputs.
        lambda matrix, target, steps, weight: steps * (2 * target.lanes + 4),
        {
            ("avx512", INT8): StepPrice(1.5, 1, "A in 610 ns, C90 in 10.9 us"),
            ("avx2", INT8): StepPrice(1.15, 1, "A in 970 ns, C90 in 15.4 us"),
        },
        weights_a_lane=2,
    ),
    "immediate": FamilyCost(
        immediate_steps,
        lambda matrix, target, steps, weight: 0,
        {
            (isa, F32): StepPrice(1.0, 16, "mov, vmovd and scalar FMA a weight")
            for isa in ISA_LEVELS
        },
    ),
}
