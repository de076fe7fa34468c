"""Unstructured sparsity: x in registers, and every lane picks its own input out of them.

One step multiplies one weight of each of sixteen rows, wherever in two registers of x the input is:

    index                 19      2     31 ...     five bits a lane: 0-15 in a, 16-31 in b
    vpermi2ps           b[3]   a[2]  b[15] ...     a, b: registers that the instruction names
    vfmadd231ps   sums +=  * weights from the pool, one a lane; 0 in a lane that is idle

    permute          six steps share a vector of indices; AVX2 has only `vpermps`: one register of
                     eight inputs a step, and a float32 holds its index in its own lowest bits
    permute-inline   `INLINE`: each index in the lowest bits of its weight
    lane16           `LANE16`: a pattern, where one register a step leaves no lane idle

In AVX-512 code of `permute`, for the first of the six steps that share one vector of indices:

    vmovups     zmm4, [rdx+64*7]       six indices a lane, 30 bits; once in six steps
    vpsrld      zmm5, zmm4, 5          the next index comes to the low bits       7 bytes
    vpermi2ps   zmm5, zmm9, zmm22      reads only the low 5 bits of a lane        6 bytes
    vfmadd231ps zmm0, zmm5, [rdx+64*8]                                            7 bytes

x and y must not overlap. Idle lanes, the limits of a step and other attempts:
docs/kernels/gather.md.
"""

from dataclasses import replace
from typing import TypeAlias

import numpy as np

from sparsejit.asm_templates.gather.float_elements import FloatElements
from sparsejit.asm_templates.gather.permute_layout import PermuteLayout, RowPlan, layout_of
from sparsejit.asm_templates.gather.permute_machine import Machine
from sparsejit.asm_templates.gather.pieces import LoweredGather
from sparsejit.asm_templates.gather.window_gather import GatherKernel
from sparsejit.asm_templates.lowered import WEIGHT_BYTES, Counts, Work
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler

LoweredPermute: TypeAlias = LoweredGather[PermuteLayout]

AVX512 = Machine(
    lanes=16, sources=2, index_bits=5, inputs=22, accumulators=8, reach=128, most_stages=3,
)  # fmt: skip
AVX2 = Machine(
    lanes=8, sources=1, index_bits=3, inputs=6, accumulators=8, reach=4,
    index_in_weight=True,
)  # fmt: skip
AVX2_SHORT = replace(AVX2, inputs=10, accumulators=4, index_in_weight=False)


# Bytes of the pool for a float32 weight, idle lanes and indices included, at 90 % zero.
_POOL_BYTES_A_WEIGHT = 6.4


def machine_for(spec: MatVec, matrix: SparseMatrix, target: Target) -> Machine:
    """Return the form of the kernel for a layer.

    Within L1 there are no bytes to save: short weights are stored as float32.
    """
    if target.isa == "avx2":
        machine = AVX2 if spec.dtype is DType.FLOAT32 else AVX2_SHORT.storing(spec.dtype)
    else:
        near = _POOL_BYTES_A_WEIGHT * matrix.nnz <= target.l1d_bytes
        machine = AVX512 if near else AVX512.storing(spec.dtype)
    return machine.priced_on(target)


