"""Forests behind transformers that keep features apart: their thresholds, seen from X.

A transformer that never decreases, rounding included, leaves `transform(x) <= t` true up to some x
and false from there on. That x, found by bisection with the transformer itself over all numbers of
x's element, takes the place of t: so the pipeline is the forest alone, and exact. An imputer sends
NaN where its number goes; a selector renames features.
"""

import copy
import warnings
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
from sparsejit.frontends.forest_reading import ReadForest, rounded_down
from sparsejit.ir.graph import Array, Element, TensorType

MONOTONE = frozenset(
    """
    MaxAbsScaler MinMaxScaler PowerTransformer QuantileTransformer RobustScaler SimpleImputer
    StandardScaler
    """.split()
)
BEFORE_FORESTS = SELECTORS | MONOTONE


def behind(steps: Sequence[Any], x: TensorType, forest: ReadForest) -> ReadForest:
    """The forest of X itself, without the steps before it; its thresholds are of X's element."""
    rounds = forest.rounds_x and x.element is Element.FLOAT64
    found = _without_steps(steps, x, forest) if steps or rounds else forest
    if x.element is Element.FLOAT64:
        return found
    thresholds, nodes, leaves, trees, base = found.operands
    return replace(found, operands=(rounded_down(thresholds), nodes, leaves, trees, base))


def _without_steps(steps: Sequence[Any], x: TensorType, forest: ReadForest) -> ReadForest:
    features, numbers = x.shape[1], _Numbers(np.dtype(x.element.value), forest.rounds_x)
    if not np.isnan(forest.missing):
        raise InvalidInput(
            f"the XGBoost model takes {forest.missing} for missing behind other steps or beside "
            "other estimators; fit it on NaN for what is missing"
        )
    steps = _forgiving(steps)
    source, category = _places(steps, np.arange(features), np.full(features, np.nan))
    thresholds, nodes, leaves, trees, base = forest.operands
    if len(source) != forest.features:
        raise InvalidInput(
            f"the steps before the forest give {len(source)} features, and it takes "
            f"{forest.features}; fit them together"
        )
    nodes = nodes.copy()
    feature = nodes[:, 0].copy()
    missing = numbers.compared(steps, np.full((1, features), np.nan))[0, feature]
    imputed = ~np.isnan(missing)
    nodes[imputed, 3] = missing[imputed] <= thresholds[imputed]
    seen = np.empty(len(feature))
    compared = np.isnan(category)[feature]
    for repeat in range(_repeats(source).max(initial=-1) + 1):
        own = _repeats(source) == repeat  # of outputs with the same source one at a time
        which = compared & own[feature]
        if which.any():
            wanted = feature[which], thresholds[which]
            seen[which] = numbers.from_x(steps, features, (source, own), wanted)
    nodes[:, 0] = source[feature]
    encoded = np.flatnonzero(~compared)
    levels = np.zeros((2, 0))
    if len(encoded):
        levels = numbers.levels(steps, features, source, category)
    more_thresholds, more_nodes = [seen], [nodes]
    for new, node in enumerate(encoded.tolist(), len(nodes)):
        output = feature[node]
        fits = levels[:, output] <= thresholds[node]
        below, row = _membership(nodes, seen, node, fits, category[output], new)
        more_thresholds.append(below)
        more_nodes.append(row)
    operands = (np.concatenate(more_thresholds), np.concatenate(more_nodes), leaves, trees, base)
    return replace(forest, features=features, operands=operands)


def _membership(
    nodes: Array, thresholds: Array, node: int, fits: Array, category: float, new: int
) -> tuple[Array, Array]:
    """Let a node ask whether x is a category, with a second node, which is returned.

    `fits`: whether the node's test holds for other x, and for the category.
    """
    feature, left, right, missing_left = nodes[node]
    other, matched = (left if fit else right for fit in fits)
    missing = left if missing_left else right
    thresholds[node] = np.nextafter(category, -np.inf)
    nodes[node, 1:] = other, new, missing == other
    second = np.array([[feature, matched, other, missing == matched]], np.int64)
    return np.array([category]), second


def _forgiving(steps: Sequence[Any]) -> list[Any]:
    """Copies whose encoders take what they have not seen for none of their categories."""
    copied = copy.deepcopy(list(steps))
    for step in each_step(copied):
        if type(step).__name__ == "OneHotEncoder":
            step.handle_unknown = "ignore"
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


