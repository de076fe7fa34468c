"""Models of CatBoost, read from its JSON: oblivious trees, and trees that grow by leaves.

    read_catboost         the trees
    columns_of_catboost   the columns of hashes of categories, which trees compare too

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
from sparsejit.estimators.category_hashes import (
    HashColumn,
    HashColumns,
    HashElement,
    hash_columns,
    signed,
)
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
    """Read a model of CatBoost. Raises InvalidInput for one that reads texts or vectors."""
    data, loss = _as_json(model), str(model._object._get_loss_function_name())
    if loss in _UNREAD:
        raise InvalidInput(
            f"the {type(model).__name__} has loss_function={loss!r}, which has no graph; fit it "
            "with another, or leave it to its own predict"
        )
    splits = _CatBoostSplits(data, len(model.feature_names_))
    trees = _ReadTrees(splits)
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
    features, rounds = splits.features + len(splits.columns), len(trees.roots)
    return ReadForest(
        *(features, True, np.nan, operands, float(scale), link, 1.0), rounds=rounds
    )


def second_from(model: Any) -> float:
    """The score above which CatBoost chooses the second of two classes."""
    probability = float(model.get_probability_threshold())
    return float(np.log(probability / (1 - probability)))


def _as_json(model: Any) -> dict[str, Any]:
    """The model as CatBoost writes it. Raises InvalidInput for texts and vectors."""
    for kind in ("text", "embedding"):
        asked: list[int] = list(getattr(model, f"get_{kind}_feature_indices", list)())
        if len(asked):
            raise InvalidInput(
                f"the {type(model).__name__} has {kind} features, {asked}, which have no "
                "graph; fit it to numbers and categories"
            )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        found: dict[str, Any] = json.loads(path.read_text())
    return found


def columns_of_catboost(model: Any) -> HashColumns | None:
    """The columns of hashes that a model's trees compare; None without categories."""
    if not is_catboost(model) or not len(model.get_cat_feature_indices()):
        return None
    count = len(model.feature_names_)
    categories = [int(number) for number in model.get_cat_feature_indices()]
    return hash_columns(count, categories, _CatBoostSplits(_as_json(model), count).columns)


def is_catboost(estimator: Any) -> bool:
    return type(estimator).__module__.startswith("catboost")


class _CatBoostSplits:
    """The columns that trees compare: `features` of X, then `columns` of hashes.

    CatBoost numbers its splits: all borders of numbers, all categories that are compared, all
    borders of tables.
    """

    def __init__(self, data: Mapping[str, Any], features: int) -> None:
        info = data["features_info"]
        self.features = features
        self._numbers = {each["feature_index"]: each for each in info.get("float_features", ())}
        self._categories = {
            each["feature_index"]: each["flat_feature_index"]
            for each in info.get("categorical_features", ())
        }
        self.columns = list[HashColumn]()
        # The column, the border, and whether missing numbers are greatest, of each split.
        self.splits = list[tuple[int, float, bool]]()
        for each in info.get("float_features", ()):
            place, greatest = each["flat_feature_index"], each["nan_value_treatment"] == "AsTrue"
            self.splits += [(place, _short(border), greatest) for border in each["borders"] or ()]
        for each in info.get("categorical_features", ()):
            for value in each.get("values", ()):
                own = HashElement("equal", each["flat_feature_index"], float(signed(int(value))))
                self._add(HashColumn((own,)), [0.5])
        for each in info.get("ctrs", ()):
            self._add(self._table(each, data["ctr_data"][each["identifier"]]), each["borders"])

    def _add(self, column: HashColumn, borders: Sequence[float]) -> None:
        place = self.features + len(self.columns)
        self.columns.append(column)
        self.splits += [(place, _short(border), False) for border in borders]

    def _element(self, data: Mapping[str, Any]) -> HashElement:
        kind = data["combination_element"]
        if kind == "float_feature":
            number = self._numbers[data["float_feature_index"]]
            is_greatest = number["nan_value_treatment"] == "AsTrue"
            place = number["flat_feature_index"]
            return HashElement("above", place, float(data["border"]), is_greatest)
        place = self._categories[data["cat_feature_index"]]
        if kind == "cat_feature_value":
            return HashElement("category", place)
        return HashElement("equal", place, float(signed(int(data["value"]))))

    def _table(self, ctr: Mapping[str, Any], table: Mapping[str, Any]) -> HashColumn:
        """The values of a table, computed in float32 as CatBoost does when it predicts."""
        stride = int(table["hash_stride"])
        entries = table["hash_map"]
        hashes = [int(code) for code in entries[::stride]]
        counts = np.array(
            [entries[first + 1 : first + stride] for first in range(0, len(entries), stride)],
            np.float64,
        )
        good, total, nothing = _shares(ctr, table, counts)
        values = _value(ctr, good, total).tolist()
        (others,) = _value(ctr, np.zeros(1), np.array([nothing])).tolist()
        elements = tuple(self._element(each) for each in ctr["elements"])
        return HashColumn(elements, tuple(hashes), tuple(values), others)


def _shares(
    ctr: Mapping[str, Any], table: Mapping[str, Any], counts: Array
) -> tuple[Array, Array, float]:
    """Counts of the wanted class, counts of all, and the latter for unknown combinations."""
    kind, border = ctr["ctr_type"], int(ctr["target_border_idx"])
    if kind in ("Counter", "FeatureFreq"):
        every = float(table["counter_denominator"])
        return counts[:, 0], np.full(len(counts), every), every
    if kind in ("BinarizedTargetMeanValue", "FloatTargetMeanValue"):
        return counts[:, 0], counts[:, 1], 0.0
    wanted = counts[:, border] if kind == "Buckets" else counts[:, border + 1 :].sum(axis=1)
    return wanted, counts.sum(axis=1), 0.0


def _value(ctr: Mapping[str, Any], good: Array, total: Array) -> Array:
    prior, weight, shift, scale = (
        np.float32(ctr[name])
        for name in ("prior_numerator", "prior_denomerator", "shift", "scale")
    )
    share = (good.astype(np.float32) + prior) / (total.astype(np.float32) + weight)
    return np.asarray((share + shift) * scale)


def _short(border: float) -> float:
    """A border in float32, as CatBoost has it."""
    return float(np.float32(border))


class _ReadTrees:
    """Nodes, leaves and roots of trees, as they are added."""

    def __init__(self, splits: _CatBoostSplits) -> None:
        self.splits = splits.splits
        self.nodes, self.leaves, self.roots = Nodes(), list[Array](), list[int]()
        self.count = 0

    def _row(self, split: Mapping[str, Any], left: int, right: int) -> list[int]:
        column, _, is_greatest = self.splits[split["split_index"]]
        return [column, left, right, int(not is_greatest)]

    def _border(self, split: Mapping[str, Any]) -> float:
        return self.splits[split["split_index"]][1]

    def _add_leaves(self, values: Array) -> int:
        """Add leaves (leaves, outputs), and return the number of the first."""
        self.leaves.append(values)
        self.count += len(values)
        return self.count - len(values)

    def add_oblivious(self, tree: Mapping[str, Any]) -> None:
        """Add a tree whose levels each have one split, a bit of the leaf's number each."""
        splits = tree["splits"] or ()  # None in a tree that is one leaf
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
                thresholds.append(self._border(split))
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
        return self.nodes.add(np.array([self._border(tree["split"])]), np.array([row]))
