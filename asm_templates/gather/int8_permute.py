"""int8 for any sparsity: x in registers as bytes, and every lane picks four of its inputs.

Sixteen outputs are the 32-bit lanes of an accumulator, and 64 inputs the bytes of a register. One
step multiplies up to four weights of each of the sixteen rows, wherever in two registers of x
their inputs lie:

    vmovups  zmm4, [r8+64*7]           64 indices, seven bits each           7 bytes
    vpermi2b zmm4, zmm9, zmm22         64 inputs, out of these two registers 6 bytes
    vpdpbusd zmm0, zmm4, [rdx+64*8]    lane += its four products             7 bytes

The instruction names the two registers. `int8-single` picks from one, by more steps, whose `vpermb`
takes half of `vpermi2b`'s time on some processors; so it pays while its longer streams come from
L1. Blocks of 1x8 and 1x16 need only eight or four indices in place of 64, which `vpbroadcastq` and
`vpbroadcastd` repeat as they load them.

`vpdpbusd` takes unsigned inputs, so 128 is added to each, and a sum starts at -128 times the sum
of its row's weights. That start, or an intermediate sum, may wrap around; the final sum cannot
(`int8_boundary`), so it is right. x and y must not overlap (`window_gather`). The limits of a step,
and other attempts: docs/kernels/gather.md.
"""

from sparsejit.asm_templates.gather.int8_elements import Int8Elements
from sparsejit.asm_templates.gather.int8_layout import (
    LANES,
    Int8Form,
    Int8Layout,
    expected_steps,
    layout_of,
)
from sparsejit.asm_templates.gather.pieces import LoweredGather
from sparsejit.asm_templates.gather.window_gather import GatherKernel
from sparsejit.asm_templates.lowered import Counts, Work
from sparsejit.asm_templates.scheduling.int8_schedule import PRODUCTS
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler

# By rows of a block: blocks share indices while they have at most this many weights, zeros
# included, a nonzero; with more, separate indices would take fewer bytes than the zeros.
_INDEX_SHARING = {16: 1.25, 8: 1.25}
MOST_FOLD = 4  # code is folded as far as it takes to fit the first cache level
_STEP_CODE_BYTES = 20
_LANE_USE = 0.6  # at 95 % zero and with the ends of runs, to tell how much code there will be
_POOL_BYTES_A_WEIGHT = 2.8  # at 90 % zero
# A try takes about 0.5 us a nonzero, so schedules take 0.15 s, or as long as one try takes.
_TRIED_NNZ, _MOST_TRIES = 300_000, 4


def index_sharing_rows(matrix: SparseMatrix) -> int:
    """Return how many neighbouring rows share their indices, as their zeros agree: 16, 8 or 1."""
    for rows_of_block, most_zeros in _INDEX_SHARING.items():
        if int(matrix.block_mask(rows_of_block).sum()) * rows_of_block <= most_zeros * matrix.nnz:
            return rows_of_block
    return 1


def fold_of(matrix: SparseMatrix, target: Target) -> int:
    """Return the fold: how often the code of a batch of outputs runs, each time for other outputs.

    Large matrices have larger folds, so that the code fits L1.
    """
    code_bytes = matrix.nnz / (LANES * PRODUCTS * _LANE_USE) * _STEP_CODE_BYTES
    fold = 1
    while fold < MOST_FOLD and code_bytes > fold * target.l1i_bytes:
        fold *= 2
    return fold


def exchange_steps(matrix: SparseMatrix, target: Target) -> float:
    """Return an exchange's cost in steps; 0 beyond L1, where larger blocks save the cost again."""
    near = _POOL_BYTES_A_WEIGHT * matrix.nnz <= target.l1d_bytes
    return target.core.layouts.int8_exchange if near else 0.0


def expect(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Return the counts that follow from the lower bound of the steps."""
    return expect_for("int8-permute", 2, matrix, target)


def expect_for(kind: str, sources: int, matrix: SparseMatrix, target: Target) -> Counts:
    """Return expected counts; steps pick from `sources` registers and have the prices of `kind`."""
    spec = MatVec(matrix.out_features, matrix.in_features, dtype=DType.INT8)
    steps = expected_steps(spec, matrix, _form(sources, matrix, target, tries=1))
    return _counts(kind, matrix, target, steps)


def _form(sources: int, matrix: SparseMatrix, target: Target, tries: int) -> Int8Form:
    fold, sharing_rows = fold_of(matrix, target), index_sharing_rows(matrix)
    return Int8Form(fold, sharing_rows, sources, exchange_steps(matrix, target), tries)


def _counts(kind: str, matrix: SparseMatrix, target: Target, steps: int) -> Counts:
    """Return the counts, with quantising x and finishing y counted in steps.

    20 for the scale of x, one for sixteen inputs, four for sixteen outputs. A step reads a vector
    of weights and its indices; sixteen outputs read three vectors.
    """
    ends = 20 + (matrix.in_features + 4 * matrix.out_features) // target.lanes
    step_bytes = target.vector_bytes + target.vector_bytes // index_sharing_rows(matrix)
    pool_bytes = steps * step_bytes + 12 * matrix.out_features
    work = Work(kind, steps + ends)
    return Counts.of(matrix, target, DType.INT8, work, pool_bytes, padded=True)


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> LoweredGather[Int8Layout]:
    """Quantise, order and schedule."""
    return lower_for("int8-permute", 2, spec, matrix, target)


def lower_for(
    kind: str, sources: int, spec: MatVec, matrix: SparseMatrix, target: Target
) -> LoweredGather[Int8Layout]:
    """Lower to steps that pick from `sources` registers and have the prices of `kind`."""
    tries = min(max(_TRIED_NNZ // max(matrix.nnz, 1), 1), _MOST_TRIES)
    layout = layout_of(spec, matrix, _form(sources, matrix, target, tries))
    return LoweredGather(spec, layout, _counts(kind, matrix, target, layout.steps))


def emit(asm: Assembler, lowered: LoweredGather[Int8Layout]) -> None:
    """Append the int8 permute kernel; needs VBMI and VNNI. x and y must not overlap.

    See `families` for the contract.
    """
    spec, layout = lowered.spec, lowered.layout
    GatherKernel(asm, spec, layout, Int8Elements(asm, spec, layout, lowered.kept)).emit()


# Steps that pick from one register of x, of a cheaper permute:
#
#     vmovups  zmm4, [r8+64*7]           64 indices, six bits each
#     vpermb   zmm4, zmm4, zmm9          64 inputs, out of this register
#     vpdpbusd zmm0, zmm4, [rdx+64*8]    lane += its four products
SINGLE_KIND = "int8-single"


def expect_single(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Return the counts of steps that pick from one register."""
    return expect_for(SINGLE_KIND, 1, matrix, target)


def lower_single(spec: MatVec, matrix: SparseMatrix, target: Target) -> LoweredGather[Int8Layout]:
    """Quantise, order and schedule steps that pick from one register; `emit` emits them."""
    return lower_for(SINGLE_KIND, 1, spec, matrix, target)
