"""The methods of estimators made of trees, computed from the sums of leaves.

    forest_methods      classifiers, regressors and boosters
    isolation_methods   isolation forests: the depth of a sample in trees

Isolation forests are scored as in scikit-learn's `_iforest.py`:

    score_samples = -2 ^ -(depth / (trees * c))        c: the mean depth among `_max_samples`
    predict       = 1 where score_samples >= offset_, else -1

Depths are float64 there, and here: a leaf has its rounded depth and the remainder of rounding, of
which scores add the sums. `predict` compares the sum of depths minus the least sum of an inlier
with 0, in two sums of float32. So a sample whose score is the offset itself stays an inlier.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.catboost_models import second_from as catboost_bound
from sparsejit.estimators.double_values import double_formula, flat
from sparsejit.estimators.forest_bags import own_trees
from sparsejit.estimators.forest_reading import ReadForest, learner_of
from sparsejit.estimators.lightgbm_text import LinearLeaves
from sparsejit.estimators.parts import SINGLE_TREES, is_bag_of_trees
from sparsejit.estimators.writer import WIDE, EstimatorWriter, Write
from sparsejit.frontends.writing.arranging import at, joined, reshaped, sliced
from sparsejit.frontends.writing.pointwise import log_sigmoid, softplus
from sparsejit.ir.ops.columns import CENTRE, DoubleProduct, ScaledColumns
from sparsejit.ir.ops.forest import Forest
from sparsejit.ir.ops.row_chains import log_softmax, softmax
from sparsejit.ir.ops.selection import ArgMax
from sparsejit.ir.values import Array, Element, Value

_SOFTMAX = "multi:softmax"  # XGBoost's objective whose predictions are classes

_AVERAGES = frozenset(
    """
    DecisionTreeClassifier DecisionTreeRegressor ExtraTreeClassifier ExtraTreeRegressor
    ExtraTreesClassifier ExtraTreesRegressor RandomForestClassifier RandomForestRegressor
    """.split()
)
_BOOSTED = frozenset(
    """
    GradientBoostingClassifier GradientBoostingRegressor HistGradientBoostingClassifier
    HistGradientBoostingRegressor
    """.split()
)
_XGBOOST = frozenset(
    "Booster XGBClassifier XGBRFClassifier XGBRFRegressor XGBRanker XGBRegressor".split()
)
_LIGHTGBM = frozenset("Booster LGBMClassifier LGBMRanker LGBMRegressor".split())
_CATBOOST = frozenset("CatBoost CatBoostClassifier CatBoostRanker CatBoostRegressor".split())
FORESTS = {
    "sklearn": _AVERAGES | _BOOSTED | {"IsolationForest"},
    "xgboost": _XGBOOST,
    "lightgbm": _LIGHTGBM,
    "catboost": _CATBOOST,
}
LIBRARIES = frozenset(FORESTS)


def is_forest(estimator: Any) -> bool:
    """Whether an estimator or booster is made of trees, of a kind that is read here."""
    library = type(estimator).__module__.split(".")[0]
    return type(estimator).__name__ in FORESTS.get(library, ()) or is_bag_of_trees(estimator)


def features_of(estimator: Any) -> int:
    """The number of features of X. Raises InvalidInput for an estimator that is not fitted."""
    for name in ("num_features", "num_feature"):  # boosters of XGBoost and LightGBM
        if type(estimator).__name__ == "Booster" and hasattr(estimator, name):
            return int(getattr(estimator, name)())
    if type(estimator).__module__.startswith("catboost"):  # one that was loaded counts none
        names = estimator.feature_names_ if estimator.is_fitted() else None
        if names is not None:
            return len(names)
    if hasattr(estimator, "X_thresholds_"):  # an IsotonicRegression
        return 1
    try:
        return int(estimator.n_features_in_)
    except (AttributeError, TypeError) as error:
        raise InvalidInput(
            f"the {type(estimator).__name__} is not fitted; call its fit(X, y) first"
        ) from error


def forest_methods(estimator: Any, forest: ReadForest) -> dict[str, Write]:
    """The functions that write an estimator's methods, or a booster's `predict`, from its forest.

    With several outputs of classes, `predict` writes the places of all, and other methods write
    their results side by side.
    """
    if np.ndim(getattr(estimator, "n_classes_", 1)):
        return _several_outputs(forest, [int(count) for count in estimator.n_classes_])
    kind, library = type(estimator).__name__, type(estimator).__module__.split(".")[0]
    if not hasattr(estimator, "predict_proba"):
        one = library == "sklearn" and forest.outputs == 1 and _has_one_axis(estimator)
        flat = one or (library != "sklearn" and forest.outputs == 1)
        return {"predict": lambda writer: _predict(writer, estimator, forest, flat)}
    if kind in _AVERAGES:
        return _averages(forest)
    if library == "lightgbm" and callable(getattr(estimator, "objective_", None)):
        return _raw_scores(forest)
    return _classifier(estimator, forest)


def _has_one_axis(estimator: Any) -> bool:
    return int(getattr(estimator, "n_outputs_", 1)) == 1


def forest_sum(
    writer: EstimatorWriter, forest: ReadForest, result: Element = Element.FLOAT32
) -> Value:
    """Write the sums of leaves, (batch, outputs)."""
    x = compared_x(writer, forest)
    if forest.linear is not None:
        return _linear_sum(writer, x, forest, forest.linear)
    element = x.type.element
    thresholds, *others = forest.operands
    constants = [writer.constant(thresholds, "forest.thresholds", element)]
    for name, array in zip(("nodes", "leaves", "trees", "base"), others, strict=True):
        constants.append(writer.constant(array, f"forest.{name}"))
    return writer.at("forest").one(Forest(forest.scale, element, result), x, *constants)


def compared_x(writer: EstimatorWriter, forest: ReadForest) -> Value:
    """Write x, NaN where it counts as missing for the forest."""
    if np.isnan(forest.missing):
        return writer.x
    is_missing = writer.at("missing").pointwise("equal", writer.x, forest.missing)
    return writer.pointwise("where", is_missing, float("nan"), writer.x)


def _linear_sum(
    writer: EstimatorWriter, given: Value, forest: ReadForest, linear: LinearLeaves
) -> Value:
    """Write the sums of linear leaves, (batch, outputs).

    The forest of an output sums the coefficients of the leaves that x reaches; their product with
    x is the sum of the leaves' lines.
    """
    x = _line_columns(writer, given, forest.rounds_x, linear)
    thresholds, nodes, leaves, trees, base = forest.operands
    lines = np.column_stack([linear.coefficients, linear.numbers])
    plain = leaves[len(lines) :, 0]
    nothing = np.zeros((len(plain), len(linear.features)))
    whole = np.concatenate([lines, np.column_stack([nothing, plain])])
    sums = []
    for output in range(forest.outputs):
        own = trees[trees[:, 1] == output]
        own = np.stack([own[:, 0], np.zeros_like(own[:, 0])], axis=1)
        start = np.append(np.zeros(len(linear.features), np.float32), base[output])
        operands = thresholds, nodes, whole.astype(np.float32), own, start
        found = forest_sum(writer, replace(forest, operands=operands, linear=None))
        count = len(linear.features)
        f = writer.at("lines").formula("lines")
        terms = f("mul", sliced(writer, found, 1, 0, count), x)
        line = f.finish(f("row_sum", terms), shape=(writer.batch, count))
        sums.append(writer.pointwise("add", line, sliced(writer, found, 1, count, count + 1)))
    return joined(writer, sums, 1)


def _line_columns(
    writer: EstimatorWriter, given: Value, rounds_x: bool, linear: LinearLeaves
) -> Value:
    """Write the columns that lines read, behind the steps before the forest, less their centres.

    Missing ones are 0.
    """
    if linear.steps:
        is_whole = writer.x.shape[1] > writer.features
        writer.begin(linear.steps)
        given = writer.columns(Element.FLOAT32 if rounds_x else Element.FLOAT64)
        writer.begin((), is_whole)
    neutral = np.array([0.0, 1.0, 0.0, -np.inf, np.inf, 0.0, 0.0])
    numbers = np.tile(neutral[:, None], len(linear.features))
    numbers[CENTRE] = linear.centre
    constants = (
        writer.constant(linear.features, "lines"),
        writer.constant(numbers, "lines.numbers", Element.FLOAT64),
    )
    return writer.at("lines").one(ScaledColumns(given.type.element), given, *constants)


def leaf_places(forest: ReadForest) -> Write:
    """The function that writes the library's numbers of the leaves that x reaches: (batch, trees).

    The numbers are int64.
    """
    numbers = forest.leaf_numbers
    assert numbers is not None
    thresholds, nodes, _, trees, _ = forest.operands
    each = np.stack([trees[:, 0], np.arange(len(trees))], axis=1)
    own = numbers.astype(np.float32)[:, None]
    operands = thresholds, nodes, own, each, np.zeros(len(trees), np.float32)
    places = replace(forest, operands=operands, scale=1.0, linear=None)

    def write(writer: EstimatorWriter) -> Value:
        return writer.at("leaves").cast(forest_sum(writer, places), Element.INT64)

    return write


def optional_methods(estimator: Any, forest: ReadForest) -> dict[str, Write]:
    """Methods beside `predict` that libraries have for forests: leaves, and sums of leaves.

    `apply` is a method of theirs; `pred_leaf` and `raw_score` are options of `predict`.
    """
    library, kind = type(estimator).__module__.split(".")[0], type(estimator).__name__
    has_numbers = forest.leaf_numbers is not None
    if library == "sklearn":
        has = hasattr(estimator, "apply") and has_numbers
        return {"apply": _applied(estimator, leaf_places(forest))} if has else {}
    scale = forest.scale if library == "catboost" else 1.0
    methods: dict[str, Write] = {"raw_score": lambda writer: _scores(writer, forest, scale)}
    if not has_numbers:
        return methods
    places = methods["pred_leaf"] = leaf_places(forest)
    if library == "xgboost" and kind != "Booster":
        methods["apply"] = lambda writer: writer.floats(places(writer))
    return methods


def _applied(estimator: Any, places: Write) -> Write:
    """The leaves as scikit-learn has them: one number for a single tree, floats for boosting."""
    if type(estimator).__name__ in SINGLE_TREES:
        return lambda writer: reshaped(writer, places(writer), (writer.batch,))
    if type(estimator).__name__ not in _BOOSTED:
        return places
    rounds = np.shape(estimator.estimators_)
    shape = rounds if hasattr(estimator, "classes_") else rounds[:1]
    return lambda writer: reshaped(writer, writer.floats(places(writer)), (writer.batch, *shape))


def wide_scores(estimator: Any, forest: ReadForest) -> dict[str, Write]:
    """The function that writes a forest's scores in float64, for calibrators, by its name WIDE.

    Of two classes' means it writes the second. Empty for forests whose library rounds scores, and
    for several scores if a leaf has one number.
    """
    kind, (*_, leaves, _, base) = type(estimator).__name__, forest.operands
    is_average = kind in _AVERAGES and hasattr(estimator, "predict_proba")
    is_score = kind in _BOOSTED and hasattr(estimator, "decision_function")
    if forest.rest is None or not (is_average or is_score) or leaves.shape[1] != len(base):
        return {}
    thresholds, nodes, _, trees, _ = forest.operands
    both = [np.concatenate(pair, axis=-1) for pair in zip((leaves, base), forest.rest, strict=True)]
    twice = replace(forest, operands=(thresholds, nodes, both[0], trees, both[1]))
    read = np.eye(len(base))[1 if is_average and len(base) == 2 else 0 :]
    weights, bias = np.concatenate([read, read], axis=1), np.zeros(len(read))

    def write(writer: EstimatorWriter) -> Value:
        operands = [
            writer.constant(array, f"forest.{name}", Element.FLOAT64)
            for name, array in (("both", weights), ("none", bias))
        ]
        product = DoubleProduct(Element.FLOAT64, Element.FLOAT64)
        return writer.one(product, forest_sum(writer, twice, Element.FLOAT64), *operands)

    return {WIDE: write}


def _averages(forest: ReadForest) -> dict[str, Write]:
    """Methods of forests whose leaves have a number for each class, of which means are taken."""

    def logarithms(writer: EstimatorWriter) -> Value:
        means = forest_sum(writer, forest)
        return writer.at("log").pointwise("log", means)

    def choose(writer: EstimatorWriter) -> Value:
        means = forest_sum(writer, forest)
        return writer.at("predict").one(ArgMax(), means)

    return {
        "predict": choose,
        "predict_proba": lambda writer: forest_sum(writer, forest),
        "predict_log_proba": logarithms,
    }


def _several_outputs(forest: ReadForest, counts: Sequence[int]) -> dict[str, Write]:
    """Methods of forests whose leaves have a number for each class of each output.

    There are as many numbers for each output as for the output with the most classes.
    """
    most = max(counts)

    def parts(writer: EstimatorWriter) -> list[Value]:
        means = forest_sum(writer, forest)
        return [sliced(writer, means, 1, n * most, n * most + c) for n, c in enumerate(counts)]

    def choose(writer: EstimatorWriter) -> Value:
        found = [writer.at("predict").one(ArgMax(), part) for part in parts(writer)]
        return joined(writer, [reshaped(writer, each, (writer.batch, 1)) for each in found], 1)

    def means(writer: EstimatorWriter) -> Value:
        return joined(writer, parts(writer), 1)

    return {
        "predict": choose,
        "predict_proba": means,
        "predict_log_proba": lambda writer: writer.at("log").pointwise("log", means(writer)),
    }


def _scores(writer: EstimatorWriter, forest: ReadForest, scale: float = 1.0) -> Value:
    """Sums that are not averaged: LightGBM's raw scores, also for its random forests."""
    sums = forest_sum(writer, replace(forest, scale=scale))
    return reshaped(writer, sums, (writer.batch,)) if forest.outputs == 1 else sums


