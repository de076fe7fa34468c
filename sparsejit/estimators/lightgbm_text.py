"""The text of a LightGBM model: the parts that treelite leaves out.

    LightTree      the children of a tree's nodes, by LightGBM's numbers of leaves
    leaf_numbers   LightGBM's number of each leaf that treelite read
    LinearLeaves   leaves that are linear models of some features
    linear_leaves  read them
    without_lines  a booster whose leaves are constants, which treelite reads

A leaf of a linear tree gives const + sum of coefficient * x, or its plain value where one of its
features is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsejit.ir.values import Array

_LINEAR_FIELDS = ("leaf_const", "num_features", "leaf_features", "leaf_coeff", "tree_sizes")


@dataclass(frozen=True)
class LightTree:
    """A tree's fields by name. `left` and `right` are nodes, or ~number of a leaf."""

    fields: dict[str, str]

    def numbers(self, name: str, kind: Any = np.float64) -> Array:
        return np.array(self.fields.get(name, "").split(), np.float64).astype(kind)

    @property
    def leaves(self) -> int:
        return int(self.fields["num_leaves"])

    @property
    def is_linear(self) -> bool:
        """Whether leaves may be linear models."""
        return self.fields.get("is_linear", "0") == "1"

    @property
    def children(self) -> tuple[Array, Array]:
        left, right = (self.numbers(f"{side}_child", np.int64) for side in ("left", "right"))
        return left, right


def light_trees(text: str) -> list[LightTree]:
    """The trees of a model's text."""
    _, *sections = text.partition("\nend of trees")[0].split("\nTree=")
    return [LightTree(dict(_fields(section))) for section in sections]


def _fields(section: str) -> Iterator[tuple[str, str]]:
    for line in section.splitlines()[1:]:
        name, is_field, value = line.partition("=")
        if is_field:
            yield name, value


def leaf_numbers(tree: LightTree, left: Array, right: Array) -> Array:
    """LightGBM's number of each leaf, by treelite's nodes with these children; -1 for nodes.

    Both are walked together from their roots, level by level.
    """
    found = np.full(len(left), -1)
    own, (own_left, own_right) = np.array([0 if tree.leaves > 1 else -1]), tree.children
    nodes = np.array([0])
    while len(nodes):
        is_leaf = own < 0
        found[nodes[is_leaf]] = ~own[is_leaf]
        nodes, own = nodes[~is_leaf], own[~is_leaf]
        own = np.concatenate([own_left[own], own_right[own]])
        nodes = np.concatenate([left[nodes], right[nodes]])
    return found


@dataclass(frozen=True, eq=False)
class LinearLeaves:
    """Leaves with coefficients (leaves, features) of x - centre, and numbers beside them (leaves,).

    `features` are the features that any leaf reads, `reads` the same for each leaf, bool. They are
    columns of X behind `steps`.
    """

    features: Array
    centre: Array
    coefficients: Array
    numbers: Array
    reads: Array
    steps: tuple[Any, ...] = ()


def linear_leaves(
    trees: Sequence[LightTree], numbers: Sequence[Array], centre: Array
) -> LinearLeaves | None:
    """Read linear leaves in treelite's order; None where all leaves are constants.

    `numbers` has LightGBM's numbers of the leaves of each tree; `centre` a usual value of each
    feature, around which lines are written, so that terms far from zero do not cancel.
    """
    rows: list[tuple[Array, Array]] = []
    constants: list[float] = []
    for tree, order in zip(trees, numbers, strict=True):
        own = _lines(tree)
        constant = tree.numbers("leaf_const" if own else "leaf_value")
        nothing = np.zeros(0, np.int64), np.zeros(0)
        rows += [own[number] if own else nothing for number in order]
        constants += constant[order].tolist()
    used = np.unique(np.concatenate([np.zeros(0, np.int64), *(features for features, _ in rows)]))
    if not len(used):
        return None
    whole, reads = np.zeros((len(rows), len(used))), np.zeros((len(rows), len(used)), bool)
    for row, (features, coefficients) in enumerate(rows):
        places = np.searchsorted(used, features)
        np.add.at(whole[row], places, coefficients)
        reads[row, places] = True
    middle = centre[used]
    return LinearLeaves(used, middle, whole, np.array(constants) + whole @ middle, reads)


def _lines(tree: LightTree) -> list[tuple[Array, Array]]:
    """The features and coefficients of each leaf; none for a tree of constants."""
    counts = tree.numbers("num_features", np.int64)
    if not tree.is_linear or not counts.any():
        return []
    features = tree.numbers("leaf_features", np.int64)
    coefficients = tree.numbers("leaf_coeff")
    ends = np.cumsum(counts)[:-1]
    return list(zip(np.split(features, ends), np.split(coefficients, ends), strict=True))


def without_lines(text: str) -> Any:
    """A booster of LightGBM with the model's trees, each leaf its plain value."""
    import lightgbm

    lines = [
        "is_linear=0" if line == "is_linear=1" else line
        for line in text.splitlines()
        if line.partition("=")[0] not in _LINEAR_FIELDS
    ]
    # An objective is read again with other names of options; sums of leaves need none.
    return lightgbm.Booster(model_str="\n".join(lines) + "\n")
