"""Choose the kernel of a forest: each kernel is lowered and priced from its counts."""

from dataclasses import dataclass

from sparsejit.asm_templates.forest.kernels import (
    FOREST_KERNELS,
    ForestCounts,
    ForestKernel,
    LoweredForest,
)
from sparsejit.errors import CompileError
from sparsejit.ir.ops.forest import Trees
from sparsejit.machine.target import Target
from sparsejit.planner.cost import cache_level


@dataclass(frozen=True, eq=False)
class ForestPlan:
    """The chosen kernel; `considered` has the predicted nanoseconds of each kernel by name."""

    kernel: ForestKernel
    lowered: LoweredForest
    considered: dict[str, float]

    @property
    def ns(self) -> float:
        return self.considered[self.kernel.name]


def plan_forest(trees: Trees, rows: int, target: Target) -> ForestPlan:
    """Choose the kernel with the least predicted time for `rows` rows.

    Raises CompileError where no kernel can hold the trees.
    """
    lowered: dict[str, tuple[ForestKernel, LoweredForest]] = {}
    refused: CompileError | None = None
    for kernel in FOREST_KERNELS:
        if target.isa in kernel.levels:
            try:
                lowered[kernel.name] = kernel, kernel.lower(trees, rows, target)
            except CompileError as error:
                refused = error
    if not lowered:
        raise refused or CompileError(f"no kernel for forests runs on {target.isa}")
    considered = {name: forest_ns(each.counts, target) for name, (_, each) in lowered.items()}
    best = min(considered, key=considered.__getitem__)
    return ForestPlan(*lowered[best], considered)


def forest_ns(counts: ForestCounts, target: Target) -> float:
    """Predicted nanoseconds of all rows."""
    prices, rates = target.core.forest, target.core.rates
    farther = prices.farther[cache_level(counts.near_bytes, 0, target, target.l1d_bytes)]
    cycles = (
        counts.gathers * prices.gather[target.isa] * farther
        + counts.ranks * prices.rank
        + counts.first_pairs * prices.first_pair
        + counts.pairs * prices.pair * farther
        + counts.groups * prices.group
        + counts.leaves * prices.leaf
        + counts.rows * prices.row
    )
    return cycles / rates.cycles_per_ns
