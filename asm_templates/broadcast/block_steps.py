"""The order of the steps of a tile, one for each vector of outputs in a column, and their lines.

    column       0   0   0   1   1   1          A, B: two 1x8 blocks side by side, full lines
    step         A   c.  .d  B   .e  .f         c d: halves of one column share a line
    line         0   1   1   2   3   .          e, f: halves left over, paired with others
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.shared.tiles import BoolArray, FloatArray, IntArray
from sparsejit.ir.compressed_rows import CompressedRows, distinct

BLOCK_ROWS = 8


@dataclass(frozen=True, eq=False)
class BlockSteps:
    """The multiplications of one tile in order: arrays of one entry a step.

    `kept` (steps, parts) says which 8-row parts of the group have weights, `line` which line of
    the pool holds them. `again`: the input is one of an earlier column, brought once more.
    """

    column: IntArray
    group: IntArray
    kept: BoolArray
    line: IntArray
    again: BoolArray

    @property
    def current(self) -> IntArray:
        """The column that steps have come to, that of the next step where one goes back."""
        return np.where(self.again, np.roll(self.column, -1), self.column)


def in_order_of_columns(weights: CompressedRows, lanes: int) -> BlockSteps:
    """The steps of a tile's weights, column after column."""
    groups = -(-weights.shape[0] // lanes)
    found, step = _steps(weights, lanes)
    column, group = np.divmod(found, groups)
    parts = np.zeros((len(found), lanes // BLOCK_ROWS), bool)
    parts[step, weights.rows % lanes // BLOCK_ROWS] = True
    order = _mates_together(column, parts)
    column, parts = column[order], parts[order]
    lines, again = _lines(column, parts), np.zeros(len(order), bool)
    return BlockSteps(column, group[order], parts, lines, again)


def _steps(weights: CompressedRows, lanes: int) -> tuple[IntArray, IntArray]:
    """Column times groups, plus group, of each step; and the step of each weight."""
    groups = -(-weights.shape[0] // lanes)
    numbers = weights.columns * groups + weights.rows // lanes
    return distinct(numbers, weights.shape[1] * groups)


def in_order_of_lines(steps: BlockSteps) -> BlockSteps:
    """The steps in another order: those that share a line where the later of them was."""
    count = len(steps.line)
    latest = np.zeros(count, np.int64)
    latest[steps.line] = np.arange(count)
    order = np.argsort(latest[steps.line], kind="stable")
    column, line_of = steps.column[order], steps.line[order]
    again = np.append(line_of[1:] == line_of[:-1], False) & (np.roll(column, -1) != column)
    lines = np.cumsum(np.diff(line_of, prepend=-1) != 0) - 1
    return BlockSteps(column, steps.group[order], steps.kept[order], lines, again)


def _mates_together(column: IntArray, kept: BoolArray) -> IntArray:
    """Order of the steps in which the n-th low half of a column precedes its n-th high half."""
    high = ~kept[:, 0]
    rank = np.zeros(len(kept), np.int64)
    for half in (high, ~kept[:, -1]):
        before: IntArray = np.cumsum(half) - half
        rank[half] = (before - before[np.searchsorted(column, column)])[half]
    return np.lexsort((high, rank, column))


def _lines(column: IntArray, kept: BoolArray) -> IntArray:
    """Pool line of each step: mates share one, then the n-th low and n-th high half left over."""
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
    """What lies in the pool, (lines, lanes), of a tile's weights."""
    groups = -(-weights.shape[0] // lanes)
    order = np.argsort(steps.column * groups + steps.group)
    _, step = _steps(weights, lanes)
    lines = int(steps.line.max(initial=-1)) + 1
    pool = np.zeros((lines, lanes), np.float32)
    pool[steps.line[order][step], weights.rows % lanes] = weights.values
    return pool
