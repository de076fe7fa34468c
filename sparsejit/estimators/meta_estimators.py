"""Estimators that fit others to parts of a task, and combine their predictions.

    bags          a mean over estimators that saw samples and columns of the fit
    adaptive      AdaBoost: weighted votes of classifiers, a weighted median of regressors
    one label     one against the rest, one against one, output codes
    outputs       an estimator for each column of y, apart or each behind those before
    target        a regressor of a function of y
    threshold     a binary classifier whose second class begins at a score

The table `_METHODS` names a function for each class. Where all parts are single trees, bags and
adaptive estimators are read as one forest (`forest_bags.py`), and `bag_methods` ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.ensembles import (
    ENSEMBLE_METHODS,
    MethodsOf,
    as_columns,
    check_places,
    method_of,
    second_column,
    weighted_sum,
)
from sparsejit.estimators.parts import EMBEDDINGS, Link, is_constant, steps_and_parts
from sparsejit.estimators.target_functions import inverse_of
from sparsejit.estimators.writer import EstimatorWriter, Write
from sparsejit.frontends.writing.arranging import joined, reshaped
from sparsejit.ir.ops.columns import ScaledColumns
from sparsejit.ir.ops.row_chains import log_softmax, softmax
from sparsejit.ir.ops.selection import ArgMax
from sparsejit.ir.values import Array, Element, Value

# The methods of each part of an ensemble, from X on.
_Parts = Sequence[Mapping[str, Write]]
_HALF_UNIT = 2.0**-13  # of the sum of all weights: sums of such units are exact in float32


def meta_methods(
    estimator: Any, before: Sequence[Any], methods_of: MethodsOf
) -> Mapping[str, Write]:
    """Return the functions that write each method of an estimator that is made of others.

    Raises InvalidInput where results would differ from the library's.
    """
    kind = type(estimator).__name__
    write = ENSEMBLE_METHODS.get(kind) or _METHODS[kind]
    found = write(estimator, before, methods_of)
    return {name: write for name, write in found.items() if hasattr(estimator, name)}


def _parts(estimator: Any, before: Sequence[Any], methods_of: MethodsOf) -> _Parts:
    """The methods of all parts; methods of a constant part return its number."""
    return [
        _constant(part) if is_constant(part) else methods_of(part, [*before, *own])
        for own, part in steps_and_parts(estimator)
    ]


def _constant(part: Any) -> dict[str, Write]:
    """The methods of a label that all samples of the fit have, or none."""
    label = float(part.y_[0])

    def of(*numbers: float) -> Write:
        row = np.array([numbers], np.float32)
        return lambda writer: writer.at("constant").value(np.tile(row, (writer.batch, 1)))

    return {
        "predict": of(label),
        "decision_function": of(label),
        "predict_proba": of(1 - label, label),
    }


def _flat(writer: EstimatorWriter, found: Value) -> Value:
    return reshaped(writer, found, (writer.batch,))


def _places(writer: EstimatorWriter, scores: Value) -> Value:
    """The place of the largest score of each row."""
    return writer.at("predict").one(ArgMax(), scores)


def _above(write: Write, bound: float) -> Write:
    """A function that writes 1 where a score is above a bound, else 0, (batch,) int64."""

    def places(writer: EstimatorWriter) -> Value:
        is_above = writer.at("predict").pointwise("greater", _flat(writer, write(writer)), bound)
        return writer.pointwise("where", is_above, 1, 0)

    return places


def _chosen(write: Write) -> Write:
    return lambda writer: _places(writer, write(writer))


def _logarithm(write: Write) -> Write:
    return lambda writer: writer.at("log").pointwise("log", write(writer))


# Bags.


def _bagged(estimator: Any, before: Sequence[Any], methods_of: MethodsOf) -> dict[str, Write]:
    parts, count = _parts(estimator, before, methods_of), len(estimator.estimators_)

    def mean(writes: Sequence[Write], flat: bool) -> Write:
        def write(writer: EstimatorWriter) -> Value:
            total = weighted_sum(writer, writes, [1.0] * count)
            found = writer.pointwise("mul", total, 1 / count)
            return _flat(writer, found) if flat and found.shape[1] == 1 else found

        return write

    if not hasattr(estimator, "classes_"):
        flat = np.ndim(estimator.estimators_[0].predict(np.zeros((1, _width(estimator))))) == 1
        return {"predict": mean([method_of(each, "predict", estimator) for each in parts], flat)}
    classes = len(estimator.classes_)
    owned = [
        (methods, np.asarray(part.classes_))
        for methods, part in zip(parts, estimator.estimators_, strict=True)
    ]
    for _, own in owned:
        if own.dtype.kind not in "biu" or own.max() >= classes or own.min() < 0:
            raise InvalidInput(
                f"a part of the {type(estimator).__name__} was fitted to the labels {own}; let "
                "the ensemble fit it"
            )
    chances = [_chances(methods, own, classes, estimator) for methods, own in owned]
    share = mean(chances, False)
    methods = {"predict": _chosen(share), "predict_proba": share}
    if not hasattr(estimator.estimator_, "predict_log_proba"):
        methods["predict_log_proba"] = _logarithm(share)
    elif all(len(own) == classes for _, own in owned):
        logs = [method_of(each, "predict_log_proba", estimator) for each in parts]
        methods["predict_log_proba"] = lambda writer: _log_mean(writer, logs)
    else:
        methods["predict_log_proba"] = _logarithm(share)
    if hasattr(estimator, "decision_function"):
        scores = [method_of(each, "decision_function", estimator) for each in parts]
        methods["decision_function"] = mean(scores, True)
    return methods


def _width(estimator: Any) -> int:
    return len(estimator.estimators_features_[0])


def _chances(methods: Mapping[str, Write], own: Array, classes: int, estimator: Any) -> Write:
    """A function that writes a part's probabilities of all classes; a vote if it has none."""
    mapping = (own[None] == np.arange(classes)[:, None]).astype(np.float64)
    if "predict_proba" in methods:
        if len(own) == classes:
            return methods["predict_proba"]
        return lambda writer: writer.linear(
            methods["predict_proba"](writer), mapping, np.zeros(classes), "classes"
        )
    places = method_of(methods, "predict", estimator)

    def vote(writer: EstimatorWriter) -> Value:
        place = reshaped(writer, writer.floats(places(writer)), (writer.batch, 1))
        wanted = mapping @ np.arange(len(own)) + np.where(mapping.any(axis=1), 0, -1)
        return writer.floats(writer.at("votes").pointwise("equal", place, wanted[None]))

    return vote


