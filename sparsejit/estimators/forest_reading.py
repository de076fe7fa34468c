"""Ensembles of trees, read through treelite, as the operands of a Forest.

    Categories    categories as intervals of x, by the library that fitted a forest
    read_forest   an estimator or booster as a forest

The intervals of a category c:

    XGBoost                         c is c <= x < c + 1
    LightGBM                        the same, but 0 is -1 < x < 1: x is truncated
    histogram gradient boosting     c is x == c, and any other x is missing

Every test becomes `x <= threshold` in float64, exactly: `x < t` is `x <=` the next number below t.
If x is float32, a threshold may be rounded down to float32. A test for membership in a set of
categories becomes a search among the intervals of x that `Categories` defines.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.errors import InvalidInput, MissingDependency
from sparsejit.estimators.lightgbm_text import (
    LightTree,
    LinearLeaves,
    leaf_numbers,
    light_trees,
    linear_leaves,
    without_lines,
)
from sparsejit.estimators.parts import SINGLE_TREES
from sparsejit.frontends.arrays import check_held
from sparsejit.frontends.writing.trees import Nodes, add_search
from sparsejit.ir.values import Array

if TYPE_CHECKING:
    import treelite

@dataclass(frozen=True, eq=False)
class Categories:
    """The categories of a forest's features.

    `known` has all categories of each feature, as numbers, if trees name categories by their
    places; `is_cut` says whether x is truncated to a whole number.
    """

    known: Mapping[int, Array]
    is_cut: bool

    @classmethod
    def of(cls, estimator: Any) -> Categories:
        """Read an estimator's categories. Raises InvalidInput where they are no numbers."""
        is_cut = type(estimator).__module__.startswith("lightgbm")
        encoder = encoder_inside(estimator)
        if encoder is None:
            return cls({}, is_cut)
        known: dict[int, Array] = {}
        features = np.flatnonzero(estimator.is_categorical_)
        for feature, seen in zip(features.tolist(), encoder.categories_, strict=True):
            try:
                known[feature] = np.asarray(seen, np.float64)
            except (TypeError, ValueError) as error:
                raise InvalidInput(
                    f"column {feature} of the {type(estimator).__name__} has the categories "
                    f"{list(seen[:3])}...; fit it to numbers, such as OrdinalEncoder makes"
                ) from error
        return cls(known, is_cut)

    def add_search(
        self, nodes: Nodes, row: Array, members: Array, right_list: bool
    ) -> tuple[float, Array]:
        """Add the nodes below the root of a search for membership; return its threshold and row.

        `row` is the row of the categorical node. A member goes to the child that owns the list.
        """
        feature, left, right, goes_left = map(int, row)
        other, matched = (left, right) if right_list else (right, left)
        missing_to = left if goes_left else right
        known = self.known.get(feature)
        if known is not None:
            numbers = known[~np.isnan(known)]
            goes_to = np.where(np.isin(np.arange(len(known)), members), matched, other)
            order = np.argsort(numbers)
            numbers, goes_to = numbers[order], goes_to[order]
            bounds = np.stack([np.nextafter(numbers, -np.inf), numbers], axis=1)
            inside = np.stack([np.full(len(numbers), missing_to), goes_to], axis=1)
            children = [*inside.ravel().tolist(), missing_to]
            return add_search(nodes, feature, bounds.ravel(), children, missing_to)
        firsts = np.unique(np.concatenate([members, members + 1])).astype(np.float64)
        inside = np.where(np.isin(firsts, members), matched, other)
        below = np.nextafter(firsts, -np.inf)
        if self.is_cut:
            below[firsts == 0] = -1.0
        return add_search(nodes, feature, below, [other, *inside.tolist()], missing_to)


def with_places(estimator: Any) -> Any:
    """The estimator with categories replaced by their places, as its trees name them."""
    encoder = encoder_inside(estimator)
    if encoder is None:
        return estimator
    copied, encoded = copy.copy(estimator), copy.copy(encoder)
    encoded.categories_ = [np.arange(len(seen)) for seen in encoder.categories_]
    copied._preprocessor = copy.copy(estimator._preprocessor)
    (name, _, columns), *others = estimator._preprocessor.transformers_
    copied._preprocessor.transformers_ = [(name, encoded, columns), *others]
    return copied


