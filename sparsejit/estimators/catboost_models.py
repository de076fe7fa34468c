"""Models of CatBoost, read from its JSON: oblivious trees, and trees that grow by leaves.

    oblivious, of depth 2     x[a] > s    bit 0 of the leaf's number
                              x[b] > t    bit 1

All nodes of a level compare alike, and a leaf has a number for each class. Numbers are summed,
scaled and shifted. x is rounded to float32. Missing x counts as least, or as greatest, where the
fit says so.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.forest_reading import Nodes, ReadForest
from sparsejit.frontends.arrays import check_held
from sparsejit.ir.values import Array

# The function of the sums for each loss, by treelite's name.
_LINKS: Mapping[str, str] = {
    **dict.fromkeys(("Logloss", "CrossEntropy"), "sigmoid"),
    "MultiClass": "softmax",
    "MultiClassOneVsAll": "multiclass_ova",
    **dict.fromkeys(("Poisson", "Tweedie"), "exponential"),
}
# Losses whose predictions are no sums, or a bool for each label.
_UNREAD = ("RMSEWithUncertainty", "MultiLogloss", "MultiCrossEntropy", "MultiQuantile")


def read_catboost(model: Any) -> ReadForest:
    """Read a model of CatBoost. Raises InvalidInput for one that compares other than numbers."""
    data, loss = _as_json(model), str(model._object._get_loss_function_name())
    if loss in _UNREAD:
        raise InvalidInput(
            f"the {type(model).__name__} has loss_function={loss!r}, which has no graph; fit it "
            "with another, or leave it to its own predict"
        )
    trees = _ReadTrees(_float_features(data))
    for tree in data.get("oblivious_trees", ()):
        trees.add_oblivious(tree)
    for tree in data.get("trees", ()):
        trees.add_grown(tree)
    scale, biases = data["scale_and_bias"]
    bias = np.atleast_1d(np.asarray(biases, np.float64))
    values = np.concatenate([np.zeros((0, len(bias))), *trees.leaves])
    check_held(model, "leaves", np.append(values * scale, bias))
    operands = (
        np.concatenate([np.zeros(0), *trees.nodes.thresholds]),
        np.concatenate([np.zeros((0, 4), np.int64), *trees.nodes.rows]),
        values.astype(np.float32),
        np.array([(root, 0) for root in trees.roots], np.int64).reshape(-1, 2),
        bias.astype(np.float32),
    )
    link = _LINKS.get(loss, "identity")
    if link == "exponential" and type(model).__name__ != "CatBoostRegressor":
        link = "identity"
    features, rounds = len(model.feature_names_), len(trees.roots)
    return ReadForest(
        *(features, True, np.nan, operands, float(scale), link, 1.0), rounds=rounds
    )


def second_from(model: Any) -> float:
    """The score above which CatBoost chooses the second of two classes."""
    probability = float(model.get_probability_threshold())
    return float(np.log(probability / (1 - probability)))


def _as_json(model: Any) -> dict[str, Any]:
    """The model as CatBoost writes it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        found: dict[str, Any] = json.loads(path.read_text())
    return found


def _float_features(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The features that are numbers. Raises InvalidInput for others that trees may compare."""
    for kind, features in data["features_info"].items():
        if kind != "float_features" and features:
            raise InvalidInput(
                f"the model of CatBoost has {kind.replace('_', ' ')}; give their codes as numbers, "
                "as OrdinalEncoder makes them, without cat_features"
            )
    found: list[dict[str, Any]] = data["features_info"].get("float_features", [])
    return found


class _ReadTrees:
    """Nodes, leaves and roots of trees, as they are added."""

    def __init__(self, features: Sequence[Mapping[str, Any]]) -> None:
        self.place = {each["feature_index"]: each["flat_feature_index"] for each in features}
        self.is_greatest = {
            each["feature_index"]: each["nan_value_treatment"] == "AsTrue" for each in features
        }
        self.nodes, self.leaves, self.roots = Nodes(), list[Array](), list[int]()
        self.count = 0

    def _row(self, split: Mapping[str, Any], left: int, right: int) -> list[int]:
        feature = split["float_feature_index"]
        return [self.place[feature], left, right, int(not self.is_greatest[feature])]

    def _add_leaves(self, values: Array) -> int:
        """Add leaves (leaves, outputs), and return the number of the first."""
        self.leaves.append(values)
        self.count += len(values)
        return self.count - len(values)

    def add_oblivious(self, tree: Mapping[str, Any]) -> None:
        """Add a tree whose levels each have one split, a bit of the leaf's number each."""
        splits = tree["splits"]
        depth = len(splits)
        values = np.asarray(tree["leaf_values"], np.float64).reshape(1 << depth, -1)
        first = self._add_leaves(values)
        thresholds, rows = [], []
        for level, split in enumerate(splits):
            below = self.nodes.count + (2 << level) - 1
            for path in range(1 << level):
                children = path, path | 1 << level
                if level + 1 == depth:
                    left, right = (~(first + child) for child in children)
                else:
                    left, right = (below + child for child in children)
                rows.append(self._row(split, left, right))
                thresholds.append(split["border"])
        root = self.nodes.add(np.array(thresholds), np.array(rows)) if depth else ~first
        self.roots.append(root)

    def add_grown(self, tree: Mapping[str, Any]) -> None:
        """Add a tree of any shape."""
        self.roots.append(self._grown(tree))

    def _grown(self, tree: Mapping[str, Any]) -> int:
        """Add a node with all that is below it; return its number, or ~number of a leaf."""
        if "split" not in tree:
            return ~self._add_leaves(np.atleast_1d(np.asarray(tree["value"], np.float64))[None])
        left, right = self._grown(tree["left"]), self._grown(tree["right"])
        row = self._row(tree["split"], left, right)
        return self.nodes.add(np.array([tree["split"]["border"]]), np.array([row]))