def _log_mean(writer: EstimatorWriter, writes: Sequence[Write]) -> Value:
    """log(mean(exp(l))) of logarithms l, also where each exp(l) is tiny; -inf where all are."""
    logs = [write(writer) for write in writes]
    columns = [reshaped(writer, each, (*each.shape, 1)) for each in logs]
    rows = joined(writer, columns, 2)
    f = writer.at("log").formula("log mean")
    largest = f("maximum", f("row_max", rows), float(np.finfo(np.float32).min))
    total = f("row_sum", f("exp", f("sub", rows, largest)))
    found = f("add", largest, f("log", f("mul", total, 1 / len(logs))))
    return reshaped(writer, f.finish(found, shape=rows.shape), logs[0].shape)


# Adaptive estimators.


def adaptive_methods(estimator: Any, decide: Write) -> dict[str, Write]:
    """The methods of an AdaBoostClassifier, from its decision: a score, or one for each class."""
    classes = len(estimator.classes_)
    if classes == 2:
        both = partial(_both_signs, decide)
        return {
            "predict": _above(decide, 0.0),
            "decision_function": lambda writer: _flat(writer, decide(writer)),
            "predict_proba": lambda writer: writer.one(softmax((writer.batch, 2)), both(writer)),
            "predict_log_proba": lambda writer: writer.one(
                log_softmax((writer.batch, 2)), both(writer)
            ),
        }

    def divided(writer: EstimatorWriter) -> Value:
        return writer.at("shares").pointwise("mul", decide(writer), 1 / (classes - 1))

    return {
        "predict": _chosen(decide),
        "decision_function": decide,
        "predict_proba": lambda writer: writer.one(
            softmax((writer.batch, classes)), divided(writer)
        ),
        "predict_log_proba": lambda writer: writer.one(
            log_softmax((writer.batch, classes)), divided(writer)
        ),
    }


def _both_signs(decide: Write, writer: EstimatorWriter) -> Value:
    half = writer.pointwise("mul", reshaped(writer, decide(writer), (writer.batch, 1)), 0.5)
    return joined(writer, [writer.pointwise("neg", half), half], 1)


