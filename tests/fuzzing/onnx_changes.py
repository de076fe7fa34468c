"""Ways to change an ONNX model so that it is odd or damaged."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx.numpy_helper import from_array

from sparsejit.frontends.onnx.operators.table import OPERATORS

_NUMBERS = (0, -1, 1, 2, 3, 5, -2, 99, 2**31 - 1, -(2**31), 2**40, -(2**63), 2**63 - 1)
_FLOATS = (0.0, -1.0, 0.5, 1e30, -1e30, 1e-40, float("inf"), float("nan"))
_TEXTS = ("", "nonsense", "SAME_UPPER", "VALID", "linear", "reflect", "bidirectional", "tanh", "é")
_ELEMENTS = (*range(24), 99)


def _node(draw: random.Random, model: ModelProto) -> NodeProto:
    return draw.choice(model.graph.node)


def _with_attributes(draw: random.Random, model: ModelProto) -> AttributeProto:
    node = draw.choice([node for node in model.graph.node if node.attribute])
    return draw.choice(node.attribute)


def _other_number(draw: random.Random, number: int) -> int:
    near = (number + 1, number - 1, -number, 2 * number)
    return min(max(draw.choice((*near, *_NUMBERS)), -(2**63)), 2**63 - 1)


def attribute_value(draw: random.Random, model: ModelProto) -> str:
    """Another value of the same type."""
    attribute = _with_attributes(draw, model)
    kind = attribute.type
    if kind == AttributeProto.INT:
        attribute.i = _other_number(draw, attribute.i)
    elif kind == AttributeProto.FLOAT:
        attribute.f = draw.choice(_FLOATS)
    elif kind == AttributeProto.STRING:
        attribute.s = draw.choice(_TEXTS).encode()
    elif kind == AttributeProto.INTS:
        _change_list(draw, attribute.ints, lambda n: _other_number(draw, n), (0, 1))
    elif kind == AttributeProto.FLOATS:
        _change_list(draw, attribute.floats, lambda _: draw.choice(_FLOATS), (0.0, 1.0))
    elif kind == AttributeProto.STRINGS:
        _change_list(draw, attribute.strings, lambda _: draw.choice(_TEXTS).encode(), (b"Tanh",))
    elif kind == AttributeProto.TENSOR:
        return f"{attribute.name}: {_change_tensor(draw, attribute.t)}"
    elif kind == AttributeProto.GRAPH:
        return f"{attribute.name}: {_change_graph(draw, attribute.g)}"
    return f"{attribute.name} = {str(helper.get_attribute_value(attribute))[:60]}"


def _change_list(
    draw: random.Random, items: Any, other: Callable[[Any], Any], more: Sequence[Any]
) -> None:
    way = draw.randrange(4)
    if way == 0 or not items:
        items.append(draw.choice(more))
    elif way == 1:
        del items[-1]
    else:
        place = draw.randrange(len(items))
        items[place] = other(items[place])


def attribute_type(draw: random.Random, model: ModelProto) -> str:
    """A value of another type."""
    attribute = _with_attributes(draw, model)
    value: Any = draw.choice([3, 0.5, "text", [1, 2], [0.5], ["a", "b"], np.ones((2, 2))])
    if isinstance(value, np.ndarray):
        value = from_array(value)
    attribute.CopyFrom(helper.make_attribute(attribute.name, value))
    return f"{attribute.name} = {str(value)[:40]}"


def attribute_dropped(draw: random.Random, model: ModelProto) -> str:
    node = draw.choice([node for node in model.graph.node if node.attribute])
    place = draw.randrange(len(node.attribute))
    name = node.attribute[place].name
    del node.attribute[place]
    return name


def attribute_added(draw: random.Random, model: ModelProto) -> str:
    """One that the operator may have, or one that it has not."""
    node = _node(draw, model)
    names = ["axis", "axes", "pads", "strides", "dilations", "group", "keepdims", "epsilon", "perm"]
    names += ["alpha", "to", "auto_pad", "mode", "hidden_size", "direction", "activations", "odd"]
    names += ["kernel_shape", "clip", "layout", "fmod", "transA", "output_padding", "num_groups"]
    name = draw.choice(names)
    numbers = [draw.choice(_NUMBERS[:9]) for _ in range(draw.randint(0, 4))]
    value: Any = draw.choice([draw.choice(_NUMBERS), 0.5, draw.choice(_TEXTS), numbers or [1]])
    node.attribute.append(helper.make_attribute(name, value))
    return f"{node.op_type} {name} = {value}"


def inputs_of_a_node(draw: random.Random, model: ModelProto) -> str:
    """One input dropped, blank, twice, or another value; or all in another order."""
    node = draw.choice([node for node in model.graph.node if node.input])
    place, way = draw.randrange(len(node.input)), draw.randrange(6)
    if way == 0:
        del node.input[place]
    elif way == 1:
        node.input[place] = ""
    elif way == 2:
        node.input.append(node.input[place])
    elif way == 3:
        order = list(node.input)
        draw.shuffle(order)
        node.input[:] = order
    else:
        node.input[place] = draw.choice(_names(model))
    return f"{node.op_type}({', '.join(node.input)})"


def _names(model: ModelProto) -> list[str]:
    graph = model.graph
    made = [name for node in graph.node for name in node.output]
    return [*(x.name for x in graph.input), *(x.name for x in graph.initializer), *made, "nowhere"]


def outputs_of_a_node(draw: random.Random, model: ModelProto) -> str:
    node = _node(draw, model)
    way = draw.randrange(4)
    if way == 0:
        del node.output[-1]
    elif way == 1:
        node.output.append("one more")
    elif way == 2:
        node.output[draw.randrange(len(node.output))] = draw.choice(_names(model))
    else:
        node.output[draw.randrange(len(node.output))] = ""
    return f"{node.op_type} -> {', '.join(node.output)}"


def initialiser(draw: random.Random, model: ModelProto) -> str:
    tensor = draw.choice(model.graph.initializer)
    return f"{tensor.name}: {_change_tensor(draw, tensor)}"


def _change_tensor(draw: random.Random, tensor: TensorProto) -> str:
    way = draw.randrange(7)
    if way == 0:
        _change_list(draw, tensor.dims, lambda n: _other_number(draw, n), (1, 2))
    elif way == 1:
        tensor.data_type = draw.choice(_ELEMENTS)
    elif way == 2:
        data = tensor.raw_data
        tensor.raw_data = data[: draw.randrange(len(data) + 1)]
    elif way == 3:
        whole = draw.choice([1, 2, 3, 4])
        shape = [draw.choice([0, 1, 2, 3, 7]) for _ in range(whole)]
        tensor.CopyFrom(from_array(np.ones(shape, np.float32), tensor.name))
    elif way == 4:
        numbers = [draw.choice(_NUMBERS) for _ in range(draw.randint(0, 4))]
        tensor.CopyFrom(from_array(np.array(numbers, np.int64), tensor.name))
    elif way == 5:
        tensor.CopyFrom(from_array(np.array(draw.choice(_FLOATS), np.float32), tensor.name))
    else:
        size = list(tensor.dims)
        draw.shuffle(size)
        del tensor.dims[:]
        tensor.dims.extend(size)
    return f"type {tensor.data_type}, dims {list(tensor.dims)}, {len(tensor.raw_data)} bytes"


def initialiser_dropped(draw: random.Random, model: ModelProto) -> str:
    place = draw.randrange(len(model.graph.initializer))
    name = model.graph.initializer[place].name
    del model.graph.initializer[place]
    return name


_FEW, _HUGE = (3, 300), (2**20, 2**31, 2**40, 2**62)


def huge_value(draw: random.Random, model: ModelProto) -> str:
    """A node's input repeated, or filled, to a size that no machine holds, or that some do."""
    place = draw.randrange(len(model.graph.node))
    reader = model.graph.node[place]
    name = reader.input[draw.randrange(len(reader.input))]
    sizes = [draw.choice((1, 2, 3, *_HUGE)) for _ in range(draw.randint(1, 3))]
    operator = draw.choice(("Expand", "Tile", "ConstantOfShape", "Reshape", "Pad", "Resize"))
    operands = {"ConstantOfShape": ["huge"], "Resize": [name, "", "", "huge"]}
    made = helper.make_node(operator, operands.get(operator, [name, "huge"]), ["made huge"])
    reader.input[draw.randrange(len(reader.input))] = "made huge"
    model.graph.initializer.append(from_array(np.array(sizes, np.int64), "huge"))
    model.graph.node.insert(place, made)
    return f"{operator} {sizes}"


