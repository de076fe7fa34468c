"""What a step of every kernel costs on this core, measured on kernels of a small layer in L1.

Every template lowers a layer that fits its caches; what it takes longer than its steps' prices say,
all of them cost more. Kernels take turns, each with a chain of additions beside it that tells the
clock, so that neither another guest nor a change of clock passes for a property of one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.families import MATVEC_TEMPLATES, Template
from sparsejit.asm_templates.lowered import Counts
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.machine.target import Target
from sparsejit.measuring.core_loops import CHAIN_CYCLES, dependent_additions, function_of
from sparsejit.planner.cost import price, step_cycles
from sparsejit.runtime.native_timing import aligned, duration_ns, native_loop, pinned

Key = tuple[str, str, str]

_CHAIN_CALLS = 16
_ROUNDS, _MOST_ROUNDS = 12, 48
_SAMPLE_NS = 150_000.0
# Of cycles in one half of the rounds to those in the other: beyond, other work disturbed them.
_MOST_DIFFERENCE = 1.08
# The largest that leaves a quarter of L1 is taken: 1x8 blocks, so that every family fills lanes.
_SIZES = ((256, 64), (128, 64), (64, 64), (32, 32))
_DENSITY, _BLOCK_ROWS = 0.3, 8
_SHARE_OF_L1 = 0.75


@dataclass(frozen=True)
class _SmallKernel:
    """A template's kernel of a layer. `expected` are the cycles of its steps as they are priced."""

    template: Template
    counts: Counts
    expected: float
    loop: Callable[[int], None]
    calls: int
    held: object

    def ns(self) -> float:
        return duration_ns(self.loop, self.calls) / self.calls


def step_prices(target: Target) -> dict[Key, float]:
    """Cycles of a step by kind, level and stored dtype."""
    probes = [_probe(row, target) for row in MATVEC_TEMPLATES if row.made_for(target)]
    found: dict[Key, float] = {}
    for probe, cycles in zip(probes, _least_cycles(probes, target), strict=True):
        for work in probe.counts.work:
            key = work.kind, target.isa, probe.counts.stored.value
            # A kind that several templates have is its own family's.
            if work.kind == probe.template.family or key not in found:
                priced = step_cycles(target, work.kind, probe.counts.stored)
                found[key] = priced * cycles / probe.expected
    return found


def _probe(row: Template, target: Target) -> _SmallKernel:
    for size in _SIZES:
        spec, matrix = MatVec(*size, dtype=row.dtype), _matrix(size)
        lowered = row.lower(spec, matrix, target)
        counts: Counts = lowered.counts
        cost = price(counts)
        code_fits = cost.code_bytes <= _SHARE_OF_L1 * target.l1i_bytes
        if code_fits and cost.data_bytes <= _SHARE_OF_L1 * target.l1d_bytes:
            break
    memory = function_of(target, lambda asm: row.emit(asm, lowered))
    x = aligned(np.random.default_rng(0).standard_normal(spec.in_features).astype(np.float32))
    y = aligned(np.zeros(spec.out_features, np.float32))
    loop = native_loop([(memory.address, (x.ctypes.data, y.ctypes.data))])
    expected = sum(
        work.steps * step_cycles(target, work.kind, counts.stored) for work in counts.work
    )
    calls = max(1, round(_SAMPLE_NS / (cost.ns + 10)))
    return _SmallKernel(row, counts, expected, loop, calls, (memory, x, y))


def _matrix(size: tuple[int, int]) -> SparseMatrix:
    random = np.random.default_rng(0)
    blocks = random.random((size[0] // _BLOCK_ROWS, size[1])) < _DENSITY
    weights = random.standard_normal(size).astype(np.float32)
    return SparseMatrix(weights * np.repeat(blocks, _BLOCK_ROWS, axis=0))


def _least_cycles(probes: Sequence[_SmallKernel], target: Target) -> list[float]:
    """Of a call of each.

    What other work kept disturbing counts as well: with one kernel at a measured price and its
    rival at an assumed one, choices are worse than with both a little too dear.
    """
    memory = function_of(target, dependent_additions)
    chain = native_loop([(memory.address, ())])
    halves = np.full((2, len(probes)), np.inf)
    steady = np.zeros(len(probes), bool)
    with pinned():
        for a_round in range(_MOST_ROUNDS):
            if a_round % _ROUNDS == 0 and steady.all():
                break
            for number, probe in enumerate(probes):
                if steady[number]:
                    continue
                chain_ns = min(duration_ns(chain, _CHAIN_CALLS) for _ in range(2))
                cycles = probe.ns() * CHAIN_CYCLES * _CHAIN_CALLS / chain_ns
                halves[a_round % 2, number] = min(cycles, halves[a_round % 2, number])
            if a_round % _ROUNDS == _ROUNDS - 1:
                steady = halves.max(axis=0) <= _MOST_DIFFERENCE * halves.min(axis=0)
    return [float(one) for one in halves.min(axis=0)]