def votes_for(weight: float, classes: int) -> Array:
    """The vote of an AdaBoostClassifier's part for each class, (classes, classes or 1).

    Of two classes one number stands for both.
    """
    if classes == 2:
        return np.array([[-2.0], [2.0]]) * weight
    return np.where(np.eye(classes, dtype=bool), weight, -weight / (classes - 1))


def _adaptive(estimator: Any, before: Sequence[Any], methods_of: MethodsOf) -> dict[str, Write]:
    parts = _parts(estimator, before, methods_of)
    writes = [method_of(each, "predict", estimator) for each in parts]
    weights = np.asarray(estimator.estimator_weights_, np.float64)[: len(writes)]
    if not hasattr(estimator, "classes_"):
        return {"predict": lambda writer: weighted_median(writer, _beside(writer, writes), weights)}
    for part in estimator.estimators_:
        if not np.array_equal(part.classes_, estimator.classes_):
            raise InvalidInput(
                f"a part of the {type(estimator).__name__} was fitted to the labels "
                f"{part.classes_}; let the ensemble fit it"
            )
    classes, total = len(estimator.classes_), float(estimator.estimator_weights_.sum())
    votes = np.array([votes_for(weight / total, classes) for weight in weights])

    def decide(writer: EstimatorWriter) -> Value:
        """The sum of votes: a product with a column for each part and class."""
        places = _beside(writer, writes)
        chosen = [
            writer.floats(writer.at("votes").pointwise("equal", places, float(place)))
            for place in range(classes)
        ]
        table = np.concatenate([votes[:, place] for place in range(classes)]).T
        return writer.linear(joined(writer, chosen, 1), table, np.zeros(len(table)), "votes")

    return adaptive_methods(estimator, decide)


def _beside(writer: EstimatorWriter, writes: Sequence[Write]) -> Value:
    """Results of one number a row side by side, float32 (batch, results)."""
    return joined(writer, [as_columns(write)(writer) for write in writes], 1)


def weighted_median(writer: EstimatorWriter, values: Value, weights: Array) -> Value:
    """The least value whose weight, with the weights of lesser ones, is half of all: (batch,).

    Values are (batch, n). Weights are split into units whose sums are exact, and remainders. Equal
    weights are counted, since the library's rounding says how many make a half.
    """
    count = len(weights)
    if np.all(weights == weights[0]):
        sums = np.cumsum(weights)
        half, weights = 1.0 + int((sums >= 0.5 * sums[-1]).argmax()), np.ones(count)
    else:
        half = 0.5 * float(weights.sum())
    unit = float(weights.sum()) * _HALF_UNIT / 256 if half != round(half) else 1.0
    wholes = np.round(weights / unit)
    rest = (weights - wholes * unit) / unit
    f = writer.at("median").formula("median")
    own = reshaped(writer, values, (writer.batch, count, 1))
    others = reshaped(writer, values, (writer.batch, 1, count))
    is_less = f("less_equal", others, own)
    shape = (1, 1, count)
    whole, part = (
        f(
            "row_sum",
            f("where", is_less, writer.constant(each.reshape(shape), "weights"), 0.0),
        )
        for each in (wholes, rest)
    )
    near = float(np.floor(half / unit))
    over = f("add", f("sub", whole, near), f("sub", part, half / unit - near))
    reached = f.finish(f("greater_equal", over, 0.0), shape=(writer.batch, count, count))
    f = writer.at("median").formula("median")
    allowed = reshaped(writer, reached, (writer.batch, count))
    least = f.finish(f("row_min", f("where", allowed, values, float("inf"))), shape=values.shape)
    return _flat(writer, least)


def bag_methods(estimator: Any, sums: Write) -> dict[str, Write]:
    """The methods of an estimator of single trees, from the sums of its forest."""
    if type(estimator).__name__ in EMBEDDINGS:
        return {
            "transform": lambda writer: _one_of_each(writer, estimator, sums(writer)),
            "apply": lambda writer: writer.at("leaves").cast(sums(writer), Element.INT64),
        }
    if type(estimator).__name__ == "AdaBoostClassifier":
        return adaptive_methods(estimator, sums)
    if type(estimator).__name__ == "AdaBoostRegressor":
        weights = np.asarray(estimator.estimator_weights_, np.float64)
        weights = weights[: len(estimator.estimators_)]
        return {"predict": lambda writer: weighted_median(writer, sums(writer), weights)}
    if hasattr(estimator, "classes_"):
        log = _logarithm(sums)
        return {"predict": _chosen(sums), "predict_proba": sums, "predict_log_proba": log}
    return {"predict": lambda writer: _flat_or_columns(writer, sums(writer))}


