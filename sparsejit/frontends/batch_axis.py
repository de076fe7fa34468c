"""Whether the samples of a batch stay apart, so that a batch may be of any size.

The batch is followed from an axis of each input that has it through every operator to one of every
output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from sparsejit.errors import SparseJitError
from sparsejit.frontends.batch_first import InputAxes, axes_by_sizes, batch_first
from sparsejit.ir.batch import BatchPlace, Follower, SamplesMixed
from sparsejit.ir.batch_axes import BatchAxes
from sparsejit.ir.graph import Array, Graph, Node, Value
from sparsejit.ir.ops.types import axis_of
from sparsejit.ir.ops.views import Expand, Permute, Reshape, Slice

# Two primes, so that no other size is taken for the batch's.
PROBES = (101, 103)
# A part of the largest number of a constant.
_ROUNDING = 4 * float(np.finfo(np.float32).eps)
# Each choice of axes that is looked into takes a reading of the whole model, or two.
_MOST_TRIES = 4
# Where an axis has one element, one view may do for another, or none.
_VIEWS = (Reshape, Permute, Expand, Slice)


class GraphsBySize:
    """The graphs of a model by the size of its batch, each made once; None is the example's length.

    Graphs of the sizes PROBES are made to be compared alone, and are not kept.
    """

    def __init__(self) -> None:
        self._kept: dict[int | None, Graph] = {}

    def with_example_alone(self) -> GraphsBySize:
        """The example's graph, where the batch lies on another axis than before."""
        other = GraphsBySize()
        other._kept = {size: graph for size, graph in self._kept.items() if size is None}
        return other

    def get(self, batch: int | None, make: Callable[[int | None], Graph]) -> Graph:
        """The graph for that batch; `make` makes it where there is none yet."""
        if batch in self._kept:
            return self._kept[batch]
        graph = make(batch)
        if batch not in PROBES:
            self._kept[batch] = graph
        return graph


class FreeBatch(NamedTuple):
    """A batch of any size: where the model has it, and its graph for the first probe."""

    axes: BatchAxes
    few: Graph


def free_batch_of(
    graph_of: Callable[[int], Graph], example_batch: int | None, axes: InputAxes
) -> FreeBatch:
    """What a model's batch is on these axes of its inputs. Raises SamplesMixed where it is none.

    `graph_of` makes the graph for a batch of that size; it is asked for each size once. A size that
    it refuses, such as one beyond the model's own tables, says that the batch is not any size.
    """

    def made(batch: int) -> Graph:
        try:
            return graph_of(batch)
        except SparseJitError as error:
            raise SamplesMixed(f"the model takes no batch of {batch}: {error}") from None

    few, many = map(made, PROBES)
    found = checked_axes(few, many, axes)
    first = batch_first(few, found)
    for size in sorted({1, example_batch or 1}):
        if why := why_not_alike(first, batch_first(made(size), found), size):
            raise SamplesMixed(f"the model takes another path for a batch of {size}: {why}")
    return FreeBatch(found, first)


def checked_axes(few: Graph, many: Graph, axes: InputAxes) -> BatchAxes:
    """Where the batch lies, from the model's graphs for both probes.

    Raises SamplesMixed where it cannot be of any size.
    """
    found = follow_from_inputs(few, PROBES[0], axes)
    _check_same(few, many, found.places)
    return BatchAxes(tuple(axes), output_axes(few, found))


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
            is_shared = role == "inputs" and wanted.is_shared(number)
            is_same = batch is None or is_shared
            shape = value.shape if is_same else (batch, *value.shape[1:])
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


def follow_from_inputs(graph: Graph, batch: int, axes: InputAxes) -> Follower:
    """Where the batch lies in each value that has one, from these axes of the inputs.

    Raises SamplesMixed, which says why, where samples do not stay apart.
    """
    follower = Follower(graph, batch)
    for value, axis in zip(graph.inputs, axes, strict=True):
        if axis is None:
            follower.given.add(value)
        elif value.shape[axis : axis + 1] != (batch,):
            raise SamplesMixed(f"axis {axis} of input {value.origin.name} is not the batch")
        else:
            follower.places[value] = BatchPlace(axis)
    for node in graph.nodes:
        if not any(value in follower.places for value in node.inputs):
            _follow_shared(follower, node)
            continue
        try:
            node.op.follow_batch(follower, node)
        except SamplesMixed as reason:
            raise SamplesMixed(f"{_words(node)} {reason}") from None
    return follower


def likely_axes(graph: Graph) -> Iterator[tuple[int | None, ...]]:
    """Where the batch may lie, as far as one graph tells, likelier choices first."""
    of_one = []
    for axes in axes_by_sizes(graph):
        pairs = zip(graph.inputs, axes, strict=True)
        batch = next(value.shape[axis] for value, axis in pairs if axis is not None)
        is_apart = _seem_apart(graph, batch, axes)
        if batch == 1:
            of_one.append((not is_apart, _oddness(graph, axes), axes))
        elif is_apart:
            yield axes
    # A graph of one sample tells little, since sizes of 1 stand anywhere.
    of_one.sort(key=lambda each: each[:2])
    yield from (axes for _, _, axes in of_one[:_MOST_TRIES])


def _oddness(graph: Graph, axes: InputAxes) -> tuple[int, int, int]:
    """Inputs without batch; those of one shape with several axes; how many axes there are."""
    shapes = {value.shape for value in graph.inputs}
    pairs = {(value.shape, axis) for value, axis in zip(graph.inputs, axes, strict=True)}
    return sum(axis is None for axis in axes), len(pairs) - len(shapes), len(set(axes))


def _seem_apart(graph: Graph, batch: int, axes: InputAxes) -> bool:
    try:
        output_axes(graph, follow_from_inputs(graph, batch, axes))
    except SamplesMixed:
        return False
    return True


def _follow_shared(follower: Follower, node: Node) -> None:
    """Note what depends on inputs without batch; as often as there are samples it has one."""
    if follower.given.isdisjoint(node.inputs):
        return
    if isinstance(node.op, Expand):
        (x,), (made,) = node.inputs, node.outputs
        before = (1,) * (len(made.shape) - len(x.shape)) + x.shape
        sizes = zip(before, made.shape, strict=True)
        repeated = [axis for axis, both in enumerate(sizes) if both == (1, follower.batch)]
        if len(repeated) == 1 and follower.batch > 1:
            follower.places[made] = BatchPlace(repeated[0])
            return
    follower.given.update(node.outputs)


def output_axes(graph: Graph, found: Follower) -> tuple[int, ...]:
    """Where the batch lies in each output. Raises SamplesMixed for one where it does not."""
    axes = []
    for number, value in enumerate(graph.outputs):
        place = found.places.get(value)
        if place is None or place != BatchPlace(place.axis):
            shape = list(value.shape)
            raise SamplesMixed(f"no axis of output {number}, {shape}, is the batch alone")
        axes.append(place.axis)
    return tuple(axes)


def _words(node: Node) -> str:
    """The user's line, or what there is instead."""
    origin = node.outputs[0].origin
    words = f"`{origin.code}`" if origin.code else origin.name
    return f"{words} ({origin.source})" if origin.source else words


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
    if one.dtype.kind != "f":
        return bool(np.array_equal(one[common], other[common]))
    # Products of constants are rounded by their sizes.
    bound = _ROUNDING * np.abs(one[common][np.isfinite(one[common])]).max(initial=0.0)
    return bool(np.allclose(one[common], other[common], rtol=0, atol=bound, equal_nan=True))
