"""Columnwise steps before an estimator.

A ColumnTransformer is a list of parts, each some columns and the steps that they go through; it
returns the parts' results side by side. A OneHotEncoder compares a column with each category. A
SimpleImputer replaces NaN, and may append columns that mark where; selectors drop columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.values import Array

COLUMN_STEPS = frozenset({"ColumnTransformer", "OneHotEncoder"})
SELECTORS = frozenset(
    """
    GenericUnivariateSelect RFE RFECV SelectFdr SelectFpr SelectFromModel SelectFwe SelectKBest
    SelectPercentile SequentialFeatureSelector VarianceThreshold
    """.split()
)


@dataclass(frozen=True)
class ColumnPart:
    """Columns by number, and the steps that they go through in turn."""

    columns: Array
    steps: tuple[Any, ...]


def parts_of(transformer: Any, features: int) -> list[ColumnPart]:
    """The parts of a fitted ColumnTransformer, in the order of its results."""
    parts = []
    for _, step, columns in transformer.transformers_:
        numbers = _numbers(columns, features, getattr(transformer, "feature_names_in_", None))
        if not isinstance(step, str) or step != "drop":
            parts.append(ColumnPart(numbers, _steps(step)))
    return [part for part in parts if len(part.columns)]


def each_step(steps: Sequence[Any]) -> list[Any]:
    """All steps, and the steps inside of ColumnTransformers."""
    found = []
    for step in steps:
        found.append(step)
        if type(step).__name__ == "ColumnTransformer":
            for _, inner, _ in step.transformers_:
                if not isinstance(inner, str):
                    found.extend(each_step(_steps(inner)))
    return found


def computed_together(steps: Sequence[Any], features: Array) -> list[Array]:
    """Groups of features that steps compute with as one array, in the dtype of these columns of X.

    An encoder returns float64 for any dtype; selectors and predicting steps do not count.
    """
    computing = [step for step in steps if _computes(step)]
    if not computing or type(steps[0]).__name__ == "OneHotEncoder":
        return []
    if type(steps[0]).__name__ != "ColumnTransformer":
        return [features]
    parts = parts_of(steps[0], len(features))
    found = [computed_together(part.steps, features[part.columns]) for part in parts]
    return sum(found, [features] if len(computing) > 1 else [])


def _computes(step: Any) -> bool:
    is_other = hasattr(step, "get_support") or hasattr(step, "predict")
    return not is_other and type(step).__name__ != "OneHotEncoder"


def kept_categories(encoder: Any) -> list[Array]:
    """The categories that have a column of their own, for each column of a OneHotEncoder, float64.

    Raises InvalidInput where categories are not numbers, and where rare categories share a column.
    """
    if getattr(encoder, "min_frequency", None) or getattr(encoder, "max_categories", None):
        raise InvalidInput(
            "the OneHotEncoder has min_frequency or max_categories; fit it without them"
        )
    dropped = encoder.drop_idx_
    found = []
    for number, categories in enumerate(encoder.categories_):
        seen = np.asarray(categories)
        if seen.dtype.kind not in "biuf" or np.isnan(seen.astype(np.float64)).any():
            raise InvalidInput(
                f"column {number} of the OneHotEncoder has the categories {list(seen[:3])}...; "
                "give numbers without NaN, such as OrdinalEncoder makes"
            )
        left_out = None if dropped is None else dropped[number]
        kept = seen if left_out is None else np.delete(seen, int(left_out))
        found.append(kept.astype(np.float64))
    return found


@dataclass(frozen=True)
class Filling:
    """A SimpleImputer's kept columns, their values for NaN, and the columns that it marks."""

    kept: Array
    values: Array
    marked: Array


def filling_of(imputer: Any) -> Filling:
    """Read a SimpleImputer. Raises InvalidInput unless it fills in numbers for NaN."""
    missing = imputer.missing_values
    if not (isinstance(missing, float) and np.isnan(missing)):
        raise InvalidInput(
            f"the SimpleImputer replaces {missing!r}; fit it with missing_values=nan"
        )
    try:
        values = np.asarray(imputer.statistics_, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the SimpleImputer does not fill in numbers ({error})") from error
    kept = np.arange(len(values))
    if not imputer.keep_empty_features:
        kept = np.flatnonzero(~np.isnan(values))
    dtype = np.dtype(getattr(imputer, "_fill_dtype", np.float64))
    values = values[kept].astype(dtype if dtype.kind in "iuf" else np.float64)
    indicator = imputer.indicator_
    marked = np.arange(0) if indicator is None else np.asarray(indicator.features_, np.int64)
    return Filling(kept, values.astype(np.float64), marked)


def _steps(step: Any) -> tuple[Any, ...]:
    """The steps of an inner pipeline, without steps that pass columns through."""
    if isinstance(step, str) and step == "passthrough":
        return ()
    kind = type(step).__name__
    if kind == "FunctionTransformer" and step.func is None:
        return ()
    if kind == "Pipeline":
        return tuple(inner for _, one in step.steps for inner in _steps(one))
    return (step,)


def _numbers(columns: Any, features: int, names: Any) -> Array:
    """The numbers of columns that were given to fit as numbers, names, a slice or a mask."""
    every = np.arange(features)
    if isinstance(columns, slice) and not isinstance(columns.start or columns.stop, str):
        return every[columns]
    listed = np.atleast_1d(np.asarray(columns))
    if not listed.size:
        return every[:0]
    if listed.dtype.kind in "biu":
        return every[listed]
    if names is None or not set(listed.tolist()) <= set(names):
        raise InvalidInput(f"the ColumnTransformer takes columns {columns}; name them by numbers")
    places = {name: number for number, name in enumerate(names)}
    return np.array([places[name] for name in listed.tolist()], np.int64)
