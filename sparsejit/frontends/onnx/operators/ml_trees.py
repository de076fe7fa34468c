"""Tree ensembles of ai.onnx.ml, in all its versions, as operands of a Forest.

    FileTrees    trees as a file has them: modes, values and children of nodes, weights of leaves
    _tests       every test as `x <= threshold`; `x == t` becomes two tests

As in ONNX Runtime, sums add float32 weights, and two classes follow separate rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsejit.frontends.onnx.call import Call
from sparsejit.frontends.onnx.operators.ml_scores import (
    TRANSFORMS,
    Labels,
    of_two,
    rows_of,
    transformed,
)
from sparsejit.frontends.onnx.words import ML_DOMAIN, Texts
from sparsejit.frontends.writing import arranging
from sparsejit.frontends.writing.trees import Nodes, add_search, rounded_down
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.ops.forest import Forest
from sparsejit.ir.values import Array, Element, Value

_LEAF, _MEMBER = "LEAF", "BRANCH_MEMBER"
_MODES = tuple(f"BRANCH_{name}" for name in ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER"))
_BELOW = ("BRANCH_LT", "BRANCH_GTE")  # tests against the next number below the threshold
_SWAPPED = ("BRANCH_GTE", "BRANCH_GT")  # tests whose true child is on the right
_TWICE = ("BRANCH_EQ", "BRANCH_NEQ")
# TreeEnsemble's numbers of these.
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_EXTREMES = {"MIN": "row_min", "MAX": "row_max"}


@dataclass(frozen=True, eq=False)
class FileTrees:
    """The trees of one operator of a file.

    A child or a root is the number of a node, or ~number of a leaf. `children` (nodes, 2) are the
    child for a true test and the child for a false one; `goes_true` tells whether NaN goes to the
    first. `weights` are, for each weight, its leaf, its target and its value. `members` are the
    sets of the membership tests, in the order of their nodes.
    """

    modes: Array
    features: Array
    values: Array
    children: Array
    goes_true: Array
    roots: Array
    leaves: int
    weights: tuple[Array, Array, Array]
    members: tuple[Array, ...] = ()

    def owners(self) -> list[set[int]]:
        """The leaves of each tree."""
        found: list[set[int]] = []
        for root in self.roots.tolist():
            waiting, own = [root], set[int]()
            while waiting:
                place = waiting.pop()
                if place < 0:
                    own.add(~place)
                else:
                    waiting += self.children[place].tolist()
            found.append(own)
        return found


def _array(call: Call, name: str, kind: Any, default: Any = ()) -> Array:
    """Read an attribute of numbers, which newer versions of the operator store as a tensor."""
    tensor = call.attribute(f"{name}_as_tensor")
    given = call.attribute(name, default) if tensor is None else tensor
    return np.asarray(given, kind).reshape(-1)


def _by_nodes(call: Call, weighted: str) -> FileTrees:
    """Read the trees of a TreeEnsembleClassifier or a TreeEnsembleRegressor."""
    modes = np.array(call.attribute("nodes_modes", ()))
    trees, numbers = (_array(call, f"nodes_{name}", np.int64) for name in ("treeids", "nodeids"))
    most = int(numbers.max(initial=0)) + 1
    keys = trees * most + numbers
    order = np.argsort(keys, kind="stable")
    is_leaf = modes == _LEAF
    place = np.where(is_leaf, ~(np.cumsum(is_leaf) - 1), np.cumsum(~is_leaf) - 1)

    def found(tree: Array, number: Array) -> Array:
        wanted = tree * most + number
        at = order[np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)]
        if not np.array_equal(keys[at], wanted):
            raise Unmapped("names a node that its tree lacks")
        return np.asarray(place[at])

    inner = np.flatnonzero(~is_leaf)
    ways = [_array(call, f"nodes_{name}nodeids", np.int64)[inner] for name in ("true", "false")]
    children = np.stack([found(trees[inner], way) for way in ways], axis=1)
    tracks = _array(call, "nodes_missing_value_tracks_true", np.int64)
    tracks = tracks if len(tracks) else np.zeros(len(modes), np.int64)
    ids, owners, nodes = (
        _array(call, f"{weighted}_{name}", np.int64) for name in ("ids", "treeids", "nodeids")
    )
    leaf = ~found(owners, nodes)
    is_of_leaf = leaf >= 0
    weights = _array(call, f"{weighted}_weights", np.float64)
    return FileTrees(
        modes[inner],
        _array(call, "nodes_featureids", np.int64)[inner],
        _array(call, "nodes_values", np.float64)[inner],
        children,
        tracks[inner] != 0,
        place[np.sort(np.unique(trees, return_index=True)[1])],
        int(np.count_nonzero(is_leaf)),
        (leaf[is_of_leaf], ids[is_of_leaf], weights[is_of_leaf]),
    )


def _by_tensors(call: Call) -> FileTrees:
    """Read the trees of a TreeEnsemble."""
    numbers = _array(call, "nodes_modes", np.int64)
    if numbers.size and numbers.max() >= len(_MODES):
        raise Unmapped(f"has nodes of mode {numbers.max()}")
    modes = np.array(_MODES)[numbers]
    ways = [
        np.where(_array(call, f"nodes_{side}leafs", bool), ~ids, ids)
        for side in ("true", "false")
        for ids in [_array(call, f"nodes_{side}nodeids", np.int64)]
    ]
    children = np.stack(ways, axis=1)
    roots = _array(call, "tree_roots", np.int64)
    is_alone = (children[roots] < 0).all(axis=1) & (children[roots, 0] == children[roots, 1])
    tracks = _array(call, "nodes_missing_value_tracks_true", bool)
    weights = _array(call, "leaf_weights", np.float64)
    values = _array(call, "membership_values", np.float64)
    ends = np.flatnonzero(np.isnan(values))
    members = tuple(part[~np.isnan(part)] for part in np.split(values, ends)) if ends.size else ()
    return FileTrees(
        modes,
        _array(call, "nodes_featureids", np.int64),
        _array(call, "nodes_splits", np.float64),
        children,
        tracks if tracks.size else np.zeros(len(modes), bool),
        np.where(is_alone, children[roots, 0], roots),
        len(weights),
        (np.arange(len(weights)), _array(call, "leaf_targetids", np.int64), weights),
        members,
    )


def _tests(trees: FileTrees) -> tuple[Array, Array]:
    """Return a Forest's thresholds and its rows of nodes, where each test is `x <= threshold`."""
    modes, values = trees.modes, trees.values
    is_member = modes == _MEMBER
    if np.isnan(values[~is_member]).any():
        raise Unmapped("compares with NaN")
    below = np.nextafter(values, -np.inf)
    thresholds = np.where(np.isin(modes, _BELOW), below, values)
    swapped, goes_left = np.isin(modes, _SWAPPED), trees.goes_true.copy()
    children = np.where(swapped[:, None], trees.children[:, ::-1], trees.children)
    goes_left[swapped] = ~goes_left[swapped]
    nodes = Nodes(count=len(modes))
    twice = np.flatnonzero(np.isin(modes, _TWICE))
    if twice.size:
        equal = modes[twice] == _TWICE[0]
        whole = trees.children[twice]
        inside, outside = np.where(equal, *whole.T), np.where(equal, *whole.T[::-1])
        rows = np.stack([trees.features[twice], outside, inside, np.zeros_like(twice)], axis=1)
        first = nodes.add(below[twice], rows)
        children[twice] = np.stack([first + np.arange(len(twice)), outside], axis=1)
        goes_left[twice] &= equal  # NaN differs from every number
    rows = np.column_stack([trees.features, children, goes_left]).astype(np.int64)
    for which, members in zip(np.flatnonzero(is_member), trees.members, strict=False):
        true, false = trees.children[which].tolist()
        numbers = np.unique(members)
        bounds = np.stack([np.nextafter(numbers, -np.inf), numbers], axis=1).ravel()
        goes_to = [*([false, true] * len(numbers)), false]
        missing_to = true if trees.goes_true[which] else false
        feature = int(trees.features[which])
        thresholds[which], rows[which] = add_search(nodes, feature, bounds, goes_to, missing_to)
    return np.concatenate([thresholds, *nodes.thresholds]), np.concatenate([rows, *nodes.rows])


