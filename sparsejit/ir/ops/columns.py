"""What is computed in float64 from columns of x, and rounded to float32 once."""

from dataclasses import dataclass

import numpy as np

from sparsejit.ir.graph import Array, Element, TensorType
from sparsejit.ir.ops.types import float_type, require

_FLOATS = (Element.FLOAT32, Element.FLOAT64)
# The rows of a ScaledColumns' numbers.
CENTRE, SCALE, SHIFT, LOW, HIGH, IS_CATEGORY = range(6)


@dataclass(frozen=True)
class ScaledColumns:
    """y[j] = clip(scale[j] * d[j] + shift[j], low[j], high[j]), of x (batch, features).

    d[j] is x[columns[j]] - centre[j], or for a category 1 where the two are equal, else 0. NaN
    stays NaN.

    Operands: x of `element`, float32 or float64; columns int64 (outputs,), from 0 to below the
    features; numbers float64 (6, outputs): centre, scale, shift, low, high, and for a category 1.
    """

    element: Element = Element.FLOAT32

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        x, columns, numbers = operands
        fits = (
            len(x.shape) == 2
            and x.element is self.element
            and self.element in _FLOATS
            and len(columns.shape) == 1
            and columns.element is Element.INT64
            and numbers == TensorType((6, *columns.shape), Element.FLOAT64)
        )
        require(fits, self, operands, "give x, columns and six numbers for each")
        return (float_type((x.shape[0], *columns.shape)),)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        x, columns, numbers = operands
        centre, scale, shift, low, high, is_category = numbers
        taken = x[:, columns]
        d = np.where(is_category != 0, taken == centre, taken - centre)
        return (np.minimum(high, np.maximum(low, scale * d + shift)),)


@dataclass(frozen=True)
class DoubleProduct:
    """y = x W^T + bias in float64: x (batch, in), W (out, in), bias (out,), all float64."""

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        x, weights, bias = operands
        fits = (
            len(x.shape) == len(weights.shape) == 2
            and x.shape[1] == weights.shape[1]
            and bias.shape == weights.shape[:1]
            and {each.element for each in operands} == {Element.FLOAT64}
        )
        require(fits, self, operands, "give x, weights and bias in float64")
        return (float_type((x.shape[0], *bias.shape)),)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        x, weights, bias = operands
        return (x @ weights.T + bias,)
