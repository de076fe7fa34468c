"""Forests behind transformers that keep features apart: their thresholds, seen from X.

A transformer that never decreases, rounding included, leaves `transform(x) <= t` true up to some x
and false from there on. That x, found by bisection over float32 with the transformer itself, takes
the place of t: so the pipeline is the forest alone, and exact. An imputer sends NaN where its
number goes; a selector renames features.
"""

import copy
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.frontends.column_steps import each_step, kept_categories, parts_of
from sparsejit.frontends.forest_reading import ReadForest
from sparsejit.ir.graph import Array

SELECTORS = frozenset(
    """
    GenericUnivariateSelect RFE RFECV SelectFdr SelectFpr SelectFromModel SelectFwe SelectKBest
    SelectPercentile SequentialFeatureSelector VarianceThreshold
    """.split()
)
MONOTONE = frozenset(
    """
    MaxAbsScaler MinMaxScaler PowerTransformer QuantileTransformer RobustScaler SimpleImputer
    StandardScaler
    """.split()
)
BEFORE_FORESTS = SELECTORS | MONOTONE
_LARGEST = int(np.array(np.finfo(np.float32).max).view(np.int32))


def behind(steps: Sequence[Any], features: int, forest: ReadForest) -> ReadForest:
    """The forest of X (samples, features) itself, without the steps before it."""
    if not steps:
        return forest
    steps = _forgiving(steps)
    source, category = _places(steps, np.arange(features), np.full(features, np.nan, np.float32))
    thresholds, nodes, leaves, trees, base = forest.operands
    if len(source) != forest.features:
        raise InvalidInput(
            f"the steps before the forest give {len(source)} features, and it takes "
            f"{forest.features}; leave out add_indicator and columns that are empty"
        )
    nodes = nodes.copy()
    feature = nodes[:, 0].copy()
    missing = _transformed(steps, np.full((1, features), np.nan, np.float32))[0, feature]
    imputed = ~np.isnan(missing)
    nodes[imputed, 3] = missing[imputed] <= thresholds[imputed]
    seen = np.empty(len(feature), np.float32)
    compared = np.isnan(category)[feature]
    for repeat in range(_repeats(source).max(initial=-1) + 1):
        own = _repeats(source) == repeat  # of outputs with the same source one at a time
        which = compared & own[feature]
        seen[which] = _from_x(steps, features, source, own, feature[which], thresholds[which])
    nodes[:, 0] = source[feature]
    encoded = np.flatnonzero(~compared)
    levels = _levels_of(steps, features, source, category) if len(encoded) else np.zeros((2, 0))
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
    thresholds[node] = np.nextafter(np.float32(category), np.float32(-np.inf))
    nodes[node, 1:] = other, new, missing == other
    second = np.array([[feature, matched, other, missing == matched]], np.int64)
    return np.array([category], np.float32), second


def _levels_of(steps: Sequence[Any], features: int, source: Array, category: Array) -> Array:
    """What the steps make of x that is no category, and of each output's own: (2, outputs)."""
    found = np.zeros((2, len(source)))
    for output in np.flatnonzero(~np.isnan(category)):
        x = np.zeros((2, features), np.float32)
        x[0, source[output]] = np.nextafter(category[output], np.float32(np.inf))
        x[1, source[output]] = category[output]
        found[:, output] = _transformed(steps, x)[:, output]
    return found


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


def _from_x(
    steps: Sequence[Any],
    features: int,
    source: Array,
    own: Array,
    feature: Array,
    thresholds: Array,
) -> Array:
    """For each threshold the greatest float32 x that the steps bring no higher.

    Of outputs those of `own`, which have features of their own.
    """
    order = np.lexsort((thresholds, feature))
    counts = np.bincount(feature, minlength=len(source))
    row = np.empty(len(feature), np.int64)
    row[order] = np.arange(len(feature)) - np.repeat(np.cumsum(counts) - counts, counts)
    shape = (int(counts.max(initial=1)), len(source))
    wanted = np.zeros(shape, np.float32)
    wanted[row, feature] = thresholds
    low, high = np.full(shape, -_LARGEST - 1), np.full(shape, _LARGEST + 1)
    for _ in range(33):
        middle = (low + high) // 2
        x = np.zeros((shape[0], features), np.float32)
        x[:, source[own]] = _numbered(np.clip(middle[:, own], -_LARGEST, _LARGEST))
        fits = _transformed(steps, x) <= wanted
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    found = _numbered(np.clip(low, -_LARGEST, _LARGEST))
    found = np.where(low < -_LARGEST, -np.inf, np.where(low == _LARGEST, np.inf, found))
    return found[row, feature].astype(np.float32)


def _numbered(number: Array) -> Array:
    """Float32 in their order: 0 is zero, 1 the least above it, -1 the greatest below."""
    bits = np.where(number < 0, -number | 1 << 31, number).astype(np.uint32)
    return bits.view(np.float32)


def _transformed(steps: Sequence[Any], x: Array) -> Array:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of names of features, which x has not
        for step in steps:
            x = _stepped(step, x)
    return x


def _stepped(step: Any, x: Array) -> Array:
    kind = type(step).__name__
    if kind in SELECTORS:  # most refuse NaN
        return np.asarray(x[:, step.get_support()])
    if kind == "ColumnTransformer":  # one of names takes frames alone
        parts = parts_of(step, x.shape[1])
        return np.hstack([_transformed(part.steps, x[:, part.columns]) for part in parts])
    made = step.transform(x.copy())
    return np.asarray(made.toarray() if hasattr(made, "toarray") else made)
