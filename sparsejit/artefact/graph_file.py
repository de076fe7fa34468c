"""A graph as a JSON header and a dict of arrays, and back.

Values are numbered in the order inputs, constants, outputs of nodes, and a node names its inputs by
number. Its outputs have the next numbers, so every value has one producer, which comes first:

    {"inputs": [value, ...], "constants": [{**value, "packed": false}, ...],
     "nodes": [{"op": record, "inputs": [number, ...], "outputs": [value, ...]}, ...],
     "outputs": [number, ...]}

with value = {"element": ..., "shape": [...], "origin": [name, module, source, code]}. Constant i is
the tensor `constant.i`. A packed one is `constant.i.mask`, one bit an element, `constant.i.values`
of the elements whose bit is set, and `constant.i.minus`, one bit an element, which zeros are -0.0;
masked weights are full of these. Without any it is left out.
"""

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.artefact.records import OPERATORS
from sparsejit.errors import DamagedFile
from sparsejit.ir.graph import Array, Element, Graph, Node, Origin, TensorType, Value

Data = dict[str, Any]

# Below this share of nonzeros a float32 constant is packed.
PACKED_BELOW = 0.5
# What an operator that meets operands it never heard of may raise.
_REFUSALS = (ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, OverflowError)


def graph_to_data(graph: Graph) -> tuple[Data, dict[str, Array]]:
    """Header and tensors of a graph. Raises InvalidInput for an operator that cannot be saved."""
    numbers = {value: number for number, value in enumerate(graph.values())}
    tensors: dict[str, Array] = {}
    constants = []
    for index, (value, array) in enumerate(graph.constants.items()):
        packed = _is_sparse(array)
        constants.append({**_value_to_data(value), "packed": packed})
        tensors.update(_packed(array, index) if packed else {_name(index): array})
    nodes = [
        {
            "op": OPERATORS.encode(node.op),
            "inputs": [numbers[value] for value in node.inputs],
            "outputs": [_value_to_data(value) for value in node.outputs],
        }
        for node in graph.nodes
    ]
    header = {
        "inputs": [_value_to_data(value) for value in graph.inputs],
        "constants": constants,
        "nodes": nodes,
        "outputs": [numbers[value] for value in graph.outputs],
    }
    return header, tensors


def graph_from_data(header: Any, tensors: Mapping[str, Array]) -> Graph:
    """The graph that `graph_to_data` took apart.

    Checks all of it: that each operator takes its operands and makes what the file says. Raises
    DamagedFile, without the file's name, for anything else than a graph.
    """
    inputs, constants, nodes, outputs = _fields(
        header, inputs=list, constants=list, nodes=list, outputs=list
    )
    values = [_value_from_data(data) for data in inputs]
    arrays: dict[Value, Array] = {}
    used: set[str] = set()
    for index, data in enumerate(constants):
        value = _value_from_data({k: v for k, v in _mapping(data).items() if k != "packed"})
        arrays[value] = _constant(index, value.type, data.get("packed"), tensors, used)
        values.append(value)
    if unread := sorted(set(tensors) - used):
        raise DamagedFile(f"has tensors that nothing reads: {', '.join(unread)}")
    made = [_node_from_data(data, values) for data in nodes]
    graph_inputs = tuple(values[: len(inputs)])
    return Graph(graph_inputs, _at(outputs, values), tuple(made), arrays)


def _value_to_data(value: Value) -> Data:
    kind = value.type
    return {
        "element": kind.element.value,
        "shape": list(map(int, kind.shape)),
        "origin": list(astuple(value.origin)),
    }


def _value_from_data(data: Any) -> Value:
    element, shape, origin = _fields(data, element=str, shape=list, origin=list)
    if not all(type(size) is int and size >= 0 for size in shape):
        raise DamagedFile(f"has a value of shape {shape}")
    if element not in {member.value for member in Element}:
        raise DamagedFile(f"has a value of element {element!r}")
    if len(origin) != 4 or not all(isinstance(text, str) for text in origin):
        raise DamagedFile(f"has a value of origin {origin}")
    return Value(TensorType(tuple(shape), Element(element)), Origin(*origin))