def encoder_inside(estimator: Any) -> Any:
    """The encoder inside of histogram gradient boosting, None where there is none."""
    inside = getattr(getattr(estimator, "_preprocessor", None), "named_transformers_", {})
    return inside.get("encoder")


def has_frame_categories(estimator: Any) -> bool:
    """Whether LightGBM or XGBoost knows categories by the labels that columns of a frame had."""
    library = type(estimator).__module__.split(".")[0]
    if library == "lightgbm":
        return bool(getattr(estimator, "booster_", estimator).pandas_categorical)
    if library != "xgboost" or not _is_fitted(estimator):
        return False
    booster = estimator.get_booster() if hasattr(estimator, "get_booster") else estimator
    known = getattr(booster, "get_categories", None)  # which version 3.1 brought
    return known is not None and "c" in (booster.feature_types or ()) and not known().empty()


def _is_fitted(estimator: Any) -> bool:
    return getattr(estimator, "__sklearn_is_fitted__", lambda: True)()


def booster_as_json(booster: Any) -> dict[str, Any]:
    """A booster of XGBoost as it writes itself."""
    found: dict[str, Any] = json.loads(bytes(booster.save_raw("json")))
    return found


def learner_of(estimator: Any) -> dict[str, Any]:
    """The `learner` part of the configuration of XGBoost's estimator or booster."""
    booster = estimator.get_booster() if hasattr(estimator, "get_booster") else estimator
    return dict(json.loads(booster.save_config())["learner"])


def _with_codes(booster: Any) -> Any:
    """A booster of XGBoost without the labels of its categories, as treelite's model."""
    import treelite

    data = booster_as_json(booster)
    inner = data["learner"]["gradient_booster"]
    del inner.get("gbtree", inner)["model"]["cats"]  # a dart booster has one of trees inside
    return treelite.frontend.from_xgboost_json(json.dumps(data))


_LESS, _GREATER, _GREATER_EQUAL = 2, 4, 5  # treelite's numbers of comparisons; below is equality
_CATEGORICAL = 2  # treelite's number of a categorical node
# The field by which a library counts the samples of a node.
_SIZES = {"lightgbm": "data_count", "xgboost": "sum_hess"}


@dataclass(frozen=True, eq=False)
class Splits:
    """The nodes of trees as the library has them, before any becomes a search or reads other X.

    By node: its `number` among a forest's nodes, its feature of `features`, its left and right
    child as in nodes, and the `shares` of its samples that go there, by the fit.
    """

    features: int
    number: Array
    feature: Array
    children: Array
    shares: Array


@dataclass(frozen=True, eq=False)
class ReadForest:
    """A forest as its library has it: the operands of a Forest, and the function of the sums.

    `postprocessor` is treelite's name of the function, `alpha` the factor of its sigmoid.
    Thresholds are float64; with `rounds_x` the library rounds x to float32 before it compares.
    `missing` counts as NaN, and with `skips_zeros` so do zeros that a sparse matrix leaves out.
    `rest` are the remainders of leaves and base behind their rounding to float32. `leaf_numbers`
    are the library's numbers of the leaves in their trees. With `linear` leaves are linear models;
    `operands` then have a leaf for each, and behind them its plain value, for missing features.
    `rounds` is the number of boosting rounds, each of as many trees; 0 for another forest. `splits`
    are known of boosters whose leaves have one number.
    """

    features: int
    rounds_x: bool
    missing: float
    operands: tuple[Array, Array, Array, Array, Array]
    scale: float
    postprocessor: str
    alpha: float
    rest: tuple[Array, Array] | None = None
    skips_zeros: bool = False
    leaf_numbers: Array | None = None
    linear: LinearLeaves | None = None
    rounds: int = 0
    splits: Splits | None = None

    @property
    def outputs(self) -> int:
        return len(self.operands[-1])


