"""ATen's operators whose results have a row for each true element of a mask.

A mapping returns the result and its open size, or None where the operands leave no size open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparsejit.frontends.writing.arranging import expanded, reshaped, sliced
from sparsejit.frontends.writing.open_sizes import MaskSize, chosen, coordinates
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.values import Element, Value


def index(
    write: Writer, x: Operand, indices: Sequence[Operand]
) -> tuple[Value, MaskSize] | None:
    """x[..., mask, ...] for a mask that a call decides, and its open size; None without one."""
    named = [(axis, each) for axis, each in enumerate(indices) if each is not None]
    masks = [
        each
        for _, each in named
        if write.element(each) is Element.BOOL and not write.is_known(each)
    ]
    if not masks:
        return None
    if len(named) > 1:
        raise Unmapped("indexes by a mask beside other indices")
    ((axis, mask),) = named
    return chosen(write, x, axis, mask)


def masked_select(write: Writer, x: Operand, mask: Operand) -> tuple[Value, MaskSize] | None:
    """The elements of x where a mask is true, in a row, and their number; both broadcast."""
    if write.is_known(mask):
        return None
    shape = np.broadcast_shapes(write.shape(x), write.shape(mask))
    value, whole = (expanded(write, write.value(each), shape) for each in (x, mask))
    if not shape:
        value, whole = (reshaped(write, each, (1,)) for each in (value, whole))
    return chosen(write, value, 0, whole)


def nonzero(write: Writer, x: Operand) -> tuple[Value, MaskSize] | None:
    """The indices of elements that are not 0: (count, axes of x)."""
    return None if write.is_known(x) else coordinates(write, x)


def places_where(write: Writer, x: Operand) -> tuple[list[Value], MaskSize] | None:
    """The indices of elements that are not 0: an array (count,) for each axis of x."""
    if write.is_known(x):
        return None
    value = write.value(x)
    table, size = coordinates(write, value if value.shape else reshaped(write, value, (1,)))
    columns = [sliced(write, table, 1, n, n + 1) for n in range(table.shape[1])]
    return [reshaped(write, column, (size.bound,)) for column in columns], size


OPENING: dict[str, Callable[..., tuple[Any, MaskSize] | None]] = {
    "aten.index.Tensor": index,
    "aten.masked_select.default": masked_select,
    "aten.nonzero.default": nonzero,
    "aten.argwhere.default": nonzero,
    "aten.nonzero_numpy.default": places_where,
    "aten.where.default": places_where,
}
