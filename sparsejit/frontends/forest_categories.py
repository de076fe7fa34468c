"""Categories as intervals of x, by the library that fitted a forest.

    XGBoost                         c is c <= x < c + 1
    LightGBM                        the same, but 0 is -1 < x < 1: x is truncated
    histogram gradient boosting     c is x == c, and any other x is missing
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.frontends.forest_nodes import Nodes, add_search
from sparsejit.ir.values import Array


@dataclass(frozen=True, eq=False)
class Categories:
    """The categories of a forest's features.

    `known` has all categories of each feature, as numbers, if trees name categories by their
    places; `is_cut` says whether x is truncated to a whole number.
    """

    known: Mapping[int, Array]
    is_cut: bool

    @classmethod
    def of(cls, estimator: Any) -> Categories:
        """Read an estimator's categories. Raises InvalidInput where they are no numbers."""
        is_cut = type(estimator).__module__.startswith("lightgbm")
        encoder = _encoder_of(estimator)
        if encoder is None:
            return cls({}, is_cut)
        known: dict[int, Array] = {}
        features = np.flatnonzero(estimator.is_categorical_)
        for feature, seen in zip(features.tolist(), encoder.categories_, strict=True):
            try:
                known[feature] = np.asarray(seen, np.float64)
            except (TypeError, ValueError) as error:
                raise InvalidInput(
                    f"column {feature} of the {type(estimator).__name__} has the categories "
                    f"{list(seen[:3])}...; fit it to numbers, such as OrdinalEncoder makes"
                ) from error
        return cls(known, is_cut)

    def add_search(
        self, nodes: Nodes, row: Array, members: Array, right_list: bool
    ) -> tuple[float, Array]:
        """Add the nodes below the root of a search for membership; return its threshold and row.

        `row` is the row of the categorical node. A member goes to the child that owns the list.
        """
        feature, left, right, goes_left = map(int, row)
        other, matched = (left, right) if right_list else (right, left)
        missing_to = left if goes_left else right
        known = self.known.get(feature)
        if known is not None:
            numbers = known[~np.isnan(known)]
            goes_to = np.where(np.isin(np.arange(len(known)), members), matched, other)
            order = np.argsort(numbers)
            numbers, goes_to = numbers[order], goes_to[order]
            bounds = np.stack([np.nextafter(numbers, -np.inf), numbers], axis=1)
            inside = np.stack([np.full(len(numbers), missing_to), goes_to], axis=1)
            children = [*inside.ravel().tolist(), missing_to]
            return add_search(nodes, feature, bounds.ravel(), children, missing_to)
        firsts = np.unique(np.concatenate([members, members + 1])).astype(np.float64)
        inside = np.where(np.isin(firsts, members), matched, other)
        below = np.nextafter(firsts, -np.inf)
        if self.is_cut:
            below[firsts == 0] = -1.0
        return add_search(nodes, feature, below, [other, *inside.tolist()], missing_to)


def with_places(estimator: Any) -> Any:
    """The estimator with categories replaced by their places, as its trees name them."""
    encoder = _encoder_of(estimator)
    if encoder is None:
        return estimator
    copied, encoded = copy.copy(estimator), copy.copy(encoder)
    encoded.categories_ = [np.arange(len(seen)) for seen in encoder.categories_]
    copied._preprocessor = copy.copy(estimator._preprocessor)
    (name, _, columns), *others = estimator._preprocessor.transformers_
    copied._preprocessor.transformers_ = [(name, encoded, columns), *others]
    return copied


def _encoder_of(estimator: Any) -> Any:
    """The encoder inside of histogram gradient boosting, None where there is none."""
    inside = getattr(getattr(estimator, "_preprocessor", None), "named_transformers_", {})
    return inside.get("encoder")


def has_frame_categories(estimator: Any) -> bool:
    """Whether LightGBM knows categories by the labels that columns of a frame had."""
    if not type(estimator).__module__.startswith("lightgbm"):
        return False
    return bool(getattr(estimator, "booster_", estimator).pandas_categorical)
