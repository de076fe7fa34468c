"""A writer of graphs, with columns that are polynomials on intervals of others."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from sparsejit.estimators.lifting import NumberColumn
from sparsejit.frontends.writing.writer import Writer
from sparsejit.ir.ops.columns import PiecewiseColumns
from sparsejit.ir.values import Array, Element, Origin, Value

_Own = TypeVar("_Own", bound="PieceWriter")


class PieceWriter(Writer):
    """Writes new columns, computed from columns of X (batch, features)."""

    def at(self: _Own, name: str) -> _Own:
        """Name all values that are written from now on, and return self."""
        self.origin = Origin(name)
        return self

    def codes(self, x: Value, columns: Sequence[NumberColumn]) -> Value:
        """Write columns of codes (batch, columns) of x's element, each computed from x."""
        return self.pieces(
            x,
            [each.feature for each in columns],
            [each.bounds for each in columns],
            [each.codes[:, None] for each in columns],
            [each.code_of_nan(x.type.element is Element.FLOAT32) for each in columns],
            x.type.element,
        )

    def pieces(
        self,
        x: Value,
        columns: Sequence[int],
        bounds: Sequence[Array],
        pieces: Sequence[Array],
        missing: Sequence[float],
        result: Element = Element.FLOAT64,
    ) -> Value:
        """Write a `PiecewiseColumns` of x, whose bounds and pieces are given by column."""
        begins = np.concatenate([[0], np.cumsum([len(each) for each in bounds])])
        arrays = np.asarray(columns, np.int64), begins, np.concatenate(bounds)
        ends = np.concatenate(pieces), np.asarray(missing, np.float64)
        return self.joined_pieces(x, *arrays, *ends, result)

    def joined_pieces(
        self,
        x: Value,
        columns: Array,
        begins: Array,
        bounds: Array,
        pieces: Array,
        missing: Array,
        result: Element = Element.FLOAT64,
    ) -> Value:
        """Write a `PiecewiseColumns` of x, whose operands are given."""
        name, arrays = self.origin.name, {"bounds": bounds, "pieces": pieces, "missing": missing}
        operands = [
            self.constant(columns, f"{name}.columns"),
            self.constant(begins.astype(np.int64), f"{name}.begins"),
            *(
                self.constant(array, f"{name}.{what}", Element.FLOAT64)
                for what, array in arrays.items()
            ),
        ]
        return self.one(PiecewiseColumns(x.type.element, result), x, *operands)
