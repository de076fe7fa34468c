"""The batch's place in each value, followed from operator to operator by the operators' rules."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from sparsejit.ir.graph import Array, Graph, Node, Value


class SamplesMixed(Exception):
    """An operator mixes samples; the text says how."""


class BatchPlace(NamedTuple):
    """The batch within an axis of outer * batch * inner elements, with indices (o, sample, i)."""

    axis: int
    outer: int = 1
    inner: int = 1


class Follower:
    """The batch's places found so far. A value without a place is the same for all samples.

    Such a value may still have an axis as long as the batch: `shared` has its place. Values in
    `given` depend on inputs without batch, so that their numbers are not known.
    """

    def __init__(self, graph: Graph, batch: int) -> None:
        self.batch = batch
        self.places: dict[Value, BatchPlace] = {}
        self.shared: dict[Value, BatchPlace] = {}
        self.given: set[Value] = set()
        self._producers = graph.producers()
        self._known: dict[Value, Array] = dict(graph.constants)

    def know(self, value: Value, array: Array) -> None:
        """Note the array of an input without batch, where it is known."""
        self._known[value] = array

    def put(self, node: Node, place: BatchPlace) -> None:
        """Set the same place in all outputs."""
        self.places.update(dict.fromkeys(node.outputs, place))

    def common(self, node: Node, from_end: bool = True) -> BatchPlace:
        """Return the place that all operands of a broadcast share.

        With `from_end` its axis is counted from the end (-1 ...). Operands without a place must be
        the same for all samples along that axis.
        """
        found = {
            place._replace(axis=place.axis - len(value.shape)) if from_end else place
            for value in node.inputs
            if (place := self.places.get(value)) is not None
        }
        if len(found) != 1:
            raise SamplesMixed(
                "combines each sample with others: the batch lies on different axes"
            )
        (place,) = found
        for value in node.inputs:
            if value not in self.places:
                self.check_shared(value, place)
        return place

    def put_from_end(self, node: Node, place: BatchPlace) -> None:
        """Set a place, counted from the end, in all outputs whose axis has its length."""
        length = place.outer * self.batch * place.inner
        for value in node.outputs:
            axis = len(value.shape) + place.axis
            if axis >= 0 and value.shape[axis] == length:
                self.places[value] = place._replace(axis=axis)

    def check_shared(self, value: Value, place: BatchPlace) -> None:
        """Raise SamplesMixed unless a value is the same for all samples at that place."""
        axis = place.axis if place.axis >= 0 else len(value.shape) + place.axis
        if axis < 0 or value.shape[axis] == 1:
            return
        if value in self.given:
            raise SamplesMixed(f"reads {value.origin.name}, which has no batch, sample by sample")
        array = self.array(value)
        sizes = (place.outer, self.batch, place.inner)
        if array.shape[axis] != prod(sizes):
            raise SamplesMixed(f"repeats samples along {value.origin.name}")
        apart = array.reshape(*array.shape[:axis], *sizes, *array.shape[axis + 1 :])
        first = apart.take([0], axis=axis + 1)
        if not np.array_equal(apart, np.broadcast_to(first, apart.shape)):
            raise SamplesMixed("treats samples differently, by their place in the batch")
        if self.shared.setdefault(value, place._replace(axis=axis)) != place._replace(axis=axis):
            raise SamplesMixed("reads one array with two layouts of the batch")

    def array(self, value: Value) -> Array:
        """The array of a value that depends on constants and noted inputs alone."""
        if value not in self._known:
            node = self._producers[value]
            results = node.op.reference(*(self.array(operand) for operand in node.inputs))
            self._known.update(zip(node.outputs, results, strict=True))
        return self._known[value]
