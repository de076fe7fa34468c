"""`permute` with each index in the lowest five bits of its weight: no packed indices, no shift.

    vmovups     zmm5, [rdx+64*8]       sixteen weights, an index in the lowest bits of each
    vmovaps     zmm6, zmm5             a renamed register, no execution port
    vpermi2ps   zmm6, zmm9, zmm22      reads only the low 5 bits of a lane
    vfmadd231ps zmm0, zmm6, zmm5       the weight, changed by at most 2**-19 of itself

It pays where shifts share a port with FMA, and where bytes from L2 limit a kernel: it reads a
seventh fewer. Short weights leave no room for an index, so they are stored as float32. This is a
form of `permute`, which explains the rest of the kernel. AVX2 has `permute_anywhere` in its place.
"""

from dataclasses import replace

from sparsejit.asm_templates.gather.permute import AVX512, LoweredPermute, expect_for, lower_for
from sparsejit.asm_templates.lowered import Counts
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.machine.target import Target

KIND = "permute-inline"
INLINE = replace(AVX512, index_in_weight=True)


def expect(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Return the expected counts as `permute.expect`, without indices."""
    return expect_for(KIND, INLINE.priced_on(target), matrix, target)


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> LoweredPermute:
    """Lower weights of any dtype to float32, with their index inside."""
    return lower_for(KIND, INLINE.priced_on(target), spec, matrix, target)
