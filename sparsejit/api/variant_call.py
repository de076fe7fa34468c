"""Calls of a model's native function with arrays in the model's layout."""

from __future__ import annotations

from sparsejit.ir.graph import Graph
from sparsejit.ir.values import Value
from sparsejit.runtime.moved_call import MovedCall
from sparsejit.runtime.native_call import NativeCall
from sparsejit.runtime.program import Program
from sparsejit.runtime.python_objects import ArrayType


def native_call(
    program: Program,
    graph: Graph,
    workspace_bytes: int,
    tile: int | None,
) -> NativeCall | MovedCall:
    """Return an object that calls the program with arrays in the model's layout.

    The types of the arrays are the types of the graph's inputs and outputs.
    """
    shared = set(filter(graph.is_shared, range(len(graph.inputs))))
    taken = [
        _array_type(value, None if number in shared else tile)
        for number, value in enumerate(graph.inputs)
    ]
    made = [_array_type(value, tile) for value in graph.outputs]
    call = NativeCall(program.memory, taken, made, workspace_bytes)
    axes = graph.batch_axes
    return call if axes is None or not axes.are_moved else MovedCall(call, taken, made, *axes)


def _array_type(value: Value, tile: int | None) -> ArrayType:
    free = value.shape if tile is None else (None, *value.shape[1:])
    return ArrayType(value.type.element.value, free, value.origin.name)