def _raw_scores(forest: ReadForest) -> dict[str, Write]:
    """LightGBM's methods for an objective of the user's own: each returns raw scores."""
    names = ("predict", "predict_proba", "decision_function")
    return dict.fromkeys(names, lambda writer: _scores(writer, forest))


def has_several_labels(estimator: Any) -> bool:
    """Whether an XGBClassifier predicts several labels, each 0 or 1."""
    if type(estimator).__name__ not in ("XGBClassifier", "XGBRFClassifier"):
        return False
    model = learner_of(estimator)["learner_model_param"]
    return int(model.get("num_target", 1)) > 1


def labels_of(estimator: Any) -> tuple[Array | None, type[Any]]:
    """The classes that `predict` returns, by place, and its dtype for several labels.

    The 0 and 1 of several labels are int64 in scikit-learn and float64 in XGBoost. Several outputs
    have no common classes.
    """
    classes = getattr(estimator, "classes_", None)
    if isinstance(classes, list):
        return None, np.int64
    if classes is not None and getattr(estimator, "objective", "") == _SOFTMAX:
        classes = classes.astype(np.int32)
    return classes, np.float64 if has_several_labels(estimator) else np.int64


def _classifier(estimator: Any, forest: ReadForest) -> dict[str, Write]:
    """Methods of a classifier of boosted trees, whose sums are scores of classes.

    There is a score for each class, or one for the second of two.
    """
    each_label = has_several_labels(estimator)
    # XGBoost compares its "probability" with 0.5, even where that is a raw score.
    second_from = 0.5 if getattr(estimator, "objective", "") == "binary:logitraw" else 0.0
    if type(estimator).__name__ == "GradientBoostingClassifier":
        # The first class wins a tie: a bound just below 0 gives a score of 0 to the second class.
        second_from = float(np.nextafter(np.float32(0), np.float32(-1)))
    is_column = type(estimator).__name__ == "CatBoostClassifier" and forest.outputs > 1
    if type(estimator).__name__ == "CatBoostClassifier" and forest.outputs == 1:
        second_from = catboost_bound(estimator)

    def choose(writer: EstimatorWriter) -> Value:
        sums = forest_sum(writer, forest)
        writer.at("predict")
        if each_label:
            return writer.pointwise("greater", sums, second_from)
        if forest.outputs == 1:
            sums = joined(writer, [np.full((writer.batch, 1), second_from), sums], 1)
        found = writer.one(ArgMax(), sums)
        return reshaped(writer, found, (writer.batch, 1)) if is_column else found

    def probabilities(writer: EstimatorWriter) -> Value:
        sums = forest_sum(writer, forest)
        found = _post_process(writer, sums, _link(estimator, forest), forest.alpha)
        if forest.outputs > 1:
            return found
        other = writer.pointwise("add", writer.pointwise("neg", found), 1.0)
        return joined(writer, [other, found], 1)

    def logarithms(writer: EstimatorWriter) -> Value:
        return _log_probabilities(writer, estimator, forest)

    methods: dict[str, Write] = {"predict": choose, "predict_proba": probabilities}
    if hasattr(estimator, "decision_function"):
        methods["decision_function"] = lambda writer: _scores(writer, forest)
    if hasattr(estimator, "predict_log_proba"):
        methods["predict_log_proba"] = logarithms
    return methods


