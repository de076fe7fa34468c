"""Columnwise steps before an estimator, such as scalers, imputers and encoders.

    parts_of         parts of a ColumnTransformer
    kept_categories  columns of a OneHotEncoder
    filling_of       a SimpleImputer
    ColumnScales     scalers composed into one step: each result column reads one column of X

A ColumnTransformer is a list of parts, each some columns and the steps that they go through; it
returns the parts' results side by side. A OneHotEncoder compares a column with each category. A
SimpleImputer replaces NaN, and may append columns that mark where; selectors drop columns.

Scalers in a row become clip(scale (x - centre) + shift, low, high), composed in float64. The number
that replaces NaN goes through the same scalers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.ops.columns import CENTRE, HIGH, IS_CATEGORY, LOW, MISSING, SCALE, SHIFT
from sparsejit.ir.values import Array

COLUMN_STEPS = frozenset({"ColumnTransformer", "OneHotEncoder"})
SELECTORS = frozenset(
    """
    GenericUnivariateSelect RFE RFECV SelectFdr SelectFpr SelectFromModel SelectFwe SelectKBest
    SelectPercentile SequentialFeatureSelector TakenColumns VarianceThreshold
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
            parts.append(ColumnPart(numbers, inner_steps(step)))
    return [part for part in parts if len(part.columns)]


def each_step(steps: Sequence[Any]) -> list[Any]:
    """All steps, and the steps inside of ColumnTransformers."""
    found = []
    for step in steps:
        found.append(step)
        if type(step).__name__ == "ColumnTransformer":
            for _, inner, _ in step.transformers_:
                if not isinstance(inner, str):
                    found.extend(each_step(inner_steps(inner)))
    return found


def features_read(steps: Sequence[Any], features: Array) -> Array:
    """The features, of these, that steps read: a ColumnTransformer may leave some out."""
    if not steps or type(steps[0]).__name__ != "ColumnTransformer":
        return features
    parts = parts_of(steps[0], len(features))
    read = [features_read(part.steps, features[part.columns]) for part in parts]
    return np.concatenate([features[:0], *read])