def read_forest(estimator: Any) -> ReadForest:
    """Read an estimator or booster through treelite.

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
    categories = Categories.of(estimator)
    try:
        if library == "sklearn":
            model = treelite.sklearn.import_model(with_places(_as_forest(estimator)))
        elif library == "xgboost":
            own = _xgboost_booster(estimator)
            has_labels = has_frame_categories(estimator)
            model = _with_codes(own) if has_labels else treelite.frontend.from_xgboost(own)
        else:
            booster = getattr(estimator, "booster_", estimator)
            text = booster.model_to_string()
            _check_zeros(text)
            is_linear = "\nis_linear=1\n" in text
            plain = without_lines(text) if is_linear else booster
            model = treelite.frontend.from_lightgbm(plain)
    except (treelite.TreeliteError, NotImplementedError, AssertionError) as error:
        raise InvalidInput(
            f"treelite cannot read the {type(estimator).__name__}: {error}; leave it to its own "
            "predict"
        ) from error
    trees = light_trees(text) if library == "lightgbm" else []
    return _Reader(model, categories, trees).read(estimator)


def _rounds_x(estimator: Any) -> bool:
    """Whether the library rounds x of any dtype to float32 before it compares."""
    library, kind = type(estimator).__module__.split(".")[0], type(estimator).__name__
    return library != "lightgbm" and not kind.startswith("HistGradientBoosting")


def missing_of(estimator: Any) -> float:
    """The number that counts as missing besides NaN; NaN for none."""
    missing = getattr(estimator, "missing", None)
    return np.nan if missing is None else float(missing)


def _as_forest(estimator: Any) -> Any:
    """A single tree as a forest of one, which treelite reads; all else as it is."""
    kind = SINGLE_TREES.get(type(estimator).__name__)
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
    if not booster.num_boosted_rounds():
        raise InvalidInput(
            f"the {type(estimator).__name__} has no trees; fit it with n_estimators of 1 or more"
        )
    try:
        best = int(estimator.best_iteration)
    except AttributeError:
        return booster
    return booster[: best + 1] if hasattr(estimator, "get_booster") else booster


def _check_zeros(text: str) -> None:
    """Raise InvalidInput if zeros count as missing for LightGBM: treelite does not report this."""
    for line in text.splitlines():
        name, _, numbers = line.partition("=")
        # Bits 2 and 3 are the value that counts as missing: none, zero or NaN.
        if name == "decision_type" and any(int(n) >> 2 & 3 == 1 for n in numbers.split()):
            raise InvalidInput(
                "the LightGBM model has zero_as_missing=True, which is not supported; train it "
                "with NaN for missing values"
            )


def _split(numbers: Array) -> tuple[Array, Array]:
    """Numbers rounded to float32, and the remainders, in float32 too."""
    rounded = numbers.astype(np.float32)
    return rounded, (numbers - rounded).astype(np.float32)


def _array(accessor: Any, name: str) -> Array:
    """A field of a model or tree, other than a name, as an array."""
    return np.asarray(accessor.get_field(name))


class _Reader:
    """Reads the trees of a model of treelite, one after another."""

    def __init__(
        self, model: treelite.Model, categories: Categories, light: Sequence[LightTree] = ()
    ) -> None:
        self.categories, self.light = categories, light
        self.numbers: list[Array] = []
        self.model, self.header = model, model.get_header_accessor()
        classes = _array(self.header, "num_class")
        self.outputs = int(len(classes) * classes.max(initial=1))
        self.most_classes = int(classes.max(initial=1))
        self.width = int(np.prod(_array(self.header, "leaf_vector_shape")))
        self.nodes, self.leaves = Nodes(), [np.zeros((0, self.width))]
        self.leaf_count = 0
        self.split_rows, self.shares = [np.zeros((0, 4), np.int64)], [np.zeros((0, 2))]
        self.sizes = ""

    def read(self, estimator: Any) -> ReadForest:
        header, count = self.header, self.model.num_tree
        self.sizes = _SIZES.get(type(estimator).__module__.split(".")[0], "")
        targets, classes = _array(header, "target_id"), _array(header, "class_id")
        column = np.maximum(targets, 0) * self.most_classes + np.maximum(classes, 0)
        if self.width > 1 and self.width != self.outputs:
            raise InvalidInput(
                f"leaves have {self.width} numbers for {self.outputs} outputs; give 1 number or all"
            )
        roots = [self._tree(number) for number in range(count)]
        trees = np.stack([np.array(roots, np.int64), column.astype(np.int64)], axis=1)
        average = bool(_array(header, "average_tree_output")[0])
        per_output = count if self.width == self.outputs else count / self.outputs
        thresholds = np.concatenate([np.zeros(0), *self.nodes.thresholds])
        if type(estimator).__module__.startswith("lightgbm"):
            thresholds = _around_zero(thresholds)
        scale = 1.0 / per_output if average else 1.0
        own = [np.concatenate(self.leaves).ravel() * scale, _array(header, "base_scores")]
        check_held(estimator, "leaves", np.concatenate(own))
        leaves, left_of_leaves = _split(np.concatenate(self.leaves))
        base, left_of_base = _split(_array(header, "base_scores"))
        operands = (
            thresholds,
            np.concatenate([np.zeros((0, 4), np.int64), *self.nodes.rows]),
            leaves,
            trees,
            base,
        )
        forest = ReadForest(
            int(self.model.num_feature),
            _rounds_x(estimator),
            missing_of(estimator),
            operands,
            scale,
            str(header.get_field("postprocessor")),
            float(_array(header, "sigmoid_alpha")[0]),
            (left_of_leaves, left_of_base),
            type(estimator).__module__.startswith("xgboost"),
            np.concatenate([np.zeros(0, np.int64), *self.numbers]),
            rounds=_rounds(estimator, self.light),
            splits=self._splits(),
        )
        if not any(tree.is_linear for tree in self.light):
            return forest
        centre = _centre(forest.features, *operands[:2])
        linear = linear_leaves(self.light, self.numbers, centre)
        return forest if linear is None else _with_lines(forest, linear, estimator)

    def _tree(self, number: int) -> int:
        """Add a tree; return the number of its root, or ~number of its only leaf."""
        tree = self.model.get_tree_accessor(number)
        left, right = _array(tree, "cleft"), _array(tree, "cright")
        right_lists = _array(tree, "category_list_right_child")
        inner = np.flatnonzero(left >= 0)
        outer = np.flatnonzero(left < 0)
        place = np.zeros(len(left), np.int64)
        place[inner] = self.nodes.count + np.arange(len(inner))
        place[outer] = ~(self.leaf_count + np.arange(len(outer)))
        self._add_leaves(tree, outer)
        own = leaf_numbers(self.light[number], left, right)[outer] if self.light else outer
        self.numbers.append(own)
        categorical = _array(tree, "node_type")[inner] == _CATEGORICAL
        thresholds, swapped = _inclusive_thresholds(
            _array(tree, "threshold")[inner],
            _array(tree, "cmp")[inner],
            categorical,
        )
        children = np.stack([place[left[inner]], place[right[inner]]], axis=1)
        children[swapped] = children[swapped, ::-1]
        goes_left = (_array(tree, "default_left")[inner] != 0) != swapped
        feature = _array(tree, "split_index")[inner]
        rows = np.column_stack([feature, children, goes_left]).astype(np.int64)
        below = np.stack([left[inner], right[inner]], axis=1)
        below[swapped] = below[swapped, ::-1]
        self.split_rows.append(np.column_stack([place[inner], rows[:, :3]]))
        self.shares.append(self._shares(tree, inner, below))
        self.nodes.add(thresholds, rows)
        own_thresholds, own_rows = self.nodes.thresholds[-1], self.nodes.rows[-1]
        lists = [_array(tree, f"category_list{part}") for part in ("", "_begin", "_end")]
        for which in np.flatnonzero(categorical):
            members, is_right = _categories(lists, inner[which]), bool(right_lists[inner[which]])
            found = self.categories.add_search(self.nodes, rows[which], members, is_right)
            own_thresholds[which], own_rows[which] = found
        return int(place[0])

    def _shares(self, tree: Any, inner: Array, below: Array) -> Array:
        """The shares of samples that go from nodes to the ones below them; NaN if not known."""
        sizes = _array(tree, self.sizes) if self.sizes else np.zeros(0)
        if len(sizes) <= below.max(initial=0):
            return np.full(below.shape, np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            found: Array = sizes[below] / sizes[inner].astype(np.float64)[:, None]
        return found

    def _splits(self) -> Splits | None:
        """The nodes of all trees; None where shares are not known, or leaves have several numbers.

        A fit may have counted no samples at a node.
        """
        shares, rows = np.concatenate(self.shares), np.concatenate(self.split_rows)
        if not self.sizes or self.width > 1 or not np.isfinite(shares).all():
            return None
        return Splits(int(self.model.num_feature), rows[:, 0], rows[:, 1], rows[:, 2:], shares)

    def _add_leaves(self, tree: Any, outer: Array) -> None:
        if self.width == 1:
            leaves = _array(tree, "leaf_value")[outer][:, None]
        else:
            begins = _array(tree, "leaf_vector_begin")[outer].astype(np.int64)
            vectors = _array(tree, "leaf_vector")
            leaves = vectors[begins[:, None] + np.arange(self.width)]
        self.leaves.append(leaves)
        self.leaf_count += len(outer)


def _rounds(estimator: Any, light: Sequence[LightTree]) -> int:
    """The boosting rounds that are read, of a model of XGBoost or LightGBM."""
    if type(estimator).__module__.startswith("xgboost"):
        return int(_xgboost_booster(estimator).num_boosted_rounds())
    booster = getattr(estimator, "booster_", estimator)
    return len(light) // int(booster.num_model_per_iteration()) if light else 0


def _centre(features: int, thresholds: Array, nodes: Array) -> Array:
    """The middle of each feature's thresholds, 0 for a feature without any."""
    centre, finite = np.zeros(features), np.isfinite(thresholds)
    order = np.argsort(nodes[finite, 0], kind="stable")
    used, firsts = np.unique(nodes[finite, 0][order], return_index=True)
    for feature, own in zip(used, np.split(thresholds[finite][order], firsts[1:]), strict=False):
        centre[feature] = np.median(own)
    return centre


