"""Proof that a dtype holds all numbers of a value, so that no operator needs to narrow it."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from sparsejit.ir.dtypes import Dtype, rounded
from sparsejit.ir.graph import GraphBuilder
from sparsejit.ir.operator import Operator
from sparsejit.ir.ops.convolution import Pooling, PoolingKind
from sparsejit.ir.ops.pointwise import ROUNDINGS, WRAPS, Pointwise
from sparsejit.ir.ops.selection import Embedding, OwnRows
from sparsejit.ir.ops.views import Concat, Expand, Pad, Permute, Reshape, Slice
from sparsejit.ir.values import Array, Value

# The operator that makes a value, and its operands.
Producers: TypeAlias = dict[Value, tuple[Operator, tuple[Value, ...]]]
# Operators whose results are numbers of these operands; an empty tuple stands for all operands.
_CHOOSING: dict[str | type, tuple[int, ...]] = {
    **dict.fromkeys((Reshape, Permute, Slice, Expand, Concat, Pad, Pooling), ()),
    **dict.fromkeys(("maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"), ()),
    "where": (1, 2),
    "shift_right": (0,),
    Embedding: (1,),
    OwnRows: (1,),
}
# The same for floats: a short dtype has each number's negative and the whole numbers next to it.
_CHOOSING_FLOATS: dict[str | type, tuple[int, ...]] = {
    **_CHOOSING,
    **dict.fromkeys(("neg", "abs", "relu", "sign", "floor", "ceil", "round", "trunc"), ()),
}


class HeldNumbers:
    """Dtypes of a graph's values, and the operators that make them."""

    def __init__(
        self, builder: GraphBuilder, dtypes: dict[Value, Dtype], producers: Producers
    ) -> None:
        self._builder, self._dtypes, self._producers = builder, dtypes, producers
        self._fitting: set[tuple[Value, Dtype]] = set()

    def fits(self, value: Value, dtype: Dtype) -> bool:
        """Whether a narrow dtype is known to hold all numbers that a value may have."""
        key = value, dtype
        if key not in self._fitting and self._is_found_to_fit(value, dtype):
            self._fitting.add(key)
        return key in self._fitting

    def _is_found_to_fit(self, value: Value, dtype: Dtype) -> bool:
        own = self._dtypes.get(value)
        if own is not None and own in WRAPS and dtype in WRAPS:
            return np.can_cast(own.name, dtype.name)
        if self._builder.is_constant(value):
            return _holds(dtype, self._builder.array(value))
        if value not in self._producers:
            return own == dtype
        op, operands = self._producers[value]
        kind = op.kind if isinstance(op, Pointwise) else type(op)
        if kind == ROUNDINGS.get(dtype):
            return True
        places = (_CHOOSING if dtype in WRAPS else _CHOOSING_FLOATS).get(kind)
        is_mean = isinstance(op, Pooling) and op.kind is PoolingKind.AVERAGE
        if places is None or is_mean:
            return False
        if isinstance(op, Pad) and not _holds(dtype, np.asarray(op.value)):
            return False
        return all(self.fits(x, dtype) for n, x in enumerate(operands) if not places or n in places)


def _holds(dtype: Dtype, array: Array) -> bool:
    """Whether a narrow dtype has all numbers of an array."""
    if dtype in ROUNDINGS:
        return np.array_equal(rounded(array, dtype), array, equal_nan=True)
    limits = np.iinfo(dtype.name)
    return not array.size or bool(limits.min <= array.min() <= array.max() <= limits.max)
