"""Boosted trees that were fitted to frames with columns of categories, and the codes of these.

    histogram gradient boosting   an encoder inside knows the categories of each column
    LightGBM                      `pandas_categorical` has them, in the order of such columns
    XGBoost                       the model has them, words as bytes one after another

Categories that were not seen are missing to the first two; XGBoost refuses them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.forest_reading import (
    booster_as_json,
    encoder_inside,
    has_frame_categories,
)

_NUMBERS = "biuf"


@dataclass(frozen=True, eq=False)
class FrameCategories:
    """The codes of categories, by the number of their column.

    `estimator` reads codes in these columns. With `reads_codes`, so does the original in arrays.
    `others` is the code of categories that were not seen, None where they are refused.
    """

    codes: dict[int, dict[Any, float]]
    estimator: Any
    reads_codes: bool
    others: float | None = np.nan


def frame_categories(estimator: Any) -> FrameCategories | None:
    """The categories of an estimator, None where none are words, or their columns are not known."""
    if has_frame_categories(estimator):
        is_extreme = type(estimator).__module__.startswith("xgboost")
        return (_of_xgboost if is_extreme else _of_lightgbm)(estimator)
    encoder = encoder_inside(estimator)
    if encoder is None:
        return None
    codes, places = {}, []
    features = np.flatnonzero(estimator.is_categorical_).tolist()
    for feature, seen in zip(features, encoder.categories_, strict=True):
        known = np.asarray(seen)
        if known.dtype.kind in _NUMBERS:
            places.append(known)
            continue
        words = [word for word in known.tolist() if word == word]
        codes[feature] = {word: float(place) for place, word in enumerate(words)}
        places.append(np.arange(len(known), dtype=np.float64))
    return FrameCategories(codes, _with_categories(estimator, places), False) if codes else None


def _with_categories(estimator: Any, places: list[Any]) -> Any:
    """A copy of histogram gradient boosting whose encoder has these categories."""
    copied, encoder = copy.copy(estimator), copy.copy(encoder_inside(estimator))
    encoder.categories_ = places
    copied._preprocessor = copy.copy(estimator._preprocessor)
    (name, _, columns), *others = estimator._preprocessor.transformers_
    copied._preprocessor.transformers_ = [(name, encoder, columns), *others]
    return copied


def _of_lightgbm(estimator: Any) -> FrameCategories | None:
    booster = getattr(estimator, "booster_", estimator)
    known = booster.pandas_categorical
    infos: list[str] = []
    for line in booster.model_to_string(num_iteration=1).splitlines():
        name, _, values = line.partition("=")
        if name == "feature_infos":
            infos = values.split()
    places = [place for place, info in enumerate(infos) if info[0] not in "[n"]
    if len(places) != len(known):
        return None
    codes = {
        place: {word: float(code) for code, word in enumerate(words)}
        for place, words in zip(places, known, strict=True)
    }
    return FrameCategories(codes, estimator, True)


def _of_xgboost(estimator: Any) -> FrameCategories:
    booster = estimator.get_booster() if hasattr(estimator, "get_booster") else estimator
    inner = booster_as_json(booster)["learner"]["gradient_booster"]
    known = inner.get("gbtree", inner)["model"]["cats"]["enc"]
    codes = {}
    for place, kind in enumerate(booster.feature_types):
        if kind == "c":
            words = _labels(known[place], place)
            codes[place] = {word: float(code) for code, word in enumerate(words)}
    return FrameCategories(codes, estimator, True, None)


def _labels(entry: Mapping[str, Any], column: int) -> Sequence[Any]:
    """The labels of a column's categories: numbers, or words between offsets.

    Raises InvalidInput for words beyond ASCII: XGBoost counts their letters, and cuts their bytes.
    """
    values: Sequence[int] = entry["values"]
    if "offsets" not in entry:
        return values
    if not all(0 <= each < 128 for each in values):
        raise InvalidInput(
            f"column {column} of the XGBoost model has categories that are not ASCII, which "
            "XGBoost cuts in wrong places; fit it to others, as cat.rename_categories makes them"
        )
    whole = bytes(values).decode()
    return [whole[first:end] for first, end in pairwise(entry["offsets"])]