def _with_lines(forest: ReadForest, linear: LinearLeaves, estimator: Any) -> ReadForest:
    """The forest with tests for missing features above each linear leaf, and plain leaves."""
    check_held(estimator, "coefficients", np.append(linear.coefficients, linear.numbers))
    thresholds, nodes, leaves, trees, base = forest.operands
    above = Nodes(count=len(nodes))
    first = np.arange(len(leaves))
    for leaf in np.flatnonzero(linear.reads.any(axis=1)):
        reached, plain = ~int(leaf), ~int(leaf + len(leaves))
        for feature in linear.features[linear.reads[leaf]]:
            row = np.array([feature, reached, plain, 0])
            reached = above.add(np.array([np.inf]), row)
        first[leaf] = reached
    first = np.where(linear.reads.any(axis=1), first, ~np.arange(len(leaves)))
    moved = nodes.copy()
    for places in (moved[:, 1], moved[:, 2]):
        places[places < 0] = first[~places[places < 0]]
    roots = trees.copy()
    roots[roots[:, 0] < 0, 0] = first[~roots[roots[:, 0] < 0, 0]]
    operands = (
        np.concatenate([thresholds, *above.thresholds]),
        np.concatenate([moved, *above.rows]),
        np.concatenate([leaves, leaves]),
        roots,
        base,
    )
    numbers = np.tile(forest.leaf_numbers, 2) if forest.leaf_numbers is not None else None
    return replace(
        forest,
        operands=operands,
        rest=None,
        leaf_numbers=numbers,
        linear=linear,
        splits=None,
    )


