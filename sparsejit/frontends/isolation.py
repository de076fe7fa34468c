"""Isolation forests: the depth of a sample in trees, scored as in scikit-learn's `_iforest.py`.

    score_samples = -2 ^ -(depth / (trees * c))        c: the mean depth among `_max_samples`
    predict       = 1 where score_samples >= offset_, else -1

Depths are float64 there. `predict` compares the sum of depths minus the least sum of an inlier with
0, in two sums of float32: of the rounded depths, and of the remainders of rounding. So a sample
whose score is the offset itself stays an inlier.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from sparsejit.frontends.estimator_writer import EstimatorWriter, Write
from sparsejit.frontends.forest_reading import ReadForest
from sparsejit.frontends.forests import forest_sum
from sparsejit.frontends.writing.arranging import at, reshaped
from sparsejit.ir.values import Array, Value

_DEEP = 1e6  # in mean depths of trees; no sample is this deep
_HALVINGS = 200
_SLACK = 1e-11  # relative difference of sums of depths by the order of their terms


def read_isolation(estimator: Any) -> ReadForest:
    """Read the trees; features are numbered as in X, leaves are depths and their remainders."""
    thresholds, nodes, depths, roots = [np.zeros(0)], [np.zeros((0, 4), np.int64)], [], []
    inner = leaves = 0
    for number, (each, features) in enumerate(
        zip(estimator.estimators_, estimator.estimators_features_, strict=True)
    ):
        tree = each.tree_
        is_inner = tree.children_left >= 0
        place = np.where(is_inner, inner + np.cumsum(is_inner) - 1, 0)
        place[~is_inner] = ~(leaves + np.arange(np.count_nonzero(~is_inner)))
        lacking = getattr(tree, "missing_go_to_left", np.zeros(len(place), np.uint8))
        children = place[tree.children_left[is_inner]], place[tree.children_right[is_inner]]
        rows = features[tree.feature[is_inner]], *children, lacking[is_inner] != 0
        nodes.append(np.column_stack(rows).astype(np.int64))
        thresholds.append(tree.threshold[is_inner])
        lengths = estimator._decision_path_lengths[number]
        depth = lengths + estimator._average_path_length_per_tree[number] - 1.0
        depths.append(depth[~is_inner])
        roots.append(place[0])
        inner, leaves = inner + len(rows[0]), leaves + len(depths[-1])
    depth = np.concatenate(depths)
    rounded = depth.astype(np.float32)
    operands = (
        np.concatenate(thresholds),
        np.concatenate(nodes),
        np.column_stack([rounded, depth - rounded]).astype(np.float32),
        np.array([(root, 0) for root in roots], np.int64),
        np.zeros(2, np.float32),
    )
    features_in = int(estimator.n_features_in_)
    return ReadForest(features_in, True, np.nan, operands, 1.0, "identity", 1.0)


def isolation_methods(estimator: Any, forest: ReadForest) -> dict[str, Write]:
    """The function that writes each method."""
    unit = _unit(estimator)
    thresholds, nodes, leaves, trees, _ = forest.operands
    least = _least_depth(estimator, unit) if unit else 0.0
    near = float(np.float32(least))
    always = 0.0 if unit else float(_is_in(estimator, 1.0)) - 0.5
    base = np.array([always - near, near - least], np.float32)
    compared = replace(forest, operands=(thresholds, nodes, leaves, trees, base), scale=_one(unit))
    mean = (thresholds, nodes, leaves[:, :1], trees, np.array([0.0 if unit else 1.0], np.float32))
    depth = replace(forest, operands=mean, scale=1 / unit if unit else 0.0)

    def score(writer: EstimatorWriter, offset: float) -> Value:
        mean = reshaped(writer, forest_sum(writer, depth), (writer.batch,))
        f = writer.at("score").formula("score")
        power = f("neg", f("exp2", f("neg", mean)))
        return f.finish(f("sub", power, offset) if offset else power)

    def predict(writer: EstimatorWriter) -> Value:
        sums = forest_sum(writer, compared)
        over, rest = (at(writer.at("predict"), sums, 1, place) for place in range(2))
        inside = writer.pointwise("greater_equal", writer.pointwise("add", over, rest), 0.0)
        return writer.pointwise("where", inside, 1, -1)

    return {
        "predict": predict,
        "decision_function": lambda writer: score(writer, float(estimator.offset_)),
        "score_samples": lambda writer: score(writer, 0.0),
    }


def _one(unit: float) -> float:
    return 1.0 if unit else 0.0


def _unit(estimator: Any) -> float:
    """The sum of depths that has score 1/2; 0 where trees saw one sample each."""
    from sklearn.ensemble._iforest import _average_path_length

    (mean,) = _average_path_length([estimator._max_samples])
    return float(len(estimator.estimators_) * mean)


def _is_in(estimator: Any, depth: float | Array) -> Any:
    """Whether samples of a depth, in units, are inliers, computed in the library's order."""
    return -(2 ** -np.float64(depth)) - estimator.offset_ >= 0


def _least_depth(estimator: Any, unit: float) -> float:
    """The least sum of depths of an inlier, reduced by `_SLACK`; found by bisection."""
    low, high = 0.0, _DEEP * unit
    if _is_in(estimator, 0.0):
        return -1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _is_in(estimator, middle / unit) else (middle, high)
    return high * (1 - _SLACK)
