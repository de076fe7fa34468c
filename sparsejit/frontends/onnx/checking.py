"""Checks and conversion by the onnx package, without checks that ONNX Runtime does not make.

ONNX Runtime's optimiser writes operators of its own among ONNX's, and outputs may lack types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

STANDARD_DOMAINS = ("", "ai.onnx")
# ONNX Runtime's operators in ONNX's domain, with the first opset that has an operator of that name.
_OF_ONNX_RUNTIME = {"LayerNormalization": 17, "SimplifiedLayerNormalization": math.inf}
# The package's converter crashes at these operators if they follow operators of other domains. They
# are the same from opset 9 to the newest.
_NOT_CONVERTED = {"EyeLike": math.inf}
_ANY_ELEMENT = 1
_UNCHECKED_DOMAIN = "com.microsoft"


def check(model: ModelProto, opset: int) -> None:
    """Check a model, and leave it as it was. Raises the package's ValidationError."""
    import onnx

    with ExitStack() as undo:
        _set_apart(model, opset, undo.callback, _OF_ONNX_RUNTIME)
        _complete(model.graph.output, undo.callback)
        onnx.checker.check_model(model)


def converted(model: ModelProto, opset: int, to: int) -> ModelProto:
    """Return the model in another opset. Raises the errors of the package's converter."""
    from onnx.version_converter import convert_version

    apart = _OF_ONNX_RUNTIME | _NOT_CONVERTED
    with ExitStack() as undo:
        _set_apart(model, opset, undo.callback, apart)
        made = convert_version(model, to)
    for node in all_nodes(made.graph):  # that domain has no operators of these names
        if node.domain == _UNCHECKED_DOMAIN and node.op_type in apart:
            node.ClearField("domain")
    return made


def _set_apart(
    model: ModelProto, opset: int, undo: Callable[..., Any], since: Mapping[str, float]
) -> None:
    """Move operators of opsets before `since` to a domain that the package does not check."""
    apart = [
        node
        for node in all_nodes(model.graph)
        if opset < since.get(node.op_type, 0) and node.domain in STANDARD_DOMAINS
    ]
    for node in apart:
        if node.HasField("domain"):
            undo(setattr, node, "domain", node.domain)
        else:
            undo(node.ClearField, "domain")
        node.domain = _UNCHECKED_DOMAIN
    if apart and all(each.domain != _UNCHECKED_DOMAIN for each in model.opset_import):
        model.opset_import.add(domain=_UNCHECKED_DOMAIN, version=1)
        undo(model.opset_import.pop)


def _complete(outputs: Iterable[ValueInfoProto], undo: Callable[..., Any]) -> None:
    """Give outputs without a full type one that is compared with nothing."""
    for each in outputs:
        value, kind = each.type, each.type.tensor_type
        if not each.HasField("type"):
            undo(each.ClearField, "type")
        elif value.WhichOneof("value") is None:
            undo(value.ClearField, "tensor_type")
        elif value.HasField("tensor_type") and not kind.HasField("shape"):
            undo(kind.ClearField, "shape")
        else:
            continue
        if not value.HasField("tensor_type"):
            kind.elem_type = _ANY_ELEMENT
        kind.shape.SetInParent()


def all_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph, and the graphs within its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for region in (attribute.g, *attribute.graphs):
                yield from all_graphs(region)


def all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """The nodes of a graph, and of the graphs within them."""
    return (node for each in all_graphs(graph) for node in each.node)
