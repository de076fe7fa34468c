"""Computes equal expressions once, and keeps equal constants once.

a = exp(x)                        a = exp(x)
b = exp(x)                   ->   c = add(a, a)
c = add(a, b)
"""

from typing import TypeAlias

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node, Operator
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.values import Array, Value
from sparsejit.passes.rewriter import Site, rewrite

# Functions whose first two operands may change places.
COMMUTATIVE = frozenset(
    ("add", "mul", "maximum", "minimum", "fma", "equal", "not_equal", "logical_and", "logical_or")
)
# The first elements of a constant, which tell most constants apart without reading all elements.
LOOKED_AT = 32

_Computation: TypeAlias = tuple[Operator, tuple[Value, ...]]


def merge_common_subexpressions(graph: Graph) -> Graph:
    """The graph with one node for each operator and operands, one value for each constant."""
    seen: dict[_Computation, tuple[Value, ...]] = {}

    def rule(site: Site) -> tuple[Value, ...]:
        key = (site.op, _in_order(site.op, site.inputs))
        if key not in seen:
            seen[key] = site.keep()
        return seen[key]

    return rewrite(_merge_constants(graph), rule)


def _in_order(op: Operator, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
    """The operands, the first two of a commutative function sorted, so that a + b equals b + a."""
    if not isinstance(op, Pointwise) or op.kind not in COMMUTATIVE:
        return inputs
    first, second, *rest = inputs
    if first.type.element is not second.type.element:
        return inputs
    return (*sorted((first, second), key=id), *rest)


def _merge_constants(graph: Graph) -> Graph:
    """The graph with one value for all constants of the same type and bytes."""
    firsts: dict[object, list[tuple[Value, Array]]] = {}
    same: dict[Value, Value] = {}
    for value, array in graph.constants.items():
        group = firsts.setdefault((value.type, array.flat[:LOOKED_AT].tobytes()), [])
        equal = (kept for kept, other in group if array.tobytes() == other.tobytes())
        same[value] = next(equal, value)
        if same[value] is value:
            group.append((value, array))
    if all(old is new for old, new in same.items()):
        return graph
    nodes = tuple(
        Node(node.op, tuple(same.get(value, value) for value in node.inputs), node.outputs)
        for node in graph.nodes
    )
    outputs = tuple(same.get(value, value) for value in graph.outputs)
    constants = {value: graph.constants[value] for value in same.values()}
    return Graph(graph.inputs, outputs, nodes, constants)
