"""Whether the samples of a batch stay apart, so that a batch may be of any size.

The batch is followed from axis 0 of every input through every operator to axis 0 of every output.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparsejit.ir.batch import BatchPlace, Follower, SamplesMixed
from sparsejit.ir.graph import Array, Graph, Node, Value
from sparsejit.ir.ops.types import axis_of
from sparsejit.ir.ops.views import Expand, Permute, Reshape, Slice

# Two primes, so that no other size is taken for the batch's.
PROBES = (101, 103)
# Where an axis has one element, one view may do for another, or none.
_VIEWS = (Reshape, Permute, Expand, Slice)


class GraphsBySize:
    """The graphs of a model by the length of axis 0, each made once; None is the example's length.

    Graphs of the sizes PROBES are made to be compared alone, and are not kept.
    """

    def __init__(self) -> None:
        self._kept: dict[int | None, Graph] = {}

    def get(self, batch: int | None, make: Callable[[int | None], Graph]) -> Graph:
        """The graph for that batch; `make` makes it where there is none yet."""
        if batch in self._kept:
            return self._kept[batch]
        graph = make(batch)
        if batch not in PROBES:
            self._kept[batch] = graph
        return graph


def why_fixed(graph_of: Callable[[int], Graph], example_batch: int | None) -> tuple[str, Graph]:
    """Why a model's batch cannot be of any size, or nothing, and its graph for the first probe.

    `graph_of` makes the graph for a batch of that size; it is asked for each size once.
    """
    few, many = (graph_of(batch) for batch in PROBES)
    if why := why_not_free(few, many):
        return why, few
    for size in sorted({1, example_batch or 1}):
        if why := why_not_alike(few, graph_of(size), size):
            return f"the model computes otherwise for a batch of {size}: {why}", few
    return "", few


def why_not_free(few: Graph, many: Graph) -> str:
    """Why the batch cannot be of any size, from the model's graphs for both probes, or nothing."""
    try:
        places = follow_from_inputs(few, PROBES[0]).places
        _check_same(few, many, places)
    except SamplesMixed as reason:
        return str(reason)
    return ""


def why_not_alike(wanted: Graph, found: Graph, batch: int | None = None) -> str:
    """How a graph differs from one of the same model, or nothing.

    A batch is the length of axis 0 that `found` should have in place of the other's; then views
    are not compared.
    """
    for role in ("inputs", "outputs"):
        values, twins = getattr(wanted, role), getattr(found, role)
        if len(values) != len(twins):
            return f"it has {len(twins)} {role} and not {len(values)}"
        pairs = zip(values, twins, strict=True)
        for number, (value, twin) in enumerate(pairs):
            shape = value.shape if batch is None else (batch, *value.shape[1:])
            if twin.shape != shape:
                return f"{role[:-1]} {number} is {list(twin.shape)} and not {list(shape)}"
    passed_over = () if batch is None else _VIEWS
    nodes, twins = (
        [node for node in graph.nodes if not isinstance(node.op, passed_over)]
        for graph in (wanted, found)
    )
    if [n.op.of_any_size() for n in nodes] != [n.op.of_any_size() for n in twins]:
        return "it has other operators"
    same = _SameNumbers(wanted, found)
    for node, other in zip(nodes, twins, strict=True):
        for value, twin in zip(node.inputs, other.inputs, strict=True):
            known = value in wanted.constants
            if known != (twin in found.constants):
                return f"{_words(node)} has other operands"
            if known and not same(value, twin):
                return f"{_words(node)} has other numbers"
    return ""


def follow_from_inputs(graph: Graph, batch: int) -> Follower:
    """Where the batch lies in each value that has one, from axis 0 to axis 0.

    Raises SamplesMixed, which says why, where samples do not stay apart.
    """
    follower = Follower(graph, batch)
    for value in graph.inputs:
        if value.shape[:1] != (batch,):
            raise SamplesMixed(f"axis 0 of input {value.origin.name} is not the batch")
        follower.places[value] = BatchPlace(0)
    for node in graph.nodes:
        if not any(value in follower.places for value in node.inputs):
            continue
        try:
            node.op.follow_batch(follower, node)
        except SamplesMixed as reason:
            raise SamplesMixed(f"{_words(node)} {reason}") from None
    _check_outputs(graph, follower.places)
    return follower


def _words(node: Node) -> str:
    """The user's line, or what there is instead."""
    origin = node.outputs[0].origin
    words = f"`{origin.code}`" if origin.code else origin.name
    return f"{words} ({origin.source})" if origin.source else words


def _check_outputs(graph: Graph, places: dict[Value, BatchPlace]) -> None:
    for number, value in enumerate(graph.outputs):
        if places.get(value) != BatchPlace(0):
            raise SamplesMixed(
                f"axis 0 of output {number}, {list(value.shape)}, is not the batch alone"
            )


def _check_same(few: Graph, many: Graph, places: dict[Value, BatchPlace]) -> None:
    """Raise SamplesMixed unless the graphs differ by the batch alone, in sizes and in numbers."""
    if [type(n.op) for n in few.nodes] != [type(n.op) for n in many.nodes]:
        raise SamplesMixed("the model computes differently for another batch")
    same = _SameNumbers(few, many)
    for node, other in zip(few.nodes, many.nodes, strict=True):
        if node.op.of_any_size() != other.op.of_any_size() or _moves(node, other, places):
            raise SamplesMixed(f"{_words(node)} computes with the size of the batch")
        for value, twin in zip(node.outputs, other.outputs, strict=True):
            place = places.get(value)
            if place and _other_sizes(value, place) != _other_sizes(twin, place):
                raise SamplesMixed(f"{_words(node)} has sizes that depend on the batch")
        for value, twin in zip(node.inputs, other.inputs, strict=True):
            if value in few.constants and not same(value, twin):
                raise SamplesMixed(f"{_words(node)} computes with the size of the batch")


def _moves(node: Node, other: Node, places: dict[Value, BatchPlace]) -> bool:
    """Whether a slice of another axis than the batch's lies elsewhere for another batch."""
    if not isinstance(node.op, Slice) or node.op == other.op:
        return False
    place, axes = places.get(node.inputs[0]), len(node.inputs[0].shape)
    return place is None or place.axis != axis_of(node.op.axis, axes)


def _other_sizes(value: Value, place: BatchPlace) -> list[int]:
    """All sizes but that of the axis with the batch."""
    return [n for axis, n in enumerate(value.shape) if axis != place.axis]


class _SameNumbers:
    """Whether constants of two graphs are equal: each pair is compared once.

    Constants as long as the batch are equal if they would be with as many rows.
    """

    def __init__(self, few: Graph, many: Graph) -> None:
        self._few, self._many = few.constants, many.constants
        self._known: dict[tuple[Value, Value], bool] = {}

    def __call__(self, value: Value, twin: Value) -> bool:
        if (value, twin) not in self._known:
            self._known[value, twin] = _are_same(self._few[value], self._many[twin])
        return self._known[value, twin]


def _are_same(one: Array, other: Array) -> bool:
    if one.__array_interface__ == other.__array_interface__:  # one memory, as shared weights are
        return True
    if one.ndim != other.ndim:
        return False
    common = tuple(slice(0, min(sizes)) for sizes in zip(one.shape, other.shape, strict=True))
    return bool(np.array_equal(one[common], other[common], equal_nan=one.dtype.kind == "f"))