def _log_probabilities(writer: EstimatorWriter, estimator: Any, forest: ReadForest) -> Value:
    """Logarithms that stay precise for small probabilities; log sigmoid of -z and z for two."""
    sums = forest_sum(writer, forest)
    writer.at("log")
    if _link(estimator, forest) == "multiclass_ova" and forest.alpha == 1.0:
        return log_sigmoid(writer, sums)
    if forest.outputs > 1:
        return writer.one(log_softmax(sums.shape), sums)
    if _link(estimator, forest) == "sigmoid of twice":
        sums = writer.pointwise("mul", sums, 2.0)
    return log_sigmoid(writer, joined(writer, [writer.pointwise("neg", sums), sums], 1))


def _link(estimator: Any, forest: ReadForest) -> str:
    """The name of the function from scores to probabilities."""
    is_exponential = getattr(estimator, "loss", "") == "exponential"
    return "sigmoid of twice" if is_exponential else forest.postprocessor


def _predict(writer: EstimatorWriter, estimator: Any, forest: ReadForest, flat: bool) -> Value:
    sums = forest_sum(writer, forest)
    link = forest.postprocessor
    if getattr(estimator, "loss", "") in ("poisson", "gamma"):
        link = "exponential"
    if _is_booster_of_classes(estimator):
        link = "max_index"
    found = _post_process(writer, sums, link, forest.alpha)
    return reshaped(writer, found, (writer.batch,)) if flat else found


