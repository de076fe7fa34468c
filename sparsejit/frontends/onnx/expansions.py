"""Operators of ONNX files in terms of other operators.

    expanded   operators of quantised files as DequantizeLinear, the operator, and QuantizeLinear
    body_of    bodies of ONNX operators, made of other operators, as the onnx package has them

For example:

    QLinearConv(x, W, b)  ->  x, W, b = DequantizeLinear(...); y = Conv(x, W, b); QuantizeLinear(y)
    Swish(x, alpha)       ->  s = Sigmoid(Mul(alpha, x)); y = Mul(x, s)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sparsejit.frontends.onnx.call import operator_of
from sparsejit.frontends.onnx.reading import STANDARD_DOMAINS

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto

_MICROSOFT = "com.microsoft"


class _Replacement:
    """Nodes in place of one node, whose name and attributes go to the operator among them."""

    def __init__(self, node: NodeProto) -> None:
        self.node, self.made = node, list[Any]()
        self.inputs = list(node.input)

    def input(self, place: int) -> str:
        """Name of an operand; empty where it is left out."""
        return self.inputs[place] if place < len(self.inputs) else ""

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute of the node, a number."""
        from onnx.helper import get_attribute_value

        found = (get_attribute_value(each) for each in self.node.attribute if each.name == name)
        return next(found, default)

    def add(self, operator: str, inputs: Sequence[str], output: str = "", **more: Any) -> str:
        """Add a node; return the name of its result."""
        from onnx.helper import make_node

        name = output or f"{self.node.output[0]}/{len(self.made)}"
        self.made.append(make_node(operator, list(inputs), [name], **more))
        return name

    def floats(self, place: int, scale: int, zero: int, **more: Any) -> str:
        """Dequantise an operand; return the name of the result."""
        operands = [self.input(each) for each in (place, scale, zero)]
        return self.add("DequantizeLinear", operands if operands[2] else operands[:2], **more)

    def bias(self, place: int, x_scale: int, w_scale: int) -> list[str]:
        """Dequantise an int32 bias by the product of two scales; [] if it is not given."""
        if not self.input(place):
            return []
        scale = self.add("Mul", [self.input(x_scale), self.input(w_scale)])
        return [self.add("DequantizeLinear", [self.input(place), scale], axis=0)]

    def finish(
        self, operator: str, operands: Sequence[str], scale: int, zero: int, *left_out: str
    ) -> list[NodeProto]:
        """Add the operator, with the node's attributes except `left_out`; return all nodes.

        Its result is quantised if the node has the operand number `scale`.
        """
        is_bytes = bool(self.input(scale))
        result = self.add(operator, operands, "" if is_bytes else self.node.output[0])
        own = self.made[-1]
        own.name = self.node.name
        own.attribute.extend(each for each in self.node.attribute if each.name not in left_out)
        if is_bytes:
            steps = [self.input(each) for each in (scale, zero) if self.input(each)]
            self.add("QuantizeLinear", [result, *steps], self.node.output[0])
        return self.made


def _convolution(row: _Replacement) -> list[NodeProto]:
    bias = row.bias(8, 1, 4)
    operands = [row.floats(0, 1, 2), row.floats(3, 4, 5, axis=0), *bias]
    return row.finish("Conv", operands, 6, 7)


def _product(row: _Replacement) -> list[NodeProto]:
    operands = [row.floats(0, 1, 2, axis=-2), row.floats(3, 4, 5, axis=-1)]
    return row.finish("MatMul", operands, 6, 7)


def _gemm(row: _Replacement) -> list[NodeProto]:
    bias = row.bias(6, 1, 4)
    axis = 0 if row.attribute("transB", 0) else 1
    return row.finish("Gemm", [row.floats(0, 1, 2), row.floats(3, 4, 5, axis=axis), *bias], 7, 8)


def _of_two(operator: str, row: _Replacement) -> list[NodeProto]:
    return row.finish(operator, [row.floats(0, 1, 2), row.floats(3, 4, 5)], 6, 7)


def _of_one(operator: str, row: _Replacement) -> list[NodeProto]:
    if row.attribute("channels_last", 0):
        return [row.node]
    return row.finish(operator, [row.floats(0, 1, 2)], 3, 4, "channels_last", "opset")


def _concatenation(row: _Replacement) -> list[NodeProto]:
    parts = [row.floats(place, place + 1, place + 2) for place in range(2, len(row.inputs), 3)]
    return row.finish("Concat", parts, 0, 1)


def _choice(row: _Replacement) -> list[NodeProto]:
    return row.finish("Where", [row.input(0), row.floats(1, 2, 3), row.floats(4, 5, 6)], 7, 8)


def _as_standard(row: _Replacement) -> list[NodeProto]:
    """The operator of that name and meaning of ONNX's own."""
    return row.finish(row.node.op_type, row.inputs, len(row.inputs), len(row.inputs))


