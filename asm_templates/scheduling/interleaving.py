"""The order of the steps of several sums, and the number of accumulators of each sum.

The steps of each sum are spread evenly over the steps of all sums. If an accumulator's next
addition would come before its last one has ended, it shares the steps of its sum with others:

    steps        a b a c a b a c ...       half of them belong to sum a,
    accumulators 0 2 1 3 0 2 1 3 ...       which has two accumulators
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.scheduling.covering import Covering
from sparsejit.asm_templates.scheduling.row_order import RowPanel
from sparsejit.whole_numbers import ceil_div

_Numbers = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a panel in order of execution.

    Five arrays have an entry for each step: `region` is window * batches + batch, `vector` the
    vector of the batch, `turn` the step's number among the steps of that vector, `first` and
    `second` the registers of x. `weights` and `indices` (steps, fold, lanes) are float32 and
    uint32; for int8 both are uint32, four bytes each, and a step has only the indices that it
    reads.
    """

    region: _Numbers
    vector: _Numbers
    turn: _Numbers
    first: _Numbers
    second: _Numbers
    weights: npt.NDArray[Any]
    indices: npt.NDArray[np.uint32]

    @classmethod
    def of(
        cls,
        panel: RowPanel,
        schedule: Covering,
        weights: npt.NDArray[Any],
        indices: npt.NDArray[np.uint32],
    ) -> "Steps":
        """Put a panel's schedule, and the weights and indices of its steps, in order."""
        window, fold_group = np.divmod(schedule.problem, panel.fold_groups)
        turn, due = turns(schedule.problem)
        batch, vector = np.divmod(fold_group, panel.accumulators)
        region = window * panel.batches + batch
        order = np.lexsort((fold_group, due, region))
        return cls(
            region[order],
            vector[order],
            turn[order],
            schedule.first[order],
            schedule.second[order],
            weights[order],
            indices[order],
        )

    def of_region(self, number: int) -> "Steps":
        """Return the steps of one batch in one window."""
        begin, end = np.searchsorted(self.region, (number, number + 1))
        return Steps(*(getattr(self, field.name)[begin:end] for field in fields(self)))


def turns(problem: _Numbers) -> tuple[_Numbers, npt.NDArray[np.float64]]:
    """Return each step's number within its problem, and its place between 0 and 1 in time.

    The steps of a problem are evenly spread. `problem`, by step, ascends.
    """
    begin = np.searchsorted(problem, problem)
    end = np.searchsorted(problem, problem, side="right")
    turn = np.arange(len(problem)) - begin
    return turn, (turn + 0.5) / (end - begin)


def accumulators_of(steps: _Numbers, registers: int, apart: int) -> _Numbers:
    """Return the number of accumulators of each sum, by its number of steps.

    `apart` steps lie between two additions to the same accumulator, unless that would take more
    than `registers` accumulators in all.
    """
    ways: _Numbers = np.maximum(1, ceil_div(apart * steps, max(int(steps.sum()), 1)))
    while ways.sum() > registers:
        ways[np.where(ways > 1, steps / np.maximum(ways - 1, 1), np.inf).argmin()] -= 1
    return ways