def _post_process(writer: EstimatorWriter, sums: Value, link: str, alpha: float) -> Value:
    """Apply a function of treelite's page "Post-processor functions", or "sigmoid of twice"."""
    writer.at(link)
    if link in ("sigmoid", "multiclass_ova", "sigmoid of twice"):
        factor = 2.0 if link == "sigmoid of twice" else alpha
        scaled = sums if factor == 1.0 else writer.pointwise("mul", sums, factor)
        return writer.pointwise("sigmoid", scaled)
    if link == "softmax":
        return writer.one(softmax(sums.shape), sums)
    if link == "exponential":
        return writer.pointwise("exp", sums)
    if link == "logarithm_one_plus_exp":
        return softplus(writer, sums, threshold=np.inf)
    if link == "signed_square":
        return writer.pointwise("mul", writer.pointwise("abs", sums), sums)
    if link == "hinge":
        return writer.floats(writer.pointwise("greater", sums, 0.0))
    if link == "max_index":
        return writer.floats(writer.one(ArgMax(), sums))
    if link in ("identity", "identity_multiclass"):
        return sums
    raise InvalidInput(f"the forest ends in {link!r}, which has no graph; use another loss")


def _is_booster_of_classes(estimator: Any) -> bool:
    """Whether the estimator is a Booster of XGBoost that predicts numbers of classes.

    It is one with the objective `multi:softmax`; others predict probabilities or values.
    """
    library, kind = type(estimator).__module__.split(".")[0], type(estimator).__name__
    if (library, kind) != ("xgboost", "Booster"):
        return False
    return bool(learner_of(estimator)["objective"]["name"] == _SOFTMAX)


