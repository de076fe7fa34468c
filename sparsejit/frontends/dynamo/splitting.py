"""Find the nodes of a captured module that can be compiled, and put parts in their place."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparsejit.frontends.arrays import is_tensor
from sparsejit.frontends.dynamo.part import (
    CompilePart,
    DynamoPart,
    example_numbers,
    known_sizes,
    say_once,
    symbols_of,
)
from sparsejit.frontends.torch_export import missing_in
from sparsejit.frontends.torch_export.tracing import origin_of
from sparsejit.ir.dtypes import NOTED

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node


@dataclass(frozen=True, eq=False)
class Captured:
    """A module without side effects. `constants` names its parameters, by place of the input."""

    module: GraphModule
    constants: Mapping[int, str]


def split(
    captured: Captured, inputs: Sequence[Any], compile_part: CompilePart
) -> Callable[..., Any]:
    """Return the module's function, with compiled parts in place of the nodes that allow it."""
    import torch
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner

    graph = captured.module.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    names = {
        placeholders[place]: name
        for place, name in captured.constants.items()
        if _may_be_constant(inputs[place])
    }
    given = dict(zip(placeholders, inputs, strict=True))
    with torch.inference_mode(False), torch.no_grad():
        able = _able(captured.module, {n: given[n].detach() for n in names}, given)
        support: Any = _Support(able)
        partitioner = CapabilityBasedPartitioner(
            captured.module, support, allows_single_node_partition=True
        )
        fused = partitioner.fuse_partitions(partitioner.propose_partitions())
    _replace_parts(fused, {node.name: name for node, name in names.items()}, compile_part)
    # Not `fused` itself: torch may have made it a module that writes its code at every call.
    return torch.fx.GraphModule(fused, fused.graph).forward


def _may_be_constant(tensor: Any) -> bool:
    """Whether compiled code may hold a tensor's numbers: changes of them must be visible.

    Tensors made in inference mode have no versions; a warning says so.
    """
    if not is_tensor(tensor) or not tensor.is_inference():
        return is_tensor(tensor)
    say_once("parameters made in torch.inference_mode(); make the model outside of it")
    return False


class _Support:
    """Tells torch's partitioner which nodes sparsejit compiles."""

    def __init__(self, able: set[Node]) -> None:
        self._able = able

    def is_node_supported(self, submodules: Mapping[str, Any], node: Node) -> bool:
        return node in self._able


def _able(
    module: GraphModule, constants: Mapping[Node, Any], given: Mapping[Node, Any]
) -> set[Node]:
    """The nodes that can be compiled. Warns of the reasons why others cannot."""
    known = known_sizes(given)
    missing: dict[str, str] = {}
    named = {node.name: tensor for node, tensor in constants.items()}
    for each in missing_in(module, named, known):
        reason = f"{each.operator} ({each.reason})" if each.reason else each.operator
        missing.setdefault(each.origin.name, reason)
    able: set[Node] = set()
    for node in module.graph.nodes:
        if node.op != "call_function" or _is_number(node) or _is_empty(node):
            continue
        source = node.args[0] if node.target is operator.getitem else node
        reason = missing.get(node.name) or _unfit(node, known)
        if source is not node and source not in able:
            continue
        if reason:
            origin = origin_of(node)
            say_once(reason, f"{origin.source or origin.module} {origin.code}".strip())
        else:
            able.add(node)
    _leave_out(module, able, set(constants))
    return able - _torn(able)


def _torn(able: set[Node]) -> set[Node]:
    """Operators of several results of which some are left to torch, and all their results."""
    torn = {
        node
        for node in able
        if isinstance(node.meta.get("val"), list | tuple) and not able.issuperset(node.users)
    }
    return torn | {user for node in torn for user in node.users}


def _leave_out(module: GraphModule, able: set[Node], constants: set[Node]) -> None:
    """Let torch compute the views and constants that nodes outside of `able` read.

    A node that parts read too is copied. torch makes such views without a copy, so that they share
    memory as in the model. They may also join the batch with other axes, which a part for any batch
    cannot do.
    """
    graph, fixed = module.graph, set(constants)
    for node in graph.nodes:
        if node.op == "get_attr" or (node in able and fixed.issuperset(node.all_input_nodes)):
            fixed.add(node)
    for node in reversed(list(graph.nodes)):
        if node not in able or not (node in fixed or _is_view(node)):
            continue
        outside = [user for user in node.users if user not in able]
        if len(outside) == len(node.users):
            able.remove(node)
        elif outside:
            with graph.inserting_after(node):
                twin = graph.node_copy(node)
            for user in outside:
                user.replace_input_with(node, twin)


def _is_view(node: Node) -> bool:
    if node.target is operator.getitem:
        return _is_view(node.args[0])  # type: ignore[arg-type]
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(result.alias_info for result in schema.returns)


def _is_number(node: Node) -> bool:
    """Whether a node computes a number, such as a size."""
    return isinstance(node.meta.get("val"), bool | int | float) or hasattr(
        node.meta.get("val"), "node"
    )


def _is_empty(node: Node) -> bool:
    """Whether an operand or the result has no elements, as in an empty batch.

    One of several results may have none: a batch norm in evaluation has such statistics.
    """
    examples = [each.meta.get("val") for each in (node, *node.all_input_nodes)]
    return any(x is not None and 0 in example_numbers(x.shape) for x in filter(is_tensor, examples))


# Without float64: graphs hold it as float32, and torch's own is more precise.
_DTYPES = (
    *("float32", "int64", "bool", "complex64"),
    *(name for name in NOTED if name != "float64"),
)


def _unfit(node: Node, known: Mapping[str, int]) -> str:
    """Reason why operands or results keep a node from being compiled; empty if there is none."""
    for each in (node, *node.all_input_nodes):
        for example in _flat(each.meta.get("val")):
            if symbols_of(example) - set(known):
                return f"{node.target} has a size that is known only when it runs"
            if not is_tensor(example):
                continue
            if example.device.type != "cpu":
                return f"{node.target} runs on {example.device.type}"
            dtype = str(example.dtype).removeprefix("torch.")
            if dtype not in _DTYPES:
                return f"{node.target} has {dtype}"
    return ""


def _flat(examples: Any) -> list[Any]:
    return list(examples) if isinstance(examples, list | tuple) else [examples]


def _replace_parts(fused: GraphModule, names: Mapping[str, str], compile_part: CompilePart) -> None:
    """Call each part's module through a `DynamoPart`.

    Parameters are found by name, since torch copied the nodes.
    """
    import torch

    symbols = [
        node
        for node in fused.graph.nodes
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.SymInt)
    ]
    for node in list(fused.graph.nodes):
        if node.op != "call_module":
            continue
        inner: Any = fused.get_submodule(str(node.target))
        places = {n: name for n, x in enumerate(node.args) if (name := _constant(x, names))}
        part = DynamoPart(inner, places, [str(s.meta["val"]) for s in symbols], compile_part)
        with fused.graph.inserting_before(node):
            call = fused.graph.call_function(part.function(), (*symbols, *node.args))
        call.meta = node.meta
        node.replace_all_uses_with(call)
        fused.graph.erase_node(node)


def _constant(operand: Any, names: Mapping[str, str]) -> str:
    """The name of a parameter, or of a tensor that the captured module has; empty for others."""
    return str(operand.target) if operand.op == "get_attr" else names.get(operand.name, "")