@dataclass(frozen=True, eq=False)
class _Summed:
    """The leaves and trees of a Forest, and the targets that its leaves give scores to.

    Each sample gets a score of the targets `always`, some samples of the targets `ever`.
    """

    leaves: Array
    trees: Array
    always: set[int]
    ever: set[int]


def _summed(trees: FileTrees, targets: int) -> _Summed:
    """Return leaves of one number if each tree has one target, else of a number a target."""
    leaf, target, weight = trees.weights
    if target.size and not 0 <= target.min() <= target.max() < targets:
        raise Unmapped(f"has a weight of target {target.max()} of {targets}")
    if targets == 1 and len(np.unique(leaf)) < len(leaf):
        raise Unmapped("has several weights in a leaf of one target")
    held: list[set[int]] = [set() for _ in range(trees.leaves)]
    for number, own in zip(leaf.tolist(), target.tolist(), strict=True):
        held[number].add(own)
    owned = trees.owners()
    of_trees = [set().union(*(held[number] for number in own)) for own in owned]
    always = set().union(*(set.intersection(*(held[n] for n in own)) for own in owned))
    ever = set().union(*of_trees)
    if all(len(own) < 2 for own in of_trees):
        leaves = np.zeros((trees.leaves, 1))
        np.add.at(leaves[:, 0], leaf, weight)
        column = [next(iter(own), 0) for own in of_trees]
    else:
        leaves = np.zeros((trees.leaves, targets))
        np.add.at(leaves, (leaf, target), weight)
        column = [0] * len(of_trees)
    rows = np.stack([trees.roots, np.array(column, np.int64)], axis=1)
    return _Summed(leaves.astype(np.float32), rows, always, ever)