def loop_without_end(draw: random.Random, model: ModelProto) -> str:
    """A node reads the result of a Loop: of a few turns, of very many, or until a condition."""
    place = draw.randrange(len(model.graph.node))
    reader = model.graph.node[place]
    number = draw.randrange(len(reader.input))
    turns, is_true = draw.choice((None, *_HUGE, -1, *_FEW)), draw.choice((None, True))
    if turns in _FEW:  # the onnx package's evaluator makes no turn without a condition
        is_true = True
    step = draw.choice(("Neg", "Relu", "Identity", "Concat"))
    double = step == "Concat"
    axis = {"axis": 0} if double else {}
    nodes = [
        helper.make_node("Identity", ["go on"], ["still"]),
        helper.make_node(step, ["carried"] * (1 + double), ["next"], **axis),
    ]
    declared = {each.name: each.type.tensor_type.elem_type for each in model.graph.input}
    element = declared.get(reader.input[number], TensorProto.FLOAT)
    inputs = [
        helper.make_tensor_value_info("turn", TensorProto.INT64, []),
        helper.make_tensor_value_info("go on", TensorProto.BOOL, []),
        helper.make_tensor_value_info("carried", element, None),
    ]
    outputs = [
        helper.make_tensor_value_info("still", TensorProto.BOOL, []),
        helper.make_tensor_value_info("next", element, None),
    ]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    operands = ["" if turns is None else "turns", "" if is_true is None else "truth"]
    made = helper.make_node("Loop", [*operands, reader.input[number]], ["looped"], body=body)
    reader.input[number] = "looped"
    model.graph.initializer.append(from_array(np.array(turns or 0, np.int64), "turns"))
    model.graph.initializer.append(from_array(np.array(True), "truth"))
    model.graph.node.insert(place, made)
    return f"{turns} turns of {step}"


