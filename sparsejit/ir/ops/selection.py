"""Rows of tables by index, and indices of large elements."""

from dataclasses import dataclass, field

import numpy as np

from sparsejit.ir.graph import Array, Element, TensorType
from sparsejit.ir.ops.types import float_type, require
from sparsejit.ir.spec import Choice


@dataclass(frozen=True)
class Embedding:
    """table[indices]: indices int64 (...), table (rows, features), result (..., features)."""

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        indices, table = operands
        fits = indices.element is Element.INT64 and len(table.shape) == 2
        require(fits, self, operands, "give int64 indices and a table (rows, features)")
        return (float_type((*indices.shape, table.shape[1])),)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        indices, table = operands
        return (table[indices],)


class BagKind(Choice):
    """What the rows of a bag become."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"


@dataclass(frozen=True)
class EmbeddingBag:
    """One row for each bag of rows: indices int64, table (rows, features), offsets int64 (bags,).

    Bag i is indices[offsets[i]:offsets[i + 1]], the last to the end; an empty one is zero. Without
    offsets indices are (bags, length). A last operand of float32 weights like indices, if
    `weighted`, scales each row (with SUM).
    """

    kind: BagKind
    with_offsets: bool = False
    weighted: bool = False

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        indices, table, *rest = operands
        count = 2 + self.with_offsets + self.weighted
        fits = (
            len(operands) == count
            and indices.element is Element.INT64
            and len(table.shape) == 2
            and len(indices.shape) == (1 if self.with_offsets else 2)
            and (not self.weighted or rest[-1].shape == indices.shape)
        )
        require(fits, self, operands, f"give {count} operands: int64 indices, a table ...")
        bags = rest[0].shape[0] if self.with_offsets else indices.shape[0]
        return (float_type((bags, table.shape[1])),)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        indices, table, *rest = operands
        weights = rest[-1] if self.weighted else np.ones(indices.shape)
        scaled = table[indices] * weights[..., None]
        bags = np.split(scaled, rest[0][1:]) if self.with_offsets else list(scaled)
        return (np.array([self._reduce(rows) for rows in bags]),)

    def _reduce(self, rows: Array) -> Array:
        if len(rows) == 0:
            return np.zeros(rows.shape[1])
        if self.kind is BagKind.MAX:
            return np.asarray(rows.max(axis=0))
        return np.asarray(rows.sum(axis=0) if self.kind is BagKind.SUM else rows.mean(axis=0))


@dataclass(frozen=True)
class ArgMax:
    """The place of the largest element of the last axis, the first of equals: int64 (...)."""

    keeps_axis: bool = False

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        require(len(x.shape) > 0 and x.shape[-1] > 0, self, operands, "give a last axis to search")
        kept = (*x.shape[:-1], 1) if self.keeps_axis else x.shape[:-1]
        return (TensorType(kept, Element.INT64),)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        return (np.asarray(operands[0].argmax(axis=-1, keepdims=self.keeps_axis)),)


@dataclass(frozen=True)
class TopK:
    """The `count` largest elements of the last axis in descending order, and their places.

    With `least` the least ones in ascending order. Of equals the one that comes first; NaN is
    larger than all others.
    """

    count: int
    least: bool = field(default=False, metadata={"newer": "than files of 0.1"})

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        fits = len(x.shape) > 0 and 0 < self.count <= x.shape[-1]
        require(fits, self, operands, f"give at least {self.count} elements in the last axis")
        shape = (*x.shape[:-1], self.count)
        return float_type(shape), TensorType(shape, Element.INT64)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        (x,) = operands
        is_nan = np.isnan(x)
        order = np.where(is_nan, 0, x if self.least else -x)
        last = is_nan if self.least else ~is_nan  # lexsort's last key is the first
        places = np.lexsort((order, last), axis=-1)[..., : self.count]
        return np.take_along_axis(x, places, axis=-1), places