def expect(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Return the counts of rows grouped but not yet swapped, less the usual savings of swaps."""
    return expect_for("permute", machine_for(spec, matrix, target), matrix, target)


def expect_for(kind: str, machine: Machine, matrix: SparseMatrix, target: Target) -> Counts:
    """Return the expected counts on a machine; `kind` is the family whose prices hold."""
    plan = RowPlan(matrix, machine)
    steps = plan.expected_steps
    # A vector of weights a step, and one of packed indices every six or ten steps.
    pool_bytes = steps * target.lanes * WEIGHT_BYTES[machine.dtype]
    if not machine.index_in_weight:
        pool_bytes += steps * target.vector_bytes // machine.fields
    work = Work(kind, steps, plan.runs_of_code)
    return Counts.of(matrix, target, machine.dtype, work, pool_bytes, padded=True)


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> LoweredPermute:
    """Lower to steps of two registers in AVX-512, of one register of half the size in AVX2."""
    return lower_for("permute", machine_for(spec, matrix, target), spec, matrix, target)


def lower_for(
    kind: str, machine: Machine, spec: MatVec, matrix: SparseMatrix, target: Target
) -> LoweredPermute:
    """Lower for a machine; `kind` is the family whose prices hold."""
    layout = layout_of(spec, matrix, machine)
    steps = layout.steps + int(machine.exchange_steps * layout.order.exchanges)
    work = Work(kind, steps, layout.runs_of_code)
    counts = Counts.of(matrix, target, machine.dtype, work, layout.streamed_bytes, padded=True)
    return LoweredGather(spec, layout, counts)


def emit(asm: Assembler, lowered: LoweredPermute) -> None:
    """Append the kernel. x and y must not overlap; see `families` for the contract."""
    spec, layout = lowered.spec, lowered.layout
    GatherKernel(asm, spec, layout, FloatElements(asm, spec, layout)).emit()


# No packed indices, no shift:
#
#     vmovups     zmm5, [rdx+64*8]       sixteen weights, an index in the lowest bits of each
#     vmovaps     zmm6, zmm5             a renamed register, no execution port
#     vpermi2ps   zmm6, zmm9, zmm22      reads only the low 5 bits of a lane
#     vfmadd231ps zmm0, zmm6, zmm5       the weight, changed by at most 2**-19 of itself
#
# It pays where shifts share a port with FMA, and where bytes from L2 limit a kernel: it reads a
# seventh fewer. Short weights leave no room for an index, so they are stored as float32. AVX2 has
# `permute_anywhere` in its place.
INLINE_KIND = "permute-inline"
INLINE = replace(AVX512, index_in_weight=True)


def expect_inline(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Return the expected counts as `expect`, without packed indices."""
    return expect_for(INLINE_KIND, INLINE.priced_on(target), matrix, target)


def lower_inline(spec: MatVec, matrix: SparseMatrix, target: Target) -> LoweredPermute:
    """Lower weights of any dtype to float32, with their index inside."""
    return lower_for(INLINE_KIND, INLINE.priced_on(target), spec, matrix, target)


# A pattern for pruning: each of sixteen rows keeps equally many weights of every sixteen inputs.
# The four bits of an index are the lowest of the weight itself, so a vector of weights is its own
# vector of indices:
#
#     vmovups     zmm8, [rdx+64*7]      sixteen weights, an index in the lowest bits of each
#     vpermps     zmm9, zmm8, zmm22     reads only the low 4 bits of a lane
#     vfmadd231ps zmm0, zmm9, zmm8      the weight, changed by at most 2**-20 of itself
#
# bfloat16 weights leave half of a lane free, so they are stored as float32 too. Matrices without
# the pattern are computed too, with idle lanes. An idle lane multiplies zero by the first input of
# a register; if that is infinite or NaN, the output may be NaN.
LANE16 = replace(AVX512, sources=1, index_bits=4, most_stages=0, index_in_weight=True)


def expect_lane16(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Return the counts: the most weights of a row in each group and register of inputs, summed."""
    counts = matrix.counts_by_inputs(16)
    groups = np.arange(0, matrix.out_features, 16)
    steps = int(np.maximum.reduceat(counts, groups, axis=0).sum(dtype=np.int64))
    pool_bytes = steps * target.vector_bytes
    return Counts.of(matrix, target, spec.dtype, Work("lane16", steps), pool_bytes, padded=True)


def lower_lane16(spec: MatVec, matrix: SparseMatrix, target: Target) -> LoweredPermute:
    """Lower float32 or bfloat16 weights; `emit` emits the result."""
    return lower_for("lane16", LANE16.priced_on(target), spec, matrix, target)
