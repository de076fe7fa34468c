"""Writes the graph of an estimator from X on."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.frontends.column_scales import ColumnScales
from sparsejit.frontends.writing.writer import Writer
from sparsejit.ir.graph import Array, Element, Origin, TensorType, Value
from sparsejit.ir.ops.columns import DoubleProduct, ScaledColumns
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.spec import Activation

_MOST_DOUBLES = 1 << 20  # weights of a product in float64
_FEW_SCORES = 8  # a product in float64 that takes no longer than making columns


class EstimatorWriter(Writer):
    """Writes what methods of an estimator compute of X (batch, features)."""

    def __init__(self, x: TensorType) -> None:
        super().__init__()
        self.batch = x.shape[0]
        self.x = self.input(x, "X")
        self._columns = ColumnScales.of(x.shape[1])  # of X, not written yet

    def at(self, name: str) -> "EstimatorWriter":
        """The same, naming what is written from here on."""
        self.origin = Origin(name)
        return self

    def transform(self, step: Any) -> None:
        """What a scaler, ColumnTransformer or OneHotEncoder does to the columns so far."""
        self._columns = self._columns.behind(step)

    def columns(self, element: Element = Element.FLOAT32) -> Value:
        """The columns that steps have made of X so far."""
        columns, x = self._columns, self.x
        if columns.changes_nothing(x.shape[1]) and x.type.element is element:
            return x
        if not len(columns.source):
            raise InvalidInput("the steps before the last give no columns; keep one")
        self.at("columns")
        constants = (
            self.constant(columns.source, "columns"),
            self.constant(columns.numbers, "columns.numbers", Element.FLOAT64),
        )
        return self.one(ScaledColumns(x.type.element, element), x, *constants)

    def scores(self, weights: Array, bias: Array, name: str) -> Value:
        """The columns by weights: in float64 where X is, or where that takes no longer.

        Weights are not many; and of columns that must be made of X in float64 they make few scores.
        """
        x, columns = self.x, self._columns
        is_double = x.type.element is Element.FLOAT64
        is_scaled = columns.is_affine and not columns.changes_nothing(x.shape[1])
        is_short = is_scaled and len(weights) <= _FEW_SCORES
        if weights.size > _MOST_DOUBLES or not (is_double or is_short):
            return self.linear(self.columns(), weights, bias, name)
        if columns.is_affine:
            weights, bias = columns.folded(weights, bias, x.shape[1])
        else:
            x = self.columns(Element.FLOAT64)
        operands = [
            self.constant(array, f"{name}.{what}", Element.FLOAT64)
            for what, array in (("weights", weights), ("bias", bias))
        ]
        return self.at(name).one(DoubleProduct(x.type.element), x, *operands)

    def linear(
        self,
        x: Value,
        weights: Array,
        bias: Array,
        name: str,
        activation: Activation = Activation.NONE,
    ) -> Value:
        """activation(x weights^T + bias); a bias of zeros is left out."""
        self.at(name)
        operands = [self.constant(weights, f"{name}.weights")]
        if np.any(bias):
            operands.append(self.constant(bias, f"{name}.bias"))
        return self.one(Linear(activation), x, *operands)


# What a method computes.
Write: TypeAlias = Callable[[EstimatorWriter], Value]