def _forest(
    write: Writer, call: Call, trees: FileTrees, sums: _Summed, scale: float, base: Array
) -> Value:
    """Write a Forest: base + scale * the sums of leaves, (rows, targets)."""
    x = call.double(write, 0)
    if x.type.element is not Element.FLOAT64:
        if write.dtype(x) == np.float64:
            raise Unmapped(
                "compares float64 numbers that the model computes, which graphs round to float32; "
                "export the model for float32"
            )
        x = write.floats(x)
    x = rows_of(write, x)
    if trees.features.size and trees.features.max() >= x.shape[1]:
        raise Unmapped(f"compares feature {trees.features.max()} of {x.shape[1]}")
    thresholds, nodes = _tests(trees)
    if x.type.element is Element.FLOAT32:
        thresholds = rounded_down(thresholds)
    constants = [write.constant(thresholds, "forest.thresholds", x.type.element)]
    given = {"nodes": nodes, "leaves": sums.leaves, "trees": sums.trees, "base": base}
    constants += [write.constant(array, f"forest.{name}") for name, array in given.items()]
    return write.one(Forest(scale, x.type.element), x, *constants)


def _base(call: Call, targets: int) -> Array:
    given = _array(call, "base_values", np.float32)
    return given if len(given) == targets else np.zeros(targets, np.float32)


def _extreme(
    write: Writer, call: Call, trees: FileTrees, kind: str, targets: int, base: Array
) -> Value:
    """The least or largest leaf, by `kind`, among the trees of each target, plus the base."""
    sums = _summed(trees, targets)
    if sums.leaves.shape[1] != 1 and targets > 1:
        raise Unmapped(f"takes the {kind} over leaves of several targets")
    if len(np.unique(trees.weights[0])) < trees.leaves:
        raise Unmapped(f"takes the {kind} over leaves without a weight")
    owner, count = sums.trees[:, 1], len(sums.trees)
    order = np.argsort(owner, kind="stable")
    apart = np.stack([sums.trees[order, 0], np.arange(count)], axis=1)
    each = _Summed(sums.leaves, apart, sums.always, sums.ever)
    found = _forest(write, call, trees, each, 1.0, np.zeros(count, np.float32))
    parts, ends = [], np.cumsum(np.bincount(owner, minlength=targets))
    for target, end in enumerate(ends.tolist()):
        first = end - int(np.count_nonzero(owner == target))
        if first == end:
            parts.append(write.zeros((found.shape[0], 1)))
            continue
        own = arranging.sliced(write, found, 1, first, end)
        f = write.formula(kind.lower())
        parts.append(f.finish(f(_EXTREMES[kind], own), shape=own.shape))
    return write.pointwise("add", arranging.joined(write, parts, 1), _of_scored(sums, base))


def _regressed(
    write: Writer, call: Call, trees: FileTrees, aggregate: str, targets: int, base: Array
) -> Value:
    if aggregate in _EXTREMES:
        return _extreme(write, call, trees, aggregate, targets, base)
    scale, sums = 1.0 / len(trees.roots) if aggregate == "AVERAGE" else 1.0, _summed(trees, targets)
    return _forest(write, call, trees, sums, scale, _of_scored(sums, base))


def _of_scored(sums: _Summed, base: Array) -> Array:
    """Return the base values, with 0 for each target to which no leaf gives a score.

    Raises Unmapped for a base value of a target to which only some leaves give a score.
    """
    at_times = sorted(sums.ever - sums.always)
    if len(base) > 1 and np.any(base[at_times]):
        raise Unmapped("has base_values of targets that some leaves lack")
    is_scored = np.isin(np.arange(len(base)), sorted(sums.ever))
    return np.where(is_scored | (len(base) == 1), base, np.float32(0))


