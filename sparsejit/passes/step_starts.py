"""First frames of a sequence that repeat later ones, as the padding of a reflection does.

    p = embedding[[2, 1]](x)                 x[2] x[1] | x[0] x[1] x[2] ...
    y = concat(p, x, q)                      the copies at the end, q, are never reached
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.selection import Embedding
from sparsejit.ir.ops.views import Concat, Expand, Permute, Reshape, Slice
from sparsejit.ir.values import Array, Value

# Operators that copy elements of their last operand; other operands are known.
_COPYING = (Concat, Embedding, Expand, Permute, Reshape, Slice)


class CopiedStart(NamedTuple):
    """A concatenation of frames with copies of some of them before, and perhaps behind.

    Attributes:
        frames: the operand whose frames are copied
        sources: the number of the frame that each of the first ones copies
        makers: the nodes that make the copies, which nothing else reads
    """

    frames: Value
    sources: tuple[int, ...]
    makers: frozenset[Node]


def copied_starts(long: Graph, short: Graph) -> dict[Node, CopiedStart]:
    """Return the concatenations of `long` that add copies of the first frames before these.

    `short` is the same model at another length, where the frames before are the same copies.
    """
    first, second = _Copies(long), _Copies(short)
    found = {}
    for node, twin in zip(long.nodes, short.nodes, strict=False):
        if isinstance(node.op, Concat) and isinstance(twin.op, Concat):
            for root, other in zip(node.inputs, twin.inputs, strict=False):
                own = None if root.shape == other.shape else first.start(node, root)
                if own is not None and own.sources == second.sources(twin, other):
                    found[node] = own
    return found


class _Copies:
    """Follows elements of a value through the nodes of a graph that copy them."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._makers = graph, graph.producers()
        self._readers = graph.consumers()

    def start(self, node: Node, root: Value) -> CopiedStart | None:
        """The start of a concatenation of one operand, `root`, and copies of its frames."""
        sources = self.sources(node, root)
        if sources is None:
            return None
        makers = frozenset(self._between(node, root))
        inner = [value for maker in makers for value in maker.outputs]
        readers = [each for value in inner for each in self._readers[value]]
        if not all(each is node or each in makers for each in readers):
            return None
        return CopiedStart(root, sources, makers)

    def sources(self, node: Node, root: Value) -> tuple[int, ...] | None:
        """The frames of `root` that are copied before it; None unless all are copies."""
        assert isinstance(node.op, Concat)
        numbers = np.arange(root.type.size).reshape(root.shape)
        found = [self._elements(value, root, numbers) for value in node.inputs]
        parts = [part for part in found if part is not None]
        if len(parts) < len(found) or all(value is root for value in node.inputs):
            return None
        before = parts[: node.inputs.index(root)]
        if not before:
            return ()
        axis = node.op.axis % len(root.shape)
        rows: Array = np.moveaxis(np.concatenate(before, axis), axis, 0)
        own = np.moveaxis(numbers, axis, 0).reshape(root.shape[axis], -1)
        rows = rows.reshape(len(rows), -1)
        places = np.searchsorted(own[:, 0], rows[:, 0])
        return tuple(places.tolist()) if np.array_equal(own[places], rows) else None

    def _elements(self, value: Value, root: Value, numbers: Array) -> Array | None:
        """The numbers of the elements of `root` that a value holds; None for other elements."""
        if value is root:
            return numbers
        node = self._makers.get(value)
        if node is None or not isinstance(node.op, _COPYING):
            return None
        known = [self._graph.constants.get(each) for each in node.inputs[:-1]]
        if isinstance(node.op, Concat):
            known = [self._elements(each, root, numbers) for each in node.inputs[:-1]]
        given = [*known, self._elements(node.inputs[-1], root, numbers)]
        if any(each is None for each in given):
            return None
        return node.op.reference(*(each for each in given if each is not None))[0]

    def _between(self, node: Node, root: Value) -> set[Node]:
        """The nodes between `root` and a node that reads copies of it."""
        found: set[Node] = set()
        left = [value for value in node.inputs if value is not root]
        while left:
            maker = self._makers.get(left.pop())
            if maker is not None and maker not in found:
                found.add(maker)
                left += [value for value in maker.inputs if value is not root]
        return found
