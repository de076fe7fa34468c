"""Ensembles of estimators: votes, means, stacks and calibrated probabilities.

    calibrated         probabilities from scores z, as in scikit-learn's `calibration.py`
    ENSEMBLE_METHODS   the functions that give the methods of an ensemble, by its class

Calibration:

    sigmoid       1 / (1 + exp(a z + b)), for each class
    isotonic      linear between points, constant beyond them, for each class
    temperature   softmax(beta z), of (-z, z) for two classes

For more than two classes, sigmoid and isotonic results are divided by their sum.

Labels are places in `classes_` throughout: the inner estimators were fitted to places.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.parts import (
    CALIBRATED,
    STACKS,
    VOTES,
    Stack,
    held,
    parts_of_ensemble,
)
from sparsejit.estimators.writer import WIDE, EstimatorWriter, Write, row_shares
from sparsejit.frontends.writing.arranging import joined, reshaped, sliced
from sparsejit.ir.ops.columns import ScaledColumns
from sparsejit.ir.ops.row_chains import softmax
from sparsejit.ir.ops.selection import ArgMax
from sparsejit.ir.values import Array, Element, Value

_ROUNDING = 2.0**-23  # error of scores in float32, relative to the largest score
_CLOSE = 5e-7  # largest error of a probability that this may cause


def calibrated(pair: Any, methods: Mapping[str, Write]) -> Write:
    """Return the function that writes a calibrated classifier's probabilities (batch, classes).

    Raises InvalidInput where rounding the scores would change the probabilities.
    """
    classes, own = list(pair.classes), list(held(pair.estimator).classes_)
    names = ("decision_function", "predict_proba")
    name = next(name for name in names if hasattr(pair.estimator, name))
    if name not in methods:
        raise InvalidInput(
            f"the {name} of a {type(pair.estimator).__name__} has no graph; calibrate another"
        )
    is_wide = WIDE in methods
    if not is_wide:
        _check_slopes(pair)
    is_second = not is_wide and name == "predict_proba" and len(own) == 2

    def scores(writer: EstimatorWriter) -> Value:
        found = methods[WIDE if is_wide else name](writer)
        if len(found.shape) == 1:
            return reshaped(writer, found, (writer.batch, 1))
        return sliced(writer, found, 1, 1, 2) if is_second else found

    if pair.method == "temperature":
        if name != "decision_function":
            raise InvalidInput(
                f"a {type(pair.estimator).__name__} has no decision_function, and the logarithms "
                "of its probabilities lose digits; calibrate it with method='sigmoid'"
            )
        return _temperature(scores, float(pair.calibrators[0].beta_))
    if len(own) != len(classes):
        raise InvalidInput(
            f"the {type(pair.estimator).__name__} has {len(own)} of {len(classes)} classes; fit "
            "it to all classes"
        )
    make = _sigmoids if pair.method == "sigmoid" else lines

    def probabilities(writer: EstimatorWriter) -> Value:
        found = make(writer, pair.calibrators, scores(writer))
        if len(classes) == 2:
            other = writer.pointwise("add", writer.pointwise("neg", found), 1.0)
            return joined(writer, [other, found], 1)
        f = writer.at("shares").formula("shares")
        return f.finish(row_shares(f, found, len(classes)), shape=found.shape)

    return probabilities


def _product(writer: EstimatorWriter, x: Value, weights: Array, bias: Array) -> Value:
    """x weights^T + bias in float64, rounded to float32: steep functions amplify the last bit."""
    return writer.product_of(x, weights, bias, "calibration", Element.FLOAT32)


def _sigmoids(writer: EstimatorWriter, calibrators: Sequence[Any], scores: Value) -> Value:
    a, b = (np.array([float(getattr(c, name)) for c in calibrators]) for name in ("a_", "b_"))
    power = _product(writer.at("sigmoid"), scores, np.diag(a), b)
    f = writer.formula("sigmoid")
    return f.finish(f("reciprocal", f("add", f("exp", power), 1.0)))


def lines(writer: EstimatorWriter, calibrators: Sequence[Any], scores: Value) -> Value:
    """Isotonic curves in float64: the first y of a class, and the change of each line up to x."""
    sources, numbers, owners, first = [], [], [], []
    for number, calibrator in enumerate(calibrators):
        x, y = _points(calibrator)
        slope = np.diff(y) / np.diff(x)
        zeros = np.zeros(len(slope))
        low, high = np.minimum(np.diff(y), 0), np.maximum(np.diff(y), 0)
        numbers.append(np.stack([x[:-1], slope, zeros, low, high, zeros]))
        sources.append(np.full(len(slope), number))
        owners.append(np.full(len(slope), number))
        first.append(y[0])
    writer.at("lines")
    owner = np.concatenate(owners)
    constants = (
        writer.constant(np.concatenate(sources), "lines"),
        writer.constant(np.concatenate(numbers, axis=1), "lines.numbers", Element.FLOAT64),
    )
    added = writer.one(ScaledColumns(scores.type.element, Element.FLOAT64), scores, *constants)
    weights = (owner[None] == np.arange(len(calibrators))[:, None]).astype(np.float64)
    return _product(writer, added, weights, np.array(first))


def _points(calibrator: Any) -> tuple[Array, Array]:
    """x and y of the points of a curve, at least two."""
    x = np.asarray(calibrator.X_thresholds_, np.float64)
    y = np.asarray(calibrator.y_thresholds_, np.float64)
    if len(x) < 2:
        x, y = np.array([x[0], x[0] + 1]), np.array([y[0], y[0]])
    return x, y


def _check_slopes(pair: Any) -> None:
    """Raise InvalidInput where rounding scores to float32 moves probabilities by over `_CLOSE`."""
    for calibrator in pair.calibrators:
        if pair.method == "isotonic":
            x, y = _points(calibrator)
            steepest = np.abs(x).max() * (np.diff(y) / np.diff(x)).max()
        else:  # a sigmoid is at most a quarter of its factor steep; scores are around 1
            factor = calibrator.a_ if pair.method == "sigmoid" else calibrator.beta_
            steepest = abs(float(factor)) / 4
        apart = _ROUNDING * steepest
        if apart > _CLOSE:
            raise InvalidInput(
                f"{pair.method} curves of the {type(pair.estimator).__name__} are so steep that "
                f"scores in float32 change probabilities by {apart:.0e}; calibrate a linear model "
                "or a random forest"
            )


def _temperature(scores: Write, beta: float) -> Write:
    def write(writer: EstimatorWriter) -> Value:
        found = scores(writer)
        count = found.shape[1]
        # Subtract the mean: softmax ignores it, and it would only round the rest.
        weights = np.eye(count) - 1 / count if count > 1 else np.array([[-1.0], [1.0]])
        scaled = _product(writer.at("temperature"), found, beta * weights, np.zeros(len(weights)))
        return writer.one(softmax(scaled.shape), scaled)

    return write


# Returns the methods of an estimator behind the steps before it, each from X on.
MethodsOf = Callable[[Any, Sequence[Any]], Mapping[str, Write]]
_TOGETHER = 6  # terms of a chain, which reads few arrays
_MOST_WEIGHTED = 12  # estimators for which all combinations of votes are tried


def as_columns(write: Write) -> Write:
    """A function that writes a method's result as float32 (batch, columns)."""

    def columns(writer: EstimatorWriter) -> Value:
        found = writer.floats(write(writer))
        return reshaped(writer, found, (writer.batch, 1)) if len(found.shape) == 1 else found

    return columns


