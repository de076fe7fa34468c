"""What the methods of estimators made of trees compute from the sums of leaves."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.frontends.estimator_writer import EstimatorWriter, log_sigmoid, sigmoid
from sparsejit.frontends.forest_reading import ReadForest
from sparsejit.ir.graph import Array, Element, Origin
from sparsejit.ir.ops.casts import Cast
from sparsejit.ir.ops.forest import Forest
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.ops.row_chains import log_softmax, softmax
from sparsejit.ir.ops.selection import ArgMax
from sparsejit.ir.ops.views import Concat, Reshape

Write = Callable[[EstimatorWriter], None]

_SOFTMAX = "multi:softmax"  # whose predictions are classes

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
FORESTS = {"sklearn": _AVERAGES | _BOOSTED, "xgboost": _XGBOOST, "lightgbm": _LIGHTGBM}
LIBRARIES = frozenset(FORESTS)


def is_forest(estimator: Any) -> bool:
    """Whether an estimator or booster is made of trees, of a kind that is read here."""
    library = type(estimator).__module__.split(".")[0]
    return type(estimator).__name__ in FORESTS.get(library, ())


def features_of(estimator: Any) -> int:
    """How many features X has. Raises InvalidInput for an estimator that is not fitted."""
    for name in ("num_features", "num_feature"):  # boosters of XGBoost and LightGBM
        if type(estimator).__name__ == "Booster" and hasattr(estimator, name):
            return int(getattr(estimator, name)())
    try:
        return int(estimator.n_features_in_)
    except AttributeError as error:
        raise InvalidInput(
            f"the {type(estimator).__name__} is not fitted; call its fit(X, y) first"
        ) from error


def forest_methods(estimator: Any, forest: ReadForest) -> dict[str, Write]:
    """What writes each method of an estimator, or `predict` of a booster, from its forest of X.

    Raises InvalidInput for what has no graph.
    """
    if np.ndim(getattr(estimator, "n_classes_", 1)):
        raise InvalidInput(
            f"the {type(estimator).__name__} has {len(estimator.n_classes_)} outputs of classes; "
            "fit one estimator for each"
        )
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


def _sum(writer: EstimatorWriter, forest: ReadForest) -> None:
    """The sums of leaves, (batch, outputs)."""
    if not np.isnan(forest.missing):
        numbers = writer.value
        writer.pointwise("equal", forest.missing, name="missing")
        nothing = writer.builder.constant(np.array([np.nan]), Origin("missing"))
        writer.apply(Pointwise("where"), nothing, numbers, name="missing")
    x = writer.value.type.element
    constants = [
        writer.builder.constant(
            array, Origin(f"forest.{name}"), x if name == "thresholds" else Element.FLOAT32
        )
        for name, array in zip(
            ("thresholds", "nodes", "leaves", "trees", "base"), forest.operands, strict=True
        )
    ]
    writer.apply(Forest(forest.scale, x), *constants, name="forest")


def _averages(forest: ReadForest) -> dict[str, Write]:
    """Means of what the leaves hold of each class."""

    def probabilities(writer: EstimatorWriter) -> None:
        _sum(writer, forest)

    def logarithms(writer: EstimatorWriter) -> None:
        _sum(writer, forest)
        writer.pointwise("log", name="log")

    def choose(writer: EstimatorWriter) -> None:
        _sum(writer, forest)
        writer.apply(ArgMax(), name="predict")

    return {"predict": choose, "predict_proba": probabilities, "predict_log_proba": logarithms}


def _scores(writer: EstimatorWriter, forest: ReadForest) -> None:
    """Sums that are not averaged: what LightGBM calls raw, of random forests too."""
    _sum(writer, replace(forest, scale=1.0))
    if forest.outputs == 1:
        writer.apply(Reshape((writer.batch,)), name="decision_function")


def _raw_scores(forest: ReadForest) -> dict[str, Write]:
    """What LightGBM returns for an objective of the user's own, whatever is asked."""
    names = ("predict", "predict_proba", "decision_function")
    return dict.fromkeys(names, lambda writer: _scores(writer, forest))


def has_several_labels(estimator: Any) -> bool:
    """Whether an XGBClassifier says of each label whether it is there."""
    if type(estimator).__name__ not in ("XGBClassifier", "XGBRFClassifier"):
        return False
    model = _learner(estimator.get_booster())["learner_model_param"]
    return int(model.get("num_target", 1)) > 1


def labels_of(estimator: Any) -> tuple[Array | None, type[Any]]:
    """What `predict` makes of places in `classes_`, and the dtype that it has for several labels.

    scikit-learn says 0 and 1 for several labels as int64, XGBoost as float64.
    """
    classes = getattr(estimator, "classes_", None)
    if classes is not None and getattr(estimator, "objective", "") == _SOFTMAX:
        classes = classes.astype(np.int32)
    return classes, np.float64 if has_several_labels(estimator) else np.int64


def _learner(booster: Any) -> dict[str, Any]:
    """What XGBoost says of a booster."""
    return dict(json.loads(booster.save_config())["learner"])


