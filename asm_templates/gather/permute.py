"""Unstructured sparsity: x in registers, and every lane picks its own input out of them.

One step multiplies one weight of each of sixteen rows, wherever in two registers of x the input is:

    index                 19      2     31 ...     five bits a lane: 0-15 in a, 16-31 in b
    vpermi2ps           b[3]   a[2]  b[15] ...     a, b: registers that the instruction names
    vfmadd231ps   sums +=  * weights from the pool, one a lane; 0 in a lane that is idle

In AVX-512 code, for the first of the six steps that share one vector of indices:

    vmovups     zmm4, [rdx+64*7]       six indices a lane, 30 bits; once in six steps
    vpsrld      zmm5, zmm4, 5          the next index comes to the low bits       7 bytes
    vpermi2ps   zmm5, zmm9, zmm22      reads only the low 5 bits of a lane        6 bytes
    vfmadd231ps zmm0, zmm5, [rdx+64*8]                                            7 bytes

AVX2 has only `vpermps`: one register of eight inputs a step, and a float32 holds its index in its
own lowest bits. x and y must not overlap. Idle lanes, the limits of a step and other attempts:
docs/kernels/gather.md.
"""

from dataclasses import replace
from typing import TypeAlias

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
