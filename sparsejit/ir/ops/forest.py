"""Ensembles of decision trees."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.operator import Operator
from sparsejit.ir.signature import Bound
from sparsejit.ir.values import Array, Element


@dataclass(frozen=True)
class Forest(Operator):
    """base + scale * the sum of the leaves that x reaches: (batch, features) -> (batch, outputs).

    Operands: x and thresholds (nodes,), both of `element` (y is of `result`), float32 or float64;
    nodes int64 (nodes, 4), each a feature, the left and the right child, and whether a missing
    value goes left; leaves float32 (leaves, width); trees int64 (trees, 2), each a root and the
    first output that its leaves add to; base float32 (outputs,).

    A child or a root is the number of a node, or ~number of a leaf; a node may have several
    parents. x goes left where x <= threshold; NaN goes left where the node says so. Width is 1, or
    the number of outputs.
    """

    scale: float = 1.0
    element: Element = field(default=Element.FLOAT32, metadata={"newer": "than files of 0.1"})
    result: Element = field(default=Element.FLOAT32, metadata={"newer": "than files of 0.1"})

    types: ClassVar[str] = (
        "x element [batch, features], thresholds element [nodes], nodes int64 [nodes, 4], "
        "leaves float32 [leaves, width], trees int64 [trees, 2], base float32 [outputs] "
        "-> result [batch, outputs]"
    )
    needs: ClassVar[str] = ", with at least one feature, and a width of 1 or of all outputs"
    mixes: ClassVar[tuple[str, ...]] = ("outputs",)
    mixing: ClassVar[str] = "compares features of several samples"
    takes_empty: ClassVar[bool] = True

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        floats = {self.element, self.result} <= {Element.FLOAT32, Element.FLOAT64}
        fits = floats and bound["features"] > 0 and bound["width"] in (1, bound["outputs"])
        return {} if fits else None

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        x, thresholds, nodes, leaves, trees, base = operands
        result = np.zeros((len(x), len(base)))
        width = leaves.shape[1]
        every = np.arange(len(x))
        for root, column in trees:
            state = np.full(len(x), root)
            while (inner := every[state >= 0]).size:
                feature, left, right, default_left = nodes[state[inner]].T
                value = x[inner, feature]
                missing = np.isnan(value)
                goes_left = np.where(missing, default_left != 0, value <= thresholds[state[inner]])
                state[inner] = np.where(goes_left, left, right)
            result[:, column : column + width] += leaves[~state]
        return (base + self.scale * result,)


@dataclass(frozen=True, eq=False)
class Trees:
    """The constant operands of a Forest, and the height of every node: 1 just above leaves.

    `y_bytes`: bytes of an element of y, 4 for float32, 8 for float64.

    Raises InvalidInput where a number of a feature, node, leaf or output is out of range, a child
    is its own ancestor, or leaves with all outputs do not begin at output 0.
    """

    features: int
    scale: float
    thresholds: Array
    nodes: Array
    leaves: Array
    trees: Array
    base: Array
    y_bytes: int = field(default=4, kw_only=True)
    heights: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        children, count = self.nodes[:, 1:3], len(self.nodes)
        feature, (roots, columns) = self.nodes[:, 0], self.trees.T
        width, outputs = self.leaves.shape[1], len(self.base)
        for name, numbers, low, high in (
            ("feature", feature, 0, self.features),
            ("child", children, -len(self.leaves), count),
            ("root", roots, -len(self.leaves), count),
            ("output", columns, 0, outputs - width + 1),
        ):
            wrong = numbers[(numbers < low) | (numbers >= high)]
            if wrong.size:
                raise InvalidInput(
                    f"a forest has {name} {wrong[0]}; give numbers from {low} to {high - 1}"
                )
        object.__setattr__(self, "heights", self._heights())

    def _heights(self) -> Array:
        heights = np.zeros(len(self.nodes) + 1, np.int64)  # the last is the height of every leaf
        children = np.maximum(self.nodes[:, 1:3], -1)
        for _ in range(len(self.nodes) + 1):
            higher = 1 + heights[children].max(axis=1, initial=0)
            if np.array_equal(higher, heights[:-1]):
                return heights[:-1]
            heights[:-1] = higher
        raise InvalidInput("a node of a forest is its own ancestor; give trees without cycles")

    @property
    def x_bytes(self) -> int:
        """Bytes of an element of x, and of a threshold: 4 for float32, 8 for float64."""
        return int(self.thresholds.itemsize)

    @property
    def tree_heights(self) -> Array:
        """The most comparisons in each tree, (trees,)."""
        roots = self.trees[:, 0]
        known = np.append(self.heights, 0)
        return known[np.maximum(roots, -1)]

    @property
    def width(self) -> int:
        """Numbers in a leaf."""
        return int(self.leaves.shape[1])

    @property
    def outputs(self) -> int:
        return len(self.base)
