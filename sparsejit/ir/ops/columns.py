"""What is computed in float64 from columns of x, and rounded to float32 once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sparsejit.ir.graph import Array, Element
from sparsejit.ir.ops.operator import Operator
from sparsejit.ir.ops.signature import Bound

_FLOATS = (Element.FLOAT32, Element.FLOAT64)
# The rows of a ScaledColumns' numbers.
CENTRE, SCALE, SHIFT, LOW, HIGH, IS_CATEGORY = range(6)


@dataclass(frozen=True)
class ScaledColumns(Operator):
    """y[j] = clip(scale[j] * d[j] + shift[j], low[j], high[j]), of x (batch, features).

    d[j] is x[columns[j]] - centre[j], or for a category 1 where the two are equal, else 0. NaN
    stays NaN.

    Operands: x of `element`, float32 or float64, as y of `result`; columns int64 (outputs,), from 0
    to below the features; numbers float64 (6, outputs): centre, scale, shift, low, high, and for a
    category 1.
    """

    element: Element = Element.FLOAT32
    result: Element = Element.FLOAT32

    types: ClassVar[str] = (
        "x element [batch, features], columns int64 [outputs], numbers float64 [6, outputs] "
        "-> result [batch, outputs]"
    )
    mixes: ClassVar[tuple[str, ...]] = ("outputs",)

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        return {} if self.element in _FLOATS and self.result in _FLOATS else None

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        x, columns, numbers = operands
        centre, scale, shift, low, high, is_category = numbers
        taken = x[:, columns]
        d = np.where(is_category != 0, taken == centre, taken - centre)
        return (np.minimum(high, np.maximum(low, scale * d + shift)),)


@dataclass(frozen=True)
class DoubleProduct(Operator):
    """y = x W^T + bias of x of `element`, float32 or float64; in float64, at the end rounded."""

    element: Element = Element.FLOAT64

    types: ClassVar[str] = (
        "x element [batch, in], weights float64 [out, in], bias float64 [out] "
        "-> float32 [batch, out]"
    )

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        return {} if self.element in _FLOATS else None

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        x, weights, bias = operands
        return (x @ weights.T + bias,)
