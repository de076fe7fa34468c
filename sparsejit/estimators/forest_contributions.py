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
    for the left, 1 for the right. It has ascending `bounds`, and a side for each interval up to a
    bound and for the last one.
    """

    place: Array
    column: Array
    missing: Array
    bounds: list[Array]
    sides: list[Array]


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
        pieces = [sides[:, None].astype(np.float64) for sides in searches.sides]
        known = searches.column.tolist(), searches.bounds, pieces, searches.missing.tolist()
        x = joined(writer, [x, writer.at("searches").pieces(x, *known, element)], 1)
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
    bounds = np.unique(np.column_stack([owner, thresholds[node]]), axis=0)
    counts = np.bincount(bounds[:, 0].astype(np.int64), minlength=len(place))
    firsts = np.cumsum(counts)[:-1]
    each = np.split(bounds[:, 1], firsts) if len(place) else []
    points = np.concatenate([np.zeros(0), *(np.append(own, [np.inf, np.nan]) for own in each)])
    which = np.repeat(np.arange(len(place)), counts + 2)
    state = roots[which]
    waiting = np.arange(len(state))
    while waiting.size:
        at, x = state[waiting], points[waiting]
        goes_left = np.where(np.isnan(x), nodes[at, 3] != 0, x <= thresholds[at])
        state[waiting] = np.where(goes_left, nodes[at, 1], nodes[at, 2])
        waiting = waiting[(state[waiting, None] != ends[which[waiting]]).all(axis=1)]
    sides = (state == ends[which, 1]).astype(np.int64)
    found = np.split(sides, np.cumsum(counts + 2)[:-1]) if len(place) else []
    missing = np.array([own[-1] for own in found], np.int64)
    return _Searches(place, column, missing, each, [own[:-1] for own in found])


def _below(nodes: Array, roots: Array, ends: Array) -> tuple[Array, Array]:
    """The nodes from each root down to its two ends, as numbers of roots and of nodes."""
    owner, node = np.arange(len(roots)), roots
    found = [np.zeros((0, 2), np.int64)]
    while len(node):
        found.append(np.column_stack([owner, node]))
        children = nodes[node, 1:3]
        inside = (children[:, :, None] != ends[owner][:, None]).all(axis=2)
        pairs = np.column_stack([np.repeat(owner, 2), children.ravel()])[inside.ravel()]
        owner, node = np.unique(pairs, axis=0).T
    owner, node = np.concatenate(found).T
    return owner, node