def _classifier(estimator: Any, forest: ReadForest) -> dict[str, Write]:
    """Of boosted trees: a score for each class, or one for the second of two."""
    each_label = has_several_labels(estimator)
    # XGBoost compares what it calls a probability with a half, also where it is a raw score.
    second_from = 0.5 if getattr(estimator, "objective", "") == "binary:logitraw" else 0.0

    def choose(writer: EstimatorWriter) -> None:
        _sum(writer, forest)
        if each_label:
            writer.pointwise("greater", second_from, name="predict")
            return
        if forest.outputs == 1:
            # The first of equals wins: with a score just below 0, zero is for the second class.
            zero_is_second = type(estimator).__name__ == "GradientBoostingClassifier"
            below = np.nextafter(np.float32(0), np.float32(-1)) if zero_is_second else second_from
            _beside(writer, float(below))
        writer.apply(ArgMax(), name="predict")

    def probabilities(writer: EstimatorWriter) -> None:
        _sum(writer, forest)
        _post_process(writer, _link(estimator, forest), forest.alpha)
        if forest.outputs == 1:
            _with_complement(writer)

    def logarithms(writer: EstimatorWriter) -> None:
        _log_probabilities(writer, estimator, forest)

    methods: dict[str, Write] = {"predict": choose, "predict_proba": probabilities}
    if hasattr(estimator, "decision_function"):
        methods["decision_function"] = lambda writer: _scores(writer, forest)
    if hasattr(estimator, "predict_log_proba"):
        methods["predict_log_proba"] = logarithms
    return methods


def _log_probabilities(writer: EstimatorWriter, estimator: Any, forest: ReadForest) -> None:
    """In a form that keeps small probabilities; for two classes log sigmoid of -z and z."""
    _sum(writer, forest)
    if forest.outputs > 1:
        writer.apply(log_softmax((writer.batch, forest.outputs)), name="softmax")
        return
    if _link(estimator, forest) == "sigmoid of twice":
        writer.pointwise("mul", 2.0, name="loss")
    score = writer.value
    writer.pointwise("neg", name="other")
    other, writer.value = writer.value, score
    _join(writer, other)
    log_sigmoid(writer)


def _link(estimator: Any, forest: ReadForest) -> str:
    """How scores become probabilities."""
    is_exponential = getattr(estimator, "loss", "") == "exponential"
    return "sigmoid of twice" if is_exponential else forest.postprocessor


def _predict(writer: EstimatorWriter, estimator: Any, forest: ReadForest, flat: bool) -> None:
    _sum(writer, forest)
    link = forest.postprocessor
    if getattr(estimator, "loss", "") in ("poisson", "gamma"):
        link = "exponential"
    if _is_booster_of_classes(estimator):
        link = "max_index"
    _post_process(writer, link, forest.alpha)
    if flat and link != "max_index":
        writer.apply(Reshape((writer.batch,)), name="predict")


def _post_process(writer: EstimatorWriter, link: str, alpha: float) -> None:
    """What treelite calls so (its page "Post-processor functions"), and one more."""
    if link in ("sigmoid", "multiclass_ova", "sigmoid of twice"):
        factor = 2.0 if link == "sigmoid of twice" else alpha
        if factor != 1.0:
            writer.pointwise("mul", factor, name="alpha")
        sigmoid(writer)
    elif link == "softmax":
        writer.apply(softmax(writer.value.shape), name="softmax")
    elif link == "exponential":
        writer.pointwise("exp", name="exp")
    elif link == "logarithm_one_plus_exp":  # -log sigmoid(-z)
        writer.pointwise("neg", name=link)
        log_sigmoid(writer)
        writer.pointwise("neg", name=link)
    elif link == "signed_square":
        value = writer.value
        writer.pointwise("abs", name=link)
        writer.apply(Pointwise("mul"), value, name=link)
    elif link == "hinge":
        writer.pointwise("greater", 0.0, name=link)
        writer.apply(Cast(Element.FLOAT32), name=link)
    elif link == "max_index":
        writer.apply(ArgMax(), name=link)
        writer.apply(Cast(Element.FLOAT32), name=link)
    elif link not in ("identity", "identity_multiclass"):
        raise InvalidInput(f"the forest ends in {link!r}, which has no graph; use another loss")


def _is_booster_of_classes(estimator: Any) -> bool:
    """Whether it is a Booster of XGBoost that predicts classes."""
    library, kind = type(estimator).__module__.split(".")[0], type(estimator).__name__
    if (library, kind) != ("xgboost", "Booster"):
        return False
    return bool(_learner(estimator)["objective"]["name"] == _SOFTMAX)


def _beside(writer: EstimatorWriter, number: float) -> None:
    """A column of a number before the value's."""
    column = np.full((writer.batch, 1), number, np.float32)
    _join(writer, writer.builder.constant(column, Origin("other")))


def _with_complement(writer: EstimatorWriter) -> None:
    """1 - p before p."""
    value = writer.value
    writer.pointwise("neg", name="other")
    writer.pointwise("add", 1.0, name="other")
    other, writer.value = writer.value, value
    _join(writer, other)


def _join(writer: EstimatorWriter, first: Any) -> None:
    """[first, value] along the last axis."""
    writer.value = writer.builder.one(Concat(1), first, writer.value, origin=Origin("both"))
