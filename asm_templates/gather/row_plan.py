"""Cutting and ordering the rows of a matrix for a permute kernel."""

from dataclasses import dataclass

from sparsejit.asm_templates.gather.permute_machine import Machine
from sparsejit.asm_templates.scheduling.covering import Windows
from sparsejit.asm_templates.scheduling.grouping import SWEEPS, StepShape
from sparsejit.asm_templates.scheduling.row_order import (
    Prices,
    RowOrder,
    RowPanel,
    by_window,
    row_order,
    row_panels,
)
from sparsejit.ir.sparse_matrix import SparseMatrix

# Steps after swaps, relative to the bound before any swap: 0.93 to 1.0.
_SWAPPED = 0.96


@dataclass(frozen=True, eq=False)
class RowPlan:
    """Panels and windows of a matrix for a machine, before its rows are ordered."""

    matrix: SparseMatrix
    machine: Machine

    @property
    def windows(self) -> Windows:
        machine = self.machine
        return Windows.of(self.matrix.in_features, machine.lanes, machine.inputs)

    @property
    def panels(self) -> list[RowPanel]:
        machine, fold = self.machine, self.machine.fold_for(self.matrix)
        return row_panels(self.matrix.out_features, machine.lanes, machine.accumulators, fold)

    @property
    def runs_of_code(self) -> float:
        """Average number of runs of a kernel's code, over the vectors of outputs."""
        panels = self.panels
        return sum(part.vectors for part in panels) / sum(part.fold_groups for part in panels)

    @property
    def expected_steps(self) -> int:
        """Approximate number of a kernel's steps, with its exchanges counted in steps."""
        saved = _SWAPPED if self.machine.most_stages else 1
        return int(self._prices.of(self.order(sweeps=0)) * saved) + 1

    def order(self, sweeps: int = SWEEPS) -> RowOrder:
        """Return the order of rows; see `row_order`."""
        machine = self.machine
        counts = by_window(self.matrix.counts_by_inputs(machine.lanes), self.windows)
        stages = range(machine.most_stages + 1)
        return row_order(counts, machine.lanes, self.panels, stages, self._prices, sweeps)

    @property
    def _prices(self) -> Prices:
        machine = self.machine
        return Prices(machine.least_steps, machine.exchange_steps, StepShape(machine.sources))