def operator(draw: random.Random, model: ModelProto) -> str:
    """Another operator's name or domain."""
    node = _node(draw, model)
    before = node.op_type
    if draw.random() < 0.1:
        node.domain = draw.choice(["com.microsoft", "ai.onnx.ml", "ai.onnx"])
    else:
        node.op_type = draw.choice([*sorted(OPERATORS), "If", "Loop", "NonZero", "Nothing"])
    return f"{before} -> {node.domain} {node.op_type}"


def opset(draw: random.Random, model: ModelProto) -> str:
    version = draw.choice([0, 1, 7, *range(9, 28), -1, 2**40])
    if draw.random() < 0.1:
        del model.opset_import[:]
    for each in model.opset_import:
        each.version = version
    return str(version)


def cycle(draw: random.Random, model: ModelProto) -> str:
    """A node reads what a later one makes."""
    earlier, later = sorted(draw.choices(range(len(model.graph.node)), k=2))
    reader = model.graph.node[earlier]
    reader.input[draw.randrange(len(reader.input))] = model.graph.node[later].output[0]
    return f"{reader.op_type} reads {reader.input}"


def order_of_nodes(draw: random.Random, model: ModelProto) -> str:
    nodes = list(model.graph.node)
    draw.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return f"{len(nodes)} nodes"


def declared(draw: random.Random, model: ModelProto) -> str:
    """The file's declaration of an input."""
    value = draw.choice(model.graph.input)
    kind, way = value.type.tensor_type, draw.randrange(6)
    if way == 0:
        kind.elem_type = draw.choice(_ELEMENTS)
    elif way == 1:
        kind.ClearField("shape")
    elif way == 2:
        kind.shape.dim.add().dim_value = draw.choice((1, 2, 3))
    elif way == 3:
        del kind.shape.dim[-1]
    elif way == 4:
        value.name = draw.choice(["", "renamed"])
    else:
        draw.choice(kind.shape.dim).dim_value = draw.choice(_NUMBERS)
    return str(value).replace("\n", " ")[:80]


def outputs_of_the_model(draw: random.Random, model: ModelProto) -> str:
    way = draw.randrange(3)
    if way == 0:
        del model.graph.output[draw.randrange(len(model.graph.output))]
    elif way == 1:
        draw.choice(model.graph.output).name = draw.choice(_names(model))
    else:
        model.graph.output.append(model.graph.output[0])
    return ", ".join(each.name for each in model.graph.output)


def _change_graph(draw: random.Random, graph: GraphProto) -> str:
    """A change of a region of If or Loop."""
    model = ModelProto(graph=graph)
    change = draw.choice((attribute_value, inputs_of_a_node, outputs_of_the_model, operator))
    what = change(draw, model)
    graph.CopyFrom(model.graph)
    return what


Change = Callable[[random.Random, ModelProto], str]
CHANGES: tuple[Change, ...] = (
    *(attribute_value, attribute_value, attribute_type, attribute_dropped, attribute_added),
    *(inputs_of_a_node, inputs_of_a_node, outputs_of_a_node, initialiser, initialiser, operator),
    *(initialiser_dropped, huge_value, huge_value, loop_without_end),
    *(opset, cycle, order_of_nodes, declared, declared, outputs_of_the_model),
)
