"""Walks a graph and lets rules replace its nodes; drops nodes that no output depends on.

a = relu(x)                                   a = relu(x)         (dropped if now unread)
b = relu(a)      rule: relu(relu(x))     ->   return a
return b               is relu(x)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from sparsejit.ir.graph import Graph, GraphBuilder
from sparsejit.ir.operator import Node, Operator
from sparsejit.ir.ops.views import Expand
from sparsejit.ir.values import Array, Element, Origin, Value


def remove_dead_code(graph: Graph) -> Graph:
    """The graph without nodes and constants that no output depends on; inputs stay."""
    needed: set[Value] = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    constants = {value: array for value, array in graph.constants.items() if value in needed}
    if len(kept) == len(graph.nodes) and len(constants) == len(graph.constants):
        return graph
    return Graph(graph.inputs, graph.outputs, tuple(reversed(kept)), constants)


class Site:
    """A node that a rule looks at: its operands are rewritten already, its readers not yet."""

    def __init__(self, walk: _Walk, node: Node, inputs: tuple[Value, ...]) -> None:
        self._walk = walk
        self._node = node
        self._kept: tuple[Value, ...] | None = None
        self.op, self.inputs, self.outputs = node.op, inputs, node.outputs

    @property
    def output(self) -> Value:
        """The only output of the node that may be replaced."""
        (value,) = self.outputs
        return value

    @property
    def is_float(self) -> bool:
        """Whether all operands and results are float32."""
        values = (*self.inputs, *self.outputs)
        return all(value.type.element is Element.FLOAT32 for value in values)

    def producer(self, value: Value) -> Node | None:
        """The node that makes `value`, or None for an input or a constant."""
        return self._walk.producers.get(value)

    def array(self, value: Value) -> Array | None:
        """The array of `value` if it is known at compile time, else None."""
        return self._walk.builder.array(value) if self.is_constant(value) else None

    def is_constant(self, value: Value) -> bool:
        """Whether `value` is known at compile time."""
        return self._walk.builder.is_constant(value)

    def number(self, value: Value) -> float | None:
        """The number that all elements of a constant equal, else None."""
        array = self.array(value)
        if array is None or array.size == 0:
            return None
        first = array.flat[0]
        return float(first) if (array == first).all() else None

    def uses(self, value: Value) -> int:
        """The number of operands of nodes, and of outputs, that are `value`."""
        return self._walk.uses[value]

    def is_used_once(self, value: Value) -> bool:
        """Whether one operand of one node reads `value`, and no output is it."""
        return self.uses(value) == 1

    def constant(
        self, array: Array, origin: Origin | None = None, like: Value | None = None
    ) -> Value:
        """A new constant, named like this node's result if no origin is given.

        Floating-point numbers are rounded to the element of `like`, by default to float32.
        """
        is_wide = like is not None and like.type.element is Element.FLOAT64
        floats = Element.FLOAT64 if is_wide else Element.FLOAT32
        return self._walk.builder.constant(array, origin or self.outputs[0].origin, floats)

    def add(
        self, op: Operator, *inputs: Value, origins: Sequence[Origin] = ()
    ) -> tuple[Value, ...]:
        """Apply an operator; its results have `origins`, by default the origins of this node's."""
        origins = origins or [value.origin for value in self.outputs]
        return self._walk.add(op, inputs, origins)

    def one(self, op: Operator, *inputs: Value, origin: Origin | None = None) -> Value:
        """Apply an operator that has one result."""
        (value,) = self.add(op, *inputs, origins=[origin or self.outputs[0].origin])
        return value

    def keep(self) -> tuple[Value, ...]:
        """The node as it is, with its rewritten operands: no change for `rewrite`."""
        if self._kept is None:
            self._kept = self._walk.keep(self._node, self.inputs)
        return self._kept

    def was_kept(self, results: Sequence[Value]) -> bool:
        """Whether these are the results that `keep` returned."""
        return results is self._kept

    def expanded(self, value: Value) -> tuple[Value, ...] | None:
        """`value` repeated to the shape of the only result; None where their dtypes differ."""
        wanted = self.output.type
        if value.type.element is not wanted.element:
            return None
        return (value if value.shape == wanted.shape else self.one(Expand(wanted.shape), value),)


Rule: TypeAlias = Callable[[Site], Sequence[Value] | None]


class _Walk:
    """The new graph as far as it is made; `uses`: how often the old graph reads each new value."""

    def __init__(self, graph: Graph) -> None:
        self.builder = GraphBuilder()
        self.producers: dict[Value, Node] = {}
        self.uses: Counter[Value] = Counter()
        self._readers = Counter(value for node in graph.nodes for value in node.inputs)
        self._readers.update(graph.outputs)
        self._new: dict[Value, Value] = {}
        for value in graph.inputs:
            self.replace(value, self.builder.adopt(value))
        for value, array in graph.constants.items():
            self.replace(value, self.builder.adopt(value, array))

    def replace(self, old: Value, new: Value) -> None:
        """Let the readers of `old` read `new`."""
        assert old.type == new.type, f"{old.origin.name}: {old.type} became {new.type}"
        self._new[old] = new
        self.uses[new] += self._readers[old]

    def now(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """The new values in place of values of the old graph."""
        return tuple(self._new[value] for value in values)

    def add(
        self, op: Operator, inputs: Sequence[Value], origins: Sequence[Origin]
    ) -> tuple[Value, ...]:
        types = op.infer(*(value.type for value in inputs))
        outputs = (Value(kind, origin) for kind, origin in zip(types, origins, strict=True))
        return self._append(Node(op, tuple(inputs), tuple(outputs)))

    def keep(self, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        if inputs == node.inputs:
            return self._append(node)
        return self.add(node.op, inputs, [value.origin for value in node.outputs])

    def _append(self, node: Node) -> tuple[Value, ...]:
        self.builder.adopt_node(node)
        self.producers.update((value, node) for value in node.outputs)
        return node.outputs


def rewrite(graph: Graph, *rules: Rule) -> Graph:
    """Offer each node to the rules in turn; the first that returns values replaces its results.

    A rule returns None, or a value for each of the node's results, of the same types. The same
    graph is returned if no rule changed anything, so that a pass can tell; else one without dead
    code.
    """
    walk, is_changed = _Walk(graph), False
    for node in graph.nodes:
        site = Site(walk, node, walk.now(node.inputs))
        results = next((made for rule in rules if (made := rule(site)) is not None), None)
        if results is None:
            results = site.keep()
        is_changed = is_changed or not site.was_kept(results)
        for old, new in zip(node.outputs, results, strict=True):
            walk.replace(old, new)
    if not is_changed:
        return graph
    return remove_dead_code(walk.builder.finish(walk.now(graph.outputs)))