def second_column(write: Write) -> Write:
    """A function that writes the probability of the second of two classes, (batch, 1)."""
    return lambda writer: sliced(writer, write(writer), 1, 1, 2)


def method_of(methods: Mapping[str, Write], name: str, estimator: Any) -> Write:
    """The function of that name. Raises InvalidInput where a part has none."""
    if name not in methods:
        raise InvalidInput(
            f"the {name} of a {type(estimator).__name__} has no graph; it has {', '.join(methods)}"
        )
    return methods[name]


def check_places(estimator: Any, part: Any, count: int) -> None:
    """Raise InvalidInput for a part whose labels are not places of that many classes."""
    own = np.asarray(part.classes_)
    if own.dtype.kind not in "biu" or not np.array_equal(own, np.arange(count)):
        raise InvalidInput(
            f"the {type(part).__name__} in the {type(estimator).__name__} was fitted to other "
            "labels; let the ensemble fit it"
        )


def _stacked(estimator: Any, before: Sequence[Any], methods_of: MethodsOf) -> dict[str, Write]:
    writes = []
    for part, name in zip(parts_of_ensemble(estimator), estimator.stack_method_, strict=True):
        write = method_of(methods_of(part, before), name, part)
        is_binary = name == "predict_proba" and len(estimator.classes_) == 2
        if name == "predict" and hasattr(part, "classes_"):
            check_places(estimator, part, len(estimator.classes_))
        writes.append(second_column(write) if is_binary else as_columns(write))
    stack = Stack(estimator, tuple(before), tuple(writes))

    def transform(writer: EstimatorWriter) -> Value:
        writer.begin([stack])
        return writer.columns()

    return {**methods_of(estimator.final_estimator_, [stack]), "transform": transform}