def _categories(lists: Sequence[Array], number: int) -> Array:
    """The categories of a node, ascending, from a tree's lists: all, their begins, their ends."""
    every, begins, ends = lists
    return np.unique(every[begins[number] : ends[number]].astype(np.int64))


def _inclusive_thresholds(
    thresholds: Array, comparisons: Array, categorical: Array
) -> tuple[Array, Array]:
    """Thresholds of tests as `x <= threshold`, and whether that swaps a node's children.

    A threshold is the greatest float64 that goes left.
    """
    if not np.all((comparisons >= _LESS) | categorical):
        raise InvalidInput("a tree tests for equality; give one whose tests are <, <=, > or >=")
    exclusive = (comparisons == _LESS) | (comparisons == _GREATER_EQUAL)
    wide = thresholds.astype(np.float64)
    swapped = (comparisons >= _GREATER) & ~categorical
    return np.where(exclusive, np.nextafter(wide, -np.inf), wide), swapped


def _around_zero(thresholds: Array) -> Array:
    """Move thresholds near zero: LightGBM takes |x| up to its kZeroThreshold (meta.h) for zero."""
    least = float(np.float32(1e-35))
    below = (thresholds >= -least) & (thresholds < 0)
    above = (thresholds >= 0) & (thresholds < least)
    return np.where(below, np.nextafter(-least, -np.inf), np.where(above, least, thresholds))
