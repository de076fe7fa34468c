"""What is computed in float64 from columns of x, and rounded to float32 once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sparsejit.ir.graph import Array, Element
from sparsejit.ir.ops.operator import Operator
from sparsejit.ir.ops.signature import Bound

_FLOATS = (Element.FLOAT32, Element.FLOAT64)
# The rows of a ScaledColumns' numbers; MISSING may be left out.
CENTRE, SCALE, SHIFT, LOW, HIGH, IS_CATEGORY, MISSING = range(7)


@dataclass(frozen=True)
class ScaledColumns(Operator):
    """y[j] = clip(scale[j] * d[j] + shift[j], low[j], high[j]), of x (batch, features).

    d[j] is x[columns[j]] - centre[j], or for a category 1 where the two are equal, else 0. NaN
    stays NaN, or y[j] is what is given for it.

    Operands: x of `element`, float32 or float64, as y of `result`; columns int64 (outputs,), from 0
    to below the features; numbers float64 (rows, outputs): centre, scale, shift, low, high, for a
    category 1, and as a seventh row, if any, what y is for NaN.
    """

    element: Element = Element.FLOAT32
    result: Element = Element.FLOAT32

    types: ClassVar[str] = (
        "x element [batch, features], columns int64 [outputs], numbers float64 [rows, outputs] "
        "-> result [batch, outputs]"
    )
    needs: ClassVar[str] = ", with 6 or 7 rows of numbers"
    mixes: ClassVar[tuple[str, ...]] = ("outputs",)

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        fits = self.element in _FLOATS and self.result in _FLOATS and bound["rows"] in (6, 7)
        return {} if fits else None

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        x, columns, numbers = operands
        centre, scale, shift, low, high, is_category = numbers[:MISSING]
        taken = x[:, columns]
        with np.errstate(invalid="ignore"):
            d = np.where(is_category != 0, taken == centre, taken - centre)
        y = np.minimum(high, np.maximum(low, scale * d + shift))
        return (np.where(np.isnan(taken), numbers[MISSING], y) if len(numbers) > MISSING else y,)


@dataclass(frozen=True)
class DoubleProduct(Operator):
    """y = x W^T + bias in float64, of x of `element`, float32 or float64, and as y of `result`."""

    element: Element = Element.FLOAT64
    result: Element = field(default=Element.FLOAT32, metadata={"newer": "than files of 0.1"})

    types: ClassVar[str] = (
        "x element [batch, in], weights float64 [out, in], bias float64 [out] "
        "-> result [batch, out]"
    )

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        return {} if self.element in _FLOATS and self.result in _FLOATS else None

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        x, weights, bias = operands
        return (x @ weights.T + bias,)
