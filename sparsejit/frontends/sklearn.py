"""Fitted estimators of scikit-learn as graphs, one for each method that predicts.

    scalers of a pipeline -> hidden layers of a perceptron -> scores -> what the method makes of it

`predict` of a classifier gives places in its `classes_`, since labels may be anything; of one with
several labels it gives a bool for each. Parameters are rounded to float32.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.frontends.column_steps import COLUMN_STEPS, each_step
from sparsejit.frontends.estimator_inputs import EstimatorInput, Refusals
from sparsejit.frontends.estimator_writer import EstimatorWriter, Write
from sparsejit.frontends.forest_pipelines import BEFORE_FORESTS, behind
from sparsejit.frontends.forest_reading import read_forest
from sparsejit.frontends.forests import FORESTS, features_of, forest_methods, is_forest
from sparsejit.frontends.writing.activations import log_sigmoid
from sparsejit.frontends.writing.arranging import reshaped
from sparsejit.ir.graph import Element, Graph, TensorType, Value
from sparsejit.ir.ops.row_chains import log_softmax, softmax
from sparsejit.ir.ops.selection import ArgMax
from sparsejit.ir.spec import Activation

_Floats = npt.NDArray[np.float64]

# predict is X coef_.T + intercept_, through exp for those whose link is the logarithm.
_REGRESSORS = frozenset(
    """
    ARDRegression BayesianRidge ElasticNet ElasticNetCV HuberRegressor Lars LarsCV Lasso LassoCV
    LassoLars LassoLarsCV LassoLarsIC LinearRegression LinearSVR MultiTaskElasticNet
    MultiTaskElasticNetCV MultiTaskLasso MultiTaskLassoCV OrthogonalMatchingPursuit
    OrthogonalMatchingPursuitCV PassiveAggressiveRegressor QuantileRegressor Ridge RidgeCV
    SGDRegressor TheilSenRegressor
    """.split()
)
_LOG_LINK_REGRESSORS = frozenset({"GammaRegressor", "PoissonRegressor"})
# decision_function is X coef_.T + intercept_.
_CLASSIFIERS = frozenset(
    """
    LinearDiscriminantAnalysis LinearSVC LogisticRegression LogisticRegressionCV
    PassiveAggressiveClassifier Perceptron RidgeClassifier RidgeClassifierCV SGDClassifier
    """.split()
)
_PERCEPTRONS = frozenset({"MLPClassifier", "MLPRegressor"})
_SCALERS = frozenset({"MaxAbsScaler", "MinMaxScaler", "RobustScaler", "StandardScaler"})
_KNOWN = _REGRESSORS | _LOG_LINK_REGRESSORS | _CLASSIFIERS | _PERCEPTRONS | _SCALERS

_ACTIVATIONS = {
    "identity": Activation.NONE,
    "logistic": Activation.SIGMOID,
    "relu": Activation.RELU,
    "tanh": Activation.TANH,
}
_PROBABILITIES = ("predict_proba", "predict_log_proba")


@dataclass(frozen=True, eq=False)
class ReadEstimator:
    """What there is to know of a fitted estimator: it may be fitted anew without changing this.

    `input` says what X is. The others write its methods for X of either element, from X on.
    """

    input: EstimatorInput
    writes: Mapping[Element, Mapping[str, Write]]

    def graphs(self, batch: int, element: Element) -> dict[str, Graph]:
        """A graph for each method that predicts, or transforms, by its name.

        The input X (batch, n_features_in_) is of that element, float32 or, if `input` reads it,
        float64. Outputs have the shapes of the method's, as float32, but `predict` of a classifier:
        int64 places in `classes_` (batch,), or bool (batch, labels) for several labels.
        """
        graphs = {}
        for method, write in self.writes[element].items():
            writer = EstimatorWriter(TensorType((batch, self.input.features), element))
            graphs[method] = writer.finish(write(writer))
        return graphs


def read_estimator(estimator: Any) -> ReadEstimator:
    """Raises InvalidInput for an estimator that is not fitted, or that has no graph."""
    *before, last = steps = _steps(estimator)
    features = features_of(steps[0])
    # Sums of large numbers that cancel need float64; those of a perceptron do not cancel so.
    reads_float64 = bool(before) or type(last).__name__ not in _PERCEPTRONS
    if is_forest(last):
        forest = read_forest(last)
        reads_float64 = bool(before) or not forest.rounds_x
    rules = EstimatorInput(
        type(estimator).__name__,
        type(last).__module__.split(".")[0],
        features,
        _names_of(estimator),
        reads_float64,
        Refusals.of(steps, features),
    )
    elements = (Element.FLOAT32, *([Element.FLOAT64] if reads_float64 else []))
    writes: dict[Element, Mapping[str, Write]] = {}
    for element in elements:
        if is_forest(last):
            x = TensorType((1, features), element)
            writes[element] = forest_methods(last, behind(before, x, forest))
        else:
            writes[element] = _behind(before, _methods(last))
    return ReadEstimator(rules, writes)


def graph_of_estimator(
    estimator: Any, batch: int, element: Element = Element.FLOAT32
) -> dict[str, Graph]:
    """The graphs of an estimator's methods, as `ReadEstimator` has them."""
    return read_estimator(estimator).graphs(batch, element)


