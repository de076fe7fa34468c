"""Graphs with the batch on axis 0, and the axes on which a model may have its batch.

Lowered graphs take and return samples on axis 0. If the model has them on another axis, the graph
permutes its inputs and outputs, which is a view, and a call moves axes by `Graph.batch_axes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import NamedTuple

from sparsejit.ir.batch_axes import BatchAxes, from_first, to_first
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.attention import Attention
from sparsejit.ir.ops.products import Bmm
from sparsejit.ir.ops.recurrent import Recurrence
from sparsejit.ir.ops.selection import Embedding
from sparsejit.ir.ops.views import Permute
from sparsejit.ir.values import TensorType, Value

# The batch axis of each input, or None for an input without batch.
InputAxes = Sequence[int | None]
# Most choices of axes by size alone; one look at the graph refuses most of them.
_MOST_BY_SIZES = 64
# Beginning of the names that people give to the batch size.
_BATCH = "batch"


class SizedInput(NamedTuple):
    """An input's sizes in the example, and the names of its named axes."""

    shape: tuple[int, ...]
    names: Mapping[int, str] = {}


def batch_first(graph: Graph, axes: BatchAxes) -> Graph:
    """Return the graph with samples on axis 0; the model has them on `axes`."""
    if axes.are_first:
        return graph
    inputs, before = [], []
    for value, axis in zip(graph.inputs, axes.inputs, strict=True):
        if not axis:
            inputs.append(value)
            continue
        rank = len(value.shape)
        given = _permuted(value, to_first(axis, rank))
        inputs.append(given)
        before.append(Node(Permute(from_first(axis, rank)), (given,), (value,)))
    outputs, after = [], []
    for value, axis in zip(graph.outputs, axes.outputs, strict=True):
        if not axis:
            outputs.append(value)
            continue
        order = to_first(axis, len(value.shape))
        outputs.append(_permuted(value, order))
        after.append(Node(Permute(order), (value,), (outputs[-1],)))
    nodes = (*before, *graph.nodes, *after)
    return Graph(tuple(inputs), tuple(outputs), nodes, graph.constants, graph.notes, axes)


def _permuted(value: Value, order: Sequence[int]) -> Value:
    shape = tuple(value.shape[axis] for axis in order)
    return Value(TensorType(shape, value.type.element), value.origin)


def common_axes(inputs: Sequence[SizedInput]) -> tuple[int, ...] | None:
    """Axis 0 of every input if it has the same length in all, else None."""
    sizes = {each.shape[:1] for each in inputs}
    return (0,) * len(inputs) if len(sizes) == 1 and sizes != {()} else None


def named_axes(inputs: Sequence[SizedInput]) -> tuple[int | None, ...] | None:
    """Return the axes with the batch's name; None if no axis has one.

    The batch's name begins with `batch`, or else is the name of axis 0 of the first input.
    """
    names = [name for each in inputs for name in each.names.values()]
    name = next((name for name in names if name.lower().startswith(_BATCH)), None)
    if name is None and inputs:
        name = inputs[0].names.get(0)
    return None if name is None else axes_of_name(inputs, name)


def axes_of_name(inputs: Sequence[SizedInput], name: str) -> tuple[int | None, ...]:
    """The first axis of each input with this name; None for an input without it."""
    return tuple(
        min((axis for axis, each in one.names.items() if each == name), default=None)
        for one in inputs
    )


def axes_by_sizes(graph: Graph) -> Iterator[tuple[int | None, ...]]:
    """Yield axes that may be the batch by the sizes in the example's graph, likelier ones first.

    Axis 0 of an input is tried together with axes of the other inputs that are as long, axis 0
    before others. Axis 1 is tried too if recurrent layers or attention may have time on axis 0, or
    look-ups of several codes the codes.
    """
    shapes = [value.shape for value in graph.inputs]
    ops = [node.op for node in graph.nodes]
    most = 2 if any(isinstance(op, Recurrence | Attention | Bmm | Embedding) for op in ops) else 1
    bases = [
        (number, axis)
        for axis in range(most)
        for number, shape in enumerate(shapes)
        if len(shape) > (axis and axis + 1)
    ]
    chosen = (choice for base in bases for choice in _with_base(shapes, *base))
    yield from islice(dict.fromkeys(islice(chosen, 4 * _MOST_BY_SIZES)), _MOST_BY_SIZES)


def _with_base(
    shapes: Sequence[tuple[int, ...]], base: int, axis: int
) -> Iterator[tuple[int | None, ...]]:
    """Yield choices of axes in which axis `axis` of input `base` is the batch."""
    batch = shapes[base][axis]
    options: list[list[int | None]] = [
        [axis]
        if number == base
        else [*(place for place, size in enumerate(shape) if size == batch), None]
        for number, shape in enumerate(shapes)
    ]
    yield from product(*options)
