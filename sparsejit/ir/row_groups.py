"""Rows of an attention mask that are computed side by side, and the keys any of them may see."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

_BoolArray = npt.NDArray[np.bool_]
_IntArray = npt.NDArray[np.int64]

# Beyond so many comparisons of a key in two rows, rows are only taken in their own order.
_MOST_COMPARISONS = 1 << 30
# What a group costs beside its keys, and one that adds to another, in keys.
_GROUP_KEYS, _ADDED_KEYS = 8, 16
# So many neighbouring rows must see a key for it to count with them where others may take it.
_SHARED_BY = (2, 4, 8)


@dataclass(frozen=True, eq=False)
class RowGroup:
    """Rows, the keys that any of them may see, and which may see which: (keys, rows).

    `adds`: another group, before, has the same rows with other keys.
    """

    rows: _IntArray
    keys: _IntArray
    allowed: _BoolArray
    adds: bool = False


def row_groups(mask: _BoolArray, size: int) -> list[RowGroup]:
    """Groups of at most `size` rows of a mask (queries, keys) that together are the mask.

    The cheapest of: rows in their own order; in the order in which a group grows from the row of
    most keys by the row that adds the fewest; and the first for keys that neighbours share with
    the second, added, for all others. A band and a stride are each cheap in one of these orders.
    """
    own = _cut(np.arange(len(mask)), size)
    choices = [[_group(mask, rows) for rows in own]]
    if mask.all():  # any order costs as much, and adding more
        return choices[0]
    if len(mask) * mask.size <= _MOST_COMPARISONS:
        choices.append([_group(mask, rows) for rows in _cut(_alike(mask, size), size)])
        choices += [_band_and_rest(mask, own, size, least) for least in _SHARED_BY]
    return min(choices, key=_cost)


def _cost(groups: list[RowGroup]) -> int:
    beside = sum(_ADDED_KEYS if group.adds else _GROUP_KEYS for group in groups)
    return beside + sum(len(group.keys) for group in groups)


def _band_and_rest(
    mask: _BoolArray, own: list[_IntArray], size: int, least: int
) -> list[RowGroup]:
    band = mask.copy()
    for rows in own:
        band[np.ix_(rows, mask[rows].sum(axis=0) < least)] = False
    rest = mask & ~band
    some = np.flatnonzero(rest.any(axis=1))
    orders = _cut(some[_alike(rest[some], size)], size)
    added = [replace(_group(rest, rows), adds=True) for rows in orders]
    return [*(_group(band, rows) for rows in own), *added]


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