_DEEP = 1e6  # in mean depths of trees; no sample is this deep
_HALVINGS = 200
_SLACK = 1e-11  # relative difference of sums of depths by the order of their terms


def read_isolation(estimator: Any) -> ReadForest:
    """Read the trees; features are numbered as in X, leaves are depths and their remainders."""
    trees = [each.tree_ for each in estimator.estimators_]
    thresholds, nodes, roots, outer = own_trees(trees, estimator.estimators_features_)
    depths = [
        (lengths + average - 1.0)[which]
        for lengths, average, which in zip(
            estimator._decision_path_lengths,
            estimator._average_path_length_per_tree,
            outer,
            strict=True,
        )
    ]
    depth = np.concatenate(depths)
    rounded = depth.astype(np.float32)
    operands = (
        thresholds,
        nodes,
        np.column_stack([rounded, depth - rounded]).astype(np.float32),
        np.stack([roots, np.zeros_like(roots)], axis=1),
        np.zeros(2, np.float32),
    )
    features_in = int(estimator.n_features_in_)
    return ReadForest(features_in, True, np.nan, operands, 1.0, "identity", 1.0)


def isolation_methods(estimator: Any, forest: ReadForest) -> dict[str, Write]:
    """Functions that write each method of an isolation forest, by name."""
    unit = _unit(estimator)
    thresholds, nodes, leaves, trees, _ = forest.operands
    least = _least_depth(estimator, unit) if unit else 0.0
    near = float(np.float32(least))
    always = 0.0 if unit else float(_is_in(estimator, 1.0)) - 0.5
    base = np.array([always - near, near - least], np.float32)
    compared = replace(forest, operands=(thresholds, nodes, leaves, trees, base), scale=_one(unit))
    mean = (thresholds, nodes, leaves, trees, np.array([_one(not unit), 0.0], np.float32))
    depth = replace(forest, operands=mean, scale=1 / unit if unit else 0.0)

    def score(writer: EstimatorWriter, offset: float) -> Value:
        sums = forest_sum(writer, depth, Element.FLOAT64)
        f = double_formula(writer, "score")
        power = f("neg", f("exp", f("mul", f("row_sum", sums), -math.log(2))))
        found = f.finish(f("sub", power, offset) if offset else power, shape=sums.shape)
        return flat(writer, found)

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


def _one(is_one: object) -> float:
    return 1.0 if is_one else 0.0


def _unit(estimator: Any) -> float:
    """The sum of a sample's depths in all trees that gives score 1/2; 0 for trees of one sample."""
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
