"""The row in each lane of a permute kernel: outputs are cut into batches, and rows grouped.

The vectors of outputs are cut into batches; a batch is one piece of code. It sums up four or eight
vectors of outputs at a time and runs `fold` times, advancing through y and through the pool:

    y        v0  v1  v2  v3   v4  v5  v6  v7   v8 ...       vectors of 8 or 16 outputs
             |    run 0    |  |    run 1    |
             |          batch 0 (fold 2)    |  batch 1 ...

Since every run executes the same code, v0 and v4 share one schedule: they are a fold group,
scheduled as if they were one vector of twice the lanes. That costs lanes and halves the code,
which beyond the first cache level arrives more slowly than data does. Outputs that fill no folded
batch follow in batches that run once. Within a run, a row may lie in another lane than its output
(`grouping`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.scheduling.covering import Windows
from sparsejit.asm_templates.scheduling.grouping import (
    StepShape,
    blocks,
    exchanges,
    fullest_together,
    swapped,
)
from sparsejit.whole_numbers import ceil_div

_Numbers = npt.NDArray[np.integer]
_Counts = npt.NDArray[np.uint16]
# Lower bound of the steps of each fold group and window, from each lane's nonzeros in each
# register: (fold groups, lanes, windows, registers) to (fold groups, windows).
Bound = Callable[[_Counts], _Numbers]

# Swaps times registers tried in all: 15 million take about 90 ms.
_MOST_LOOKS = 15_000_000
# For rows that may go anywhere in a panel: vectors of a panel, and limits of looks and sweeps.
PANEL_VECTORS, _ANYWHERE_LOOKS, _MOST_SWEEPS = 32, 15_000_000, 8


@dataclass(frozen=True)
class RowPanel:
    """Equal batches of vectors of outputs: `batches` of them, from vector `first` on.

    The code of each batch runs `fold` times, each time for `accumulators` vectors.
    """

    first: int
    batches: int
    fold: int
    accumulators: int

    @property
    def vectors(self) -> int:
        return self.fold_groups * self.fold

    @property
    def fold_groups(self) -> int:
        return self.batches * self.accumulators

    def first_of(self, batch: int) -> int:
        """Return the first vector of a batch."""
        return self.first + batch * self.fold * self.accumulators

    def by_batch(self, rows: _Numbers, lanes: int) -> _Numbers:
        """Return a view of the panel's rows in all lanes: (batches, fold, accumulators, lanes)."""
        own = rows[self.first * lanes :][: self.vectors * lanes]
        return own.reshape(self.batches, self.fold, self.accumulators, lanes)

    def by_fold_group(self, rows: _Numbers, lanes: int) -> _Numbers:
        """Return the rows of each fold group: (fold groups, lanes of all runs).

        A fold group is the vectors that share steps, one of each run.
        """
        return self.by_batch(rows, lanes).swapaxes(1, 2).reshape(self.fold_groups, -1)


def row_panels(out_features: int, lanes: int, accumulators: int, fold: int) -> list[RowPanel]:
    """Cut the vectors of outputs into panels: folded batches, batches that run once, then the rest.

    Only whole vectors are in folded batches, because these need no masks.
    """
    whole, rest = divmod(ceil_div(out_features, lanes), accumulators)
    folded = out_features // (lanes * accumulators) // fold
    unfolded = whole - folded * fold
    parts = [
        RowPanel(0, folded, fold, accumulators),
        RowPanel(folded * fold * accumulators, unfolded, 1, accumulators),
        RowPanel(whole * accumulators, min(rest, 1), 1, rest),
    ]
    return [part for part in parts if part.vectors]


@dataclass(frozen=True, eq=False)
class RowOrder:
    """An order of rows: the row in each lane, vector after vector.

    A number from out_features on means no row. `exchanges`, in `stages` stages, put the sums into
    the order of y. `steps` is the lower bound of a schedule's steps in this order,
    `steps_as_they_come` the bound for rows in their natural order.
    """

    rows: _Numbers
    stages: int
    exchanges: int
    steps: int
    steps_as_they_come: int


@dataclass(frozen=True)
class Prices:
    """Prices by which orders of rows are compared, in steps.

    `bound` estimates the steps of a schedule, `exchange` is the price of one exchange, and `step`
    has the size of a step.
    """

    bound: Bound
    exchange: float
    step: StepShape

    def of(self, order: RowOrder) -> float:
        """Return the price of an order, in steps."""
        return order.steps + self.exchange * order.exchanges