def _one_of_each(writer: EstimatorWriter, estimator: Any, leaves: Value) -> Value:
    """1 for the leaf of each tree that a row reaches, 0 for its others."""
    numbers = [np.asarray(each, np.float64) for each in estimator.one_hot_encoder_.categories_]
    source = np.repeat(np.arange(len(numbers)), [len(each) for each in numbers])
    category = np.concatenate(numbers)
    ones = np.ones(len(category))
    rows = (category, ones, 0 * ones, -np.inf * ones, np.inf * ones, ones)
    constants = (
        writer.constant(source, "leaves"),
        writer.constant(np.stack(rows), "leaves.numbers", Element.FLOAT64),
    )
    return writer.at("transform").one(ScaledColumns(), leaves, *constants)


def _flat_or_columns(writer: EstimatorWriter, found: Value) -> Value:
    return _flat(writer, found) if found.shape[1] == 1 else found


# One label against others.


def _binary_score(part: Any, methods: Mapping[str, Write], estimator: Any) -> Write:
    """A function that writes the score of a part's second class, (batch, 1)."""
    from sklearn.base import is_regressor

    if is_regressor(part):
        return as_columns(method_of(methods, "predict", estimator))
    if hasattr(part, "decision_function"):
        return as_columns(method_of(methods, "decision_function", estimator))
    return second_column(method_of(methods, "predict_proba", estimator))


def _bound(part: Any) -> float:
    """The score above which a part means its second class."""
    from sklearn.base import is_classifier

    return 0.0 if hasattr(part, "decision_function") and is_classifier(part) else 0.5


def _scores(estimator: Any, parts: _Parts) -> Write:
    """A function that writes the scores of all parts, (batch, parts)."""
    writes = [
        _binary_score(part, methods, estimator)
        for part, methods in zip(estimator.estimators_, parts, strict=True)
    ]
    return lambda writer: _beside(writer, writes)


def _one_against_rest(
    estimator: Any, before: Sequence[Any], methods_of: MethodsOf
) -> dict[str, Write]:
    binarizer = estimator.label_binarizer_
    if binarizer.sparse_input_:
        raise InvalidInput(
            "the OneVsRestClassifier was fitted to sparse labels, and predicts such; fit it to "
            "y.toarray()"
        )
    parts = _parts(estimator, before, methods_of)
    score, several = _scores(estimator, parts), len(estimator.estimators_) > 1
    bound = _bound(estimator.estimators_[0])
    choose = _chosen(score) if several else _above(score, bound)
    if estimator.multilabel_:
        choose = partial(_flags, score, bound)
    methods = {"predict": choose}
    if hasattr(estimator, "decision_function"):
        methods["decision_function"] = score if several else lambda w: _flat(w, score(w))
    if hasattr(estimator, "predict_proba"):
        seconds = [second_column(method_of(each, "predict_proba", estimator)) for each in parts]
        chances: Write = partial(_beside, writes=seconds)
        if not several:
            chances = partial(_with_other, chances)
        methods["predict_proba"] = chances if estimator.multilabel_ else partial(_shares, chances)
    return methods


def _flags(write: Write, bound: float, writer: EstimatorWriter) -> Value:
    return writer.at("predict").pointwise("greater", write(writer), bound)


def _with_other(write: Write, writer: EstimatorWriter) -> Value:
    found = write(writer)
    return joined(writer, [writer.pointwise("add", writer.pointwise("neg", found), 1.0), found], 1)


def _shares(write: Write, writer: EstimatorWriter) -> Value:
    """Rows divided by their sums; rows of zeros stay zeros."""
    found = write(writer)
    f = writer.at("shares").formula("shares")
    total = f("row_sum", found)
    return f.finish(f("div", found, f("where", f("equal", total, 0.0), 1.0, total)))


