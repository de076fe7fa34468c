"""Writes the graph of an estimator from X on."""

from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.frontends.column_scales import ColumnScales
from sparsejit.ir.graph import Array, Element, GraphBuilder, Origin, TensorType, Value
from sparsejit.ir.ops.columns import DoubleProduct, ScaledColumns
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.spec import Activation

_MOST_DOUBLES = 1 << 20  # weights of a product in float64


class EstimatorWriter:
    """Writes a graph from X on; `value` is what there is so far."""

    def __init__(self, x: TensorType) -> None:
        self.builder = GraphBuilder()
        self.batch = x.shape[0]
        self.value = self.builder.input(x, Origin("X"))
        self._columns = ColumnScales.of(x.shape[1])  # of X, not written yet

    def pointwise(self, kind: str, *operands: Array | float, name: str) -> None:
        """kind(value, constants...)."""
        constants = [
            self.builder.constant(np.asarray(operand, np.float32), Origin(f"{name}.{number}"))
            for number, operand in enumerate(operands)
        ]
        self.apply(Pointwise(kind), *constants, name=name)

    def apply(self, op: Any, *others: Value, name: str) -> None:
        """The value becomes op(value, others...)."""
        self.value = self.builder.one(op, self.value, *others, origin=Origin(name))

    def linear(
        self, weights: Array, bias: Array, name: str, activation: Activation = Activation.NONE
    ) -> None:
        """activation(value weights^T + bias); a bias of zeros is left out.

        Of X in float64 the sums are of float64 too, unless the weights are many.
        """
        is_double = self.value.type.element is Element.FLOAT64
        fits = activation is Activation.NONE and weights.size <= _MOST_DOUBLES
        if is_double and fits and self._columns.is_affine:
            weights, bias = self._columns.folded(weights, bias, self.value.shape[1])
            operands = [
                self.builder.constant(array, Origin(f"{name}.{what}"), Element.FLOAT64)
                for what, array in (("weights", weights), ("bias", bias))
            ]
            self.apply(DoubleProduct(), *operands, name=name)
        else:
            self.settle()
            operands = [self.builder.constant(weights, Origin(f"{name}.weights"))]
            if np.any(bias):
                operands.append(self.builder.constant(bias, Origin(f"{name}.bias")))
            self.apply(Linear(activation), *operands, name=name)
        self._columns = ColumnScales.of(len(bias))

    def transform(self, step: Any) -> None:
        """What a scaler, ColumnTransformer or OneHotEncoder does to the columns so far."""
        self._columns = self._columns.behind(step)

    def settle(self) -> None:
        """The value becomes the columns that steps have made of X so far, in float32."""
        columns, x = self._columns, self.value
        if columns.changes_nothing(x.shape[1]) and x.type.element is Element.FLOAT32:
            return
        if not len(columns.source):
            raise InvalidInput("the steps before the last give no columns; keep one")
        constants = (
            self.builder.constant(columns.source, Origin("columns")),
            self.builder.constant(columns.numbers, Origin("columns.numbers"), Element.FLOAT64),
        )
        self.apply(ScaledColumns(x.type.element), *constants, name="columns")
        self._columns = ColumnScales.of(len(columns.source))


def sigmoid(writer: EstimatorWriter) -> None:
    """1 / (1 + exp(-z))."""
    writer.pointwise("sigmoid", name="sigmoid")


def log_sigmoid(writer: EstimatorWriter) -> None:
    """min(z, 0) - log1p(exp(-|z|)), which does not overflow."""
    z = writer.value
    writer.pointwise("minimum", 0.0, name="log_sigmoid")
    negative = writer.value
    writer.value = z
    for kind in ("abs", "neg", "exp", "log1p", "neg"):
        writer.pointwise(kind, name="log_sigmoid")
    writer.apply(Pointwise("add"), negative, name="log_sigmoid")
