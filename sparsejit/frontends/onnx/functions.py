"""Bodies of ONNX operators, made of other operators, as the onnx package has them.

Swish(x, alpha)  ->  s = Sigmoid(Mul(alpha, x)); y = Mul(x, s)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sparsejit.frontends.onnx.checking import STANDARD_DOMAINS

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto


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
    """Copy a node, with attributes in place of references to them."""
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
