"""Forests behind columnwise transformers, rewritten as forests of X.

For a transformer that never decreases, rounding included, `transform(x) <= t` is true up to some x
and false above it. That x takes the place of t; bisection with the transformer itself finds it
among all numbers of x's element. So a forest alone stands for the pipeline, exactly. NaN goes where
an imputer's number goes; a selector renumbers features. Where some x count as missing for the
forest, or are a category, a test becomes a search among intervals.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.column_steps import (
    SELECTORS,
    filling_of,
    kept_categories,
    parts_of,
)
from sparsejit.estimators.forest_probes import Gap, Probes, Seen, accepting
from sparsejit.estimators.forest_reading import ReadForest
from sparsejit.estimators.transformers import marked_by
from sparsejit.frontends.writing.trees import Nodes, add_search, rounded_down
from sparsejit.ir.values import Array, Element, TensorType

MONOTONE = frozenset(
    """
    Binarizer KBinsDiscretizer MaxAbsScaler MinMaxScaler PowerTransformer QuantileTransformer
    Ranked RobustScaler SimpleImputer StandardScaler
    """.split()
)
BEFORE_FORESTS = SELECTORS | MONOTONE | {"MissingIndicator"}


def behind(
    steps: Sequence[Any], x: TensorType, forest: ReadForest, is_sparse: bool = False
) -> ReadForest:
    """Return the forest of X itself, without the steps; its thresholds are of X's element.

    With a sparse X it reads features twice: with zeros, then with NaN for zeros that X leaves out.
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
            f"the XGBoost model has missing={forest.missing} and follows other steps or is one of "
            "several estimators; fit it with NaN for missing values"
        )
    steps = accepting(steps)
    own = forest.rounds_x, forest.missing, forest.skips_zeros
    probes = Probes(steps, features, dtype, *own, is_sparse)
    outputs = _Outputs(np.arange(features), np.full(features, np.nan), np.zeros(features, bool))
    outputs = outputs.behind(steps)
    if len(outputs.source) != forest.features:
        raise InvalidInput(
            f"the steps before the forest give {len(outputs.source)} features, and it takes "
            f"{forest.features}; fit them together"
        )
    thresholds, nodes = _Tests.of(probes, outputs, forest).seen_from_x()
    operands = (thresholds, nodes, *forest.operands[2:])
    width = 2 * features if is_sparse else features
    return replace(forest, features=width, missing=np.nan, operands=operands)


@dataclass(frozen=True, eq=False)
class _Outputs:
    """The outputs of steps, which are the features of the forest behind them.

    `source` is the feature of X behind each output; `category` the category that an encoder's
    output stands for, else NaN; `is_mark` is true for an imputer's indicator of NaN.
    `widths` are the outputs of each part, if the last step is a ColumnTransformer.
    """

    source: Array
    category: Array
    is_mark: Array
    widths: tuple[int, ...] = ()

    def take(self, kept: Array) -> "_Outputs":
        return _Outputs(self.source[kept], self.category[kept], self.is_mark[kept])

    @classmethod
    def joined(cls, parts: Sequence["_Outputs"]) -> "_Outputs":
        """The outputs of parts side by side."""
        return cls(
            np.concatenate([each.source for each in parts]),
            np.concatenate([each.category for each in parts]),
            np.concatenate([each.is_mark for each in parts]),
        )

    def behind(self, steps: Sequence[Any]) -> "_Outputs":
        """The outputs of further steps that read these."""
        found, is_scaled = self, False
        for step in steps:
            found = found._stepped(step, is_scaled)
            kind = type(step).__name__
            is_scaled = is_scaled or (kind in MONOTONE and kind != "SimpleImputer")
        return found

    def _stepped(self, step: Any, is_scaled: bool) -> "_Outputs":
        kind = type(step).__name__
        if kind in SELECTORS:
            return self.take(step.get_support(indices=True))
        if kind == "ColumnTransformer":
            parts = parts_of(step, len(self.source))
            made = [self.take(part.columns).behind(part.steps) for part in parts]
            return replace(self.joined(made), widths=tuple(len(each.source) for each in made))
        if kind == "SimpleImputer":
            filling = filling_of(step)
            marks = self.take(filling.marked)
            marks.is_mark[:] = True
            return self.joined([self.take(filling.kept), marks])
        if kind == "KBinsDiscretizer" and step.encode != "ordinal":
            raise InvalidInput(
                f"a KBinsDiscretizer of encode={step.encode!r} follows a scaler; apply it to X "
                "itself"
            )
        if kind == "MissingIndicator":
            marks = self.take(marked_by(step))
            marks.is_mark[:] = True
            return marks
        if kind == "OneHotEncoder":
            if is_scaled or not np.isnan(self.category).all():
                raise InvalidInput("a OneHotEncoder follows a scaler; apply it to X itself")
            kept = kept_categories(step)
            source = np.repeat(self.source, [len(each) for each in kept])
            return _Outputs(source, np.concatenate(kept), np.zeros(len(source), bool))
        return self


