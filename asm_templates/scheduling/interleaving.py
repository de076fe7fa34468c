"""In what order the steps of several sums follow each other, and how many accumulators each has.

A sum's steps are spread evenly over those of all sums, and where an accumulator's turn would come
again before the last addition to it has ended, it shares its steps with others:

    steps        a b a c a b a c ...       half of them are those of sum a,
    accumulators 0 2 1 3 0 2 1 3 ...       which has two accumulators
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.scheduling.covering import Covering
from sparsejit.asm_templates.scheduling.row_order import RowPanel

_Numbers = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a panel in order of execution.

    `region` (window * batches + batch), `vector` of the batch, `turn` among the steps of that
    vector, `first`, `second`: shape (steps,). `weights` and `indices`: (steps, fold, lanes),
    float32 and uint32; of int8 both uint32, four bytes each, and as many indices as a step reads.
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
        """A panel's schedule, and the weights and indices of its steps, put in order."""
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
        """The steps of one batch in one window."""
        begin, end = np.searchsorted(self.region, (number, number + 1))
        return Steps(*(getattr(self, field.name)[begin:end] for field in fields(self)))


def turns(problem: _Numbers) -> tuple[_Numbers, npt.NDArray[np.float64]]:
    """For steps in order of problem: the number within its problem, and when it is due, 0 to 1."""
    begin = np.searchsorted(problem, problem)
    end = np.searchsorted(problem, problem, side="right")
    turn = np.arange(len(problem)) - begin
    return turn, (turn + 0.5) / (end - begin)


def accumulators_of(steps: _Numbers, registers: int, apart: int) -> _Numbers:
    """How many of so many accumulators each sum gets, by its number of steps.

    So many that `apart` steps lie between two that add to the same, as far as registers go.
    """
    ways: _Numbers = np.maximum(1, -(-apart * steps // max(int(steps.sum()), 1)))
    while ways.sum() > registers:
        ways[np.where(ways > 1, steps / np.maximum(ways - 1, 1), np.inf).argmin()] -= 1
    return ways
