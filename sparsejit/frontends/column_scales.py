"""Columnwise steps, such as scalers, composed into one: each result column reads one column of X.

Scalers in a row become clip(scale (x - centre) + shift, low, high), composed in float64. The number
that replaces NaN goes through the same scalers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.frontends.column_steps import SELECTORS, filling_of, kept_categories, parts_of
from sparsejit.ir.ops.columns import CENTRE, HIGH, IS_CATEGORY, LOW, MISSING, SCALE, SHIFT
from sparsejit.ir.values import Array

_NEUTRAL = (0.0, 1.0, 0.0, -np.inf, np.inf, 0.0, np.nan)  # one for each row of numbers


@dataclass(frozen=True, eq=False)
class ColumnScales:
    """The source feature of each column, and its seven numbers, as `ScaledColumns` reads them.

    Where the last number is NaN, NaN is not replaced. `dtype` is X's, to which steps round.
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

    def folded(self, weights: Array, bias: Array, features: int) -> tuple[Array, Array]:
        """Weights (out, columns) and bias turned into weights (out, features) and bias of X.

        All columns must be affine.
        """
        scaled = weights * self.numbers[SCALE]
        offset = self.numbers[SHIFT] - self.numbers[SCALE] * self.numbers[CENTRE]
        whole = np.zeros((len(weights), features))
        np.add.at(whole.T, self.source, scaled.T)
        return whole, bias + weights @ offset

    def take(self, columns: Array) -> ColumnScales:
        return replace(self, source=self.source[columns], numbers=self.numbers[:, columns])

    def behind(self, step: Any) -> ColumnScales:
        """Append a step. Raises InvalidInput for an encoder behind a scaler."""
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
        """1 where a column equals the category, else 0; an unknown value gives zeros."""
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
        """Subtract, then multiply, then add, as the scaler does."""
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
        """factor (v - middle) + shift of the values v so far.

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
