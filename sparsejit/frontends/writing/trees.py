"""Nodes of decision trees as they are added, and searches among intervals of x.

    Nodes           thresholds and rows of the nodes of all trees
    add_search      a step function of x, a tree of tests `x <= threshold` among its bounds
    rounded_down    thresholds for an x of float32

Two examples of step functions are membership in a set of categories, and a test of a number that a
step computes from x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sparsejit.ir.values import Array


@dataclass(eq=False)
class Nodes:
    """Thresholds and rows of the nodes of all trees so far.

    A row is the feature, the left and the right child, and whether missing x goes left.
    """

    thresholds: list[Array] = field(default_factory=list)
    rows: list[Array] = field(default_factory=list)
    count: int = 0

    def add(self, thresholds: Array, rows: Array) -> int:
        """Add nodes, and return the number of the first."""
        self.thresholds.append(np.asarray(thresholds, np.float64))
        self.rows.append(np.asarray(rows, np.int64).reshape(-1, 4))
        self.count += len(thresholds)
        return self.count - len(thresholds)


def add_search(
    nodes: Nodes, feature: int, bounds: Array, goes_to: Sequence[int], missing_to: int
) -> tuple[float, Array]:
    """Add the nodes below the root of a search; return the root's threshold and row.

    `bounds` are the greatest x of each interval but the last, ascending; `goes_to` is the child of
    each interval, `missing_to` the child of missing x.
    """
    whole = np.asarray(goes_to)
    last = np.append(np.flatnonzero(np.diff(whole)), len(whole) - 1)  # of equal children
    children = whole[last].tolist()
    thresholds = np.asarray(bounds, np.float64)[last[:-1]].tolist()
    tests: list[float] = []
    rows: list[tuple[int, int, int, bool]] = []

    def child(first: int, end: int) -> int:
        if first == end:
            return int(children[first])
        middle = (first + end) // 2
        below = child(first, middle), child(middle + 1, end)
        tests.append(thresholds[middle])
        rows.append((feature, *below, missing <= middle))
        return nodes.count + len(rows) - 1

    is_among = missing_to in children and bool(thresholds)
    missing = children.index(missing_to) if is_among else 0
    root = child(0, len(thresholds))
    if not is_among:
        nodes.add(np.array(tests), np.array(rows))
        return np.inf, np.array([feature, root, missing_to, 0])
    nodes.add(np.array(tests[:-1]), np.array(rows[:-1]))
    return tests[-1], np.array(rows[-1])


def rounded_down(thresholds: Array) -> Array:
    """The greatest float32 that is no greater than each threshold."""
    with np.errstate(over="ignore"):
        rounded = thresholds.astype(np.float32)
    with np.errstate(over="ignore"):
        return np.where(rounded > thresholds, np.nextafter(rounded, np.float32(-np.inf)), rounded)
