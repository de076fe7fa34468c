"""A model's batch put first in its graph, and the axes on which a model may have it.

What is lowered takes and makes samples on axis 0, whatever the model has: a permutation is a view.
The call moves axes, as `Graph.batch_axes` say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import NamedTuple

from sparsejit.ir.batch_axes import BatchAxes, from_first, to_first
from sparsejit.ir.graph import Graph, Node, TensorType, Value
from sparsejit.ir.ops.attention import Attention
from sparsejit.ir.ops.products import Bmm
from sparsejit.ir.ops.recurrent import Recurrence
from sparsejit.ir.ops.selection import Embedding
from sparsejit.ir.ops.views import Permute

# For each input the axis that is the batch, or None where it has none.
InputAxes = Sequence[int | None]
# Choices from sizes alone, of which most are refused by one look at the graph.
_MOST_BY_SIZES = 64
# How the names begin that people give to the size of a batch.
_BATCH = "batch"


class SizedInput(NamedTuple):
    """An input's sizes in the example, and the names of those axes that have one."""

    shape: tuple[int, ...]
    names: Mapping[int, str] = {}


def batch_first(graph: Graph, axes: BatchAxes) -> Graph:
    """The graph as it takes and makes samples on axis 0, where the model has them on `axes`."""
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
    """Axis 0 of all inputs, where it is one size."""
    sizes = {each.shape[:1] for each in inputs}
    return (0,) * len(inputs) if len(sizes) == 1 and sizes != {()} else None


def named_axes(inputs: Sequence[SizedInput]) -> tuple[int | None, ...] | None:
    """The axes that have the name of the batch: one that says so, or that of axis 0 of the first.

    None where no name is the batch's.
    """
    names = [name for each in inputs for name in each.names.values()]
    name = next((name for name in names if name.lower().startswith(_BATCH)), None)
    if name is None and inputs:
        name = inputs[0].names.get(0)
    return None if name is None else axes_of_name(inputs, name)


def axes_of_name(inputs: Sequence[SizedInput], name: str) -> tuple[int | None, ...]:
    """The first axis of each input that has the name."""
    return tuple(
        min((axis for axis, each in one.names.items() if each == name), default=None)
        for one in inputs
    )


def axes_by_sizes(graph: Graph) -> Iterator[tuple[int | None, ...]]:
    """What the sizes of the example's graph let be the batch, likelier choices first.

    That is axis 0 of an input and axes of the others that are as long, axis 0 before others; and
    axis 1 of an input, as recurrent layers and attention may have time on axis 0, and look-ups of
    several codes the codes.
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
    """Choices where that axis of that input is the batch."""
    batch = shapes[base][axis]
    options: list[list[int | None]] = [
        [axis]
        if number == base
        else [*(place for place, size in enumerate(shape) if size == batch), None]
        for number, shape in enumerate(shapes)
    ]
    yield from product(*options)
