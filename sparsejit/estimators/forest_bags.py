"""Single trees of scikit-learn that an estimator holds, read as one forest.

    own_trees   the operands of a Forest from trees and their leaves
    read_bag    a bag, an AdaBoost estimator or an embedding of single trees

    BaggingRegressor       the mean of leaves
    BaggingClassifier      the mean of the leaves' shares of classes
    AdaBoostClassifier     the sum of the leaves' votes
    AdaBoostRegressor      the leaf of each tree, an output for each
    RandomTreesEmbedding   the number of the leaf in each tree
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.forest_reading import ReadForest
from sparsejit.estimators.meta_estimators import votes_for
from sparsejit.estimators.parts import EMBEDDINGS
from sparsejit.frontends.arrays import check_held
from sparsejit.ir.values import Array

# Operands of a Forest without leaves and base: thresholds, nodes, roots, and the nodes of leaves.
OwnTrees = tuple[Array, Array, Array, list[Array]]


def own_trees(trees: Sequence[Any], features: Sequence[Array]) -> OwnTrees:
    """Thresholds, nodes and roots of trees of scikit-learn, and the places of leaves in each tree.

    `features` has the feature of X for each feature of each tree.
    """
    thresholds, nodes = [np.zeros(0)], [np.zeros((0, 4), np.int64)]
    outer: list[Array] = []
    roots, inner, leaves = [], 0, 0
    for tree, columns in zip(trees, features, strict=True):
        is_inner = tree.children_left >= 0
        place = np.where(is_inner, inner + np.cumsum(is_inner) - 1, 0)
        place[~is_inner] = ~(leaves + np.arange(np.count_nonzero(~is_inner)))
        lacking = getattr(tree, "missing_go_to_left", np.zeros(len(place), np.uint8))
        children = place[tree.children_left[is_inner]], place[tree.children_right[is_inner]]
        rows = columns[tree.feature[is_inner]], *children, lacking[is_inner] != 0
        nodes.append(np.column_stack(rows).astype(np.int64))
        thresholds.append(tree.threshold[is_inner])
        outer.append(np.flatnonzero(~is_inner))
        roots.append(place[0])
        inner, leaves = inner + len(rows[0]), leaves + len(outer[-1])
    return np.concatenate(thresholds), np.concatenate(nodes), np.array(roots, np.int64), outer


def read_bag(estimator: Any) -> ReadForest:
    """Read an estimator of single trees. Raises InvalidInput for numbers beyond float32."""
    parts, every = estimator.estimators_, np.arange(int(estimator.n_features_in_))
    taken = getattr(estimator, "estimators_features_", [every] * len(parts))
    trees = [part.tree_ for part in parts]
    thresholds, nodes, roots, outer = own_trees(trees, [np.asarray(each) for each in taken])
    kind, count = type(estimator).__name__, len(parts)
    numbers = [
        _leaves(estimator, place)[which] for place, which in enumerate(outer)
    ]
    leaves = np.concatenate(numbers)
    check_held(estimator, "leaves", leaves)
    is_each = kind in ("AdaBoostRegressor", *EMBEDDINGS)
    first = np.arange(count) if is_each else np.zeros(count, np.int64)
    operands = (
        thresholds,
        nodes,
        leaves.astype(np.float32),
        np.stack([roots, first], axis=1),
        np.zeros(count if is_each else leaves.shape[1], np.float32),
    )
    scale = 1.0 / count if kind.startswith("Bagging") else 1.0
    features = int(estimator.n_features_in_)
    return ReadForest(features, True, np.nan, operands, scale, "identity", 1.0)


def _leaves(estimator: Any, place: int) -> Array:
    """The numbers that each node of a part gives, (nodes, outputs)."""
    kind, part = type(estimator).__name__, estimator.estimators_[place]
    values = np.asarray(part.tree_.value, np.float64)
    if kind in EMBEDDINGS:
        return np.arange(len(values), dtype=np.float64)[:, None]
    if not hasattr(estimator, "classes_"):
        return values[:, :, 0]
    if np.ndim(part.n_classes_):
        raise InvalidInput(f"the {kind} has several labels; fit an estimator for each")
    shares = values[:, 0] / values[:, 0].sum(axis=1, keepdims=True)
    classes = np.asarray(estimator.classes_)
    if kind == "AdaBoostClassifier":
        weight = float(estimator.estimator_weights_[place] / estimator.estimator_weights_.sum())
        votes = votes_for(weight, len(classes))
        chosen: Array = votes[np.searchsorted(classes, part.classes_)[shares.argmax(axis=1)]]
        return chosen
    whole = np.zeros((len(shares), len(classes)))
    whole[:, np.asarray(part.classes_, np.int64)] = shares
    return whole
