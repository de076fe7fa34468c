"""Cycles of a step of every kernel on this core, measured on kernels of a small layer in L1.

Every template lowers a layer that fits its caches; the prices of its steps are scaled by its
measured time over its predicted time. Kernels take turns, each with a chain of additions beside it
that measures the clock, so that neither another guest nor a change of clock is taken for a property
of a kernel.
"""

import numpy as np

from sparsejit.asm_templates.families import MATVEC_TEMPLATES, Template
from sparsejit.asm_templates.lowered import Counts
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.machine.target import Target
from sparsejit.measuring.kernel_times import SmallKernel, least_cycles
from sparsejit.planner.cost import price, step_cycles

Key = tuple[str, str, str]

# The largest size that leaves a quarter of L1 free is taken. Blocks are 1x8, so that every family
# fills its lanes.
_SIZES = ((256, 64), (128, 64), (64, 64), (32, 32))
_DENSITY, _BLOCK_ROWS = 0.3, 8
_SHARE_OF_L1 = 0.75


def step_prices(target: Target) -> dict[Key, float]:
    """Measured cycles of a step by kind, level and stored dtype."""
    probes = [_probe(row, target) for row in MATVEC_TEMPLATES if row.made_for(target)]
    found: dict[Key, float] = {}
    for probe, cycles in zip(probes, least_cycles(probes, target), strict=True):
        counts: Counts = probe.lowered.counts
        priced = [step_cycles(target, work.kind, counts.stored) for work in counts.work]
        expected = sum(work.steps * one for work, one in zip(counts.work, priced, strict=True))
        for work, one in zip(counts.work, priced, strict=True):
            key = work.kind, target.isa, counts.stored.value
            # A kind that several templates have is measured on the family of its name.
            if work.kind == probe.template.family or key not in found:
                found[key] = one * cycles / expected
    return found


def _probe(row: Template, target: Target) -> SmallKernel:
    for size in _SIZES:
        spec = MatVec(*size, dtype=row.dtype)
        lowered = row.lower(spec, _matrix(size), target)
        cost = price(lowered.counts)
        code_fits = cost.code_bytes <= _SHARE_OF_L1 * target.l1i_bytes
        if code_fits and cost.data_bytes <= _SHARE_OF_L1 * target.l1d_bytes:
            break
    return SmallKernel(row, lowered, spec, cost.ns)


def _matrix(size: tuple[int, int]) -> SparseMatrix:
    random = np.random.default_rng(0)
    blocks = random.random((size[0] // _BLOCK_ROWS, size[1])) < _DENSITY
    weights = random.standard_normal(size).astype(np.float32)
    return SparseMatrix(weights * np.repeat(blocks, _BLOCK_ROWS, axis=0))
