"""The batch of a model: its axes, the check that it may have any size, and graphs of other sizes.

    batch_first     a graph with the batch on axis 0
    axes_by_sizes   the axes on which a model may have its batch
    free_batch_of   check that no operator mixes the samples of a batch
    SizedBatch      a graph of one batch size, rewritten for another: sizes and shapes follow

Lowered graphs take and return samples on axis 0. If the model has them on another axis, the graph
permutes its inputs and outputs, which is a view, and a call moves axes by `Graph.batch_axes`.

For the check, the batch is followed from an axis of each input that has it, through every operator,
to an axis of every output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import NamedTuple

import numpy as np

from sparsejit.errors import InvalidInput, SparseJitError
from sparsejit.ir.graph import BatchAxes, Graph, from_first, to_first
from sparsejit.ir.operator import BatchPlace, Follower, Node, Operator, SamplesMixed
from sparsejit.ir.ops.pointwise import Chain
from sparsejit.ir.ops.products import Attention, Bmm
from sparsejit.ir.ops.recurrent import Recurrence
from sparsejit.ir.ops.selection import Embedding
from sparsejit.ir.ops.views import Expand, Permute, Reshape, Slice
from sparsejit.ir.values import Array, TensorType, Value, axis_of

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


# Batch sizes of the two compared graphs: primes, so that no other size is mistaken for the batch.
PROBES = (101, 103)
# Tolerance of compared constants, relative to the largest element.
_ROUNDING = 4 * float(np.finfo(np.float32).eps)
# Most choices of axes for a batch of one; each try reads the whole model once or twice.
_MOST_TRIES = 4
# Views are not compared for one batch size: where an axis has one element, views may differ.
_VIEWS = (Reshape, Permute, Expand, Slice)


class GraphsBySize:
    """Cache of a model's graphs by batch size; None is the size in the example.

    Graphs of the sizes in PROBES are only compared, and are not kept.
    """

    def __init__(self) -> None:
        self._kept: dict[int | None, Graph] = {}

    def with_example_alone(self) -> GraphsBySize:
        """A cache of the example's graph alone, for a batch on another axis than before."""
        other = GraphsBySize()
        other._kept = {size: graph for size, graph in self._kept.items() if size is None}
        return other

    def get(self, batch: int | None, make: Callable[[int | None], Graph]) -> Graph:
        """Return the graph for that batch; `make` makes it if it is not in the cache."""
        if batch in self._kept:
            return self._kept[batch]
        graph = make(batch)
        if batch not in PROBES:
            self._kept[batch] = graph
        return graph


class FreeBatch(NamedTuple):
    """A batch of any size: its axes, and the model's graph for the first probe."""

    axes: BatchAxes
    few: Graph


def free_batch_of(
    graph_of: Callable[[int], Graph], example_batch: int | None, axes: InputAxes
) -> FreeBatch:
    """Return the free batch on these axes of the inputs. Raises SamplesMixed if it is not free.

    `graph_of` makes the graph for a batch of a given size, and is called once for each size. If it
    refuses a size, such as one beyond the model's own tables, the batch is not free.
    """

    def made(batch: int) -> Graph:
        try:
            return graph_of(batch)
        except SparseJitError as error:
            raise SamplesMixed(f"the model does not accept a batch of {batch}: {error}") from None

    few, many = map(made, PROBES)
    found = checked_axes(few, many, axes)
    first = batch_first(few, found)
    for size in sorted({1, example_batch or 1}):
        if why := why_not_alike(first, batch_first(made(size), found), size):
            raise SamplesMixed(f"the model takes another path for a batch of {size}: {why}")
    return FreeBatch(found, first)


def checked_axes(few: Graph, many: Graph, axes: InputAxes) -> BatchAxes:
    """Return the axes of the batch, from the model's graphs for both probes.

    Raises SamplesMixed if the batch cannot have any size.
    """
    found = follow_from_inputs(few, PROBES[0], axes)
    _check_same(few, many, found.places)
    return BatchAxes(tuple(axes), output_axes(few, found))


