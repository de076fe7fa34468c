"""Forests behind transformers that keep features apart: their tests, seen from X.

A transformer that never decreases, rounding included, leaves `transform(x) <= t` true up to some x
and false from there on. That x, found by bisection with the transformer itself over all numbers of
x's element, takes the place of t: so the pipeline is the forest alone, and exact. An imputer sends
NaN where its number goes; a selector renames features. Where some x are missing to the forest, or
are a category, a test becomes a search among intervals.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.frontends.column_steps import (
    SELECTORS,
    each_step,
    filling_of,
    kept_categories,
    parts_of,
)
from sparsejit.frontends.forest_nodes import Nodes, add_search
from sparsejit.frontends.forest_probes import Gap, Probes, Seen
from sparsejit.frontends.forest_reading import ReadForest, rounded_down
from sparsejit.ir.graph import Array, Element, TensorType

MONOTONE = frozenset(
    """
    MaxAbsScaler MinMaxScaler PowerTransformer QuantileTransformer RobustScaler SimpleImputer
    StandardScaler
    """.split()
)
BEFORE_FORESTS = SELECTORS | MONOTONE


def behind(
    steps: Sequence[Any], x: TensorType, forest: ReadForest, is_sparse: bool = False
) -> ReadForest:
    """The forest of X itself, without the steps before it; its thresholds are of X's element.

    With a sparse X it takes features twice: with zeros, then with NaN for zeros that X leaves out.
    """
    rounds = forest.rounds_x and x.element is Element.FLOAT64
    found = _without_steps(steps, x, forest, is_sparse) if steps or rounds or is_sparse else forest
    if x.element is Element.FLOAT64:
        return found
    thresholds, nodes, leaves, trees, base = found.operands
    return replace(found, operands=(rounded_down(thresholds), nodes, leaves, trees, base))


def _without_steps(
    steps: Sequence[Any], x: TensorType, forest: ReadForest, is_sparse: bool
) -> ReadForest:
    features, dtype = x.shape[1], np.dtype(x.element.value)
    if np.isinf(forest.missing):
        raise InvalidInput(
            f"the XGBoost model takes {forest.missing} for missing behind other steps or beside "
            "other estimators; fit it on NaN for what is missing"
        )
    steps = _forgiving(steps)
    own = forest.rounds_x, forest.missing, forest.skips_zeros
    probes = Probes(steps, features, dtype, *own, is_sparse)
    source, category = _places(steps, np.arange(features), np.full(features, np.nan))
    if len(source) != forest.features:
        raise InvalidInput(
            f"the steps before the forest give {len(source)} features, and it takes "
            f"{forest.features}; fit them together"
        )
    thresholds, nodes = _Tests.of(probes, source, category, forest).seen_from_x()
    operands = (thresholds, nodes, *forest.operands[2:])
    width = 2 * features if is_sparse else features
    return replace(forest, features=width, missing=np.nan, operands=operands)


@dataclass(frozen=True, eq=False)
class _Tests:
    """The nodes of a forest, and what its features are of x.

    `thresholds` are those of x where a feature rises with x; `gaps` the x for which it does not, by
    feature; `others` and `own` are of x that is none of a feature's category, and of the category;
    `left_out` of zeros that a sparse X leaves out.
    """

    probes: Probes
    source: Array
    category: Array
    compared: Array
    rows: Array
    thresholds: Array
    gaps: dict[int, list[Gap]]
    missing: Seen
    others: Seen
    own: Seen
    left_out: Seen | None

    @classmethod
    def of(
        cls, probes: Probes, source: Array, category: Array, forest: ReadForest
    ) -> "_Tests":
        compared, rows = forest.operands[:2]
        rises = np.isnan(category)
        tested = rises[rows[:, 0]]
        thresholds = np.full(len(rows), np.nan)
        thresholds[tested] = probes.greatest(source, rows[tested, 0], compared[tested])
        used = np.unique(rows[tested, 0])
        gaps = probes.gaps(source, used) if len(used) else {}
        others, own = probes.category_rows(source, category)
        left_out = probes.left_out_row() if probes.is_sparse else None
        return cls(
            *(probes, source, category, compared, rows, thresholds, gaps),
            *(probes.missing_row(), others, own, left_out),
        )

    def seen_from_x(self) -> tuple[Array, Array]:
        """Thresholds and rows of nodes that test x; the first are in the places of the old."""
        feature = self.rows[:, 0]
        rows, thresholds = self.rows.copy(), self.thresholds.copy()
        rows[:, 0] = self.source[feature]
        filled = ~self.missing.is_missing[0, feature]
        rows[filled, 3] = self.missing.values[0, feature[filled]] <= self.compared[filled]
        searched = ~np.isnan(self.category)[feature] | np.isin(feature, [*self.gaps])
        if self.left_out is not None:
            searched[:] = True
        more = Nodes(count=len(rows))
        for node in np.flatnonzero(searched).tolist():
            thresholds[node], rows[node] = self._search(more, node)
        return np.concatenate([thresholds, *more.thresholds]), np.concatenate([rows, *more.rows])

    def _search(self, nodes: Nodes, node: int) -> tuple[float, Array]:
        """Threshold and row of the root of a search that stands for a node."""
        feature = int(self.source[self.rows[node, 0]])
        bounds, goes_to = self._intervals(node)
        missing_to = self._child(node, self.missing)
        if self.left_out is None:
            return add_search(nodes, feature, bounds, goes_to, missing_to)
        left_out_to = self._child(node, self.left_out)
        if left_out_to == goes_to[int(np.searchsorted(bounds, 0.0))]:
            return add_search(nodes, feature, bounds, goes_to, missing_to)
        if left_out_to != missing_to:
            row = np.array([feature, left_out_to, missing_to, 0])
            missing_to = nodes.add(np.array([np.inf]), row)
        return add_search(nodes, self.probes.features + feature, bounds, goes_to, missing_to)

    def _intervals(self, node: int) -> tuple[Array, list[int]]:
        """The greatest x of each interval but the last, and the child that each goes to."""
        output = self.rows[node, 0]
        category, (left, right) = self.category[output], self.rows[node, 1:3].tolist()
        if not np.isnan(category):
            other, matched = (self._child(node, seen) for seen in (self.others, self.own))
            bounds = np.array([np.nextafter(category, -np.inf), category])
            return bounds, [other, matched, other]
        threshold, gaps = self.thresholds[node], self.gaps.get(int(output), [])
        edges = np.unique([threshold, *(edge for gap in gaps for edge in (gap.above, gap.last))])
        ends = np.append(edges, np.inf)
        goes_to = np.where(ends <= threshold, left, right)
        for gap in gaps:
            goes_to[(ends > gap.above) & (ends <= gap.last)] = self._child(node, gap.seen)
        return edges, goes_to.tolist()

    def _child(self, node: int, seen: Seen) -> int:
        """Where a row that is seen goes from a node."""
        output, left, right, missing_left = self.rows[node].tolist()
        if seen.is_missing[0, output]:
            return left if missing_left else right
        return left if seen.values[0, output] <= self.compared[node] else right


def _forgiving(steps: Sequence[Any]) -> list[Any]:
    """Copies that refuse nothing: an unknown category is none, and a sparse X may be negative."""
    copied = copy.deepcopy(list(steps))
    for step in each_step(copied):
        if type(step).__name__ == "OneHotEncoder":
            step.handle_unknown = "ignore"
        elif type(step).__name__ == "QuantileTransformer":
            step.ignore_implicit_zeros = True
    return copied


def _places(steps: Sequence[Any], source: Array, category: Array) -> tuple[Array, Array]:
    """By output of the steps the feature that it is of, and of which category; NaN for none."""
    scaled = False
    for step in steps:
        kind = type(step).__name__
        if kind in SELECTORS:
            kept = step.get_support(indices=True)
            source, category = source[kept], category[kept]
        elif kind == "ColumnTransformer":
            parts = [
                _places(part.steps, source[part.columns], category[part.columns])
                for part in parts_of(step, len(source))
            ]
            source, category = (np.concatenate(each) for each in zip(*parts, strict=True))
        elif kind == "SimpleImputer":
            filling = filling_of(step)
            kept = np.concatenate([filling.kept, filling.marked])
            source, category = source[kept], category[kept]
        elif kind == "OneHotEncoder":
            if scaled or not np.isnan(category).all():
                raise InvalidInput("a OneHotEncoder stands behind a scaler; let it take X itself")
            kept = kept_categories(step)
            source = np.repeat(source, [len(each) for each in kept])
            category = np.concatenate(kept)
        scaled = scaled or (kind in MONOTONE and kind != "SimpleImputer")
    return source, category
