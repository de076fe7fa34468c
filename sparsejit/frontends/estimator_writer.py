"""Writes the graph of an estimator from X on."""

from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.frontends.column_steps import kept_categories, parts_of
from sparsejit.ir.graph import Array, Element, GraphBuilder, Origin, TensorType, Value
from sparsejit.ir.ops.casts import Cast
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.views import Concat, Slice
from sparsejit.ir.spec import Activation


class EstimatorWriter:
    """Writes a graph from X on; `value` is what there is so far."""

    def __init__(self, x: TensorType) -> None:
        self.builder = GraphBuilder()
        self.batch = x.shape[0]
        self.value = self.builder.input(x, Origin("X"))

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
        """activation(value weights^T + bias); a bias of zeros is left out."""
        operands = [self.builder.constant(weights, Origin(f"{name}.weights"))]
        if np.any(bias):
            operands.append(self.builder.constant(bias, Origin(f"{name}.bias")))
        self.apply(Linear(activation), *operands, name=name)

    def transform(self, step: Any) -> None:
        """What a scaler, ColumnTransformer or OneHotEncoder does."""
        kind = type(step).__name__
        if kind == "ColumnTransformer":
            self._transform_parts(step)
        elif kind == "OneHotEncoder":
            self._encode(step)
        else:
            self.scale(step)

    def _transform_parts(self, transformer: Any) -> None:
        whole, results = self.value, []
        for part in parts_of(transformer, whole.shape[1]):
            self.value = whole
            self.select(part.columns)
            for step in part.steps:
                self.transform(step)
            results.append(self.value)
        self._join(results, "ColumnTransformer")

    def _encode(self, encoder: Any) -> None:
        """1 where a column holds a category, else 0; what is no category has none."""
        whole, results = self.value, []
        for number, categories in enumerate(kept_categories(encoder)):
            if len(categories):
                self.value = whole
                self.select(np.array([number]))
                self.pointwise("equal", categories[None], name="category")
                self.apply(Cast(Element.FLOAT32), name="category")
                results.append(self.value)
        self._join(results, "OneHotEncoder")

    def select(self, columns: Array) -> None:
        """The value becomes those of its columns."""
        whole, runs = self.value, np.flatnonzero(np.diff(columns) != 1) + 1
        parts = []
        for run in np.split(columns, runs):
            piece = Slice(1, int(run[0]), int(run[-1]) + 1)
            parts.append(self.builder.one(piece, whole, origin=Origin("columns")))
        self._join(parts, "columns")

    def _join(self, parts: list[Value], name: str) -> None:
        """The parts side by side."""
        if not parts:
            raise InvalidInput(f"the {name} gives no columns; keep one")
        first, *others = parts
        self.value = first
        if others:
            self.apply(Concat(1), *others, name=name)

    def scale(self, scaler: Any) -> None:
        """Subtract, then divide, as the scaler does, by sums and products with constants."""
        kind = type(scaler).__name__
        if kind == "MinMaxScaler":
            self.pointwise("mul", scaler.scale_, name=kind)
            self.pointwise("add", scaler.min_, name=kind)
        else:
            center = {"StandardScaler": "mean_", "RobustScaler": "center_"}.get(kind)
            if center and getattr(scaler, _SWITCHES[center]):
                self.pointwise("add", -getattr(scaler, center), name=kind)
            if scaler.scale_ is not None:
                self.pointwise("mul", 1 / scaler.scale_, name=kind)
        if getattr(scaler, "clip", False):
            low, high = getattr(scaler, "feature_range", (-1, 1))
            self.pointwise("maximum", low, name=kind)
            self.pointwise("minimum", high, name=kind)


_SWITCHES = {"mean_": "with_mean", "center_": "with_centering"}


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
