"""Order of a tile's steps, one for each vector of outputs in a column, and their pool lines.

    column       0   0   0   1   1   1          A, B: two 1x8 blocks side by side, full lines
    step         A   c.  .d  B   .e  .f         c d: halves of one column share a line
    line         0   1   1   2   3   .          e, f: halves that are left, paired with others
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.shared.tiles import BoolArray, FloatArray, IntArray
from sparsejit.ir.compressed_rows import CompressedRows, distinct
from sparsejit.whole_numbers import ceil_div

BLOCK_ROWS = 8


@dataclass(frozen=True, eq=False)
class BlockSteps:
    """The multiplications of one tile in order: arrays of one entry a step.

    `kept` (steps, parts): the 8-row parts of the group that have weights. `line`: the line of the
    pool that holds them. `again`: the input belongs to an earlier column and is loaded again.
    """

    column: IntArray
    group: IntArray
    kept: BoolArray
    line: IntArray
    again: BoolArray

    @property
    def current(self) -> IntArray:
        """The column that steps have reached; a step with `again` has the next step's column."""
        return np.where(self.again, np.roll(self.column, -1), self.column)


def in_order_of_columns(weights: CompressedRows, lanes: int) -> BlockSteps:
    """The steps of a tile's weights, column after column."""
    groups = ceil_div(weights.shape[0], lanes)
    found, step = _steps(weights, lanes)
    column, group = np.divmod(found, groups)
    parts = np.zeros((len(found), lanes // BLOCK_ROWS), bool)
    parts[step, weights.rows % lanes // BLOCK_ROWS] = True
    order = _mates_together(column, parts)
    column, parts = column[order], parts[order]
    lines, again = _lines(column, parts), np.zeros(len(order), bool)
    return BlockSteps(column, group[order], parts, lines, again)


def _steps(weights: CompressedRows, lanes: int) -> tuple[IntArray, IntArray]:
    """Return column * groups + group of each step, and the step of each weight."""
    groups = ceil_div(weights.shape[0], lanes)
    numbers = weights.columns * groups + weights.rows // lanes
    return distinct(numbers, weights.shape[1] * groups)


def in_order_of_lines(steps: BlockSteps) -> BlockSteps:
    """Return the steps in another order: steps that share a line move to the later one's place."""
    count = len(steps.line)
    latest = np.zeros(count, np.int64)
    latest[steps.line] = np.arange(count)
    order = np.argsort(latest[steps.line], kind="stable")
    column, line_of = steps.column[order], steps.line[order]
    again = np.append(line_of[1:] == line_of[:-1], False) & (np.roll(column, -1) != column)
    lines = np.cumsum(np.diff(line_of, prepend=-1) != 0) - 1
    return BlockSteps(column, steps.group[order], steps.kept[order], lines, again)


def _mates_together(column: IntArray, kept: BoolArray) -> IntArray:
    """Return the order in which a column's n-th low half is just before its n-th high half."""
    high = ~kept[:, 0]
    rank = np.zeros(len(kept), np.int64)
    for half in (high, ~kept[:, -1]):
        before: IntArray = np.cumsum(half) - half
        rank[half] = (before - before[np.searchsorted(column, column)])[half]
    return np.lexsort((high, rank, column))


def _lines(column: IntArray, kept: BoolArray) -> IntArray:
    """Return the pool line of each step.

    Two adjacent halves of a column share a line; then the n-th low and n-th high half that are left
    share one.
    """
    line_of = np.arange(len(kept))
    low, high = ~kept[:, -1], ~kept[:, 0]
    mate = high & np.roll(low, 1) & (np.diff(column, prepend=-1) == 0)
    line_of[mate] -= 1
    single = ~(mate | np.roll(mate, -1))
    lows, highs = np.flatnonzero(low & single), np.flatnonzero(high & single)
    pairs = min(len(lows), len(highs))
    lows, highs = lows[:pairs], highs[:pairs]
    line_of[lows] = line_of[highs] = np.minimum(lows, highs)
    return np.unique(line_of, return_inverse=True)[1]


def lines_of_weights(weights: CompressedRows, steps: BlockSteps, lanes: int) -> FloatArray:
    """Return a tile's weights as they lie in the pool, (lines, lanes)."""
    groups = ceil_div(weights.shape[0], lanes)
    order = np.argsort(steps.column * groups + steps.group)
    _, step = _steps(weights, lanes)
    lines = int(steps.line.max(initial=-1)) + 1
    pool = np.zeros((lines, lanes), np.float32)
    pool[steps.line[order][step], weights.rows % lanes] = weights.values
    return pool
