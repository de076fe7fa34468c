"""Choose the kernel of a forest: each kernel is lowered and priced from its counts."""

from dataclasses import dataclass, field
from functools import partial

from sparsejit.asm_templates.forest.kernels import (
    FOREST_KERNELS,
    ForestCounts,
    ForestKernel,
    LoweredForest,
)
from sparsejit.errors import CompileError
from sparsejit.ir.ops.forest import Trees
from sparsejit.machine.target import Target
from sparsejit.planner.cheapest_row import Chosen, TableRow, choose
from sparsejit.planner.cost import cache_level


@dataclass(frozen=True, eq=False)
class ForestWork:
    """Trees for some rows; each kernel that can hold them is lowered once."""

    trees: Trees
    rows: int
    target: Target
    _lowered: dict[str, LoweredForest | CompileError] = field(default_factory=dict, repr=False)

    def lowered(self, kernel: ForestKernel) -> LoweredForest:
        """The trees as a kernel emits them. Raises CompileError where it cannot hold them."""
        if kernel.name not in self._lowered:
            try:
                self._lowered[kernel.name] = kernel.lower(self.trees, self.rows, self.target)
            except CompileError as error:
                self._lowered[kernel.name] = error
        found = self._lowered[kernel.name]
        if isinstance(found, CompileError):
            raise found
        return found


def _applies(kernel: ForestKernel, work: ForestWork) -> bool:
    if work.target.isa not in kernel.levels:
        return False
    try:
        work.lowered(kernel)
    except CompileError:
        return False
    return True


def _ns(kernel: ForestKernel, work: ForestWork) -> float:
    return forest_ns(work.lowered(kernel).counts, work.target)


FORESTS: tuple[TableRow[ForestWork, float], ...] = tuple(
    TableRow(kernel.name, partial(_ns, kernel), partial(_applies, kernel), kernel)
    for kernel in FOREST_KERNELS
)


def plan_forest(trees: Trees, rows: int, target: Target) -> Chosen[ForestWork, float]:
    """Choose the kernel with the least predicted time for `rows` rows.

    Raises CompileError where no kernel can hold the trees.
    """
    work = ForestWork(trees, rows, target)
    if not any(row.applies(work) for row in FORESTS):
        work.lowered(next(k for k in reversed(FOREST_KERNELS) if target.isa in k.levels))
    return choose("forest", FORESTS, work)


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
