"""Calibrated probabilities, computed from scores z as in scikit-learn's `calibration.py`.

    sigmoid       1 / (1 + exp(a z + b)), for each class
    isotonic      linear between points, constant beyond them, for each class
    temperature   softmax(beta z), of (-z, z) for two classes

For more than two classes, sigmoid and isotonic results are divided by their sum.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.frontends.estimator_parts import held
from sparsejit.frontends.estimator_writer import WIDE, EstimatorWriter, Write, row_shares
from sparsejit.frontends.writing.arranging import joined, reshaped, sliced
from sparsejit.ir.ops.columns import DoubleProduct, ScaledColumns
from sparsejit.ir.ops.row_chains import softmax
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
    make = _sigmoids if pair.method == "sigmoid" else _lines

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
    operands = [
        writer.constant(array, f"calibration.{what}", Element.FLOAT64)
        for what, array in (("weights", weights), ("bias", bias))
    ]
    return writer.one(DoubleProduct(x.type.element), x, *operands)


def _sigmoids(writer: EstimatorWriter, calibrators: Sequence[Any], scores: Value) -> Value:
    a, b = (np.array([float(getattr(c, name)) for c in calibrators]) for name in ("a_", "b_"))
    power = _product(writer.at("sigmoid"), scores, np.diag(a), b)
    f = writer.formula("sigmoid")
    return f.finish(f("reciprocal", f("add", f("exp", power), 1.0)))


def _lines(writer: EstimatorWriter, calibrators: Sequence[Any], scores: Value) -> Value:
    """Isotonic curves in float64: the first y of each class, plus the rise of each line up to x."""
    sources, numbers, owners, first = [], [], [], []
    for number, calibrator in enumerate(calibrators):
        x, y = _points(calibrator)
        slope = np.diff(y) / np.diff(x)
        zeros = np.zeros(len(slope))
        numbers.append(np.stack([x[:-1], slope, zeros, zeros, np.diff(y), zeros]))
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
    """x and y of the points of a rising curve, at least two."""
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