def _node_from_data(data: Any, values: list[Value]) -> Node:
    """The node; its outputs are appended to the values known so far."""
    op_data, inputs, outputs = _fields(data, op=dict, inputs=list, outputs=list)
    op = OPERATORS.decode(op_data)
    operands = _at(inputs, values)
    made = tuple(map(_value_from_data, outputs))
    try:
        types = op.infer(*(value.type for value in operands))
    except _REFUSALS as error:
        raise DamagedFile(f"has a node that cannot be: {error}") from error
    if types != tuple(value.type for value in made):
        found = ", ".join(str(value.type) for value in made)
        wanted = ", ".join(map(str, types))
        raise DamagedFile(f"says that {op} makes ({found}), but it makes ({wanted})")
    values.extend(made)
    return Node(op, operands, made)


def _at(numbers: list[Any], values: list[Value]) -> tuple[Value, ...]:
    for number in numbers:
        if type(number) is not int or not 0 <= number < len(values):
            raise DamagedFile(f"names value {number!r} where there are {len(values)}")
    return tuple(values[number] for number in numbers)


def _name(index: int) -> str:
    return f"constant.{index}"


def _is_sparse(array: Array) -> bool:
    if array.dtype != np.float32 or array.size == 0:
        return False
    return int(np.count_nonzero(array)) < PACKED_BELOW * array.size


def _packed(array: Array, index: int) -> dict[str, Array]:
    flat, name = array.reshape(-1), _name(index)
    kept = flat != 0
    minus = np.signbit(flat) & ~kept
    parts = {f"{name}.mask": np.packbits(kept), f"{name}.values": flat[kept]}
    return {**parts, f"{name}.minus": np.packbits(minus)} if minus.any() else parts


def _constant(
    index: int, kind: TensorType, packed: Any, tensors: Mapping[str, Array], used: set[str]
) -> Array:
    """The array of a constant; `used` gets the names of its tensors."""
    name, dtype = _name(index), np.dtype(kind.element.value)
    if packed is False:
        used.add(name)
        return _tensor(tensors, name, kind.shape, dtype)
    if packed is not True or kind.element is not Element.FLOAT32:
        raise DamagedFile(f"has {name} packed={packed!r} of {kind}")
    used |= {f"{name}.mask", f"{name}.values"} | ({f"{name}.minus"} & tensors.keys())
    kept = _mask(tensors, f"{name}.mask", kind)
    array = np.zeros(kind.size, np.float32)
    if f"{name}.minus" in tensors:
        array[_mask(tensors, f"{name}.minus", kind)] = -0.0
    count = int(np.count_nonzero(kept))
    array[kept] = _tensor(tensors, f"{name}.values", (count,), dtype)
    return array.reshape(kind.shape)


def _mask(tensors: Mapping[str, Array], name: str, kind: TensorType) -> npt.NDArray[np.bool_]:
    bits = _tensor(tensors, name, (-(-kind.size // 8),), np.dtype(np.uint8))
    return np.unpackbits(bits, count=kind.size).astype(bool)


def _tensor(
    tensors: Mapping[str, Array], name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Array:
    array = tensors.get(name)
    if array is None or array.shape != shape or array.dtype != dtype:
        found = "none" if array is None else f"{array.dtype}{list(array.shape)}"
        raise DamagedFile(f"has {found} as {name}, not {dtype}{list(shape)}")
    return array


def _fields(data: Any, **wanted: type) -> list[Any]:
    """The fields of an object that has these, of these types, and no other."""
    found = _mapping(data)
    if found.keys() != wanted.keys() or not all(
        type(found[name]) is kind for name, kind in wanted.items()
    ):
        raise DamagedFile(f"has fields {', '.join(found)} where {', '.join(wanted)} belong")
    return [found[name] for name in wanted]


def _mapping(data: Any) -> Data:
    if not isinstance(data, dict):
        raise DamagedFile(f"has a {type(data).__name__} where named fields belong")
    return data
