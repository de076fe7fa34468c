"""Operators that compute in float64 from columns of x, and round once, at the end, if at all."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sparsejit.ir.operator import Operator
from sparsejit.ir.signature import Bound
from sparsejit.ir.spec import Choice
from sparsejit.ir.values import Array, Element

_FLOATS = (Element.FLOAT32, Element.FLOAT64)
# The rows of a ScaledColumns' numbers; MISSING may be left out.
CENTRE, SCALE, SHIFT, LOW, HIGH, IS_CATEGORY, MISSING = range(7)


@dataclass(frozen=True)
class ScaledColumns(Operator):
    """y[j] = clip(scale[j] * d[j] + shift[j], low[j], high[j]), of x (batch, features).

    d[j] is x[columns[j]] - centre[j]; for a category it is 1 where the two are equal, else 0. NaN
    stays NaN, or becomes the number given for it.

    Operands: x of `element` (y is of `result`), float32 or float64; columns int64 (outputs,), from
    0 to below the features; numbers float64 (rows, outputs): centre, scale, shift, low, high, 1 for
    a category (else 0), and an optional seventh row, the y for NaN.
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
class JoinedColumns(Operator):
    """x (batch, features) of `element` and float32 columns beside it, all in float64."""

    element: Element = Element.FLOAT32

    types: ClassVar[str] = (
        "x element [batch, features], others float32 [batch, n] -> float64 [batch, columns]"
    )

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        fits = self.element in _FLOATS
        return {"columns": bound["features"] + bound["n"]} if fits else None

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        return (np.concatenate([each.astype(np.float64) for each in operands], axis=1),)


@dataclass(frozen=True)
class PiecewiseColumns(Operator):
    """y[j]: a polynomial of x[columns[j]] on each of its intervals, of x (batch, features).

    Column j has the bounds from begins[j] to below begins[j + 1], ascending, and one interval more
    than bounds: interval i ends at bound i, which belongs to it. A row of `pieces` is one number,
    or origin, c0, c1, ... of c0 + c1 t + ... with t = x - origin. NaN becomes missing[j].

    Operands: x of `element` (y is of `result`), float32 or float64; columns int64 (outputs,);
    begins int64 (outputs + 1,); bounds float64; pieces float64 (bounds + outputs, numbers), of the
    columns one after another; missing float64 (outputs,).
    """

    element: Element = Element.FLOAT64
    result: Element = Element.FLOAT64

    types: ClassVar[str] = (
        "x element [batch, features], columns int64 [outputs], begins int64 [ends], "
        "bounds float64 [bounds], pieces float64 [pieces, numbers], missing float64 [outputs] "
        "-> result [batch, outputs]"
    )
    needs: ClassVar[str] = ", with a begin for each output and one more, and a piece an interval"
    takes_empty: ClassVar[bool] = True
    mixes: ClassVar[tuple[str, ...]] = ("outputs",)

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        fits = self.element in _FLOATS and self.result in _FLOATS and bound["numbers"] > 0
        outputs = bound["outputs"]
        intervals = bound["bounds"] + outputs
        same = bound["ends"] == outputs + 1 and bound["pieces"] == intervals
        return {} if fits and same else None

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        x, columns, begins, bounds, pieces, missing = operands
        y = np.empty((len(x), len(columns)))
        for j, column in enumerate(columns):
            first, end = begins[j : j + 2]
            taken = x[:, column].astype(np.float64)
            chosen = pieces[first + j + np.searchsorted(bounds[first:end], taken)]
            made = chosen[:, -1]
            if pieces.shape[1] > 1:
                for coefficient in chosen[:, -2:0:-1].T:
                    made = made * (taken - chosen[:, 0]) + coefficient
            y[:, j] = np.where(np.isnan(taken), missing[j], made)
        return (y,)


