"""What a step of every kernel costs on this core, measured on kernels of a small layer in L1.

Every template lowers a layer that fits its caches; what it takes longer than its steps' prices say,
all of them cost more. Kernels take turns, each with a chain of additions beside it that tells the
clock, so that neither another guest nor a change of clock passes for a property of one.
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

# The largest that leaves a quarter of L1 is taken: 1x8 blocks, so that every family fills lanes.
_SIZES = ((256, 64), (128, 64), (64, 64), (32, 32))
_DENSITY, _BLOCK_ROWS = 0.3, 8
_SHARE_OF_L1 = 0.75


def step_prices(target: Target) -> dict[Key, float]:
    """Cycles of a step by kind, level and stored dtype."""
    probes = [_probe(row, target) for row in MATVEC_TEMPLATES if row.made_for(target)]
    found: dict[Key, float] = {}
    for probe, cycles in zip(probes, least_cycles(probes, target), strict=True):
        counts: Counts = probe.lowered.counts
        priced = [step_cycles(target, work.kind, counts.stored) for work in counts.work]
        expected = sum(work.steps * one for work, one in zip(counts.work, priced, strict=True))
        for work, one in zip(counts.work, priced, strict=True):
            key = work.kind, target.isa, counts.stored.value
            # A kind that several templates have is its own family's.
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
