"""SHAP values of boosted trees, as their libraries' `predict` has them.

The players of a tree's game are the features that its library sees, behind all steps; its nodes
compare X. A test that has become a search among intervals of X, such as for membership in a set of
categories, is a column of 0 and 1 behind X. Both libraries add base scores and average nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsejit.estimators.forest_reading import ReadForest, Splits
from sparsejit.estimators.forests import compared_x
from sparsejit.estimators.writer import EstimatorWriter, Write
from sparsejit.frontends.writing.arranging import joined, reshaped
from sparsejit.ir.ops.forest import Contributions
from sparsejit.ir.values import Array, Element, Value


def contribution_methods(estimator: Any, forest: ReadForest) -> dict[str, Write]:
    """The function that writes SHAP values, float64, in the library's shape.

    Empty where a booster's samples are not counted, and where a test reads several columns of X.
    """
    splits = forest.splits
    searches = None if splits is None else _searches(forest, splits)
    if splits is None or searches is None:
        return {}
    columns = splits.features + 1
    is_flat = type(estimator).__module__.startswith("lightgbm") or forest.outputs == 1

    def write(writer: EstimatorWriter) -> Value:
        found = _contributions(writer, forest, splits, searches)
        shape = writer.batch, forest.outputs * columns
        return reshaped(writer, found, shape) if is_flat else found

    return {"pred_contrib": write}


@dataclass(frozen=True, eq=False)
class _Searches:
    """Tests that several nodes make together, each of one column of x.

    By test: its place among a forest's splits, its column, and the side to which missing x goes, 0
    for the left, 1 for the right. It has ascending `bounds`, from `begins` on, and a side for each
    interval up to a bound and for the last one.
    """

    place: Array
    column: Array
    missing: Array
    begins: Array
    bounds: Array
    sides: Array


def _contributions(
    writer: EstimatorWriter, forest: ReadForest, splits: Splits, searches: _Searches
) -> Value:
    """Write SHAP values (batch, outputs, features + 1)."""
    x = compared_x(writer, forest)
    element = x.type.element
    thresholds, nodes, leaves, trees, base = forest.operands
    own, tests = thresholds[splits.number], nodes[splits.number].copy()
    is_swapped = (tests[:, 1:3] == splits.children[:, ::-1]).all(axis=1)
    shares = np.where(is_swapped[:, None], splits.shares[:, ::-1], splits.shares)
    if len(searches.place):
        tests[searches.place, 0] = x.shape[1] + np.arange(len(searches.place))
        tests[searches.place, 1:3] = splits.children[searches.place]
        own[searches.place] = 0.5
        known = searches.column, searches.begins, searches.bounds
        ends = searches.sides[:, None], searches.missing
        found = writer.at("searches").joined_pieces(x, *known, *ends, element)
        x = joined(writer, [x, found], 1)
    inner = tests[:, 1:3] >= 0
    tests[:, 1:3][inner] = np.searchsorted(splits.number, tests[:, 1:3][inner])
    trees = trees.copy()
    is_node = trees[:, 0] >= 0
    trees[is_node, 0] = np.searchsorted(splits.number, trees[is_node, 0])
    wide = [leaves[:, 0].astype(np.float64), base.astype(np.float64)]
    if forest.rest is not None:
        wide = [whole + rest.ravel() for whole, rest in zip(wide, forest.rest, strict=True)]
    operands = [
        writer.constant(own, "contributions.thresholds", element),
        writer.constant(np.column_stack([tests, splits.feature]), "contributions.nodes"),
        writer.constant(wide[0], "contributions.leaves", Element.FLOAT64),
        writer.constant(trees, "contributions.trees"),
        writer.constant(wide[1], "contributions.base", Element.FLOAT64),
        writer.constant(shares, "contributions.shares", Element.FLOAT64),
    ]
    op = Contributions(splits.features + 1, element)
    return writer.at("contributions").one(op, x, *operands)


def _searches(forest: ReadForest, splits: Splits) -> _Searches | None:
    """The tests of splits that several nodes make; None where one reads several columns of x."""
    thresholds, nodes = forest.operands[:2]
    tests = nodes[splits.number, 1:3]
    ends = splits.children
    place = np.flatnonzero((tests != ends).any(axis=1) & (tests != ends[:, ::-1]).any(axis=1))
    roots, ends = splits.number[place], ends[place]
    owner, node = _below(nodes, roots, ends)
    column = nodes[roots, 0]
    if (nodes[node, 0] != column[owner]).any():
        return None
    order = np.lexsort((thresholds[node], owner))
    owner, bounds = owner[order], thresholds[node][order].astype(np.float64)
    is_first = np.append(True, (np.diff(owner) != 0) | (np.diff(bounds) != 0))[: len(owner)]
    owner, bounds = owner[is_first], bounds[is_first]
    begins = np.searchsorted(owner, np.arange(len(place) + 1))
    # A point of each interval, the last of which are infinite, and NaN for each test.
    points = np.full(len(bounds) + len(place), np.inf)
    points[np.arange(len(bounds)) + owner] = bounds
    which = np.repeat(np.arange(len(place)), np.diff(begins) + 1)
    sides = _sides(forest, ends, np.append(which, np.arange(len(place))), points, roots)
    intervals = len(points)
    return _Searches(place, column, sides[intervals:], begins, bounds, sides[:intervals])


def _sides(forest: ReadForest, ends: Array, which: Array, points: Array, roots: Array) -> Array:
    """The side to which each test sends its points, 0 or 1; behind the points each has NaN."""
    thresholds, nodes = forest.operands[:2]
    every = np.append(points, np.full(len(which) - len(points), np.nan))
    state, waiting = roots[which], np.arange(len(which))
    while waiting.size:
        at, x = state[waiting], every[waiting]
        goes_left = np.where(np.isnan(x), nodes[at, 3] != 0, x <= thresholds[at])
        state[waiting] = np.where(goes_left, nodes[at, 1], nodes[at, 2])
        waiting = waiting[(state[waiting, None] != ends[which[waiting]]).all(axis=1)]
    return (state == ends[which, 1]).astype(np.float64)


def _below(nodes: Array, roots: Array, ends: Array) -> tuple[Array, Array]:
    """The nodes from each root down to its two ends, as numbers of roots and of nodes."""
    owner, node = np.arange(len(roots)), roots
    found = [np.zeros((2, 0), np.int64)]
    while len(node):
        found.append(np.stack([owner, node]))
        children = nodes[node, 1:3]
        inside = (children[:, :, None] != ends[owner][:, None]).all(axis=2)
        pairs = (owner[:, None] * len(nodes) + children)[inside]
        owner, node = np.divmod(np.unique(pairs), len(nodes))
    owner, node = np.concatenate(found, axis=1)
    return owner, node
