"""Some nodes of an ONNX file as a model of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparsejit.frontends.onnx.imported import GivenModel
from sparsejit.ir.graph import Array

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TypeProto


def reads(node: NodeProto) -> list[str]:
    """The values that a node reads, also those that graphs within it take from around it."""
    found = [name for name in node.input if name]
    for attribute in node.attribute:
        regions = [attribute.g] if attribute.HasField("g") else attribute.graphs
        for region in regions:
            found += _captured(region)
    return list(dict.fromkeys(found))


def _captured(region: GraphProto) -> Iterator[str]:
    own = {each.name for each in (*region.initializer, *region.input)}
    for node in region.node:
        yield from (name for name in reads(node) if name not in own)
        own.update(node.output)
    yield from (each.name for each in region.output if each.name not in own)


def makes(node: NodeProto) -> list[str]:
    """The values that a node gives."""
    return [name for name in node.output if name]


def crossing(nodes: Sequence[NodeProto], known: Mapping[str, Any]) -> list[str]:
    """What nodes read that they do not make, and that is not known now."""
    made = {name for node in nodes for name in makes(node)}
    read = dict.fromkeys(name for node in nodes for name in reads(node))
    return [name for name in read if name not in made and name not in known]


def part_model(
    given: GivenModel,
    nodes: Sequence[NodeProto],
    outputs: Iterable[str],
    arrays: Mapping[str, Array],
    type_of: Callable[[str], TypeProto | None],
) -> ModelProto:
    """The nodes as a model; what is known and read becomes constants.

    `type_of` says the type of an input; of an output None leaves it to who reads the model.
    """
    from onnx import ModelProto, ValueInfoProto
    from onnx.numpy_helper import from_array

    model = ModelProto(ir_version=given.model.ir_version, opset_import=given.model.opset_import)
    graph = model.graph
    graph.name = given.model.graph.name or "part"
    graph.node.extend(nodes)
    read = {name for node in nodes for name in reads(node)}
    graph.initializer.extend(from_array(x, name) for name, x in arrays.items() if name in read)
    graph.input.extend(
        ValueInfoProto(name=name, type=type_of(name)) for name in crossing(nodes, arrays)
    )
    graph.output.extend(ValueInfoProto(name=name, type=type_of(name)) for name in outputs)
    return model
