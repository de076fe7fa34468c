"""`int8-permute` that picks from one register of x: more steps, of a cheaper permute.

    vmovups  zmm4, [r8+64*7]           64 indices, six bits each
    vpermb   zmm4, zmm4, zmm9          64 inputs, out of this register
    vpdpbusd zmm0, zmm4, [rdx+64*8]    lane += its four products

`vpermb` takes half of `vpermi2b`'s time on some processors, so it pays while its longer streams
come from L1. This is a form of `int8_permute`, which explains the rest of the kernel.
"""

from sparsejit.asm_templates.gather.int8_layout import Int8Layout
from sparsejit.asm_templates.gather.int8_permute import expect_for, lower_for
from sparsejit.asm_templates.gather.pieces import LoweredGather
from sparsejit.asm_templates.lowered import Counts
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.machine.target import Target

KIND = "int8-single"


def expect(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Return the counts that follow from the lower bound of the steps."""
    return expect_for(KIND, 1, matrix, target)


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> LoweredGather[Int8Layout]:
    """Quantise, order and schedule; `int8_permute.emit` emits it."""
    return lower_for(KIND, 1, spec, matrix, target)
