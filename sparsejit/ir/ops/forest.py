"""Ensembles of decision trees, and the contribution of each feature to their sums."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import comb
from typing import Any, ClassVar

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.operator import Operator
from sparsejit.ir.signature import Bound
from sparsejit.ir.values import Array, Element

_FLOATS = {Element.FLOAT32, Element.FLOAT64}


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
        floats = {self.element, self.result} <= _FLOATS
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


@dataclass(frozen=True)
class Contributions(Operator):
    """SHAP values of the sums of leaves, which depend on the paths of the trees, in float64.

    A leaf's path is a game of the players that its nodes have. A player takes part with z + t (o -
    z): o is 1 where x passes all of the player's nodes on the path, else 0, and z is the product of
    the shares of samples that pass them. Player i gains the leaf times the integral over t from 0
    to 1 of (o_i - z_i) times the product of the other players' parts. The last column is base plus
    the mean of the leaves by shares, so that a row sums to the sum of the leaves that x reaches.

    Operands: x and thresholds (nodes,), of `element`, float32 or float64; nodes int64 (nodes, 5),
    each a column of x, the left and the right child, whether a missing value goes left, and the
    player, below `columns` - 1; leaves float64 (leaves,); trees int64 (trees, 2), each a root and
    the output that its leaves add to; base float64 (outputs,); shares float64 (nodes, 2), of a
    node's samples on its left and right.

    A child or a root is the number of a node, or ~number of a leaf, each with one parent.
    """

    columns: int
    element: Element = Element.FLOAT32

    types: ClassVar[str] = (
        "x element [batch, features], thresholds element [nodes], nodes int64 [nodes, 5], "
        "leaves float64 [leaves], trees int64 [trees, 2], base float64 [outputs], "
        "shares float64 [nodes, 2] -> float64 [batch, outputs, columns]"
    )
    needs: ClassVar[str] = ", with at least one feature and one column"
    mixes: ClassVar[tuple[str, ...]] = ("outputs", "columns")
    mixing: ClassVar[str] = Forest.mixing
    takes_empty: ClassVar[bool] = True

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        fits = self.element in _FLOATS and bound["features"] > 0 and self.columns > 0
        return {} if fits else None

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        x, thresholds, nodes, leaves, trees, base, shares = operands
        result = np.zeros((len(x), len(base), self.columns))
        result[:, :, -1] = base

        def visit(state: int, output: int, z: dict[int, float], o: dict[int, Array]) -> None:
            if state < 0:
                result[:, output, -1] += leaves[~state] * np.prod([*z.values()])
                for player in z:
                    found = leaves[~state] * _gain(player, z, o)
                    result[:, output, player] += found
                return
            column, left, right, missing_left, player = nodes[state].tolist()
            value = x[:, column]
            goes_left = np.where(np.isnan(value), missing_left != 0, value <= thresholds[state])
            every = np.ones(len(x), bool)
            for child, passes, share in zip(
                (left, right), (goes_left, ~goes_left), shares[state], strict=True
            ):
                own = z | {player: z.get(player, 1.0) * share}
                visit(child, output, own, o | {player: o.get(player, every) & passes})

        for root, output in trees.tolist():
            visit(root, output, {}, {})
        return (result,)


def _gain(player: int, z: Mapping[int, float], o: Mapping[int, Array]) -> Array:
    """The part of a player in a game that gives 1 to all, (rows,).

    The others' product is a polynomial of t and 1 - t, the integral of whose terms is known.
    """
    others = [each for each in z if each != player]
    terms = np.ones((1, len(o[player])))
    for each in others:
        longer = np.zeros((len(terms) + 1, terms.shape[1]))
        longer[:-1] += z[each] * terms
        longer[1:] += o[each] * terms
        terms = longer
    count = len(others)
    integrals = np.array([1 / ((count + 1) * comb(count, power)) for power in range(count + 1)])
    found: Array = (o[player] - z[player]) * (integrals @ terms)
    return found


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
        heights = longest_paths(children)
        if not heights.all():
            raise InvalidInput("a node of a forest is its own ancestor; give trees without cycles")
        object.__setattr__(self, "heights", heights)

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


def longest_paths(children: Array) -> Array:
    """The nodes on the longest path down from each node, itself among them, (nodes,).

    `children` are (nodes, ways), negative for none. A node on a cycle, or above one, gets 0.
    """
    is_inner = children >= 0
    above, below = np.nonzero(is_inner)[0], children[is_inner]
    order = np.argsort(below, kind="stable")
    above = above[order]
    begins = np.searchsorted(below[order], np.arange(len(children) + 1))
    waiting = is_inner.sum(axis=1)  # ways whose paths are not known
    lengths, last = (np.zeros(len(children), np.int64) for _ in range(2))
    found = np.flatnonzero(waiting == 0)
    length = 0
    while found.size:
        length += 1
        lengths[found] = length
        counts = begins[found + 1] - begins[found]
        firsts = np.repeat(begins[found] - (np.cumsum(counts) - counts), counts)
        up = above[firsts + np.arange(len(firsts))]
        np.subtract.at(waiting, up, 1)
        found = up[waiting[up] == 0]
        last[found] = np.arange(len(found))
        found = found[last[found] == np.arange(len(found))]  # each once
    return lengths
