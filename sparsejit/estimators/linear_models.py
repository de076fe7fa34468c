"""Linear models and perceptrons of scikit-learn: scores of columns, and methods of the scores.

    columns -> hidden layers of a perceptron -> scores -> result of the method

`predict` of a classifier returns places in `classes_`, since labels may have any type; for several
labels it returns a bool for each. Parameters are rounded to float32.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.estimators.writer import (
    MOST_DOUBLES,
    WIDE,
    EstimatorWriter,
    Write,
    row_shares,
)
from sparsejit.frontends.arrays import check_held
from sparsejit.frontends.writing.arranging import reshaped
from sparsejit.frontends.writing.pointwise import log_sigmoid
from sparsejit.ir.ops.row_chains import log_softmax, softmax
from sparsejit.ir.ops.selection import ArgMax
from sparsejit.ir.spec import Activation
from sparsejit.ir.values import Value

_Floats = npt.NDArray[np.float64]

# predict is X coef_.T + intercept_, or its exp for regressors whose link is the logarithm.
_REGRESSORS = frozenset(
    """
    ARDRegression BayesianRidge ElasticNet ElasticNetCV HuberRegressor Lars LarsCV Lasso LassoCV
    LassoLars LassoLarsCV LassoLarsIC LinearRegression LinearSVR MultiTaskElasticNet
    MultiTaskElasticNetCV MultiTaskLasso MultiTaskLassoCV OrthogonalMatchingPursuit
    OrthogonalMatchingPursuitCV PassiveAggressiveRegressor QuantileRegressor Ridge RidgeCV
    SGDRegressor TheilSenRegressor
    """.split()
)
_LINK_REGRESSORS = frozenset({"GammaRegressor", "PoissonRegressor", "TweedieRegressor"})
# decision_function is X coef_.T + intercept_.
_CLASSIFIERS = frozenset(
    """
    LinearDiscriminantAnalysis LinearSVC LogisticRegression LogisticRegressionCV
    PassiveAggressiveClassifier Perceptron RidgeClassifier RidgeClassifierCV SGDClassifier
    """.split()
)
PERCEPTRONS = frozenset({"MLPClassifier", "MLPRegressor"})
LINEAR = _REGRESSORS | _LINK_REGRESSORS | _CLASSIFIERS | PERCEPTRONS

_ACTIVATIONS = {
    "identity": Activation.NONE,
    "logistic": Activation.SIGMOID,
    "relu": Activation.RELU,
    "tanh": Activation.TANH,
}
_PROBABILITIES = ("predict_proba", "predict_log_proba")


@dataclass(frozen=True)
class _Scores:
    """The last product, which gives scores: weights (rows, in) and bias (rows,).

    A perceptron's hidden layers come before it. `dtype` is the dtype of the library's weights.
    """

    weights: _Floats
    bias: _Floats
    hidden: tuple[tuple[_Floats, _Floats], ...] = ()
    activation: Activation = Activation.NONE
    dtype: Any = np.float64

    def write(self, writer: EstimatorWriter) -> Value:
        if not self.hidden:
            return writer.scores(self.weights, self.bias, "scores")
        x = writer.columns()
        for number, (weights, bias) in enumerate(self.hidden):
            x = writer.linear(x, weights, bias, f"layer{number}", self.activation)
        return writer.linear(x, self.weights, self.bias, "scores")

    @property
    def is_wide(self) -> bool:
        """Whether the library computes scores in float64, and a graph can do so too."""
        return not self.hidden and self.dtype == np.float64 and self.weights.size <= MOST_DOUBLES

    def against(self, row: int) -> "_Scores":
        """Scores of two classes, from the scores of one: a row for the other class comes first.

        That row is the only row times `row`, 0 or -1.
        """
        weights = np.concatenate([row * self.weights, self.weights])
        bias = np.concatenate([row * self.bias, self.bias])
        return replace(self, weights=weights, bias=bias)


def linear_methods(estimator: Any) -> dict[str, Write]:
    """Functions that write each method of an estimator from the current columns, by name."""
    kind = type(estimator).__name__
    scores = _perceptron(estimator) if kind in PERCEPTRONS else _linear_model(estimator)
    if not hasattr(estimator, "classes_"):
        return {"predict": lambda writer: _regress(writer, estimator, scores)}
    methods: dict[str, Write] = {"predict": lambda writer: _choose(writer, estimator, scores)}
    if scores.is_wide:
        methods[WIDE] = lambda writer: writer.product(scores.weights, scores.bias, "scores")
    if hasattr(estimator, "decision_function"):
        methods["decision_function"] = lambda writer: _flat(writer, scores.write(writer))
    for name, logarithm in zip(_PROBABILITIES, (False, True), strict=True):
        if hasattr(estimator, name):
            methods[name] = _probabilities(estimator, scores, logarithm)
    return methods


def _linear_model(estimator: Any) -> _Scores:
    coefficients = estimator.coef_
    if hasattr(coefficients, "toarray"):  # after sparsify()
        coefficients = coefficients.toarray()
    weights = np.atleast_2d(np.asarray(coefficients, np.float64))
    bias = np.broadcast_to(np.asarray(estimator.intercept_, np.float64), len(weights))
    check_held(estimator, "its coefficients", np.append(weights, bias))
    if _has_log_link(estimator):
        with np.errstate(over="ignore"):
            check_held(estimator, "its results", np.exp(bias))
    return _Scores(weights, bias, dtype=estimator.coef_.dtype)


def _perceptron(estimator: Any) -> _Scores:
    layers = [
        (np.asarray(w.T, np.float64), np.asarray(b, np.float64))
        for w, b in zip(estimator.coefs_, estimator.intercepts_, strict=True)
    ]
    for layer in layers:
        check_held(estimator, "its coefficients", np.concatenate([each.ravel() for each in layer]))
    return _Scores(*layers[-1], tuple(layers[:-1]), _ACTIVATIONS[estimator.activation])


def _regress(writer: EstimatorWriter, estimator: Any, scores: _Scores) -> Value:
    result = scores.write(writer)
    is_perceptron = type(estimator).__name__ in PERCEPTRONS
    if _has_log_link(estimator) or (is_perceptron and estimator.out_activation_ == "exp"):
        result = writer.at("exp").pointwise("exp", result)
    one_axis = len(scores.weights) == 1 if is_perceptron else np.ndim(estimator.coef_) == 1
    return _flat(writer, result) if one_axis else result


def _has_log_link(estimator: Any) -> bool:
    """Whether a generalised linear model predicts the exp of its scores."""
    if type(estimator).__name__ not in _LINK_REGRESSORS:
        return False
    return type(estimator._base_loss.link).__name__ == "LogLink"


def _flat(writer: EstimatorWriter, scores: Value) -> Value:
    """The scores as (batch,) if there is one for each sample."""
    return scores if scores.shape[1] > 1 else reshaped(writer, scores, (writer.batch,))


def _has_labels(estimator: Any) -> bool:
    """Whether a sample may have any number of the labels."""
    binarizer = getattr(estimator, "_label_binarizer", None)
    return binarizer is not None and binarizer.y_type_.startswith("multilabel")


def _choose(writer: EstimatorWriter, estimator: Any, scores: _Scores) -> Value:
    """The place of the class with the largest score, the first of equals; bools for labels.

    Of two classes it is the second only if its score is above 0.
    """
    if _has_labels(estimator):
        found = scores.write(writer)
        return writer.at("predict").pointwise("greater", found, 0.0)
    found = (scores.against(0) if len(scores.weights) == 1 else scores).write(writer)
    return writer.at("predict").one(ArgMax(), found)


def _probabilities(estimator: Any, scores: _Scores, logarithm: bool) -> Write:
    """The function that writes predict_proba, or a logarithm that keeps small probabilities."""
    link, has_labels = _link(estimator), _has_labels(estimator)
    binary = len(scores.weights) == 1 and not has_labels
    both = scores.against(-1) if binary else scores

    def write(writer: EstimatorWriter) -> Value:
        found = both.write(writer)
        writer.at(link)
        if link == "modified_huber":
            found = _clipped(writer, found, not binary)
            return writer.pointwise("log", found) if logarithm else found
        if link == "logistic" and (binary or has_labels):
            return log_sigmoid(writer, found) if logarithm else writer.pointwise("sigmoid", found)
        if link == "logistic":  # p / sum(p) = softmax(log p), also where each p is tiny
            found = log_sigmoid(writer, found)
        return writer.one((log_softmax if logarithm else softmax)(found.shape), found)

    return write


def _link(estimator: Any) -> str:
    """The function from scores to probabilities: "softmax", "logistic" or "modified_huber"."""
    kind = type(estimator).__name__
    if kind == "SGDClassifier":
        return "logistic" if estimator.loss == "log_loss" else "modified_huber"
    if kind in PERCEPTRONS:
        return str(estimator.out_activation_)
    # Before scikit-learn 1.8 logistic regression had an option for either (its _logistic.py).
    asked = getattr(estimator, "multi_class", "auto")
    if asked in ("auto", "deprecated"):
        each_alone = len(estimator.classes_) == 2 or getattr(estimator, "solver", "") == "liblinear"
    else:
        each_alone = asked == "ovr"
    return "logistic" if each_alone else "softmax"


def _clipped(writer: EstimatorWriter, scores: Value, normalised: bool) -> Value:
    """(clip(z, -1, 1) + 1) / 2; `normalised` divides by each row's sum, zeros become uniform."""
    f = writer.formula("modified_huber")
    p = f("mul", f("add", f("minimum", f("maximum", scores, -1.0), 1.0), 1.0), 0.5)
    if normalised:
        p = row_shares(f, p, scores.shape[1])
    return f.finish(p, shape=scores.shape)
