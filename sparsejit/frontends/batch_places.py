"""Where the batch lies in the result of each operator."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from sparsejit.ir.graph import Array, Graph, Node, Value
from sparsejit.ir.ops.attention import Attention
from sparsejit.ir.ops.casts import Cast
from sparsejit.ir.ops.convolution import Convolution, Pooling
from sparsejit.ir.ops.forest import Forest
from sparsejit.ir.ops.pointwise import ROW_REDUCTIONS, Chain, Pointwise
from sparsejit.ir.ops.products import Bmm, Linear
from sparsejit.ir.ops.recurrent import Recurrence
from sparsejit.ir.ops.selection import ArgMax, Embedding, EmbeddingBag, TopK
from sparsejit.ir.ops.types import axis_of
from sparsejit.ir.ops.views import Concat, Expand, Pad, Permute, Reshape, Slice


class SamplesMixed(Exception):
    """An operator mixes samples; the text says how."""


class BatchPlace(NamedTuple):
    """The batch on an axis of outer * batch * inner elements: the index is (o, sample, i)."""

    axis: int
    outer: int = 1
    inner: int = 1


class Follower:
    """The places found so far. What has none is the same for all samples."""

    def __init__(self, graph: Graph, batch: int) -> None:
        self.batch = batch
        self.places: dict[Value, BatchPlace] = {}
        self._producers = graph.producers()
        self._known: dict[Value, Array] = dict(graph.constants)

    def put(self, node: Node, place: BatchPlace) -> None:
        """The same place in all outputs."""
        self.places.update(dict.fromkeys(node.outputs, place))

    def only(self, node: Node, *which: int) -> BatchPlace:
        """The place in one operand, the only one that may have it."""
        for number, value in enumerate(node.inputs):
            if value in self.places and number not in which:
                raise SamplesMixed(
                    f"takes operand {number}, shared by all samples, from the samples"
                )
        return self.places[node.inputs[which[0]]]

    def common(self, node: Node, values: tuple[Value, ...], from_end: bool = True) -> BatchPlace:
        """The place of operands that broadcast, its axis counted from the end if asked (-1 ...).

        Operands without place must be the same along that axis.
        """
        found = {
            place._replace(axis=place.axis - len(value.shape)) if from_end else place
            for value in values
            if (place := self.places.get(value)) is not None
        }
        if len(found) != 1:
            raise SamplesMixed("combines each sample with others: the batch lies on different axes")
        (place,) = found
        for value in values:
            if value not in self.places:
                self._check_shared(value, place)
        return place

    def _check_shared(self, value: Value, place: BatchPlace) -> None:
        """Raise SamplesMixed unless a value is the same for all samples at that place."""
        axis = place.axis if place.axis >= 0 else len(value.shape) + place.axis
        if axis < 0 or value.shape[axis] == 1:
            return
        array = self._array(value)
        sizes = (place.outer, self.batch, place.inner)
        apart = array.reshape(*array.shape[:axis], *sizes, *array.shape[axis + 1 :])
        first = apart.take([0], axis=axis + 1)
        if not np.array_equal(apart, np.broadcast_to(first, apart.shape)):
            raise SamplesMixed("treats samples differently, by their place in the batch")

    def _array(self, value: Value) -> Array:
        if value not in self._known:
            node = self._producers[value]
            results = node.op.reference(*(self._array(operand) for operand in node.inputs))
            self._known.update(zip(node.outputs, results, strict=True))
        return self._known[value]


def _in_results(follow: Follower, node: Node, place: BatchPlace) -> None:
    """A place counted from the end, in all outputs that are as long there."""
    length = place.outer * follow.batch * place.inner
    for value in node.outputs:
        axis = len(value.shape) + place.axis
        if axis >= 0 and value.shape[axis] == length:
            follow.places[value] = place._replace(axis=axis)


def _pointwise(follow: Follower, node: Node, op: Any) -> None:
    _in_results(follow, node, follow.common(node, node.inputs))


def _chain(follow: Follower, node: Node, op: Chain) -> None:
    place = follow.common(node, node.inputs)
    if place.axis == -1 and any(step.kind in ROW_REDUCTIONS for step in op.steps):
        raise SamplesMixed(f"computes {op.title} over the batch")
    _in_results(follow, node, place)


def _linear(follow: Follower, node: Node, op: Linear) -> None:
    place = follow.only(node, 0)
    if place.axis == len(node.inputs[0].shape) - 1:
        raise SamplesMixed("multiplies samples with each other")
    follow.put(node, place)


def _bmm(follow: Follower, node: Node, op: Bmm) -> None:
    summed = [-1, -1 if op.transposed else -2]
    found = {}
    for value, inner in zip(node.inputs, summed, strict=True):
        if (place := follow.places.get(value)) is not None:
            found[value] = place._replace(axis=place.axis - len(value.shape))
            if found[value].axis == inner:
                raise SamplesMixed("multiplies samples with each other")
    if all(place.axis < -2 for place in found.values()):
        return _in_results(follow, node, follow.common(node, node.inputs))
    if len(found) != 1:
        raise SamplesMixed("multiplies samples with each other")
    ((value, place),) = found.items()
    return _in_results(follow, node, place._replace(axis=-2 if value is node.inputs[0] else -1))


def _attention(follow: Follower, node: Node, op: Attention) -> None:
    place = follow.common(node, node.inputs[:3])
    if place.axis >= -2:
        raise SamplesMixed("attends from one sample to another")
    _in_results(follow, node, place)


def _convolution(follow: Follower, node: Node, op: Convolution) -> None:
    place = follow.only(node, 0)
    if place.axis != 0:
        raise SamplesMixed("convolves over the batch")
    follow.put(node, place)


def _pooling(follow: Follower, node: Node, op: Pooling) -> None:
    place = follow.only(node, 0)
    if place.axis > 1:
        raise SamplesMixed("pools over the batch")
    follow.put(node, place)


def _recurrence(follow: Follower, node: Node, op: Recurrence) -> None:
    gates, *states = node.inputs[:-2]
    if any(value in follow.places for value in node.inputs[-2:]):
        raise SamplesMixed("takes weights from the samples")
    # Counted from the end the batch is the second axis of all of them.
    place = follow.common(node, (gates, *states))
    if place.axis != -2:
        raise SamplesMixed("runs over the batch as over time")
    _in_results(follow, node, place)


def _embedding(follow: Follower, node: Node, op: Embedding) -> None:
    indices, table = node.inputs
    if table not in follow.places:
        return follow.put(node, follow.places[indices])
    place = follow.only(node, 1)
    if place.axis == 0:
        raise SamplesMixed("takes samples out of the batch")
    return follow.put(node, place._replace(axis=len(indices.shape)))


def _embedding_bag(follow: Follower, node: Node, op: EmbeddingBag) -> None:
    if op.with_offsets:
        raise SamplesMixed("sums bags that begin at offsets")
    if node.inputs[1] in follow.places:
        raise SamplesMixed("takes its table from the samples")
    place = follow.common(node, (node.inputs[0], *node.inputs[2:]), from_end=False)
    if place.axis != 0:
        raise SamplesMixed("sums bags over the batch")
    follow.put(node, place)


def _last_axis(follow: Follower, node: Node, op: ArgMax | TopK) -> None:
    place = follow.only(node, 0)
    if place.axis == len(node.inputs[0].shape) - 1:
        raise SamplesMixed("compares samples with each other")
    follow.put(node, place)


def _forest(follow: Follower, node: Node, op: Forest) -> None:
    place = follow.only(node, 0)
    if place.axis == 1:
        raise SamplesMixed("compares features of several samples")
    follow.put(node, place)


def _reshape(follow: Follower, node: Node, op: Reshape) -> None:
    (x,) = node.inputs
    place = follow.places[x]
    before = prod(x.shape[: place.axis]) * place.outer
    after = place.inner * prod(x.shape[place.axis + 1 :])
    for axis, length in enumerate(op.shape):
        outer, uneven = divmod(before, prod(op.shape[:axis]) or 1)
        inner, rest = divmod(length, outer * follow.batch or 1)
        if not uneven and not rest and inner and inner * prod(op.shape[axis + 1 :]) == after:
            return follow.put(node, BatchPlace(axis, outer, inner))
    raise SamplesMixed("joins samples in another order")


def _permute(follow: Follower, node: Node, op: Permute) -> None:
    place = follow.only(node, 0)
    follow.put(node, place._replace(axis=op.axes.index(place.axis)))


def _slice(follow: Follower, node: Node, op: Slice) -> None:
    (x,) = node.inputs
    place, axis = follow.places[x], axis_of(op.axis, len(x.shape))
    if axis == place.axis and node.output.shape != x.shape:
        raise SamplesMixed("takes samples out of the batch")
    follow.put(node, place)


def _concat(follow: Follower, node: Node, op: Concat) -> None:
    place = follow.common(node, node.inputs, from_end=False)
    if place.axis == axis_of(op.axis, len(node.output.shape)):
        raise SamplesMixed("adds samples to the batch")
    follow.put(node, place)


def _pad(follow: Follower, node: Node, op: Pad) -> None:
    place = follow.only(node, 0)
    if any(op.widths[place.axis]):
        raise SamplesMixed("adds samples to the batch")
    follow.put(node, place)


_RULES: dict[type, Callable[[Follower, Node, Any], None]] = {
    **dict.fromkeys((Pointwise, Cast, Expand), _pointwise),
    Chain: _chain,
    Linear: _linear,
    Bmm: _bmm,
    Attention: _attention,
    Recurrence: _recurrence,
    Convolution: _convolution,
    Pooling: _pooling,
    Embedding: _embedding,
    EmbeddingBag: _embedding_bag,
    ArgMax: _last_axis,
    TopK: _last_axis,
    Forest: _forest,
    Reshape: _reshape,
    Permute: _permute,
    Slice: _slice,
    Concat: _concat,
    Pad: _pad,
}


def follow_node(follower: Follower, node: Node) -> None:
    """Note where the batch lies in a node's outputs. Raises SamplesMixed where it mixes samples."""
    rule = _RULES.get(type(node.op))
    if rule is None:
        raise SamplesMixed(f"is a {type(node.op).__name__}, of which nothing is known")
    rule(follower, node, node.op)