def _embedding(row: _Replacement) -> list[NodeProto]:
    """EmbedLayerNormalization, whose tables and norm are bytes, each with a scale and zero point.

    Operands 2 to 6 are the bytes, 8 to 12 their scales, 13 to 17 their zero points.
    """
    held = [row.floats(n, n + 6, n + 11) if row.input(n) else "" for n in range(2, 7)]
    operands = [row.input(0), row.input(1), *held, row.input(7)]
    made = row.finish("EmbedLayerNormalization", operands, len(row.inputs), 0)
    made[-1].domain = _MICROSOFT
    made[-1].output.extend(row.node.output[1:])
    return made


EXPANSIONS: Mapping[str, Callable[[_Replacement], list[NodeProto]]] = {
    "QLinearConv": _convolution,
    "QLinearMatMul": _product,
    "com.microsoft.DequantizeLinear": _as_standard,
    "com.microsoft.QEmbedLayerNormalization": _embedding,
    "com.microsoft.QGemm": _gemm,
    "com.microsoft.QLinearAdd": partial(_of_two, "Add"),
    "com.microsoft.QLinearAveragePool": partial(_of_one, "AveragePool"),
    "com.microsoft.QLinearConcat": _concatenation,
    "com.microsoft.QLinearGlobalAveragePool": partial(_of_one, "GlobalAveragePool"),
    "com.microsoft.QLinearLeakyRelu": partial(_of_one, "LeakyRelu"),
    "com.microsoft.QLinearMul": partial(_of_two, "Mul"),
    "com.microsoft.QLinearSigmoid": partial(_of_one, "Sigmoid"),
    "com.microsoft.QLinearSoftmax": partial(_of_one, "Softmax"),
    "com.microsoft.QLinearWhere": _choice,
    "com.microsoft.QuantizeLinear": _as_standard,
}


def expanded(node: NodeProto) -> list[NodeProto]:
    """The nodes that replace a node; the node itself if it is no quantised operator."""
    expansion = EXPANSIONS.get(operator_of(node))
    return [node] if expansion is None else expansion(_Replacement(node))


class FunctionBody(NamedTuple):
    """Nodes of an opset, with the body's names of inputs and outputs."""

    nodes: Sequence[NodeProto]
    inputs: Sequence[str]
    outputs: Sequence[str]
    opset: int


def body_of(node: NodeProto, types: Sequence[TypeProto], opset: int) -> FunctionBody | None:
    """The body of a node of ONNX's own, for operands of these types; None if it has none."""
    from onnx import FunctionProto
    from onnx.defs import SchemaError, get_schema

    if node.domain not in STANDARD_DOMAINS:
        return None
    try:
        schema: Any = get_schema(node.op_type, opset, "")
    except SchemaError:
        return None
    text: bytes = b""
    if schema.has_context_dependent_function:
        versions = schema.context_dependent_function_opset_versions
        operands = [kind.SerializeToString() for kind in types]
        text = schema.get_context_dependent_function_with_opset_version(
            _latest(versions, opset), node.SerializeToString(), operands
        )
    elif schema.has_function:
        versions = schema.function_opset_versions
        text = schema.get_function_with_opset_version(_latest(versions, opset))
    if not text:
        return None
    body = FunctionProto()
    body.ParseFromString(text)
    defaults = {name: each.default_value for name, each in schema.attributes.items()}
    given = _attributes(node, body, defaults)
    imports = [each.version for each in body.opset_import if each.domain in STANDARD_DOMAINS]
    nodes = [_instance(inner, given) for inner in body.node]
    return FunctionBody(nodes, body.input, body.output, max(imports, default=opset))


def _latest(versions: Sequence[int], opset: int) -> int:
    """The newest version of a body that an opset has."""
    return max((each for each in versions if each <= opset), default=versions[0])


def _attributes(
    node: NodeProto, body: FunctionProto, defaults: Mapping[str, AttributeProto]
) -> dict[str, AttributeProto]:
    """Attributes by name: the node's own, else defaults of the body or of the operator."""
    found = {name: each for name, each in defaults.items() if each.name}
    found.update((each.name, each) for each in body.attribute_proto)
    found.update((each.name, each) for each in node.attribute)
    return found


def _instance(node: NodeProto, given: Mapping[str, AttributeProto]) -> NodeProto:
    """Copy a node of a function's body, with given attributes in place of references to them."""
    made = type(node)()
    made.CopyFrom(node)
    del made.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name and attribute.ref_attr_name not in given:
            continue
        own = made.attribute.add()
        own.CopyFrom(given[attribute.ref_attr_name] if attribute.ref_attr_name else attribute)
        own.name, own.ref_attr_name = attribute.name, ""
        for region in (own.g, *own.graphs) if own.HasField("g") else own.graphs:
            nodes = [_instance(inner, given) for inner in region.node]
            del region.node[:]
            region.node.extend(nodes)
    return made
