"""Rows of tables by index, and indices of large elements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sparsejit.ir.operator import BatchPlace, Node, Operator
from sparsejit.ir.signature import Bound, Signature, signature
from sparsejit.ir.spec import Choice
from sparsejit.ir.time_rules import Apart, TimeRule, Whole
from sparsejit.ir.values import Array


@dataclass(frozen=True)
class Embedding(Operator):
    """table[indices]: indices int64 (...), table (rows, features), result (..., features)."""

    types: ClassVar[str] = (
        "indices int64 [*places], table float32|int64 [rows, features]"
        " -> float32|int64 [*places, features]"
    )
    mixing: ClassVar[str] = "takes samples out of the batch"

    def time_rule(
        self, node: Node, places: Sequence[BatchPlace | None], length: int
    ) -> TimeRule:
        _, table = places
        if table is None or table.axis:
            return Apart()
        remedy = "take them from the first ones alone, joined before all frames, or pad with zeros"
        return Whole("takes frames by their number", remedy)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        indices, table = operands
        return (table[indices],)


@dataclass(frozen=True)
class OwnRows(Operator):
    """result[b, i] = tables[b, indices[b, i]]: each sample's rows of its own table."""

    types: ClassVar[str] = (
        "indices int64 [batch, n], tables float32|int64 [batch, rows, features]"
        " -> float32|int64 [batch, n, features]"
    )
    mixing: ClassVar[str] = "takes samples out of the batch"

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        indices, tables = operands
        return (np.take_along_axis(tables, indices[..., None], axis=1),)


class Reduction(Choice):
    """The function that combines an old element with its update."""

    NONE = "none"
    ADD = "add"
    MUL = "mul"
    MIN = "min"
    MAX = "max"


_REDUCED: dict[Reduction, np.ufunc] = {
    Reduction.ADD: np.add,
    Reduction.MUL: np.multiply,
    Reduction.MIN: np.minimum,
    Reduction.MAX: np.maximum,
}


@dataclass(frozen=True)
class PlacedRows(Operator):
    """The tables, with result[b, indices[b, i]] replaced by updates[b, i], in the order of i.

    A reduction puts the sum, the product or an extreme of both there; an extreme with NaN is NaN.
    """

    reduction: Reduction = Reduction.NONE

    types: ClassVar[str] = (
        "indices int64 [batch, n], updates float32|int64 [batch, n, features],"
        " tables float32|int64 [batch, rows, features]"
        " -> float32|int64 [batch, rows, features]"
    )
    mixes: ClassVar[tuple[str, ...]] = ("rows",)
    mixing: ClassVar[str] = "puts samples into other places of the batch"

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        indices, updates, tables = operands
        result = tables.copy()
        for table, places, new in zip(result, indices, updates, strict=True):
            if self.reduction is Reduction.NONE:
                for place, row in zip(places, new, strict=True):
                    table[place] = row
            else:
                _REDUCED[self.reduction].at(table, places, new)
        return (result,)


class BagKind(Choice):
    """The function that combines the rows of a bag."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"


@dataclass(frozen=True)
class EmbeddingBag(Operator):
    """One row for each bag of rows: indices int64, table (rows, features), offsets int64 (bags,).

    Bag i is indices[offsets[i]:offsets[i + 1]], the last one runs to the end; an empty bag gives
    zeros. Without offsets indices are (bags, length). If `weighted`, a last operand of float32
    weights, in the shape of indices, scales each row (with SUM).
    """

    kind: BagKind
    with_offsets: bool = False
    weighted: bool = False

    mixes: ClassVar[tuple[str, ...]] = ("offsets",)  # a bag ends where the next one begins
    mixing: ClassVar[str] = "sums bags over the batch"

    def signature(self, operands: int) -> Signature:
        bags, places = ("offsets", "n") if self.with_offsets else ("bags", "bags, n")
        offsets = ", offsets int64 [offsets]" if self.with_offsets else ""
        weights = f", weights float32 [{places}]" if self.weighted else ""
        return signature(
            f"indices int64 [{places}], table float32 [rows, features]{offsets}{weights} "
            f"-> float32 [{bags}, features]"
        )

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
class ArgMax(Operator):
    """The place of the largest element of the last axis, the first of equal ones: int64 (...)."""

    keeps_axis: bool = False

    needs: ClassVar[str] = ", with elements in the last axis"
    mixing: ClassVar[str] = "compares samples with each other"

    def signature(self, operands: int) -> Signature:
        kept = ", 1" if self.keeps_axis else ""
        return signature(f"x float32 [*rows, n] -> int64 [*rows{kept}]")

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        return {} if bound["n"] > 0 else None

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        return (np.asarray(operands[0].argmax(axis=-1, keepdims=self.keeps_axis)),)


@dataclass(frozen=True)
class TopK(Operator):
    """The `count` largest elements of the last axis in descending order, and their places.

    With `least`, the least elements in ascending order. Equal elements keep their order; NaN is
    larger than all numbers.
    """

    count: int
    least: bool = field(default=False, metadata={"newer": "than files of 0.1"})

    types: ClassVar[str] = (
        "x float32|float64 [*rows, n] -> float32|float64 [*rows, count], int64 [*rows, count]"
    )
    needs: ClassVar[str] = ", with at least `count` elements in the last axis"
    mixing: ClassVar[str] = "compares samples with each other"

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        return {} if 0 < self.count <= bound["n"] else None

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        (x,) = operands
        is_nan = np.isnan(x)
        order = np.where(is_nan, 0, x if self.least else -x)
        last = is_nan if self.least else ~is_nan  # lexsort's last key is the first
        places = np.lexsort((order, last), axis=-1)[..., : self.count]
        return np.take_along_axis(x, places, axis=-1), places


@dataclass(frozen=True)
class TruePlaces(Operator):
    """The places of the true elements of a mask in ascending order, and their number.

    The entries behind the last place are 0.
    """

    types: ClassVar[str] = "mask bool [n] -> int64 [n], int64 []"
    needs: ClassVar[str] = ", with elements"
    mixing: ClassVar[str] = "counts the elements of several samples"

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        return {} if bound["n"] > 0 else None

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        (mask,) = operands
        found = np.flatnonzero(mask)
        places = np.pad(found, (0, len(mask) - len(found)))
        return places.astype(np.int64), np.asarray(len(found), np.int64)