def _one_against_one(
    estimator: Any, before: Sequence[Any], methods_of: MethodsOf
) -> dict[str, Write]:
    if estimator.pairwise_indices_ is not None:
        raise InvalidInput(
            "the parts of the OneVsOneClassifier read a kernel between samples, and no features; "
            "fit them to features"
        )
    parts, classes = _parts(estimator, before, methods_of), len(estimator.classes_)
    score = _scores(estimator, parts)
    choices = [method_of(each, "predict", estimator) for each in parts]
    for part in estimator.estimators_:
        if hasattr(part, "classes_"):
            check_places(estimator, part, 2)
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    signs = np.zeros((classes, len(pairs)))
    for number, (i, j) in enumerate(pairs):
        signs[i, number], signs[j, number] = -1, 1
    # A vote of 1 is for the second class, of 0 for the first; other numbers are for none.
    votes = np.concatenate([signs < 0, signs > 0], axis=1).astype(np.float64)

    def decide(writer: EstimatorWriter) -> Value:
        sums = writer.linear(score(writer), signs, np.zeros(classes), "confidences")
        places = _beside(writer, choices)
        chosen = [writer.floats(writer.pointwise("equal", places, each)) for each in (0.0, 1.0)]
        won = writer.linear(joined(writer, chosen, 1), votes, np.zeros(classes), "votes")
        f = writer.at("votes").formula("votes")
        size = f("mul", f("add", f("abs", sums), 1.0), 3.0)
        return f.finish(f("add", won, f("div", sums, size)))

    if classes > 2:
        return {"predict": _chosen(decide), "decision_function": decide}
    second = second_column(decide)
    return {
        "predict": _above(second, _bound(estimator.estimators_[0])),
        "decision_function": lambda writer: _flat(writer, second(writer)),
    }


def _output_code(estimator: Any, before: Sequence[Any], methods_of: MethodsOf) -> dict[str, Write]:
    """The class whose code is nearest: the largest y c - |c|^2 / 2, the first of equal codes."""
    score = _scores(estimator, _parts(estimator, before, methods_of))
    codes = np.asarray(estimator.code_book_, np.float64)
    bias = -0.5 * (codes**2).sum(axis=1)
    _, first = np.unique(codes, axis=0, return_index=True)
    again = np.setdiff1d(np.arange(len(codes)), first)
    bias[again] = np.finfo(np.float32).min

    def nearest(writer: EstimatorWriter) -> Value:
        return writer.linear(score(writer), codes, bias, "codes")

    return {"predict": _chosen(nearest)}


# Several outputs.


def _multiple_outputs(
    estimator: Any, before: Sequence[Any], methods_of: MethodsOf
) -> dict[str, Write]:
    parts = _parts(estimator, before, methods_of)
    methods = {"predict": _joined(parts, "predict", estimator)}
    if hasattr(estimator, "predict_proba") and all("predict_proba" in each for each in parts):
        methods["predict_proba"] = _joined(parts, "predict_proba", estimator)
    return methods


def _joined(parts: _Parts, name: str, estimator: Any) -> Write:
    """A function that writes a method of all parts side by side, (batch, columns)."""
    writes = [method_of(each, name, estimator) for each in parts]

    def write(writer: EstimatorWriter) -> Value:
        found = [write(writer) for write in writes]
        columns = [reshaped(writer, each, (writer.batch, -1)) for each in found]
        return joined(writer, columns, 1)

    return write


def _chained(estimator: Any, before: Sequence[Any], methods_of: MethodsOf) -> dict[str, Write]:
    """The methods of a chain, each part behind the predictions of those before it."""
    how = getattr(estimator, "chain_method_", "predict")
    every = ("predict", "predict_proba", "predict_log_proba", "decision_function")
    names = [name for name in every if hasattr(estimator, name) and _all_have(estimator, name)]
    found: dict[str, list[Write]] = {name: [] for name in names}
    predicted: list[Write] = []
    for own, part in steps_and_parts(estimator):
        (link,) = own
        assert isinstance(link, Link)
        link = replace(link, before=tuple(before), writes=tuple(predicted))
        methods = methods_of(part, [link])
        for name in names:
            found[name].append(_chain_column(estimator, methods, name))
        predicted.append(_once(_numbers(part, _chain_column(estimator, methods, how), how)))
    order = [int(place) for place in np.argsort(estimator.order_)]

    def ordered(writes: Sequence[Write]) -> Write:
        def write(writer: EstimatorWriter) -> Value:
            columns = [writes[place](writer) for place in order]
            return joined(writer, [reshaped(writer, c, (writer.batch, 1)) for c in columns], 1)

        return write

    made = {name: ordered(writes) for name, writes in found.items()}
    if "predict_proba" in made and "predict_log_proba" not in made:
        made["predict_log_proba"] = _logarithm(made["predict_proba"])
    return made


def _all_have(estimator: Any, name: str) -> bool:
    """Whether all parts of a chain have a method, and one number a row as its result."""
    parts = estimator.estimators_
    if name == "predict":
        return True
    return all(hasattr(part, name) and len(part.classes_) == 2 for part in parts)