def _voted(estimator: Any, before: Sequence[Any], methods_of: MethodsOf) -> dict[str, Write]:
    parts = [methods_of(part, before) for part in estimator.estimators_]
    weights = _weights(estimator)
    if not hasattr(estimator, "classes_"):
        writes = [method_of(methods, "predict", estimator) for methods in parts]
        return {
            "predict": lambda writer: reshaped(
                writer, _mean(writer, writes, weights), (writer.batch,)
            ),
            "transform": _side_by_side(writes),
        }
    for part in parts_of_ensemble(estimator):
        check_places(estimator, part, len(estimator.classes_))
    if estimator.voting == "hard":
        _check_votes(weights)
        writes = [method_of(methods, "predict", estimator) for methods in parts]
        count = len(estimator.classes_)
        return {"predict": lambda writer: _hard_vote(writer, writes, weights, count)}
    writes = [method_of(methods, "predict_proba", estimator) for methods in parts]
    methods: dict[str, Write] = {
        "predict": lambda writer: writer.at("predict").one(
            ArgMax(), weighted_sum(writer, writes, weights)
        ),
        "predict_proba": lambda writer: _mean(writer, writes, weights),
    }
    if estimator.flatten_transform:
        methods["transform"] = _side_by_side(writes)
    return methods


def _side_by_side(writes: Sequence[Write]) -> Write:
    return lambda writer: joined(writer, [as_columns(write)(writer) for write in writes], 1)


def _weights(estimator: Any) -> list[float]:
    """The weight of each fitted part; dropped parts have none."""
    found = estimator._weights_not_none
    return [1.0] * len(estimator.estimators_) if found is None else [float(w) for w in found]


def weighted_sum(
    writer: EstimatorWriter, writes: Sequence[Write], weights: Sequence[float]
) -> Value:
    """The weighted sum of the parts' results, (batch, columns)."""
    values = [as_columns(write)(writer) for write in writes]
    return _added(writer, values, weights)


def _added(writer: EstimatorWriter, values: Sequence[Value], weights: Sequence[float]) -> Value:
    """Add values times weights one after another, some in each chain."""
    total: Any = None
    for first in range(0, len(values), _TOGETHER):
        f = writer.at("votes").formula("votes")
        part = slice(first, first + _TOGETHER)
        for value, weight in zip(values[part], weights[part], strict=True):
            term = value if weight == 1 else f("mul", value, weight)
            total = term if total is None else f("add", total, term)
        total = total if isinstance(total, Value) else f.finish(total)
    assert isinstance(total, Value)
    return total


def _mean(writer: EstimatorWriter, writes: Sequence[Write], weights: Sequence[float]) -> Value:
    total = weighted_sum(writer, writes, weights)
    return writer.pointwise("mul", total, 1 / sum(weights))


def _hard_vote(
    writer: EstimatorWriter, writes: Sequence[Write], weights: Sequence[float], count: int
) -> Value:
    """The place of the class with the most votes, the first among equals.

    `writes` write each part's class; `weights` are the parts' votes, `count` the number of classes.
    """
    places = [as_columns(write)(writer) for write in writes]
    classes = writer.constant(np.arange(count, dtype=np.float32)[None], "classes")
    writer.at("votes")
    votes = [writer.floats(writer.pointwise("equal", place, classes)) for place in places]
    return writer.at("predict").one(ArgMax(), _added(writer, votes, weights))


def _check_votes(weights: Sequence[float]) -> None:
    """Raise InvalidInput where sums in float32 could elect another class than sums in float64."""
    if all(w == int(w) and abs(w) < 1 << 16 for w in weights):
        return
    if len(weights) <= _MOST_WEIGHTED:
        chosen = np.array(list(product((0, 1), repeat=len(weights))), bool)
        wide, narrow = (_sums(chosen, np.array(weights, kind)) for kind in ("f8", "f4"))
        order = np.argsort(wide, kind="stable")
        steps = zip(pairwise(wide[order]), pairwise(narrow[order]), strict=True)
        if all((a < b) == (c < d) for (a, b), (c, d) in steps):
            return
    raise InvalidInput(
        f"votes have weights {list(weights)}, whose sums have another order in float32; "
        "give whole numbers"
    )


def _sums(chosen: Array, weights: Array) -> Array:
    """Sums of the weights that each row of `chosen`, bool (rows, parts), has.

    They are added one after another, in the dtype of the weights.
    """
    total = np.zeros(len(chosen), weights.dtype)
    for column, weight in zip(chosen.T, weights, strict=True):
        total = total + np.where(column, weight, weights.dtype.type(0))
    return total


def _calibrated(estimator: Any, before: Sequence[Any], methods_of: MethodsOf) -> dict[str, Write]:
    parts = [
        calibrated(each, methods_of(each.estimator, before))
        for each in estimator.calibrated_classifiers_
    ]

    def total(writer: EstimatorWriter) -> Value:
        return weighted_sum(writer, parts, [1.0] * len(parts))

    def mean(writer: EstimatorWriter) -> Value:
        return writer.pointwise("mul", total(writer), 1 / len(parts))

    return {
        "predict": lambda writer: writer.at("predict").one(ArgMax(), total(writer)),
        "predict_proba": mean,
    }


ENSEMBLE_METHODS: Mapping[str, Callable[[Any, Sequence[Any], MethodsOf], dict[str, Write]]] = {
    **dict.fromkeys(STACKS, _stacked),
    **dict.fromkeys(CALIBRATED, _calibrated),
    **dict.fromkeys(VOTES, _voted),
}