def _repeats(source: Array) -> Array:
    """How often each output's feature came before."""
    return np.array([np.count_nonzero(source[:n] == one) for n, one in enumerate(source)], int)


@dataclass(frozen=True)
class _Numbers:
    """Numbers of X's element in their order, and what a forest compares of what becomes of them.

    `rounds`: it rounds to float32 first.
    """

    dtype: np.dtype[Any]
    rounds: bool

    def compared(self, steps: Sequence[Any], x: Array) -> Array:
        """What the forest compares of x (rows, features)."""
        made = _transformed(steps, x.astype(self.dtype))
        with np.errstate(over="ignore"):
            return made.astype(np.float32) if self.rounds else made

    def levels(self, steps: Sequence[Any], features: int, source: Array, category: Array) -> Array:
        """What the steps make of x that is no category, and of each output's own: (2, outputs)."""
        found = np.zeros((2, len(source)))
        for output in np.flatnonzero(~np.isnan(category)):
            x = np.zeros((2, features), self.dtype)
            x[1, source[output]] = category[output]
            x[0, source[output]] = np.nextafter(x[1, source[output]], self.dtype.type(np.inf))
            found[:, output] = self.compared(steps, x)[:, output]
        return found

    def from_x(
        self,
        steps: Sequence[Any],
        features: int,
        outputs: tuple[Array, Array],
        wanted: tuple[Array, Array],
    ) -> Array:
        """For each threshold the greatest x that the steps bring no higher, as float64.

        `outputs`: the feature of each, and which of them have a feature of their own; `wanted`: the
        output of each threshold, and the threshold.
        """
        (source, own), (feature, thresholds) = outputs, wanted
        order = np.lexsort((thresholds, feature))
        counts = np.bincount(feature, minlength=len(source))
        row = np.empty(len(feature), np.int64)
        row[order] = np.arange(len(feature)) - np.repeat(np.cumsum(counts) - counts, counts)
        shape = (int(counts.max(initial=1)), len(source))
        limits = np.zeros(shape)
        limits[row, feature] = thresholds
        low, high = np.full(shape, -self._largest - 1), np.full(shape, self._largest + 1)
        for _ in range(8 * self.dtype.itemsize + 1):
            middle = (low >> 1) + (high >> 1) + (low & high & 1)
            x = np.zeros((shape[0], features), self.dtype)
            x[:, source[own]] = self._numbered(middle[:, own])
            fits = self.compared(steps, x) <= limits
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        found = self._numbered(low).astype(np.float64)
        found = np.where(low < -self._largest, -np.inf, found)
        return np.where(low == self._largest, np.inf, found)[row, feature]

    @property
    def _largest(self) -> int:
        """The number of the largest that is finite."""
        return int(np.array(np.finfo(self.dtype).max).view(f"i{self.dtype.itemsize}"))

    def _numbered(self, number: Array) -> Array:
        """In their order: 0 is zero, 1 the least above it, -1 the greatest below."""
        size = np.minimum(np.abs(number), self._largest)
        value = size.astype(f"i{self.dtype.itemsize}").view(self.dtype)
        return np.where(number < 0, -value, value)


def _transformed(steps: Sequence[Any], x: Array) -> Array:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of names of features, which x has not
        for step in steps:
            x = _stepped(step, x)
            if x.dtype.kind == "f":  # the next step refuses what is infinite
                limits = np.finfo(x.dtype)
                x = np.clip(x, limits.min, limits.max)
    return x


def _stepped(step: Any, x: Array) -> Array:
    kind = type(step).__name__
    if kind in SELECTORS:  # most refuse NaN
        return np.asarray(x[:, step.get_support()])
    if kind == "ColumnTransformer":  # one of names takes frames alone
        parts = parts_of(step, x.shape[1])
        return np.hstack([_transformed(part.steps, x[:, part.columns]) for part in parts])
    if kind == "PowerTransformer":  # it refuses what its own powers make infinite
        limit = float(np.finfo(x.dtype).max) / 4  # of powers of 1 + |x|, rounded
        largest = limit ** (1 / (2 + np.abs(step.lambdas_).max())) - 1
        x = np.clip(x, -largest, largest, dtype=x.dtype)
    made = step.transform(x.copy())
    return np.asarray(made.toarray() if hasattr(made, "toarray") else made)