@dataclass(frozen=True, eq=False)
class _Tests:
    """The nodes of a forest, and the values that its features have for chosen x.

    `compared` are the forest's own thresholds; `thresholds` are of x, for features that rise with
    x; `gaps` are the intervals of x in which such a feature counts as missing or is left out. The
    features' values are `missing` for NaN, `others` for x unlike a feature's category, `own` for
    the category, `numbers` for x other than NaN, where a feature is a mark, and `left_out` for
    zeros that a sparse X leaves out.
    """

    probes: Probes
    outputs: _Outputs
    compared: Array
    rows: Array
    thresholds: Array
    gaps: dict[int, list[Gap]]
    missing: Seen
    others: Seen
    own: Seen
    numbers: Seen
    left_out: Seen | None

    @classmethod
    def of(cls, probes: Probes, outputs: _Outputs, forest: ReadForest) -> "_Tests":
        compared, rows = forest.operands[:2]
        source, category = outputs.source, outputs.category
        rises = np.isnan(category) & ~outputs.is_mark
        tested = rises[rows[:, 0]]
        thresholds = np.full(len(rows), np.nan)
        used, place = np.unique(rows[tested, 0], return_inverse=True)
        gaps: dict[int, list[Gap]] = {}
        if len(used):
            narrow, kept = probes, np.arange(len(source))
            if len(probes.steps) == 1 and outputs.widths:
                narrow, kept = probes.narrowed(outputs.widths, used)
            places = np.searchsorted(kept, used)
            thresholds[tested] = narrow.greatest(source[kept], places[place], compared[tested])
            found = narrow.gaps(source[kept], places)
            for output, intervals in found.items():
                gaps[int(kept[output])] = [each.among(len(source), kept) for each in intervals]
        others, own = probes.category_rows(source, category)
        numbers = probes.compared(np.ones((1, probes.features)))
        left_out = probes.left_out_row() if probes.is_sparse else None
        return cls(
            *(probes, outputs, compared, rows, thresholds, gaps),
            *(probes.missing_row(), others, own, numbers, left_out),
        )

    def seen_from_x(self) -> tuple[Array, Array]:
        """Thresholds and rows of nodes that test x; the first replace the old nodes in place."""
        feature = self.rows[:, 0]
        rows, thresholds = self.rows.copy(), self.thresholds.copy()
        rows[:, 0] = self.outputs.source[feature]
        filled = ~self.missing.is_missing[0, feature]
        rows[filled, 3] = self.missing.values[0, feature[filled]] <= self.compared[filled]
        never_rises = ~np.isnan(self.outputs.category) | self.outputs.is_mark
        searched = never_rises[feature] | np.isin(feature, [*self.gaps])
        more = Nodes(count=len(rows))
        if self.left_out is not None:
            searched[:] = True
        else:
            of_categories = ~np.isnan(self.outputs.category[feature])
            self._compare_categories(more, np.flatnonzero(of_categories), thresholds, rows)
            searched &= ~of_categories
        for node in np.flatnonzero(searched).tolist():
            thresholds[node], rows[node] = self._search(more, node)
        return np.concatenate([thresholds, *more.thresholds]), np.concatenate([rows, *more.rows])

    def _compare_categories(
        self, more: Nodes, nodes: Array, thresholds: Array, rows: Array
    ) -> None:
        """Replace tests of encoders' outputs, all at once, by tests for x equal to a category.

        Such a test is x <= category, then on the left x <= the number below it. A node whose
        missing x goes to neither child gets a test before it, which only NaN fails.
        """
        category = self.outputs.category[self.rows[nodes, 0]]
        feature = rows[nodes, 0]
        other, matched, missing = (
            self._children(nodes, seen) for seen in (self.others, self.own, self.missing)
        )
        misses_matched = (missing == matched).astype(np.int64)
        below = np.column_stack([feature, other, matched, 1 - misses_matched])
        first = more.add(np.nextafter(category, -np.inf), below)
        lower = first + np.arange(len(nodes))
        root = np.column_stack([feature, lower, other, np.ones_like(feature)])
        same = other == matched
        root[same, 1], category = other[same], np.where(same, np.inf, category)
        root[same, 3] = missing[same] == other[same]
        root[same, 2] = missing[same]
        apart = (missing != other) & (missing != matched) & ~same
        inner = more.add(category[apart], root[apart])
        root[apart, 1] = inner + np.arange(np.count_nonzero(apart))
        root[apart, 2:] = np.column_stack([missing[apart], np.zeros_like(missing[apart])])
        thresholds[nodes], rows[nodes] = np.where(apart, np.inf, category), root

    def _children(self, nodes: Array, seen: Seen) -> Array:
        """The children of nodes to which a row of feature values goes."""
        output, left, right, missing_left = self.rows[nodes].T
        goes_left = seen.values[0, output] <= self.compared[nodes]
        is_missing = seen.is_missing[0, output]
        return np.where(np.where(is_missing, missing_left != 0, goes_left), left, right)

    def _search(self, nodes: Nodes, node: int) -> tuple[float, Array]:
        """Add a search among intervals of x that replaces a node's test of a step's output.

        Returns the threshold and the row of its root.
        """
        feature = int(self.outputs.source[self.rows[node, 0]])
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
        """The greatest x of each interval but the last, and the child of each interval."""
        output = self.rows[node, 0]
        category, (left, right) = self.outputs.category[output], self.rows[node, 1:3].tolist()
        if self.outputs.is_mark[output]:
            return np.empty(0), [self._child(node, self.numbers)]
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
        """The child of a node to which a row of feature values goes."""
        output, left, right, missing_left = self.rows[node].tolist()
        if seen.is_missing[0, output]:
            return left if missing_left else right
        return left if seen.values[0, output] <= self.compared[node] else right
