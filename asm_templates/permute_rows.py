"""Which row lies in which lane of a permute kernel: outputs cut into batches, rows grouped.

The outputs, a vector of them at a time, are cut into batches; a batch is one piece of code. It
has four or eight vectors of outputs under way and runs `fold` times, moving on through y and
through the pool:

    y        v0  v1  v2  v3   v4  v5  v6  v7   v8 ...       vectors of 8 or 16 outputs
             |    run 0    |  |    run 1    |
             |          batch 0 (fold 2)    |  batch 1 ...

Since every run executes the same code, v0 and v4 share one schedule: they are a team, scheduled
as if they were one vector of twice the lanes. That costs lanes (1024x1024 at 90 %: 8020 steps
become 8650) and halves the code, which beyond the first cache level arrives more slowly than data
does. Outputs that fill no folded batch follow in batches that run once.

Within a run rows may lie in other lanes than those of their outputs (`grouping`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.grouping import SWEEPS, blocks, exchanges, fullest_together, swapped
from sparsejit.asm_templates.permute_machine import Machine
from sparsejit.asm_templates.schedule import Windows
from sparsejit.matrix import SparseMatrix

_Numbers = npt.NDArray[np.integer]
_Counts = npt.NDArray[np.uint16]

# An exchange takes 1.55 cycles, a step 0.85.
_EXCHANGE_STEPS = 1.8
# How many steps there will be, where the bound before any swap is one: 0.93 to 1.0.
_SWAPPED = 0.96
# Swaps times registers looked at in all: 15 million take about 90 ms.
_MOST_LOOKS = 15_000_000


@dataclass(frozen=True)
class Strip:
    """`vectors` vectors of outputs from number `first` on, in batches of the same fold.

    A batch sums at most `accumulators` vectors at a time; where `fold` is above 1, exactly so many.
    """

    first: int
    vectors: int
    fold: int
    accumulators: int

    @property
    def batches(self) -> int:
        return -(-self.vectors // (self.accumulators * self.fold))

    @property
    def teams(self) -> int:
        return self.vectors // self.fold

    def abreast(self, batch: int) -> int:
        """Vectors of outputs that a batch sums at a time."""
        return min(self.accumulators, self.teams - batch * self.accumulators)

    def first_of(self, batch: int) -> int:
        """The first vector of a batch."""
        return self.first + batch * self.accumulators * self.fold

    def by_batch(self, rows: _Numbers, lanes: int) -> Iterator[_Numbers]:
        """Views of the rows in all lanes: first of all whole batches, then of the last.

        Each (batches, fold, vectors abreast, lanes).
        """
        first = self.first * lanes
        whole, rest = divmod(self.teams, self.accumulators)
        for batches, abreast in ((whole, self.accumulators), (1, rest)):
            shape = (batches, self.fold, abreast, lanes)
            if prod(shape):
                yield rows[first : first + prod(shape)].reshape(shape)
            first += prod(shape)

    def by_team(self, rows: _Numbers, lanes: int) -> _Numbers:
        """Of the rows in all lanes those of each team, (teams, lanes of all runs)."""
        batches = (part.swapaxes(1, 2) for part in self.by_batch(rows, lanes))
        return np.concatenate([part.reshape(-1, self.fold * lanes) for part in batches])


def strips(out_features: int, machine: Machine, fold: int) -> list[Strip]:
    """As many whole vectors as fill folded batches, then the rest unfolded."""
    vectors, accumulators = -(-out_features // machine.lanes), machine.accumulators
    whole = out_features // machine.lanes
    folded = whole - whole % (accumulators * fold) if fold > 1 else 0
    parts = [Strip(0, folded, fold, accumulators)]
    parts.append(Strip(folded, vectors - folded, 1, accumulators))
    return [part for part in parts if part.vectors]


@dataclass(frozen=True, eq=False)
class RowOrder:
    """The row in every lane, vector after vector; numbers from out_features on mean none.

    `stages` of `exchanges` in all put the sums in order. No schedule has fewer than `steps`, nor,
    of rows as they come, fewer than `steps_as_they_come`.
    """

    rows: _Numbers
    stages: int
    exchanges: int
    steps: int
    steps_as_they_come: int

    @property
    def price(self) -> float:
        """In steps."""
        return self.steps + _EXCHANGE_STEPS * self.exchanges


def row_order(
    matrix: SparseMatrix, machine: Machine, windows: Windows, parts: list[Strip], swaps: bool = True
) -> RowOrder:
    """The order with the least steps and exchanges, among blocks of up to 2**most_stages vectors.

    Without `swaps`, as it is before rows are swapped.
    """
    counts = _counts(matrix, windows, machine.lanes)
    natural = np.arange(-(-matrix.out_features // machine.lanes) * machine.lanes)

    def changed(rows: _Numbers, stages: int, change: Callable[[_Numbers], _Numbers]) -> RowOrder:
        rows = rows.copy()
        pairs = 0
        for strip in parts:
            for batches in strip.by_batch(rows, machine.lanes):
                number, runs, vectors, _ = batches.shape
                pairs += number * runs * len(list(exchanges(vectors, stages)))
                for first, size in blocks(vectors, stages):
                    block = batches[:, :, first : first + size]
                    block[...] = change(block.copy())
        return RowOrder(rows, stages, pairs, _least_steps(rows, counts, machine, parts), ungrouped)

    def swept(order: RowOrder, sweeps: int) -> RowOrder:
        return changed(order.rows, order.stages, lambda rows: swapped(rows, counts, sweeps))

    ungrouped = _least_steps(natural, counts, machine, parts)
    tried = [
        changed(natural, stages, lambda rows: fullest_together(rows, counts))
        for stages in range(machine.most_stages + 1)
    ]
    if not swaps:
        return min(tried, key=lambda order: order.price)
    best = min((swept(order, 1) for order in tried), key=lambda order: order.price)
    looks = len(natural) * machine.lanes * (1 << best.stages) // 2 * windows.registers
    return swept(best, min(SWEEPS, _MOST_LOOKS // looks) - 1)


def expected_steps(matrix: SparseMatrix, machine: Machine) -> int:
    """About how many steps a kernel has, its exchanges counted in steps."""
    windows = Windows.of(matrix.in_features, machine.lanes, machine.inputs)
    parts = strips(matrix.out_features, machine, machine.fold_for(matrix))
    order = row_order(matrix, machine, windows, parts, swaps=False)
    return int(order.price * (_SWAPPED if machine.most_stages else 1)) + 1


def runs_of_code(matrix: SparseMatrix, machine: Machine) -> float:
    """How often the code of a kernel runs, on average over the vectors of outputs."""
    parts = strips(matrix.out_features, machine, machine.fold_for(matrix))
    return sum(part.vectors for part in parts) / sum(part.teams for part in parts)


def _counts(matrix: SparseMatrix, windows: Windows, lanes: int) -> _Counts:
    """Nonzeros of each row in each register: (out_features, windows, registers)."""
    width = windows.number * windows.width * lanes
    used = np.zeros((matrix.out_features, width), bool)
    used[:, : matrix.in_features] = matrix.dense != 0
    shape = (matrix.out_features, windows.number, windows.width, lanes)
    return used.reshape(shape).sum(axis=3, dtype=np.uint16)


def _least_steps(rows: _Numbers, counts: _Counts, machine: Machine, parts: list[Strip]) -> int:
    """What bounds the steps of a schedule from below; see `schedule`."""
    padded = np.concatenate(
        [counts, np.zeros((len(rows) - len(counts), *counts.shape[1:]), np.uint16)]
    )
    steps = 0
    for strip in parts:
        wants = padded[strip.by_team(rows, machine.lanes)]
        fullest_lane = wants.sum(axis=3, dtype=np.int64).max(axis=1)
        by_register = wants.max(axis=1).sum(axis=2, dtype=np.int64)
        least = np.maximum(fullest_lane, -(-by_register // machine.sources))
        steps += strip.fold * int(least.sum())
    return steps
