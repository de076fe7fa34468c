"""Rows of an attention mask that are computed side by side, and the keys any of them may see."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_BoolArray = npt.NDArray[np.bool_]
_IntArray = npt.NDArray[np.int64]

# Beyond so many comparisons of a key in two rows, rows are only taken in their own order.
_MOST_COMPARISONS = 1 << 30


@dataclass(frozen=True, eq=False)
class RowGroup:
    """Rows, the keys that any of them may see, and which may see which: (keys, rows)."""

    rows: _IntArray
    keys: _IntArray
    allowed: _BoolArray


def row_groups(mask: _BoolArray, size: int) -> list[RowGroup]:
    """All rows of a mask (queries, keys) in groups of `size`, the last of those left.

    Of two orders the one with fewer keys in all groups: the rows' own, and that in which a group
    grows from the row of most keys by the row that adds the fewest.
    """
    orders = [np.arange(len(mask))]
    if len(mask) * mask.size <= _MOST_COMPARISONS:
        orders.append(_alike(mask, size))
    choices = [[_group(mask, rows) for rows in _cut(order, size)] for order in orders]
    return min(choices, key=lambda groups: sum(len(group.keys) for group in groups))


def share_needed(mask: _BoolArray, size: int) -> float:
    """The share of all keys that groups of `size` rows look at."""
    groups = row_groups(mask, size)
    return sum(len(group.keys) for group in groups) / max(1, len(groups) * mask.shape[1])


def _cut(order: _IntArray, size: int) -> list[_IntArray]:
    return [np.sort(order[first : first + size]) for first in range(0, len(order), size)]


def _group(mask: _BoolArray, rows: _IntArray) -> RowGroup:
    own = mask[rows]
    keys = np.flatnonzero(own.any(axis=0))
    return RowGroup(rows, keys, own[:, keys].T)


def _alike(mask: _BoolArray, size: int) -> _IntArray:
    """Rows so ordered that those of a group see the same keys."""
    numbers, counts = mask.astype(np.float32), mask.sum(axis=1)
    left, order = np.ones(len(mask), bool), []
    while left.any():
        row = int(np.where(left, counts, -1).argmax())
        unseen = np.ones(mask.shape[1], np.float32)
        for _ in range(min(size, int(left.sum()))):
            order.append(row)
            left[row] = False
            unseen[mask[row]] = 0
            row = int(np.where(left, numbers @ unseen, np.inf).argmin())
    return np.array(order, np.int64)
