"""Ensembles of trees as treelite reads them, as the operands of a Forest.

Every test becomes `x <= threshold` in float32, exactly: x is float32, so that a threshold in float64
may be rounded down to it, and `x < t` is `x <=` the number below t. A test for membership in a set of
categories becomes a search among the ends of its runs: category c is c <= x < c + 1.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.errors import InvalidInput, MissingDependency
from sparsejit.ir.graph import Array

if TYPE_CHECKING:
    import treelite

_LESS, _LESS_EQUAL, _GREATER, _GREATER_EQUAL = 2, 3, 4, 5  # treelite's numbers of comparisons
_CATEGORICAL = 2  # its number of such a node
_SINGLE_TREES = {
    "DecisionTreeClassifier": "RandomForestClassifier",
    "DecisionTreeRegressor": "RandomForestRegressor",
    "ExtraTreeClassifier": "ExtraTreesClassifier",
    "ExtraTreeRegressor": "ExtraTreesRegressor",
}


@dataclass(frozen=True, eq=False)
class ReadForest:
    """A forest as its library has it: the operands of a Forest, and what becomes of the sums.

    `postprocessor` is treelite's name of that, `alpha` the factor of its sigmoid.
    """

    features: int
    operands: tuple[Array, Array, Array, Array, Array]
    scale: float
    postprocessor: str
    alpha: float

    @property
    def outputs(self) -> int:
        return len(self.operands[-1])


def read_forest(estimator: Any) -> ReadForest:
    """What treelite makes of an estimator or booster.

    Raises MissingDependency without treelite, and InvalidInput for a model that it cannot read.
    """
    try:
        import treelite
        import treelite.sklearn
    except ImportError as error:
        raise MissingDependency(
            f"forests are read through treelite ({error}); pip install 'sparsejit[forests]'"
        ) from error
    library = type(estimator).__module__.split(".")[0]
    try:
        if library == "sklearn":
            model = treelite.sklearn.import_model(_as_forest(estimator))
        elif library == "xgboost":
            model = treelite.frontend.from_xgboost(_xgboost_booster(estimator))
        else:
            booster = getattr(estimator, "booster_", estimator)
            _check_zeros(booster)
            model = treelite.frontend.from_lightgbm(booster)
    except (treelite.TreeliteError, NotImplementedError, AssertionError) as error:
        raise InvalidInput(
            f"treelite cannot read the {type(estimator).__name__}: {error}; leave it to its own "
            "predict"
        ) from error
    return _Reader(model).read()


def _as_forest(estimator: Any) -> Any:
    """A single tree as a forest of one, which treelite reads; all else as it is."""
    kind = _SINGLE_TREES.get(type(estimator).__name__)
    if kind is None:
        return estimator
    import sklearn.ensemble

    forest = getattr(sklearn.ensemble, kind)(n_estimators=1)
    forest.estimators_ = [estimator]
    for name in ("n_features_in_", "n_outputs_", "classes_", "n_classes_"):
        if hasattr(estimator, name):
            setattr(forest, name, copy.copy(getattr(estimator, name)))
    return forest


def _xgboost_booster(estimator: Any) -> Any:
    """The booster, up to the best iteration where fitting stopped early."""
    booster = estimator.get_booster() if hasattr(estimator, "get_booster") else estimator
    try:
        best = int(estimator.best_iteration)
    except AttributeError:
        return booster
    return booster[: best + 1] if hasattr(estimator, "get_booster") else booster


def _check_zeros(booster: Any) -> None:
    """Raise InvalidInput where LightGBM takes zeros for missing: treelite does not say so."""
    for line in booster.model_to_string().splitlines():
        name, _, numbers = line.partition("=")
        # Bits 2 and 3 are what counts as missing: nothing, zero or NaN.
        if name == "decision_type" and any(int(n) >> 2 & 3 == 1 for n in numbers.split()):
            raise InvalidInput(
                "the LightGBM model has zero_as_missing=True, which is not read; train it with "
                "NaN for what is missing"
            )


@dataclass(eq=False)
class _Nodes:
    """Thresholds and rows of the nodes of all trees so far."""

    thresholds: list[Array] = field(default_factory=list)
    rows: list[Array] = field(default_factory=list)
    count: int = 0

    def add(self, thresholds: Array, rows: Array) -> int:
        """Add nodes; the number of the first."""
        self.thresholds.append(np.asarray(thresholds, np.float32))
        self.rows.append(np.asarray(rows, np.int64).reshape(-1, 4))
        self.count += len(thresholds)
        return self.count - len(thresholds)


def _search(nodes: _Nodes, row: Array, categories: Array, right_list: bool) -> tuple[float, Array]:
    """Threshold and row of the root of a search that stands for membership; adds what is below.

    `row` is that of the node with its list: x that is in the list goes to the child that owns it.
    """
    feature, left, right, goes_left = map(int, row)
    other, matched = (left, right) if right_list else (right, left)
    missing_to = left if goes_left else right
    starts = categories[np.diff(categories, prepend=-2) > 1]
    ends = categories[np.diff(categories, append=1 << 62) > 1] + 1
    bounds = np.sort(np.concatenate([starts, ends])).astype(np.float32)
    if not len(bounds):
        return np.inf, np.array([feature, other, missing_to, 0])
    # Between bounds there are intervals, in turn of others and of members.
    goes_to = int(missing_to == matched)

    def child(first: int, last: int) -> int:
        if first == last:
            return matched if first % 2 else other
        threshold, below = node(first, last)
        return nodes.add(np.array([threshold]), below)

    def node(first: int, last: int) -> tuple[float, Array]:
        middle = (first + last) // 2
        threshold = np.nextafter(bounds[middle], np.float32(-np.inf))
        children = child(first, middle), child(middle + 1, last)
        return float(threshold), np.array([feature, *children, goes_to <= middle])

    return node(0, len(bounds))


class _Reader:
    """Reads the trees of a model of treelite, one after another."""

    def __init__(self, model: treelite.Model) -> None:
        self.model, self.header = model, model.get_header_accessor()
        classes = self.header.get_field("num_class")
        self.outputs = int(len(classes) * classes.max(initial=1))
        self.most_classes = int(classes.max(initial=1))
        self.width = int(np.prod(self.header.get_field("leaf_vector_shape")))
        self.nodes, self.leaves = _Nodes(), [np.zeros((0, self.width))]
        self.leaf_count = 0

    def read(self) -> ReadForest:
        header, count = self.header, self.model.num_tree
        targets, classes = header.get_field("target_id"), header.get_field("class_id")
        column = np.maximum(targets, 0) * self.most_classes + np.maximum(classes, 0)
        if self.width > 1 and self.width != self.outputs:
            raise InvalidInput(
                f"leaves have {self.width} numbers for {self.outputs} outputs; give 1 or all"
            )
        roots = [self._tree(number) for number in range(count)]
        trees = np.stack([np.array(roots, np.int64), column.astype(np.int64)], axis=1)
        average = bool(header.get_field("average_tree_output")[0])
        per_output = count if self.width == self.outputs else count / self.outputs
        operands = (
            np.concatenate([np.zeros(0, np.float32), *self.nodes.thresholds]),
            np.concatenate([np.zeros((0, 4), np.int64), *self.nodes.rows]),
            np.concatenate(self.leaves).astype(np.float32),
            trees,
            header.get_field("base_scores").astype(np.float32),
        )
        return ReadForest(
            int(self.model.num_feature),
            operands,
            1.0 / per_output if average else 1.0,
            str(header.get_field("postprocessor")),
            float(header.get_field("sigmoid_alpha")[0]),
        )

    def _tree(self, number: int) -> int:
        """Add a tree; the number of its root, or ~its leaf."""
        tree = self.model.get_tree_accessor(number)
        left, right = tree.get_field("cleft"), tree.get_field("cright")
        right_lists = tree.get_field("category_list_right_child")
        inner = np.flatnonzero(left >= 0)
        outer = np.flatnonzero(left < 0)
        place = np.zeros(len(left), np.int64)
        place[inner] = self.nodes.count + np.arange(len(inner))
        place[outer] = ~(self.leaf_count + np.arange(len(outer)))
        self._add_leaves(tree, outer)
        categorical = tree.get_field("node_type")[inner] == _CATEGORICAL
        thresholds, swapped = _float32_thresholds(
            tree.get_field("threshold")[inner],
            tree.get_field("cmp")[inner],
            categorical,
        )
        children = np.stack([place[left[inner]], place[right[inner]]], axis=1)
        children[swapped] = children[swapped, ::-1]
        goes_left = (tree.get_field("default_left")[inner] != 0) != swapped
        feature = tree.get_field("split_index")[inner]
        rows = np.column_stack([feature, children, goes_left]).astype(np.int64)
        self.nodes.add(thresholds, rows)
        own_thresholds, own_rows = self.nodes.thresholds[-1], self.nodes.rows[-1]
        for which in np.flatnonzero(categorical):
            members, is_right = _categories(tree, inner[which]), bool(right_lists[inner[which]])
            found = _search(self.nodes, rows[which], members, is_right)
            own_thresholds[which], own_rows[which] = found
        return int(place[0])

    def _add_leaves(self, tree: Any, outer: Array) -> None:
        if self.width == 1:
            leaves = tree.get_field("leaf_value")[outer][:, None]
        else:
            begins = tree.get_field("leaf_vector_begin")[outer].astype(np.int64)
            vectors = tree.get_field("leaf_vector")
            leaves = vectors[begins[:, None] + np.arange(self.width)]
        self.leaves.append(leaves)
        self.leaf_count += len(outer)


def _categories(tree: Any, number: int) -> Array:
    """The categories in the list of a node, ascending."""
    first, end = (tree.get_field(f"category_list_{at}")[number] for at in ("begin", "end"))
    return np.unique(tree.get_field("category_list")[first:end].astype(np.int64))


def _float32_thresholds(
    thresholds: Array, comparisons: Array, categorical: Array
) -> tuple[Array, Array]:
    """The greatest float32 that goes left, and whether the children change places for that."""
    known = np.isin(comparisons, (_LESS, _LESS_EQUAL, _GREATER, _GREATER_EQUAL))
    if not np.all(known | categorical):
        raise InvalidInput("a tree tests for equality; give one whose tests are <, <=, > or >=")
    exclusive = np.isin(comparisons, (_LESS, _GREATER_EQUAL))
    with np.errstate(over="ignore"):
        rounded = thresholds.astype(np.float32)
    too_high = np.where(exclusive, rounded >= thresholds, rounded > thresholds)
    below = np.nextafter(rounded, np.float32(-np.inf))
    swapped = np.isin(comparisons, (_GREATER, _GREATER_EQUAL)) & ~categorical
    return np.where(too_high, below, rounded).astype(np.float32), swapped