def _chain_column(estimator: Any, methods: Mapping[str, Write], name: str) -> Write:
    """A function that writes a part's result, one number a row: of two classes the second's."""
    write = method_of(methods, name, estimator)
    if name == "predict":
        return write
    return write if name == "decision_function" else second_column(write)


def _numbers(part: Any, write: Write, how: str) -> Write:
    """A function that writes the operand of later parts of a chain: labels as numbers."""
    if how != "predict" or not hasattr(part, "classes_"):
        return as_columns(write)
    labels = np.asarray(part.classes_)
    if labels.dtype.kind not in "biuf":
        raise InvalidInput(f"a chain reads the labels {labels}; fit it to numbers")
    if np.array_equal(labels, np.arange(len(labels))):
        return as_columns(write)
    numbers = labels.astype(np.float64)[None]

    def looked_up(writer: EstimatorWriter) -> Value:
        place, every = as_columns(write)(writer), np.arange(numbers.shape[1])[None]
        chosen = writer.floats(writer.pointwise("equal", place, every.astype(np.float32)))
        return writer.linear(chosen, numbers, np.zeros(1), "labels")

    return looked_up


def _once(write: Write) -> Write:
    """The function, which writes its value once in each graph."""
    return lambda writer: writer.once(write)


# Functions of the target, and thresholds.


def _of_target(estimator: Any, before: Sequence[Any], methods_of: MethodsOf) -> dict[str, Write]:
    (methods,) = _parts(estimator, before, methods_of)
    inverse = inverse_of(estimator.transformer_)

    def predict(writer: EstimatorWriter) -> Value:
        found = as_columns(method_of(methods, "predict", estimator))(writer)
        result = inverse(writer, found)
        flat = estimator._training_dim == 1 and result.shape[1] == 1
        return _flat(writer, result) if flat else result

    return {"predict": predict}


def _threshold(estimator: Any, before: Sequence[Any], methods_of: MethodsOf) -> dict[str, Write]:
    """The inner classifier's methods; `predict` compares its score with the threshold."""
    (methods,) = _parts(estimator, before, methods_of)
    part, classes = estimator.estimator_, list(estimator.classes_)
    for name in ("predict_proba", "decision_function"):
        if estimator.response_method in ("auto", name) and hasattr(part, name):
            break
    else:
        raise InvalidInput(f"the {type(estimator).__name__} has no scores to compare")
    found = getattr(estimator, "best_threshold_", getattr(estimator, "threshold", None))
    if found == "auto":
        found = 0.5 if name == "predict_proba" else 0.0
    label = _positive_label(estimator)
    is_first = label is not None and label == classes[0]
    score = second_column if name == "predict_proba" else as_columns
    write = score(method_of(methods, name, estimator))
    bound = np.float32(found)

    def predict(writer: EstimatorWriter) -> Value:
        scores = write(writer)
        if is_first:
            scores = writer.pointwise("neg", scores)
            if name == "predict_proba":
                scores = writer.pointwise("add", scores, 1.0)
        reached = writer.at("predict").pointwise("greater_equal", scores, float(bound))
        return _flat(writer, writer.pointwise("where", reached, *((0, 1) if is_first else (1, 0))))

    return {**methods, "predict": predict}


def _positive_label(estimator: Any) -> Any:
    """The label whose score is compared; None for the second class."""
    scorer = getattr(estimator, "_curve_scorer", None)
    if scorer is not None:
        return scorer._get_pos_label()
    return getattr(estimator, "pos_label", None)


_METHODS: Mapping[str, Callable[[Any, Sequence[Any], MethodsOf], Mapping[str, Write]]] = {
    **dict.fromkeys(("BaggingClassifier", "BaggingRegressor"), _bagged),
    **dict.fromkeys(("AdaBoostClassifier", "AdaBoostRegressor"), _adaptive),
    "OneVsRestClassifier": _one_against_rest,
    "OneVsOneClassifier": _one_against_one,
    "OutputCodeClassifier": _output_code,
    **dict.fromkeys(("MultiOutputClassifier", "MultiOutputRegressor"), _multiple_outputs),
    **dict.fromkeys(("ClassifierChain", "RegressorChain"), _chained),
    "TransformedTargetRegressor": _of_target,
    **dict.fromkeys(("FixedThresholdClassifier", "TunedThresholdClassifierCV"), _threshold),
}