def computed_together(steps: Sequence[Any], features: Array) -> list[Array]:
    """Groups of features that scikit-learn's steps put into one array, in one common dtype.

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
    return not is_other and type(step).__name__ not in ("OneHotEncoder", "Ranked")


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


def is_identity(step: Any) -> bool:
    """Whether a step is a FunctionTransformer without a function."""
    return type(step).__name__ == "FunctionTransformer" and step.func is None


def inner_steps(step: Any) -> tuple[Any, ...]:
    """The steps of an inner pipeline, without steps that pass columns through."""
    if (isinstance(step, str) and step == "passthrough") or is_identity(step):
        return ()
    if type(step).__name__ == "Pipeline":
        return tuple(inner for _, one in step.steps for inner in inner_steps(one))
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


_MANY = 16  # categories of a feature


@dataclass(frozen=True, eq=False)
class Lookup:
    """Sums (intervals, out) of a feature's category columns, and their sums (out,) for NaN.

    Interval i ends at bound i, which belongs to it.
    """

    feature: int
    bounds: Array
    values: Array
    missing: Array


_NEUTRAL = (0.0, 1.0, 0.0, -np.inf, np.inf, 0.0, np.nan)  # one for each row of numbers


@dataclass(frozen=True, eq=False)
class ColumnScales:
    """For each column behind some steps, its feature of X, and seven numbers that make it.

    They are as `ScaledColumns` reads them. Where the last number is NaN, NaN is not replaced.
    `dtype` is X's, to which steps round.
    """

    source: Array
    numbers: Array
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, features: int, dtype: np.dtype[Any]) -> ColumnScales:
        """Columns that are X itself."""
        numbers = np.tile(np.array(_NEUTRAL)[:, None], features)
        return cls(np.arange(features), numbers, dtype)

    def changes_nothing(self, features: int) -> bool:
        own = ColumnScales.of(features, self.dtype)
        same = np.array_equal(self.numbers, own.numbers, equal_nan=True)
        return same and np.array_equal(self.source, own.source)

    @property
    def operand(self) -> Array:
        """The numbers as a `ScaledColumns` reads them."""
        shift, low, high, is_category, missing = self.numbers[SHIFT:]
        unfilled = np.isnan(missing)
        if unfilled.all():
            return self.numbers[:MISSING]
        plain = np.where(is_category != 0, np.minimum(high, np.maximum(low, shift)), np.nan)
        return np.concatenate([self.numbers[:MISSING], [np.where(unfilled, plain, missing)]])

    @property
    def is_affine(self) -> bool:
        """Whether no column is clipped, filled in, or compared with a category."""
        rows = (LOW, HIGH, IS_CATEGORY)
        plain = all(bool(np.all(self.numbers[row] == _NEUTRAL[row])) for row in rows)
        return plain and bool(np.isnan(self.numbers[MISSING]).all())

    def reads_all(self, features: int) -> bool:
        """Whether each feature of X is read; an unread one may be NaN, and may enter no sum."""
        return bool(np.isin(np.arange(features), self.source).all())

    def folded(self, weights: Array, bias: Array, features: int) -> tuple[Array, Array]:
        """Weights (out, columns) and bias turned into weights (out, features) and bias of X.

        All columns must be affine, and read all features.
        """
        scaled = weights * self.numbers[SCALE]
        offset = self.numbers[SHIFT] - self.numbers[SCALE] * self.numbers[CENTRE]
        whole = np.zeros((len(weights), features))
        np.add.at(whole.T, self.source, scaled.T)
        return whole, bias + weights @ offset

    @property
    def is_category(self) -> Array:
        """Whether each column compares its feature with a category; an imputer's marks do not."""
        return (self.numbers[IS_CATEGORY] != 0) & np.isfinite(self.numbers[CENTRE])

    @property
    def has_many_categories(self) -> bool:
        """Whether a search for a category takes less time than a comparison with each."""
        own = self.is_category
        return int(np.count_nonzero(own)) > _MANY * len(np.unique(self.source[own]))

    def lookups(self, weights: Array) -> list[Lookup]:
        """The sums of weighted category columns, of each feature by its value.

        `weights` are (out, columns); other columns are left out.
        """
        _, scale, shift, low, high, _, missing = self.numbers
        unlike = np.clip(shift, low, high)
        more = weights * (np.clip(scale + shift, low, high) - unlike)
        found = []
        for feature in np.unique(self.source[self.is_category]).tolist():
            own = np.flatnonzero(self.is_category & (self.source == feature))
            known, place = np.unique(self.numbers[CENTRE, own], return_inverse=True)
            sums = np.zeros((len(known), len(weights)))
            np.add.at(sums, place, more[:, own].T)
            base = weights[:, own] @ unlike[own]
            values = np.tile(base, (2 * len(known) + 1, 1))
            values[1::2] += sums
            bounds = np.stack([np.nextafter(known, -np.inf), known], axis=1).ravel()
            found.append(Lookup(feature, bounds, values, weights[:, own] @ missing[own]))
        return found

    def take(self, columns: Array) -> ColumnScales:
        return replace(self, source=self.source[columns], numbers=self.numbers[:, columns])

    def behind(self, step: Any) -> ColumnScales:
        """The columns behind one more step. Raises InvalidInput for an encoder behind a scaler."""
        kind = type(step).__name__
        if kind == "ColumnTransformer":
            return self._in_parts(step)
        if kind == "OneHotEncoder":
            return self._encoded(step)
        if kind == "SimpleImputer":
            return self._filled(step)
        if kind in SELECTORS:
            return self.take(step.get_support(indices=True))
        return self._scaled(step)

    def _in_parts(self, transformer: Any) -> ColumnScales:
        made = [self.take(np.zeros(0, np.int64))]
        for part in parts_of(transformer, len(self.source)):
            own = self.take(part.columns)
            for step in part.steps:
                own = own.behind(step)
            made.append(own)
        return self._joined(made)

    def _joined(self, parts: list[ColumnScales]) -> ColumnScales:
        return replace(
            self,
            source=np.concatenate([each.source for each in parts]),
            numbers=np.concatenate([each.numbers for each in parts], axis=1),
        )

    def _filled(self, imputer: Any) -> ColumnScales:
        filling = filling_of(imputer)
        values = filling.values.astype(self.dtype).astype(np.float64)
        filled, marks = self.take(filling.kept), self.take(filling.marked)
        missing = filled.numbers[MISSING]
        missing[:] = np.where(np.isnan(missing), values, missing)
        # Columns that are 1 for NaN that was not filled in before, else 0: X never equals infinity.
        is_there = np.isnan(marks.numbers[MISSING])
        marks.numbers[:] = np.array(_NEUTRAL)[:, None]
        marks.numbers[CENTRE], marks.numbers[IS_CATEGORY] = np.inf, 1
        marks.numbers[MISSING] = is_there
        return self._joined([filled, marks])

    def _encoded(self, encoder: Any) -> ColumnScales:
        """The columns behind an encoder: 1 where a column equals a category, else 0.

        An unknown value gives zeros.
        """
        plain = ColumnScales.of(len(self.source), self.dtype)
        if not np.array_equal(self.numbers[:MISSING], plain.numbers[:MISSING]):
            raise InvalidInput("a OneHotEncoder follows a scaler; apply it to X itself")
        kept = kept_categories(encoder)
        encoded = self.take(np.repeat(np.arange(len(kept)), [len(each) for each in kept]))
        category, missing = np.concatenate(kept), encoded.numbers[MISSING]
        encoded.numbers[CENTRE], encoded.numbers[IS_CATEGORY] = category, 1
        missing[:] = np.where(np.isnan(missing), np.nan, missing == category)
        return encoded

    def _scaled(self, scaler: Any) -> ColumnScales:
        """The columns behind a scaler: it subtracts, then multiplies, then adds."""
        kind = type(scaler).__name__
        low, high = getattr(scaler, "feature_range", (-1, 1))
        middle: Any = 0.0
        factor: Any = 1.0 if scaler.scale_ is None else 1 / scaler.scale_
        if kind == "MinMaxScaler":
            middle, factor = scaler.data_min_, scaler.scale_
        elif (kind == "StandardScaler" and scaler.with_mean) or (
            kind == "RobustScaler" and scaler.with_centering
        ):
            middle = scaler.mean_ if kind == "StandardScaler" else scaler.center_
        found = self._affine(middle, factor, low if kind == "MinMaxScaler" else 0.0)
        if getattr(scaler, "clip", False):
            for row in (LOW, HIGH, MISSING):
                found.numbers[row] = np.clip(found.numbers[row], low, high)
        return found

    def _affine(self, middle: Any, factor: Any, shift: float) -> ColumnScales:
        """The columns after one more step, factor (v - middle) + shift of their values v.

        A number that is subtracted from X itself moves into the centre, where it is exact.
        """
        centre, scale, before, low, high, is_category, missing = self.numbers
        moves = (is_category == 0) & (scale != 0)
        inner = np.where(moves, (middle - before) / np.where(scale == 0, 1, scale), 0.0)
        outer = np.where(moves, 0.0, before - middle)
        made = (
            centre + inner,
            scale * factor,
            outer * factor + shift,
            (low - middle) * factor + shift,
            (high - middle) * factor + shift,
            is_category,
            (missing - middle) * factor + shift,
        )
        return replace(self, numbers=np.stack(np.broadcast_arrays(*made)).astype(np.float64))
