"""What scalers, ColumnTransformers and OneHotEncoders make of X: each column of one of its own.

Scalers in turn are one: clip(scale (x - centre) + shift, low, high), composed in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.frontends.column_steps import kept_categories, parts_of
from sparsejit.ir.graph import Array
from sparsejit.ir.ops.columns import CENTRE, HIGH, IS_CATEGORY, LOW, SCALE, SHIFT

_NEUTRAL = {CENTRE: 0.0, SCALE: 1.0, SHIFT: 0.0, LOW: -np.inf, HIGH: np.inf, IS_CATEGORY: 0.0}


@dataclass(frozen=True, eq=False)
class ColumnScales:
    """The feature of each column, and six numbers: what a `ScaledColumns` computes."""

    source: Array
    numbers: Array

    @classmethod
    def of(cls, features: int) -> ColumnScales:
        """X itself."""
        neutral = [_NEUTRAL[row] for row in range(len(_NEUTRAL))]
        return cls(np.arange(features), np.tile(np.array(neutral)[:, None], features))

    def changes_nothing(self, features: int) -> bool:
        own = ColumnScales.of(features)
        return np.array_equal(self.source, own.source) and np.array_equal(self.numbers, own.numbers)

    @property
    def is_affine(self) -> bool:
        """Whether nothing is clipped, and no column is that of a category."""
        rows = (LOW, HIGH, IS_CATEGORY)
        return all(bool(np.all(self.numbers[row] == _NEUTRAL[row])) for row in rows)

    def folded(self, weights: Array, bias: Array, features: int) -> tuple[Array, Array]:
        """Weights (out, columns) and bias as those of X, where all is affine."""
        scaled = weights * self.numbers[SCALE]
        offset = self.numbers[SHIFT] - self.numbers[SCALE] * self.numbers[CENTRE]
        whole = np.zeros((len(weights), features))
        np.add.at(whole.T, self.source, scaled.T)
        return whole, bias + weights @ offset

    def take(self, columns: Array) -> ColumnScales:
        return ColumnScales(self.source[columns], self.numbers[:, columns])

    def behind(self, step: Any) -> ColumnScales:
        """With a step behind what there is. Raises InvalidInput for an encoder behind a scaler."""
        kind = type(step).__name__
        if kind == "ColumnTransformer":
            return self._in_parts(step)
        if kind == "OneHotEncoder":
            return self._encoded(step)
        return self._scaled(step)

    def _in_parts(self, transformer: Any) -> ColumnScales:
        made = [self.take(np.zeros(0, np.int64))]
        for part in parts_of(transformer, len(self.source)):
            own = self.take(part.columns)
            for step in part.steps:
                own = own.behind(step)
            made.append(own)
        return ColumnScales(
            np.concatenate([each.source for each in made]),
            np.concatenate([each.numbers for each in made], axis=1),
        )

    def _encoded(self, encoder: Any) -> ColumnScales:
        """1 where a column holds a category, else 0; what is no category has none."""
        plain = ColumnScales.of(len(self.source))
        if not np.array_equal(self.numbers, plain.numbers):
            raise InvalidInput("a OneHotEncoder stands behind a scaler; let it take X itself")
        kept = kept_categories(encoder)
        encoded = self.take(np.repeat(np.arange(len(kept)), [len(each) for each in kept]))
        encoded.numbers[CENTRE], encoded.numbers[IS_CATEGORY] = np.concatenate(kept), 1
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
            for row in (LOW, HIGH):
                found.numbers[row] = np.clip(found.numbers[row], low, high)
        return found

    def _affine(self, middle: Any, factor: Any, shift: float) -> ColumnScales:
        """factor (v - middle) + shift of the values v so far.

        What is subtracted from X itself moves into the centre, where it is exact.
        """
        centre, scale, before, low, high, is_category = self.numbers
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
        )
        return replace(self, numbers=np.stack(np.broadcast_arrays(*made)).astype(np.float64))
