"""Forests behind transformers that keep features apart: their thresholds, seen from X.

A transformer that never decreases, rounding included, leaves `transform(x) <= t` true up to some x
and false from there on. That x, found by bisection over float32 with the transformer itself, takes
the place of t: so the pipeline is the forest alone, and exact. An imputer sends NaN where its
number goes; a selector renames features.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
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
    source = np.arange(features)
    for step in steps:
        if type(step).__name__ in SELECTORS:
            source = source[step.get_support(indices=True)]
    thresholds, nodes, leaves, trees, base = forest.operands
    if len(source) != forest.features:
        raise InvalidInput(
            f"the steps before the forest give {len(source)} features, and it takes "
            f"{forest.features}; leave out add_indicator and columns that are empty"
        )
    nodes = nodes.copy()
    feature = nodes[:, 0]
    missing = _transformed(steps, np.full((1, features), np.nan, np.float32))[0, feature]
    imputed = ~np.isnan(missing)
    nodes[imputed, 3] = missing[imputed] <= thresholds[imputed]
    seen = _from_x(steps, features, source, feature, thresholds)
    nodes[:, 0] = source[feature]
    return replace(forest, features=features, operands=(seen, nodes, leaves, trees, base))


def _from_x(
    steps: Sequence[Any], features: int, source: Array, feature: Array, thresholds: Array
) -> Array:
    """For each threshold the greatest float32 x that the steps bring no higher."""
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
        x[:, source] = _numbered(np.clip(middle, -_LARGEST, _LARGEST))
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
            is_selector = type(step).__name__ in SELECTORS  # most refuse NaN
            x = x[:, step.get_support()] if is_selector else np.asarray(step.transform(x.copy()))
    return x