def why_not_alike(wanted: Graph, found: Graph, batch: int | None = None) -> str:
    """Describe how `found` differs from `wanted`, a graph of the same model; empty if it does not.

    `batch` is the length of axis 0 that `found` should have in place of the length in `wanted`;
    views are not compared then.
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
    """Follow the batch from these axes of the inputs to every value that has it.

    Raises SamplesMixed, with the reason, where an operator mixes samples.
    """
    follower = graph.follower(batch)
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
    """Yield axes of the inputs that may be the batch, judged from one graph, likelier first."""
    of_one = []
    for axes in axes_by_sizes(graph):
        pairs = zip(graph.inputs, axes, strict=True)
        batch = next(value.shape[axis] for value, axis in pairs if axis is not None)
        is_apart = _seem_apart(graph, batch, axes)
        if batch == 1:
            of_one.append((not is_apart, _oddness(graph, axes), axes))
        elif is_apart:
            yield axes
    # A graph of one sample tells little, since any axis may have size 1.
    of_one.sort(key=lambda each: each[:2])
    yield from (axes for _, _, axes in of_one[:_MOST_TRIES])


def _oddness(graph: Graph, axes: InputAxes) -> tuple[int, int, int]:
    """Sort key of a choice of batch axes, likelier ones first.

    It counts inputs without batch, axes beyond one for each shape of an input, and distinct axes.
    """
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
    """Note that results of a node without samples have no batch, if it reads inputs without one.

    Only an Expand from one element to the batch size makes a result with a batch.
    """
    if follower.given.isdisjoint(node.inputs):
        return
    if isinstance(node.op, Expand):
        (x,), (made,) = node.inputs, node.outputs
        before = (1,) * (len(made.shape) - len(x.shape)) + x.shape
        sizes = zip(before, made.shape, strict=True)
        longer = {axis: length for axis, (one, length) in enumerate(sizes) if one == 1 < length}
        repeated = [axis for axis, length in longer.items() if length == follower.batch]
        if len(repeated) == 1 and follower.batch > 1:
            follower.places[made] = BatchPlace(repeated[0])
            return
        follower.repeated[made] = list(longer)
    follower.given.update(node.outputs)


def output_axes(graph: Graph, found: Follower) -> tuple[int, ...]:
    """Return the batch axis of each output. Raises SamplesMixed for an output without one."""
    axes = []
    for number, value in enumerate(graph.outputs):
        place = found.places.get(value)
        if place is None or place != BatchPlace(place.axis):
            shape = list(value.shape)
            raise SamplesMixed(f"no axis of output {number}, {shape}, is the batch alone")
        axes.append(place.axis)
    return tuple(axes)


def _words(node: Node) -> str:
    """The user's line of code and its place, or the name of the node's result without them."""
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
    """Whether a slice of an axis other than the batch's depends on the batch size."""
    if not isinstance(node.op, Slice) or node.op == other.op:
        return False
    place, axes = places.get(node.inputs[0]), len(node.inputs[0].shape)
    return place is None or place.axis != axis_of(node.op.axis, axes)


def _other_sizes(value: Value, place: BatchPlace) -> list[int]:
    """The value's sizes without the batch axis."""
    return [n for axis, n in enumerate(value.shape) if axis != place.axis]


class _SameNumbers:
    """Comparison of constants of two graphs; each pair is compared once.

    Constants whose lengths differ are equal if their common part is.
    """

    def __init__(self, few: Graph, many: Graph) -> None:
        self._few, self._many = few.constants, many.constants
        self._known: dict[tuple[Value, Value], bool] = {}

    def __call__(self, value: Value, twin: Value) -> bool:
        if (value, twin) not in self._known:
            self._known[value, twin] = _are_same(self._few[value], self._many[twin])
        return self._known[value, twin]


def _are_same(one: Array, other: Array) -> bool:
    if one.__array_interface__ == other.__array_interface__:  # one memory, such as shared weights
        return True
    if one.ndim != other.ndim:
        return False
    common = tuple(slice(0, min(sizes)) for sizes in zip(one.shape, other.shape, strict=True))
    if one.dtype.kind != "f":
        return bool(np.array_equal(one[common], other[common]))
    # The rounding of a product of constants depends on its size.
    bound = _ROUNDING * np.abs(one[common][np.isfinite(one[common])]).max(initial=0.0)
    return bool(np.allclose(one[common], other[common], rtol=0, atol=bound, equal_nan=True))


