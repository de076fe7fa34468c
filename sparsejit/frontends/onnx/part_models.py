"""Some nodes of an ONNX file as a model of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparsejit.frontends.onnx.imported import GivenModel
from sparsejit.frontends.onnx.reading import initialised, tensors_of
from sparsejit.ir.values import Array

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto


def reads(node: NodeProto) -> list[str]:
    """The values that a node reads, also in graphs within it that read values around the node."""
    found = [name for name in node.input if name]
    for attribute in node.attribute:
        for region in _regions(attribute):
            found += _captured(region)
    return list(dict.fromkeys(found))


def _regions(attribute: AttributeProto) -> Sequence[GraphProto]:
    """The graphs within an attribute: branches, and bodies of loops."""
    return [attribute.g] if attribute.HasField("g") else attribute.graphs


def _captured(region: GraphProto) -> Iterator[str]:
    own = {each.name for each in region.input} | initialised(region)
    for node in region.node:
        yield from (name for name in reads(node) if name not in own)
        own.update(node.output)
    yield from (each.name for each in region.output if each.name not in own)


def makes(node: NodeProto) -> list[str]:
    """The names of a node's results."""
    return [name for name in node.output if name]


def inlined(node: NodeProto, branch: GraphProto) -> list[NodeProto]:
    """The nodes of a branch in place of the If that chooses it.

    Its values are renamed: branches of several Ifs may have the same names.
    """
    from onnx.helper import make_node
    from onnx.numpy_helper import from_array

    own = initialised(branch)
    computed = {name for inner in branch.node for name in makes(inner)}
    names = {name: f"{node.output[0]}/{name}" for name in (*own, *computed)}
    last = []
    for result, name in zip(branch.output, node.output, strict=True):
        if result.name in computed:
            computed.remove(result.name)
            names[result.name] = name
        elif name:
            last.append(make_node("Identity", [names.get(result.name, result.name)], [name]))
    first = [
        make_node("Constant", [], [names[name]], value=from_array(array))
        for name, array in tensors_of(branch).items()
    ]
    return [*first, *(_renamed(inner, names) for inner in branch.node), *last]


def _renamed(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """Copy a node, with other names for its values, also within its graphs."""
    made = type(node)()
    made.CopyFrom(node)
    made.input[:] = [names.get(name, name) for name in node.input]
    made.output[:] = [names.get(name, name) for name in node.output]
    for attribute in made.attribute:
        for region in _regions(attribute):
            own = {each.name for each in region.input} | initialised(region)
            own.update(name for inner in region.node for name in inner.output)
            around = {name: other for name, other in names.items() if name not in own}
            nodes = [_renamed(inner, around) for inner in region.node]
            del region.node[:]
            region.node.extend(nodes)
            for result in region.output:
                result.name = around.get(result.name, result.name)
    return made


def needed(nodes: Mapping[int, NodeProto], outputs: Iterable[str]) -> dict[int, NodeProto]:
    """The nodes that outputs depend on, out of `nodes`, which are in order."""
    wanted = set(outputs)
    found: dict[int, NodeProto] = {}
    for place, node in reversed(list(nodes.items())):
        if wanted.intersection(node.output):
            found[place] = node
            wanted.update(reads(node))
    return dict(sorted(found.items()))


def without_sizes(kind: TypeProto) -> TypeProto:
    """The type with the same number of axes, of any sizes."""
    made = type(kind)()
    made.CopyFrom(kind)
    for axis in made.tensor_type.shape.dim:
        axis.Clear()
    return made


def crossing(nodes: Sequence[NodeProto], known: Mapping[str, Any]) -> list[str]:
    """Values that nodes read, but neither make nor know now."""
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
    """Write the nodes as a model; known values that they read become constants.

    `type_of` returns the type of an input; None for an output lets the model's reader infer it.
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