def _behind(steps: Sequence[Any], methods: Mapping[str, Write]) -> dict[str, Write]:
    """Methods of the last estimator, with what stands before it."""

    def behind_all(write: Write) -> Write:
        def whole(writer: EstimatorWriter) -> Value:
            for step in steps:
                writer.transform(step)
            return write(writer)

        return whole

    return {name: behind_all(write) for name, write in methods.items()}


def _names_of(estimator: Any) -> tuple[Any, ...] | None:
    """The names of columns that the estimator was fitted on; LightGBM has made up some for none."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None or [*names] == [f"Column_{n}" for n in range(len(names))]:
        return None
    return tuple(names)


def _steps(estimator: Any) -> list[Any]:
    """The estimators of a pipeline, in order; of another estimator itself."""
    kind = type(estimator).__name__
    known = type(estimator).__module__.split(".")[0] == "sklearn"
    if known and kind == "Pipeline":
        stages = [stage for _, stage in estimator.steps if stage not in (None, "passthrough")]
        steps = [step for stage in stages for step in _steps(stage)]
        if not steps:
            raise InvalidInput("the Pipeline has no steps; add a scaler or an estimator")
        fitting = (BEFORE_FORESTS if is_forest(steps[-1]) else _SCALERS) | COLUMN_STEPS
        _check_before(steps[:-1], fitting)
        return steps
    others = _KNOWN | BEFORE_FORESTS | COLUMN_STEPS
    if not is_forest(estimator) and (not known or kind not in others):
        raise _no_graph(estimator)
    features_of(estimator)
    return [estimator]


def _check_before(steps: list[Any], fitting: frozenset[str]) -> None:
    """Raise InvalidInput for steps, also inside of others, that are none of `fitting`."""
    before = [type(step).__name__ for step in each_step(steps)]
    odd = [kind for kind in before if kind not in fitting]
    if odd:
        raise InvalidInput(
            f"{', '.join(odd)} cannot stand before the last step; there "
            f"{', '.join(sorted(fitting))} can: transform X with the others first"
        )


def _no_graph(estimator: Any) -> InvalidInput:
    library, kind = type(estimator).__module__.split(".")[0], type(estimator).__name__
    others = FORESTS.get(library) or FORESTS["sklearn"]
    known = others if library in FORESTS and library != "sklearn" else _KNOWN | others
    return InvalidInput(
        f"{type(estimator).__module__}.{kind} has no graph; leave it to its own predict, or "
        f"use one of {', '.join(sorted(known))}, alone or in a Pipeline"
    )


@dataclass(frozen=True)
class _Scores:
    """The last product: weights (rows, in) and bias (rows,), behind hidden layers."""

    weights: _Floats
    bias: _Floats
    hidden: tuple[tuple[_Floats, _Floats], ...] = ()
    activation: Activation = Activation.NONE

    def write(self, writer: EstimatorWriter) -> Value:
        if not self.hidden:
            return writer.scores(self.weights, self.bias, "scores")
        x = writer.columns()
        for number, (weights, bias) in enumerate(self.hidden):
            x = writer.linear(x, weights, bias, f"layer{number}", self.activation)
        return writer.linear(x, self.weights, self.bias, "scores")

    def against(self, row: int) -> "_Scores":
        """With a first row for the other class: `row` times the only one, 0 or -1."""
        weights = np.concatenate([row * self.weights, self.weights])
        bias = np.concatenate([row * self.bias, self.bias])
        return replace(self, weights=weights, bias=bias)


def _methods(estimator: Any) -> dict[str, Write]:
    """What writes each method of the last estimator behind the scalers."""
    kind = type(estimator).__name__
    if kind not in _KNOWN | COLUMN_STEPS:
        raise _no_graph(estimator)
    if kind in _SCALERS | COLUMN_STEPS:
        _check_before([estimator], _SCALERS | COLUMN_STEPS)
        return {"transform": lambda writer: _transform(writer, estimator)}
    scores = _perceptron(estimator) if kind in _PERCEPTRONS else _linear_model(estimator)
    if not hasattr(estimator, "classes_"):
        return {"predict": lambda writer: _regress(writer, estimator, scores)}
    methods: dict[str, Write] = {"predict": lambda writer: _choose(writer, estimator, scores)}
    if hasattr(estimator, "decision_function"):
        methods["decision_function"] = lambda writer: _flat(writer, scores.write(writer))
    for name, logarithm in zip(_PROBABILITIES, (False, True), strict=True):
        if hasattr(estimator, name):
            methods[name] = _probabilities(estimator, scores, logarithm)
    return methods


def _transform(writer: EstimatorWriter, step: Any) -> Value:
    writer.transform(step)
    return writer.columns()


def _linear_model(estimator: Any) -> _Scores:
    coefficients = estimator.coef_
    if hasattr(coefficients, "toarray"):  # after sparsify()
        coefficients = coefficients.toarray()
    weights = np.atleast_2d(np.asarray(coefficients, np.float64))
    bias = np.broadcast_to(np.asarray(estimator.intercept_, np.float64), len(weights))
    return _Scores(weights, bias)


def _perceptron(estimator: Any) -> _Scores:
    layers = [
        (np.asarray(w.T, np.float64), np.asarray(b, np.float64))
        for w, b in zip(estimator.coefs_, estimator.intercepts_, strict=True)
    ]
    return _Scores(*layers[-1], tuple(layers[:-1]), _ACTIVATIONS[estimator.activation])


def _regress(writer: EstimatorWriter, estimator: Any, scores: _Scores) -> Value:
    result = scores.write(writer)
    is_perceptron = type(estimator).__name__ in _PERCEPTRONS
    has_log_link = type(estimator).__name__ in _LOG_LINK_REGRESSORS
    if has_log_link or (is_perceptron and estimator.out_activation_ == "exp"):
        result = writer.at("exp").pointwise("exp", result)
    one_axis = len(scores.weights) == 1 if is_perceptron else np.ndim(estimator.coef_) == 1
    return _flat(writer, result) if one_axis else result


def _flat(writer: EstimatorWriter, scores: Value) -> Value:
    """(batch,) where there is one score a sample."""
    return scores if scores.shape[1] > 1 else reshaped(writer, scores, (writer.batch,))


def _has_labels(estimator: Any) -> bool:
    """Whether classes are labels, of which an example may have any number."""
    binarizer = getattr(estimator, "_label_binarizer", None)
    return binarizer is not None and binarizer.y_type_.startswith("multilabel")


def _choose(writer: EstimatorWriter, estimator: Any, scores: _Scores) -> Value:
    """The first of the largest; of two classes the second only if its score is above 0."""
    if _has_labels(estimator):
        found = scores.write(writer)
        return writer.at("predict").pointwise("greater", found, 0.0)
    found = (scores.against(0) if len(scores.weights) == 1 else scores).write(writer)
    return writer.at("predict").one(ArgMax(), found)


def _probabilities(estimator: Any, scores: _Scores, logarithm: bool) -> Write:
    """Writes predict_proba, or its logarithm in a form that keeps small probabilities."""
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
    """How scores become probabilities: "softmax", "logistic" or "modified_huber"."""
    kind = type(estimator).__name__
    if kind == "SGDClassifier":
        return "logistic" if estimator.loss == "log_loss" else "modified_huber"
    if kind in _PERCEPTRONS:
        return str(estimator.out_activation_)
    # Before scikit-learn 1.8 logistic regression could be asked for either (its _logistic.py).
    asked = getattr(estimator, "multi_class", "auto")
    if asked in ("auto", "deprecated"):
        each_alone = len(estimator.classes_) == 2 or getattr(estimator, "solver", "") == "liblinear"
    else:
        each_alone = asked == "ovr"
    return "logistic" if each_alone else "softmax"


def _clipped(writer: EstimatorWriter, scores: Value, normalised: bool) -> Value:
    """(clip(z, -1, 1) + 1) / 2, by the sum of each row if asked; a row of zeros is uniform."""
    f = writer.formula("modified_huber")
    p = f("mul", f("add", f("minimum", f("maximum", scores, -1.0), 1.0), 1.0), 0.5)
    if normalised:
        total = f("row_sum", p)
        is_zero = f("equal", total, 0.0)
        shares = f("where", is_zero, 1.0, p)
        p = f("div", shares, f("where", is_zero, float(scores.shape[1]), total))
    return f.finish(p, shape=scores.shape)
