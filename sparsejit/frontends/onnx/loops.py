"""ONNX's Loop and Scan as turns of a body that is compiled once.

    Loop    states and a counter go from turn to turn; results of each turn stack up
    Scan    reads a part of each sequence as well

The number of turns is known when the model is read: from the trip count, from the length of
sequences, or from a condition that counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sparsejit.frontends.onnx.call import Operand, names_of
from sparsejit.frontends.onnx.inference import Inference
from sparsejit.frontends.writing import arranging, selection
from sparsejit.frontends.writing.turns import turns_before, write_turns
from sparsejit.frontends.writing.views import stack
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.dtypes import Dtype
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.selection import TruePlaces
from sparsejit.ir.values import Element, TensorType, Value, axis_of

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

_MOST_TURNS = 1 << 20
_FEW_TURNS = 16  # up to here loops are always written out, so that constants fold
# More turns, of one loop or of all together, would make a function too long to compile.
_MOST_WRITTEN_OUT, _MOST_IN_ALL = 256, 4096


class RegionInterpreter(Protocol):
    """The reader of a model, as far as a node needs it that runs graphs within.

    Attributes:
        write: the writer of the graph around the node
        inference: ONNX's dtypes and sizes of values, by name
        turns: the number of turns written out so far, of all loops
    """

    write: Writer
    inference: Inference
    turns: int

    def value(self, operand: Operand) -> Value:
        """An operand as a value of the graph."""

    def run_inside(
        self, region: GraphProto, inside: Mapping[str, Operand], write: Writer
    ) -> list[Value]:
        """Results of a graph within a node, as values of a writer of its own."""

    def inside(
        self, region: GraphProto, given: Sequence[Operand], outside: Mapping[str, Operand]
    ) -> Sequence[Operand]:
        """Results of a graph within a node, which may read the values around it."""


@dataclass(frozen=True)
class ReadBody:
    """A body's graph, whose inputs are states, parts of sequences, and `others`.

    `others` are values of the model that the body reads. `dtypes` are the model's, of its outputs.
    """

    graph: Graph
    others: list[Value]
    dtypes: list[str]


def loop(
    interpreter: RegionInterpreter,
    node: NodeProto,
    operands: Sequence[Operand],
    known: Mapping[str, Operand],
) -> Sequence[Operand]:
    """Results of a Loop: few turns are written out, more are turns of one body if possible."""
    turns = operands[0]
    most = turns.item() if isinstance(turns, np.ndarray) and turns.size == 1 else None
    if most is not None and most <= _FEW_TURNS:
        return _written_out(interpreter, node, operands, known)
    try:
        return loop_in_turns(interpreter, node, operands, known)
    except Unmapped:
        if most is None or most > _MOST_WRITTEN_OUT:
            raise
    return _written_out(interpreter, node, operands, known)


def _written_out(
    interpreter: RegionInterpreter,
    node: NodeProto,
    operands: Sequence[Operand],
    known: Mapping[str, Operand],
) -> Sequence[Operand]:
    """Results of a Loop with its turns written out one by one; their number must be known now."""
    turns, condition, *carried = operands
    is_number = isinstance(turns, np.ndarray) and turns.size == 1 and turns.dtype.kind == "i"
    most = int(np.asarray(turns).item()) if is_number else None
    if most is None or most > _MOST_WRITTEN_OUT:
        raise Unmapped(f"has no known number of turns up to {_MOST_WRITTEN_OUT}")
    body = body_of(node)
    scanned: list[Sequence[Operand]] = []
    with interpreter.inference.within(names_of(body.output[1:]), node.output):
        for turn in range(most):
            if isinstance(condition, np.ndarray) and not condition.all():
                break
            interpreter.turns += 1
            if interpreter.turns > _MOST_IN_ALL:
                raise Unmapped(f"has more than {_MOST_IN_ALL} turns together with other loops")
            given = np.array(turn, np.int64), np.array(True), *carried
            interpreter.inference.copy(body.output[1:] if turn else node.input[2:], body.input[2:])
            condition, *made = interpreter.inside(body, given, known)
            if isinstance(condition, Value):
                raise Unmapped("may end at any turn")
            carried, rows = made[: len(carried)], made[len(carried) :]
            scanned.append(rows)
    stacks = zip(*scanned, strict=True)
    write = interpreter.write
    return [*carried, *(stack(write, [interpreter.value(x) for x in rows]) for rows in stacks)]


def loop_in_turns(
    interpreter: RegionInterpreter,
    node: NodeProto,
    operands: Sequence[Operand],
    known: Mapping[str, Operand],
) -> Sequence[Operand]:
    """Results of a Loop as turns of one body. Raises Unmapped where turns cannot express it."""
    most, condition, *carried = operands
    body = body_of(node)
    if isinstance(condition, Value):
        raise Unmapped("may have no turn: a call decides")
    if condition is not None and not np.all(condition):
        raise Unmapped("has no turns")
    write = interpreter.write
    initial = [np.zeros((), np.int64), *carried]
    states = [interpreter.value(x) for x in initial]
    names = [body.input[0].name, *(each.name for each in body.input[2:])]
    outside = zip(["", *node.input[2:]], initial, strict=True)
    dtypes = [_dtype(interpreter, *pair) for pair in outside]
    given = {body.input[1].name: np.array(True)} if len(body.input) > 1 else {}
    with interpreter.inference.within(names_of(body.output[1:]), node.output):
        read = read_body(interpreter, body, names, states, dtypes, given, known, counts=True)
    (truth, *_), limit = read.graph.outputs[len(states) :], _number(most)
    trimmed = _without_condition(read.graph, len(states))
    constant = read.graph.constants.get(truth)
    if constant is None:
        arrays = [write.known(value) for value in states]
        count = turns_before(read.graph, truth, arrays, limit)
    elif limit is None:
        raise Unmapped("has no known number of turns")
    else:
        count = limit if np.all(constant) else min(limit, 1)
    if count < 1:
        raise Unmapped("has no turns")
    if count > _MOST_TURNS:
        raise Unmapped(f"has {count} turns, more than {_MOST_TURNS}")
    made = write_turns(write, trimmed, count, states, [], read.others)
    _note(write, made, [*read.dtypes[: len(states)], *read.dtypes[len(states) + 1 :]])
    return made[1:]


def _without_condition(graph: Graph, states: int) -> Graph:
    outputs = (*graph.outputs[:states], *graph.outputs[states + 1 :])
    return Graph(graph.inputs, outputs, graph.nodes, graph.constants)


def _dtype(interpreter: RegionInterpreter, name: str, operand: Operand) -> Dtype:
    """The model's dtype of an operand, which the model calls `name`."""
    if isinstance(operand, np.ndarray):
        return operand.dtype
    return interpreter.inference.dtype(name) or interpreter.write.dtype(operand)


