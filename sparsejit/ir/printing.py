"""A graph as text that reads like the model."""

from dataclasses import MISSING, fields
from enum import Enum
from typing import Any

from sparsejit.ir.graph import Graph, Node, Value
from sparsejit.ir.ops.pointwise import Chain, Pointwise


def as_text(graph: Graph) -> str:
    """The graph with a line for each node: `name: type = op(operands)  # module, file:line`."""
    names = _names(graph)
    lines = [f"input  {names[value]}: {value.type}" for value in graph.inputs]
    lines += [f"weight {names[value]}: {value.type}" for value in graph.constants]
    lines += [_line(node, names) for node in graph.nodes]
    return "\n".join([*lines, f"return {', '.join(names[value] for value in graph.outputs)}"])


def _line(node: Node, names: dict[Value, str]) -> str:
    results = ", ".join(f"{names[value]}: {value.type}" for value in node.outputs)
    operands = ", ".join(names[value] for value in node.inputs)
    origin = node.outputs[0].origin
    place = ", ".join(part for part in (origin.module, origin.source) if part)
    return f"{results} = {_op_text(node.op)}({operands})" + (f"  # {place}" if place else "")


def _op_text(op: Any) -> str:
    """The operator's name, with the fields that differ from their defaults."""
    if isinstance(op, Pointwise):
        return op.kind
    if isinstance(op, Chain):
        steps = (f"{step.kind} {' '.join(map(str, step.arguments))}" for step in op.steps)
        return f"{op.title}[{'; '.join(steps)}]"
    said = [
        f"{field.name}={_plain(getattr(op, field.name))}"
        for field in fields(op)
        if field.default is MISSING or getattr(op, field.name) != field.default
    ]
    return type(op).__name__.lower() + (f"[{', '.join(said)}]" if said else "")


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _names(graph: Graph) -> dict[Value, str]:
    """A name for each value: its origin's name, with a number where that is taken."""
    taken: dict[str, int] = {}
    names = {}
    for value in graph.values():
        stem = value.origin.name or "value"
        taken[stem] = taken.get(stem, 0) + 1
        names[value] = stem if taken[stem] == 1 else f"{stem}.{taken[stem]}"
    return names
