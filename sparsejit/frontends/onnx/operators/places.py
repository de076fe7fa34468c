"""Gather and scatter elements, or parts, by places along several axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsejit.frontends.onnx.call import Call
from sparsejit.frontends.writing import places, remainders
from sparsejit.frontends.writing.arranging import reshaped, sliced
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.values import Element, Value, axis_of

_MOST_UPDATES = 16  # of a TensorScatter, one after another


def gather_elements(write: Writer, call: Call) -> Value:
    """Gather an element for each place along an axis."""
    x = call.value(write, 0)
    axis = axis_of(call.attribute("axis", 0), len(x.shape))
    return places.by_axis(write, x, _indices(write, call), axis)


def gather_nd(write: Writer, call: Call) -> Value:
    """Gather a part of x for each tuple of places."""
    batch_axes = call.attribute("batch_dims", 0)
    return places.by_tuples(write, call.value(write, 0), _indices(write, call), batch_axes)


def scatter_elements(write: Writer, call: Call) -> Value:
    """Replace elements at places along an axis, or reduce them with updates."""
    x, updates = call.value(write, 0), call.value(write, 2)
    axis = axis_of(call.attribute("axis", 0), len(x.shape))
    reduction = call.attribute("reduction", "none")
    return places.replaced_by_axis(write, x, _indices(write, call), updates, axis, reduction)


def scatter_nd(write: Writer, call: Call) -> Value:
    """Replace the parts at tuples of places, or reduce them with updates."""
    x, updates = call.value(write, 0), call.value(write, 2)
    reduction = call.attribute("reduction", "none")
    return places.replaced_by_tuples(write, x, _indices(write, call), updates, reduction)


def tensor_scatter(write: Writer, call: Call) -> Value:
    """Write updates into a cache along an axis, from each sample's own place on."""
    cache, updates = call.value(write, 0), call.value(write, 1)
    axis, is_circular = axis_of(call.attribute("axis", -2), len(cache.shape)), False
    if call.choice("mode", ("linear", "circular")) == "circular":
        is_circular = True
    length, count = cache.shape[axis], updates.shape[axis]
    if count > _MOST_UPDATES or axis == 0:
        raise Unmapped(
            f"has {count} updates along axis {axis}; give at most {_MOST_UPDATES}, not along axis 0"
        )
    shape = [1] * len(cache.shape)
    stands = np.arange(length).reshape([-1 if n == axis else 1 for n in range(len(shape))])
    shape[0] = cache.shape[0]
    first = call.value(write, 2) if call.has(2) else write.number(0, Element.INT64)
    first = reshaped(write, first, shape) if call.has(2) else first
    for number in range(count):
        place = write.pointwise("add", first, number)
        if is_circular:
            place = remainders.remainder(write, place, length)
        part = sliced(write, updates, axis, number, number + 1)
        is_here = write.pointwise("equal", place, stands)
        cache = write.pointwise("where", is_here, part, cache)
    return cache


def _indices(write: Writer, call: Call) -> Operand:
    indices = call.operand(1)
    return indices if isinstance(indices, np.ndarray) else call.value(write, 1)


OPERATORS: dict[str, Callable[[Writer, Call], Any]] = {
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "Scatter": scatter_elements,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "TensorScatter": tensor_scatter,
}
