"""A pattern for pruning: each of sixteen rows keeps equally many weights of every sixteen inputs.

A step picks from one register of x by `vpermps`, and where the pattern holds no lane is idle. The
four bits of an index are the lowest of the weight itself, so a vector of weights is its own vector
of indices:

    vmovups     zmm8, [rdx+64*7]      sixteen weights, an index in the lowest bits of each
    vpermps     zmm9, zmm8, zmm22     reads only the low 4 bits of a lane
    vfmadd231ps zmm0, zmm9, zmm8      the weight, changed by at most 2**-20 of itself

bfloat16 weights leave half of a lane free, so they are stored as float32 too. This is a form of
`permute`, which explains the rest of the kernel; figures in docs/kernels/gather.md.

Matrices without the pattern are computed too, with idle lanes. An idle lane multiplies zero by
the first input of a register; if that is infinite or NaN, the output may be NaN.
"""

from dataclasses import replace

import numpy as np

from sparsejit.asm_templates.gather.permute import AVX512, LoweredPermute, lower_for
from sparsejit.asm_templates.lowered import Counts, Work
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.machine.target import Target

LANE16 = replace(AVX512, sources=1, index_bits=4, most_stages=0, index_in_weight=True)


def expect(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Return the counts: the most weights of a row in each group and register of inputs, summed."""
    counts = matrix.counts_by_inputs(16)
    groups = np.arange(0, matrix.out_features, 16)
    steps = int(np.maximum.reduceat(counts, groups, axis=0).sum(dtype=np.int64))
    pool_bytes = steps * target.vector_bytes
    return Counts.of(matrix, target, spec.dtype, Work("lane16", steps), pool_bytes, padded=True)


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> LoweredPermute:
    """Lower float32 or bfloat16 weights; `permute.emit` emits the result."""
    return lower_for("lane16", LANE16.priced_on(target), spec, matrix, target)
