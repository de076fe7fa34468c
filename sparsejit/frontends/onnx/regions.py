"""Graphs within nodes: the names of their values, and their own constants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.frontends.onnx.call import Operand
from sparsejit.frontends.onnx.reading import tensors_of
from sparsejit.frontends.writing.unmapped import Unmapped
from sparsejit.ir.values import Array

if TYPE_CHECKING:
    from onnx import GraphProto


def names_of(values: Iterable[Any]) -> list[str]:
    """The names of declared values."""
    return [str(each.name) for each in values]


def own_constants(region: GraphProto, outside: Mapping[str, Operand]) -> dict[str, Array]:
    """The initialisers of a graph within a node.

    Raises Unmapped for one with the name of another value around the graph: names in ONNX must
    differ throughout, and ONNX Runtime takes the outer value.
    """
    found = tensors_of(region)
    for name, array in found.items():
        other = outside.get(name)
        if other is not None and not (isinstance(other, np.ndarray) and _is_same(array, other)):
            raise Unmapped(
                f"{region.name or 'a graph'} within it has a constant {name}, the "
                "name of a value around it; give the constant another name"
            )
    return found


def _is_same(array: Array, other: Array) -> bool:
    alike = array.dtype == other.dtype and array.shape == other.shape
    return alike and array.tobytes() == other.tobytes()