class SizedBatch:
    """Graphs of a model for any batch size, made from its graph for two samples or more.

    `axes` has the batch axis of each input. Raises SamplesMixed, with the reason, for a graph that
    mixes samples, and for a batch of one.
    """

    def __init__(self, graph: Graph, axes: InputAxes) -> None:
        pairs = zip(graph.inputs, axes, strict=True)
        batch = next(value.shape[axis] for value, axis in pairs if axis is not None)
        if batch < 2:
            raise SamplesMixed("a batch of one sample does not show which sizes are the batch's")
        self._graph = graph
        self._found = follow_from_inputs(graph, batch, axes)
        self.axes = BatchAxes(tuple(axes), output_axes(graph, self._found))
        self._made: dict[int, Graph] = {}
        self.graph(1)  # raises now if the graph cannot be made

    def graph(self, batch: int) -> Graph:
        """The graph for that batch. Raises SamplesMixed where an operator does not allow it."""
        if batch not in self._made:
            self._made[batch] = _Resized(self._graph, self._found, batch).graph()
        return self._made[batch]


class _Resized:
    """Makes the graph for one batch size, node after node."""

    def __init__(self, graph: Graph, found: Follower, batch: int) -> None:
        self._old, self._found, self._batch = graph, found, batch
        self._new: dict[Value, Value] = {}
        self._constants: dict[Value, Array] = {}

    def graph(self) -> Graph:
        inputs = tuple(map(self._placed, self._old.inputs))
        nodes = tuple(map(self._node, self._old.nodes))
        outputs = tuple(self._value(value) for value in self._old.outputs)
        return Graph(inputs, outputs, nodes, self._constants, self._old.notes)

    def _node(self, node: Node) -> Node:
        if self._found.places.keys().isdisjoint((*node.inputs, *node.outputs)):
            return self._kept(node)
        inputs = tuple(map(self._value, node.inputs))
        op = self._resized(node, [value.shape for value in inputs])
        try:
            made = op.infer(*(value.type for value in inputs))
        except InvalidInput as error:
            raise SamplesMixed(str(error)) from None
        outputs = tuple(Value(kind, v.origin) for kind, v in zip(made, node.outputs, strict=True))
        for value, output in zip(node.outputs, outputs, strict=True):
            if self._shape(value) != output.shape:
                raise SamplesMixed(f"{op} has sizes that depend on the batch")
        self._new.update(zip(node.outputs, outputs, strict=True))
        return Node(op, inputs, outputs)

    def _kept(self, node: Node) -> Node:
        """Keep a node that depends on no sample; results that are resized become constants."""
        known = self._old.constants
        self._constants.update({value: known[value] for value in node.inputs if value in known})
        shared = self._found.shared
        self._new.update({value: value for value in node.outputs if value not in shared})
        return node

    def _resized(self, node: Node, shapes: list[tuple[int, ...]]) -> Operator:
        op = node.op
        if isinstance(op, Reshape | Expand):
            return replace(op, shape=self._shape(node.outputs[0]))
        if isinstance(op, Chain) and op.shape:
            before = np.broadcast_shapes(*(value.shape for value in node.inputs))
            if before != op.shape:
                raise SamplesMixed(f"{op} has sizes that its operands do not have")
            return replace(op, shape=np.broadcast_shapes(*shapes))
        return op

    def _shape(self, value: Value) -> tuple[int, ...]:
        place = self._found.places.get(value)
        return value.shape if place is None else self._sizes(value, place)

    def _sizes(self, value: Value, place: BatchPlace) -> tuple[int, ...]:
        sizes = list(value.shape)
        sizes[place.axis] = place.outer * self._batch * place.inner
        return tuple(sizes)

    def _placed(self, value: Value) -> Value:
        if value not in self._found.places:
            self._new[value] = value
            return value
        kind = TensorType(self._shape(value), value.type.element)
        self._new[value] = Value(kind, value.origin)
        return self._new[value]

    def _value(self, value: Value) -> Value:
        if value not in self._new:
            array = self._array(value)
            kind = TensorType(array.shape, value.type.element)
            self._new[value] = Value(kind, value.origin)
            self._constants[self._new[value]] = array
        return self._new[value]

    def _array(self, value: Value) -> Array:
        """A constant's array; if it has a copy for every sample, a copy for each of the batch."""
        place = self._found.shared.get(value)
        if place is None:
            return self._old.constants[value]
        array = self._found.array(value).astype(value.type.element.value)
        axis = place.axis % array.ndim
        sizes = (place.outer, -1, place.inner)
        apart = array.reshape(*array.shape[:axis], *sizes, *array.shape[axis + 1 :])
        one = apart.take([0], axis=axis + 1).repeat(self._batch, axis=axis + 1)
        return one.reshape(*array.shape[:axis], -1, *array.shape[axis + 1 :])