@dataclass(frozen=True)
class ColumnProducts(Operator):
    """y[j]: the product of some columns of x (batch, features), float64; 1 for none.

    Operands: x; factors int64 (outputs, degree), numbers of columns, then -1 for no more.
    """

    types: ClassVar[str] = (
        "x float64 [batch, features], factors int64 [outputs, degree] -> float64 [batch, outputs]"
    )
    mixes: ClassVar[tuple[str, ...]] = ("outputs",)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        x, factors = operands
        ones = np.concatenate([x, np.ones((len(x), 1))], axis=1)
        return (ones[:, factors].prod(axis=2),)


@dataclass(frozen=True)
class PowerColumns(Operator):
    """y[j]: the Yeo-Johnson power of column j of x (batch, features), float64; NaN stays NaN.

    y = ((1 + x)^a - 1) / a for x >= 0 with a = powers[j, 0], else -((1 - x)^a - 1) / a with
    a = powers[j, 1]; the logarithm where a is 0.

    Operands: x; powers float64 (features, 2).
    """

    types: ClassVar[str] = (
        "x float64 [batch, features], powers float64 [features, 2] -> float64 [batch, features]"
    )

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        x, powers = operands
        power = np.where(x >= 0, powers[:, 0], powers[:, 1])
        logarithm = np.log1p(np.abs(x))
        with np.errstate(over="ignore"):
            raised = np.expm1(power * logarithm) / np.where(power == 0, 1, power)
        return (np.copysign(np.where(power == 0, logarithm, raised), x),)


@dataclass(frozen=True)
class RowNorm(Operator):
    """Rows of x (batch, features), float64, divided by their norm: "l1", "l2" or "max".

    A row of zeros stays as it is.
    """

    norm: str = "l2"

    types: ClassVar[str] = "x float64 [batch, features] -> float64 [batch, features]"
    needs: ClassVar[str] = ', with the norm "l1", "l2" or "max"'

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        return {} if self.norm in ("l1", "l2", "max") else None

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        (x,) = operands
        size = np.abs(x)
        found = {
            "l1": size.sum(axis=1),
            "l2": np.sqrt((x * x).sum(axis=1)),
            "max": size.max(axis=1, initial=0),
        }[self.norm]
        return (x / np.where(found == 0, 1, found)[:, None],)


@dataclass(frozen=True)
class DoubleProduct(Operator):
    """y = x W^T + bias in float64; x is of `element` and y of `result`, float32 or float64."""

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


class Measure(Choice):
    """A distance between two rows, or their product."""

    SQUARED = "squared"  # the sum of squared differences
    ABSOLUTE = "absolute"  # the sum of absolute differences
    LARGEST = "largest"  # the largest absolute difference
    UNEQUAL = "unequal"  # the number of features that differ
    PRODUCT = "product"


_MEASURES: dict[Measure, Callable[[Array, Array], Array]] = {
    Measure.SQUARED: lambda x, known: np.square(x - known).sum(axis=-1),
    Measure.ABSOLUTE: lambda x, known: np.abs(x - known).sum(axis=-1),
    Measure.LARGEST: lambda x, known: np.abs(x - known).max(axis=-1),
    Measure.UNEQUAL: lambda x, known: np.not_equal(x, known).sum(axis=-1).astype(np.float64),
    Measure.PRODUCT: lambda x, known: (x * known).sum(axis=-1),
}


@dataclass(frozen=True)
class Distances(Operator):
    """The distance of each row of x to each known row, computed in float64 from differences.

    x is of `element`, float32 or float64.
    """

    measure: Measure
    element: Element = Element.FLOAT64

    types: ClassVar[str] = (
        "x element [batch, features], known float64 [rows, features] -> float64 [batch, rows]"
    )
    needs: ClassVar[str] = ", with at least one feature and one known row"

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        fits = self.element in _FLOATS and bound["features"] > 0 and bound["rows"] > 0
        return {} if fits else None

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        x, known = operands
        return (np.stack([_MEASURES[self.measure](row, known) for row in np.asarray(x)]),)
