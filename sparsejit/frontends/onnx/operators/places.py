"""Elements and rows by places of several axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsejit.frontends.onnx.call import Call
from sparsejit.frontends.writing import places
from sparsejit.frontends.writing.writer import Operand, Writer
from sparsejit.ir.graph import Array, Value
from sparsejit.ir.ops.types import axis_of


def gather_elements(write: Writer, call: Call) -> Value:
    """An element for each place along an axis."""
    x = call.value(write, 0)
    axis = axis_of(call.attribute("axis", 0), len(x.shape))
    return places.by_axis(write, x, _indices(write, call), axis)


def gather_nd(write: Writer, call: Call) -> Value:
    """A part for each tuple of places."""
    batch_axes = call.attribute("batch_dims", 0)
    return places.by_tuples(write, call.value(write, 0), _indices(write, call), batch_axes)


def scatter_elements(write: Writer, call: Call) -> Value:
    """Known places along an axis replaced."""
    x, updates = call.value(write, 0), call.value(write, 2)
    axis = axis_of(call.attribute("axis", 0), len(x.shape))
    reduction = call.attribute("reduction", "none")
    return places.replaced_by_axis(write, x, _known(call), updates, axis, reduction)


def scatter_nd(write: Writer, call: Call) -> Value:
    """The parts that known tuples of places name replaced."""
    x, updates = call.value(write, 0), call.value(write, 2)
    reduction = call.attribute("reduction", "none")
    return places.replaced_by_tuples(write, x, _known(call), updates, reduction)


def _indices(write: Writer, call: Call) -> Operand:
    indices = call.operand(1)
    return indices if isinstance(indices, np.ndarray) else call.value(write, 1)


def _known(call: Call) -> Array:
    return call.known(1, "indices")


OPERATORS: dict[str, Callable[[Writer, Call], Any]] = {
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "Scatter": scatter_elements,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
}