def _note(write: Writer, values: Sequence[Value], dtypes: Sequence[str]) -> None:
    for value, dtype in zip(values, dtypes, strict=True):
        write.note(value, dtype)


def _number(most: Operand) -> int | None:
    """The known trip count; None if it is left out. Raises Unmapped for a computed one."""
    if most is None:
        return None
    if not isinstance(most, np.ndarray) or most.size != 1 or most.dtype.kind != "i":
        raise Unmapped("has no known number of turns")
    return int(most.item())


def scan_in_turns(
    interpreter: RegionInterpreter,
    node: NodeProto,
    operands: Sequence[Operand],
    known: Mapping[str, Operand],
) -> Sequence[Operand]:
    """Results of a Scan, of opset 9 or later."""
    from onnx.helper import get_attribute_value

    attributes = {each.name: get_attribute_value(each) for each in node.attribute}
    body, count = body_of(node), attributes["num_scan_inputs"]
    if len(body.input) != len(operands):
        raise Unmapped("has a batch, as before opset 9")
    write, states = interpreter.write, len(operands) - count
    stacked = len(body.output) - states
    values = [interpreter.value(x) for x in operands]
    axes, ways, axes_made, ways_made = (
        list(attributes.get(f"scan_{name}", [0] * number))
        for name, number in (
            ("input_axes", count),
            ("input_directions", count),
            ("output_axes", stacked),
            ("output_directions", stacked),
        )
    )
    sequences = [
        _in_turn(write, value, axis, way)
        for value, axis, way in zip(values[states:], axes, ways, strict=True)
    ]
    lengths = {sequence.shape[0] for sequence in sequences}
    if len(lengths) != 1 or lengths == {0}:
        raise Unmapped(f"has sequences of {sorted(lengths)} parts")
    names = [each.name for each in body.input]
    parts = [*values[:states], *sequences]
    outside = zip(node.input, operands, strict=True)
    kinds = [_dtype(interpreter, *pair) for pair in outside]
    with interpreter.inference.within(names_of(body.output), node.output):
        read = read_body(interpreter, body, names, parts, kinds, {}, known, states=states)
    (turns,) = lengths
    made = write_turns(write, read.graph, turns, values[:states], sequences, read.others)
    _note(write, made, read.dtypes)
    rows = zip(made[states:], axes_made, ways_made, strict=True)
    return [*made[:states], *(_as_stacked(write, *each) for each in rows)]