def tree_regressor(write: Writer, call: Call) -> Value:
    """Write the sum, mean, minimum or maximum of leaves for each target."""
    targets = int(call.attribute("n_targets", 1))
    aggregate = call.choice("aggregate_function", ("SUM", "AVERAGE", "MIN", "MAX"))
    trees, base = _by_nodes(call, "target"), _base(call, targets)
    found = _regressed(write, call, trees, aggregate, targets, base)
    return transformed(write, found, call.choice("post_transform", TRANSFORMS))


def tree_ensemble(write: Writer, call: Call) -> Value:
    """Write the sum, mean, minimum or maximum of leaves for each target, in the dtype of x."""
    targets = int(call.attribute("n_targets", 1))
    aggregate = _AGGREGATES[int(call.attribute("aggregate_function", 1))]
    kind = _TRANSFORMS[int(call.attribute("post_transform", 0))]
    base = np.zeros(targets, np.float32)
    found = _regressed(write, call, _by_tensors(call), aggregate, targets, base)
    return write.converted(transformed(write, found, kind), write.dtype(call.value(write, 0)))


def tree_classifier(write: Writer, call: Call) -> tuple[Value | Texts, Value]:
    """Return the label of the largest score, and the scores after the post_transform."""
    labels = Labels.of(call, ("classlabels_strings", "classlabels_int64s"))
    trees, kind = _by_nodes(call, "class"), call.choice("post_transform", TRANSFORMS)
    base = _array(call, "base_values", np.float32)
    sums = _summed(trees, len(labels))
    if len(labels) < 2:
        raise Unmapped("has one class")
    if len(labels) == 2:
        return _two_classes(write, call, labels, trees, sums, kind, base)
    if len(base) not in (0, len(labels)):
        raise Unmapped(f"has {len(base)} base_values for {len(labels)} classes")
    _check_scored(trees, sums, bool(len(base)))
    padded = base if len(base) else np.zeros(len(labels), np.float32)
    scores = _forest(write, call, trees, sums, 1.0, padded)
    compared = scores
    if not len(base) and len(sums.ever) < len(labels):  # classes without a score are never chosen
        absent = [0.0 if n in sums.ever else -np.inf for n in range(len(labels))]
        compared = write.pointwise("add", scores, np.array(absent, np.float32))
    return labels.of_largest(write, compared), transformed(write, scores, kind)


def _check_scored(trees: FileTrees, sums: _Summed, has_base: bool) -> None:
    """Raise Unmapped where a class without a score in a sample's leaves could seem the largest."""
    is_above = bool(np.all(trees.weights[2] > 0))
    if sums.always != sums.ever and not has_base and not is_above:
        raise Unmapped("has leaves without a weight of some class; give each leaf a weight of each")


def _two_classes(
    write: Writer,
    call: Call,
    labels: Labels,
    trees: FileTrees,
    sums: _Summed,
    kind: str,
    base: Array,
) -> tuple[Value | Texts, Value]:
    """Return the label and the scores of two classes, from a file with one score or with both.

    A single score is the second class's probability if no weight is negative, else a margin.
    """
    if sums.always != sums.ever:
        raise Unmapped("has leaves without a weight of one class; give each leaf a weight of both")
    is_share = bool(np.all(trees.weights[2] >= 0)) and len(sums.ever) == 1
    is_single = 1 not in sums.ever
    if not is_single and len(base) == 1:
        raise Unmapped("has one of two base_values")
    given = np.zeros(2, np.float32)
    if is_single:
        if len(base) == 2:
            raise Unmapped("has two base_values for one score; add the second to the leaves")
        given[: len(base)] = base
    scores = _forest(write, call, trees, sums, 1.0, given)
    if len(base) == 2:  # as ONNX Runtime has it, which takes both margins from the first sum
        second = write.pointwise("add", arranging.sliced(write, scores, 1, 0, 1), float(base[1]))
        scores = arranging.joined(write, [write.pointwise("neg", second), second], 1)
    decisive = arranging.sliced(write, scores, 1, 0 if is_single else 1, 1 if is_single else 2)
    if len(sums.ever) == 2 and not labels.is_text:  # such files get 0 and 1, whatever their labels
        labels = Labels(np.arange(2), is_text=False)
    label = labels.of_second(write, decisive, 0.5 if is_share else 0.0)
    if is_single:
        return label, of_two(write, decisive, kind, is_share)
    return label, transformed(write, scores, kind)


OPERATORS: Mapping[str, Callable[[Writer, Call], Any]] = {
    f"{ML_DOMAIN}.TreeEnsemble": tree_ensemble,
    f"{ML_DOMAIN}.TreeEnsembleClassifier": tree_classifier,
    f"{ML_DOMAIN}.TreeEnsembleRegressor": tree_regressor,
}
