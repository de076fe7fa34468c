"""A graph as a JSON header, with its arrays among a file's tensors, and back.

Values are numbered in the order inputs, constants, outputs of nodes, and a node names its inputs by
number. Its outputs have the next numbers, so every value has one producer, which comes first:

    {"inputs": [value, ...], "constants": [{"origin": ..., "array": ...}, ...],
     "nodes": [{"op": record, "inputs": [number, ...], "outputs": [value, ...]}, ...],
     "outputs": [number, ...], "notes": [text, ...], "batch_axes": [[axis, ...], [axis, ...]]}

with value = {"element": ..., "shape": [...], "origin": [name, module, source, code]}; the module
`arrays` has the description of an array. An origin that has weights ends with their names and
`is_computed`. "notes" is left out where there are none. "batch_axes" has
the batch axis of each input and each output, -1 for an input without a batch; it is left out where
the batch is axis 0 of all.
"""

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, Protocol

from sparsejit.artefact.arrays import ArrayReader, type_from_data, type_to_data
from sparsejit.artefact.records import RecordCodec, fields_of
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.ir.compressed_rows import CompressedRows
from sparsejit.ir.graph import BatchAxes, Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops import OPERATORS
from sparsejit.ir.values import Array, Element, Origin, TensorType, Value

Data = dict[str, Any]

OPERATOR_RECORDS = RecordCodec(OPERATORS.values())


class DescribesArrays(Protocol):
    """Takes arrays, and returns the description of each for the header."""

    def add(self, array: Array | CompressedRows) -> dict[str, Any]: ...


def graph_to_data(graph: Graph, writer: DescribesArrays) -> Data:
    """Return the header of a graph. Raises InvalidInput for an operator that cannot be saved."""
    numbers = {value: number for number, value in enumerate(graph.values())}
    constants = [
        {"origin": _origin_to_data(value.origin), "array": writer.add(array)}
        for value, array in graph.constants.items()
    ]
    nodes = [
        {
            "op": OPERATOR_RECORDS.encode(node.op),
            "inputs": [numbers[value] for value in node.inputs],
            "outputs": [value_to_data(value) for value in node.outputs],
        }
        for node in graph.nodes
    ]
    return {
        "inputs": [value_to_data(value) for value in graph.inputs],
        "constants": constants,
        "nodes": nodes,
        "outputs": [numbers[value] for value in graph.outputs],
        **({"notes": list(graph.notes)} if graph.notes else {}),
        **({"batch_axes": axes_to_data(graph.batch_axes)} if graph.batch_axes else {}),
    }


def graph_from_data(header: Any, reader: ArrayReader) -> Graph:
    """Return the graph of a header that `graph_to_data` wrote.

    Checks for every node that the operator takes its operands and makes outputs of the types in
    the file. Raises DamagedFile, without the file's name, for anything else than a graph.
    """
    absent: Data = {"notes": [], "batch_axes": []}
    whole = {**absent, **header} if isinstance(header, dict) else header
    inputs, constants, nodes, outputs, notes, axes = fields_of(
        whole, inputs=list, constants=list, nodes=list, outputs=list, notes=list, batch_axes=list
    )
    if not all(isinstance(note, str) for note in notes):
        raise DamagedFile(f"has the notes {notes}")
    given = tuple(map(value_from_data, inputs))
    arrays = dict(_constant_from_data(data, reader) for data in constants)
    known = [*given, *arrays]
    made = tuple(_node_from_data(data, known) for data in nodes)
    results = _at(outputs, known)
    return Graph(
        given, results, made, arrays, tuple(notes), axes_from_data(axes, given, results)
    )


def axes_to_data(axes: BatchAxes | None) -> list[list[int]]:
    """Return the batch axes, -1 for an input without one; [] where the batch is axis 0 of all."""
    if axes is None:
        return []
    return [[-1 if axis is None else axis for axis in side] for side in axes]


def axes_from_data(
    data: Any, inputs: Sequence[Value], outputs: Sequence[Value]
) -> BatchAxes | None:
    """Return the axes that `axes_to_data` wrote. Raises DamagedFile for axes out of range."""
    if data == []:
        return None
    ranks = [[len(value.shape) for value in side] for side in (inputs, outputs)]
    lengths = [len(side) if isinstance(side, list) else None for side in data]
    if lengths != [len(side) for side in ranks]:
        raise DamagedFile(f"has batch axes {data}")
    for side, own, least in zip(data, ranks, (-1, 0), strict=True):
        for axis, rank in zip(side, own, strict=True):
            if type(axis) is not int or not least <= axis < rank:
                raise DamagedFile(f"has batch axes {data}")
    given, made = data
    return BatchAxes(tuple(None if axis < 0 else axis for axis in given), tuple(made))


def value_to_data(value: Value) -> Data:
    return {**type_to_data(value.type), "origin": _origin_to_data(value.origin)}


def value_from_data(data: Any) -> Value:
    element, shape, origin = fields_of(data, element=str, shape=list, origin=list)
    return Value(type_from_data(element, shape), _origin_from_data(origin))


def _origin_to_data(origin: Origin) -> list[Any]:
    """Return four texts; weights follow where there are any, and whether they are computed."""
    *texts, weights, is_computed = astuple(origin)
    return [*texts, list(weights), is_computed] if weights else texts


def _origin_from_data(data: list[Any]) -> Origin:
    texts, rest = data[:4], data[4:]
    weights, is_computed = rest if len(rest) == 2 else ([], False)
    is_valid = len(texts) == 4 and len(rest) in (0, 2) and isinstance(weights, list)
    if not is_valid or not all(isinstance(text, str) for text in [*texts, *weights]):
        raise DamagedFile(f"has a value of origin {data}")
    if not isinstance(is_computed, bool):
        raise DamagedFile(f"has a value of origin {data}")
    name, module, source, code = texts
    return Origin(name, module, source, code, tuple(weights), is_computed)


def _constant_from_data(data: Any, reader: ArrayReader) -> tuple[Value, Array]:
    origin, described = fields_of(data, origin=list, array=dict)
    array = reader.read(described)
    kind = TensorType(array.shape, Element(array.dtype.name))
    return Value(kind, _origin_from_data(origin)), array


def _node_from_data(data: Any, known: list[Value]) -> Node:
    """Return the node, and append its outputs to the values known so far."""
    op_data, inputs, outputs = fields_of(data, op=dict, inputs=list, outputs=list)
    op = OPERATOR_RECORDS.decode(op_data)
    operands = _at(inputs, known)
    made = tuple(map(value_from_data, outputs))
    try:
        types = op.infer(*(value.type for value in operands))
    except InvalidInput as error:
        raise DamagedFile(f"has a node that is not valid: {error}") from error
    if types != tuple(value.type for value in made):
        found = ", ".join(str(value.type) for value in made)
        wanted = ", ".join(map(str, types))
        raise DamagedFile(f"says that {op} makes ({found}), but it makes ({wanted})")
    known.extend(made)
    return Node(op, operands, made)


def _at(numbers: list[Any], known: list[Value]) -> tuple[Value, ...]:
    for number in numbers:
        if type(number) is not int or not 0 <= number < len(known):
            raise DamagedFile(f"names value {number!r} where the count of values is {len(known)}")
    return tuple(known[number] for number in numbers)
