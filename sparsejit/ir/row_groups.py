"""Groups of rows of an attention mask that are computed side by side, and their keys."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

_BoolArray = npt.NDArray[np.bool_]
_IntArray = npt.NDArray[np.int64]

# Most comparisons of a key in two rows; above that, rows are only grouped in their own order.
_MOST_COMPARISONS = 1 << 30
# Cost of a group beside its keys, and of a group that adds to another, in keys.
_GROUP_KEYS, _ADDED_KEYS = 8, 16
# Least rows of a group that see a key, if the group is to take it and not an added one.
_SHARED_BY = (2, 4, 8)


@dataclass(frozen=True, eq=False)
class RowGroup:
    """Query rows of an attention mask, the keys that any of them may see, and the mask of both.

    `allowed` is (keys, rows). `adds`: earlier groups have these rows with other keys, so that
    results are added to theirs.
    """

    rows: _IntArray
    keys: _IntArray
    allowed: _BoolArray
    adds: bool = False


def row_groups(mask: _BoolArray, size: int) -> list[RowGroup]:
    """Divide a mask (queries, keys) into groups of at most `size` rows.

    The cheapest of three: rows in their own order; groups that grow from the row of most keys by
    the row that adds the fewest keys; and groups of the first kind for keys that neighbouring rows
    share, with groups of the second kind added for all other keys. A band and a stride are each
    cheap in one of these orders.
    """
    own = _cut(np.arange(len(mask)), size)
    choices = [[_group(mask, rows) for rows in own]]
    if mask.all():  # all orders cost the same, and added groups more
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
    """The rows in an order in which each group of `size` rows sees similar keys."""
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
