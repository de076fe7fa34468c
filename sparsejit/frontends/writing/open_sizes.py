"""Sizes that values decide: the number of true elements of a mask, bounded by its shape.

    x[mask]     ->      places, count = true_places(mask)
                        y = x[places]                        count rows, then copies of row 0
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from sparsejit.frontends.writing.arranging import joined, reshaped
from sparsejit.frontends.writing.missing import Missing
from sparsejit.frontends.writing.selection import looked_up
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.graph import Graph, OpenAxis
from sparsejit.ir.operator import BatchPlace, SamplesMixed
from sparsejit.ir.ops.selection import TruePlaces
from sparsejit.ir.values import Element, Value


@dataclass(frozen=True, eq=False)
class MaskSize:
    """A size from 0 to `bound`.

    Attributes:
        bound: number of elements of the mask, at least 2: axes of one element cannot be told apart
        count: the size, int64 ()
        places: the places of the true elements, int64 (bound,)
    """

    bound: int
    count: Value
    places: Value


def open_size(write: Writer, mask: Operand) -> MaskSize:
    """The number of true elements of a mask, the same for all readers of one mask."""
    size: MaskSize = write.derived(write.value(mask), _counted)
    return size


def _counted(write: Writer, mask: Operand) -> MaskSize:
    flat = reshaped(write, write.cast(mask, Element.BOOL), (prod(write.shape(mask)),))
    if not flat.type.size:
        raise Unmapped("indexes by a mask without elements")
    if flat.type.size == 1:
        flat = joined(write, (flat, np.zeros(1, bool)), 0)
    places, count = write.many(TruePlaces(), flat)
    return MaskSize(flat.type.size, count, places)


def chosen(write: Writer, x: Operand, axis: int, mask: Operand) -> tuple[Value, MaskSize]:
    """x[:, ..., mask]: elements of x (..., *shape of the mask, ...), whose first axis is `axis`."""
    value, rank = write.value(x), len(write.shape(mask))
    before, masked, after = np.split(value.shape, [axis, axis + rank])
    if tuple(masked) != write.shape(mask):
        raise Unmapped(f"has a mask {list(write.shape(mask))} for {list(value.shape)} elements")
    size = open_size(write, mask)
    flat = reshaped(write, value, (*map(int, before), int(np.prod(masked)), *map(int, after)))
    return looked_up(write, flat, axis, size.places), size


def coordinates(write: Writer, x: Operand) -> tuple[Value, MaskSize]:
    """The indices of the elements that are not 0: int64 (count, axes of x)."""
    size, shape = open_size(write, x), write.shape(x)
    indices = np.unravel_index(np.arange(prod(shape)), shape or (1,))[: len(shape)]
    table = np.array(indices, np.int64).reshape(len(shape), prod(shape)).T
    return looked_up(write, table, 0, size.places), size


def with_open_outputs(graph: Graph) -> tuple[Graph, list[Missing]]:
    """The graph with the number of each open size as a further output, and with `open_axes`.

    The second result has an operator that computes along an open axis, or an output whose shape
    cannot be cut out of an array; the graph is then unchanged.
    """
    sizes = [
        MaskSize(node.inputs[0].type.size, count=node.outputs[1], places=node.outputs[0])
        for node in graph.nodes
        if isinstance(node.op, TruePlaces)
    ]
    counts: list[Value] = []  # of sizes that outputs have
    found: list[OpenAxis] = []
    for size in sizes:
        origin = size.places.origin
        try:
            axes = _open_axes(graph, size)
        except SamplesMixed as reason:
            text = str(reason).replace("the batch", "an axis")
            return graph, [Missing("mask", f"values decide its size, and a step {text}", origin)]
        reached = _reached(graph, size.places)
        for output, value in enumerate(graph.outputs):
            if value in axes:
                counts += [size.count] * (size.count not in counts)
                count = len(graph.outputs) + counts.index(size.count)
                found.append(OpenAxis(output, *axes[value], count))
            elif value in reached:
                text = f"values decide the sizes of it and of output {output}, {list(value.shape)}"
                return graph, [Missing("mask", text, origin)]
    return graph.with_open_axes(counts, found), []


def _reached(graph: Graph, source: Value) -> set[Value]:
    """All values that depend on `source`."""
    reached = {source}
    for node in graph.nodes:
        if not reached.isdisjoint(node.inputs):
            reached.update(node.outputs)
    return reached


def _open_axes(graph: Graph, size: MaskSize) -> dict[Value, tuple[int, int]]:
    """The axis of each value that has the open size, and its elements per counted element.

    Raises SamplesMixed for an operator that computes along such an axis.
    """
    follower = graph.follower(size.bound)
    follower.given.update(graph.inputs)
    for node in graph.nodes:
        if size.places in node.outputs:
            follower.places[size.places] = BatchPlace(0)
            follower.given.add(size.count)
        elif any(value in follower.places for value in node.inputs):
            node.op.follow_batch(follower, node)
        elif not follower.given.isdisjoint(node.inputs):
            follower.given.update(node.outputs)
    places = follower.places.items()
    return {value: (place.axis, place.inner) for value, place in places if place.outer == 1}