def row_order(
    counts: _Counts,
    lanes: int,
    parts: Sequence[RowPanel],
    stages: range,
    prices: Prices,
    sweeps: int,
) -> RowOrder:
    """Return the cheapest order of rows, grouped in blocks of 2**stages vectors.

    `counts`: (rows, windows, registers), each row's nonzeros. Without sweeps, rows are not swapped.
    """
    natural = np.arange(max(part.first + part.vectors for part in parts) * lanes)
    none = np.zeros((max(len(natural) - len(counts), 0), *counts.shape[1:]), np.uint16)
    padded = np.concatenate([counts, none])

    def least_steps(rows: _Numbers) -> int:
        wants = ((part.fold, padded[part.by_fold_group(rows, lanes)]) for part in parts)
        return sum(fold * int(prices.bound(want).sum()) for fold, want in wants)

    def changed(rows: _Numbers, stages: int, change: Callable[[_Numbers], _Numbers]) -> RowOrder:
        rows, pairs = rows.copy(), 0
        for part in parts:
            batches = part.by_batch(rows, lanes)
            pairs += part.batches * part.fold * len(list(exchanges(part.accumulators, stages)))
            for first, size in blocks(part.accumulators, stages):
                block = batches[:, :, first : first + size]
                block[...] = change(block.copy())
        return RowOrder(rows, stages, pairs, least_steps(rows), ungrouped)

    def swept(order: RowOrder, sweeps: int) -> RowOrder:
        return changed(
            order.rows, order.stages, lambda rows: swapped(rows, counts, sweeps, prices.step)
        )

    ungrouped = least_steps(natural)
    tried = [
        swept(changed(natural, number, lambda rows: fullest_together(rows, counts)), min(sweeps, 1))
        for number in stages
    ]
    best = min(tried, key=prices.of)
    if not best.stages:
        return best
    looks = len(natural) * lanes * (1 << best.stages) // 2 * counts.shape[1] * counts.shape[2]
    return swept(best, min(sweeps, _MOST_LOOKS // looks) - 1)


def wanted_counts(used: npt.NDArray[np.bool_], windows: Windows, register_inputs: int) -> _Counts:
    """Count each row's nonzeros in a mask (rows, in_features): (rows, windows, registers)."""
    rows, in_features = used.shape
    padded = np.zeros((rows, windows.number * windows.width * register_inputs), bool)
    padded[:, :in_features] = used
    shape = (rows, windows.number, windows.width, register_inputs)
    return padded.reshape(shape).sum(axis=3, dtype=np.uint16)


def by_window(counts: _Counts, windows: Windows) -> _Counts:
    """Split each row's counts of nonzeros by register into (rows, windows, registers)."""
    padded = np.zeros((len(counts), windows.number * windows.width), np.uint16)
    padded[:, : windows.registers] = counts
    return padded.reshape(len(counts), windows.number, windows.width)


def rows_anywhere(used: npt.NDArray[np.bool_], lanes: int) -> list[_Numbers]:
    """Group rows freely within panels; return each panel's rows (vectors, lanes).

    Row numbers from out_features on mean none.

    `used`: a mask (rows, in_features). A step picks from one register of `lanes` inputs. First the
    fullest rows come together, then swaps lower the steps.
    """
    counts = wanted_counts(used, Windows.of(used.shape[1], lanes, used.shape[1]), lanes)
    vectors = ceil_div(len(used), lanes)
    totals = np.zeros(vectors * lanes, np.int64)
    totals[: len(used)] = counts.sum(axis=(1, 2))
    panels: list[_Numbers] = []
    for begin in range(0, vectors, PANEL_VECTORS):
        own = totals[begin * lanes : (begin + PANEL_VECTORS) * lanes]
        held = begin * lanes + np.argsort(-own, kind="stable").reshape(-1, lanes)
        for first, size in blocks(len(held), len(held).bit_length()):
            block = held[None, None, first : first + size]
            looks = vectors * size * lanes**2 * counts.shape[2]
            sweeps = min(max(_ANYWHERE_LOOKS // looks, 1), _MOST_SWEEPS)
            swaps = swapped(block, counts, sweeps, StepShape(1), anywhere=True)
            held[first : first + size] = swaps[0, 0]
        panels.append(held)
    return panels
