"""Dtypes in which layers store their weights: one for all, or by patterns of layers' names."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node, Operator
from sparsejit.ir.ops.turns import Turns
from sparsejit.ir.spec import DType
from sparsejit.passes.calibrated_layers import STORING


def with_dtypes(graph: Graph, dtypes: str | Mapping[str, str], is_part: bool = False) -> Graph:
    """The graph with its layers' weights stored as `dtypes` says.

    A mapping has shell patterns of layers' names ("encoder.*"); the last that matches counts, and
    layers that none matches stay as the graph has them: float32, or shorter where the model itself
    is quantised. "float32" alone leaves all layers so. Raises InvalidInput as `parsed_dtypes` does,
    and for a pattern that matches no layer, unless the graph is a part of a model.
    """
    kinds = parsed_dtypes(dtypes)
    if not is_part:
        check_matches(kinds, layers_with_weights(graph))
    nodes = tuple(_stored(node, kinds) if _stores_weights(node) else node for node in graph.nodes)
    return replace(graph, nodes=nodes)


def parsed_dtypes(dtypes: str | Mapping[str, str]) -> dict[str, DType]:
    """The dtype of each pattern of layers' names. Raises InvalidInput for unknown dtypes."""
    if not isinstance(dtypes, str | Mapping) or not all(isinstance(key, str) for key in dtypes):
        raise InvalidInput(f"dtype={dtypes!r}; give a name, or a dict from patterns to names")
    rules = {"*": dtypes} if isinstance(dtypes, str) else dict(dtypes)
    if dtypes == DType.FLOAT32.value:
        rules = {}
    return {pattern: DType.parse(name) for pattern, name in rules.items()}


def check_matches(patterns: Iterable[str], layers: Iterable[str]) -> None:
    """Raise InvalidInput for a pattern that none of these layers matches."""
    names = list(dict.fromkeys(layers))
    for pattern in patterns:
        if pattern != "*" and not any(fnmatchcase(name, pattern) for name in names):
            known = ", ".join(names) or "none"
            raise InvalidInput(f"dtype for {pattern!r} matches no layer; layers are {known}")


def layers_with_weights(graph: Graph) -> list[str]:
    """Names of the layers whose weights have a dtype."""
    return [node.outputs[0].origin.layer for node in graph.nodes if _stores_weights(node)]


def _stores_weights(node: Node) -> bool:
    ops = [each.op for each in node.op.nodes] if isinstance(node.op, Turns) else [node.op]
    return any(isinstance(op, STORING) for op in ops)


def _stored(node: Node, kinds: dict[str, DType]) -> Node:
    name = node.outputs[0].origin.layer
    dtype = next((kinds[each] for each in reversed(kinds) if fnmatchcase(name, each)), None)
    return node if dtype is None else replace(node, op=_stored_as(node.op, dtype))


def _stored_as(op: Operator, dtype: DType) -> Operator:
    """The operator with its weights, or its body's weights, in a dtype."""
    if isinstance(op, Turns):
        nodes = tuple(replace(each, op=_stored_as(each.op, dtype)) for each in op.nodes)
        return replace(op, nodes=nodes)
    return replace(op, dtype=dtype) if isinstance(op, STORING) else op