def _in_turn(write: Writer, value: Value, axis: int, backwards: int) -> Value:
    """A sequence with its parts along axis 0, in the order in which turns read them."""
    first = arranging.moved(write, value, axis_of(axis, len(value.shape)), 0)
    return selection.flip(write, first, [0]) if backwards else first


def _as_stacked(write: Writer, value: Value, axis: int, backwards: int) -> Value:
    ordered = selection.flip(write, value, [0]) if backwards else value
    return arranging.moved(write, ordered, 0, axis_of(axis, len(value.shape)))


def body_of(node: NodeProto) -> GraphProto:
    """The graph that a node runs in turns."""
    return next(attribute.g for attribute in node.attribute if attribute.name == "body")


def read_body(
    interpreter: RegionInterpreter,
    body: GraphProto,
    names: Sequence[str],
    values: Sequence[Value],
    dtypes: Sequence[Dtype],
    given: Mapping[str, Operand],
    known: Mapping[str, Operand],
    states: int | None = None,
    counts: bool = False,
) -> ReadBody:
    """Read a body with inputs for `values`: states, then sequences from number `states` on.

    `names` are the body's names of these inputs, `dtypes` the model's dtypes of them. With `counts`
    the first state is the number of the turn, which the body does not return. `given` are other
    inputs; the body may also read values that are `known` outside of it.
    """
    outer, write = interpreter.write, Writer()
    inputs = []
    for number, (name, value, dtype) in enumerate(zip(names, values, dtypes, strict=True)):
        is_part = states is not None and number >= states
        shape = value.shape[1:] if is_part else value.shape
        kind = TensorType(shape, value.type.element)
        inputs.append(write.input(kind, name, dtype.name))
    inside: dict[str, Operand] = dict(zip(names, inputs, strict=True))
    others: list[Value] = []
    for name in read_by(body.node):
        operand = known.get(name)
        if name in inside or name not in known:
            continue
        if isinstance(operand, Value) and outer.is_known(operand):
            operand = outer.builder.array(operand)
        elif isinstance(operand, Value):
            others.append(operand)
            operand = write.input(operand.type, name, outer.dtype(operand).name)
        elif operand is not None and not isinstance(operand, np.ndarray):
            raise Unmapped(f"reads {name}, which is no tensor, in its body")
        inside[name] = operand
    inside.update(given)
    for name, dtype in zip(names, dtypes, strict=True):
        interpreter.inference.name_as(name, dtype)
    results = interpreter.run_inside(body, inside, write)
    if counts:
        truth, *rest = results
        next_turn = write.pointwise("add", inputs[0], write.number(1, Element.INT64))
        carried = len(values) - 1
        results = [next_turn, *rest[:carried], truth, *rest[carried:]]
    narrow = [write.dtype(value).name for value in results]
    graph = write.finish(*results)
    has_masks = any(isinstance(each.op, TruePlaces) for each in graph.nodes)
    if has_masks or any(outer.depends_on(each, TruePlaces) for each in (*values, *others)):
        raise Unmapped("has a size that values decide in its body")
    return ReadBody(graph, others, narrow)


def read_by(nodes: Iterable[Any]) -> list[str]:
    """The names that nodes read, and that graphs within them read."""
    names: dict[str, None] = {}
    for node in nodes:
        names.update(dict.fromkeys(name for name in node.input if name))
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                names.update(dict.fromkeys(read_by(graph.node)))
                names.update(dict.fromkeys(each.name for each in graph.output))
    return list(names)
