"""Graphs of scikit-learn's estimators say what the estimators say."""

import warnings
from typing import Any

import numpy as np
import pytest

from sparsejit.errors import InvalidInput
from sparsejit.estimators import graphs as frontend
from sparsejit.estimators.graphs import read_estimator
from sparsejit.estimators.parts import MAPPING
from sparsejit.ir.values import Element

sklearn = pytest.importorskip("sklearn")
from sklearn import linear_model, neural_network, preprocessing, svm  # noqa: E402
from sklearn.cluster import DBSCAN  # noqa: E402
from sklearn.datasets import make_classification, make_regression  # noqa: E402
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.utils import all_estimators  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
BATCH, FEATURES = 40, 12
LABELS = np.array(["cherry", "apple", "banana", "date"])
# MinMaxScaler clips what it has not seen.
STRETCH = 1.5
SMALL_LOG = -12.0


def fitted(estimator: Any, X: np.ndarray, y: np.ndarray) -> Any:
    if "random_state" in estimator.get_params():
        estimator.set_params(random_state=0)
    with warnings.catch_warnings():  # few iterations will do: nothing here must be good
        warnings.simplefilter("ignore")
        return estimator.fit(X, y)


def rounded(X: np.ndarray) -> np.ndarray:
    """X rounded to float32, as float64, in which the estimators then compute."""
    return X.astype(np.float32).astype(np.float64)


def classification(classes: int) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_classification(
        200, FEATURES, n_informative=8, n_classes=classes, random_state=classes
    )
    return rounded(X), LABELS[y]


def regression(targets: int) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_regression(
        200, FEATURES, n_targets=targets, n_informative=5, noise=1.0, random_state=targets
    )
    return rounded(X), y


def check(estimator: Any, X: np.ndarray, methods: set[str]) -> None:
    """All the methods of `methods`, and no others, to 1e-6 of the largest result."""
    X = rounded(STRETCH * X[:BATCH])
    both = [read_estimator(estimator).graphs(BATCH)]
    if read_estimator(estimator).input.reads_float64:
        both.append(read_estimator(estimator).graphs(BATCH, Element.FLOAT64))
    for graphs in both:
        assert set(graphs) == methods
    for name, graph in [item for graphs in both for item in graphs.items()]:
        (found,) = graph.evaluate([X])
        expected = getattr(estimator, name)(X)
        (value,) = graph.outputs
        assert value.shape == found.shape == expected.shape
        if hasattr(estimator, "classes_") and name == "predict":
            assert value.type.element is Element.INT64
            np.testing.assert_array_equal(estimator.classes_[found], expected)
        else:
            assert value.type.element is Element.FLOAT32
            if name == "predict_log_proba":  # below, scikit-learn's own has lost its digits
                assert (found < SMALL_LOG + 1)[expected < SMALL_LOG].all()
                found, expected = (x[expected > SMALL_LOG] for x in (found, expected))
            bound = 1e-6 * max(1.0, float(np.abs(expected).max()))
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=bound)


REGRESSORS = [
    linear_model.LinearRegression(),
    linear_model.LinearRegression(fit_intercept=False),
    linear_model.Ridge(),
    linear_model.Lasso(alpha=20.0),
    linear_model.ElasticNet(),
    linear_model.SGDRegressor(max_iter=20),
    linear_model.HuberRegressor(),
    linear_model.BayesianRidge(),
    linear_model.OrthogonalMatchingPursuit(n_nonzero_coefs=3),
    linear_model.LassoLars(alpha=1.0),
    linear_model.TheilSenRegressor(max_subpopulation=50),
    linear_model.QuantileRegressor(alpha=0.1),
    svm.LinearSVR(),
]
SEVERAL_TARGETS = [
    linear_model.LinearRegression(),
    linear_model.Ridge(),
    linear_model.RidgeCV(),
    linear_model.Lasso(),
    linear_model.MultiTaskLasso(),
    linear_model.MultiTaskElasticNet(),
]
SCORES = {"predict", "decision_function"}
ALL = {*SCORES, "predict_proba", "predict_log_proba"}
CLASSIFIERS: list[tuple[Any, set[str]]] = [
    (linear_model.LogisticRegression(solver="lbfgs"), ALL),
    (linear_model.LogisticRegression(solver="newton-cholesky"), ALL),
    (linear_model.LogisticRegression(solver="saga", l1_ratio=1.0, C=0.05), ALL),
    (linear_model.LogisticRegressionCV(Cs=2), ALL),
    (linear_model.SGDClassifier(max_iter=20), SCORES),
    (linear_model.SGDClassifier(loss="log_loss", max_iter=20), ALL),
    (linear_model.SGDClassifier(loss="modified_huber", max_iter=20), ALL),
    (linear_model.Perceptron(), SCORES),
    (linear_model.RidgeClassifier(), SCORES),
    (linear_model.RidgeClassifierCV(), SCORES),
    (svm.LinearSVC(), SCORES),
    (LinearDiscriminantAnalysis(), {*ALL, "transform"}),
]
SCALERS = [
    preprocessing.StandardScaler(),
    preprocessing.StandardScaler(with_mean=False),
    preprocessing.StandardScaler(with_std=False),
    preprocessing.MinMaxScaler(),
    preprocessing.MinMaxScaler(feature_range=(-2, 3), clip=True),
    preprocessing.MaxAbsScaler(),
    preprocessing.RobustScaler(),
    preprocessing.RobustScaler(with_centering=False),
    preprocessing.RobustScaler(with_scaling=False),
]


@pytest.mark.parametrize("estimator", REGRESSORS, ids=str)
def test_regressors(estimator: Any) -> None:
    X, y = regression(1)
    check(fitted(estimator, X, y), X, {"predict"})


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("estimator", SEVERAL_TARGETS, ids=str)
def test_several_targets(estimator: Any, targets: int) -> None:
    X, y = regression(targets)
    check(fitted(estimator, X, y.reshape(len(X), -1)), X, {"predict"})


@pytest.mark.parametrize("name", ["PoissonRegressor", "GammaRegressor"])
def test_regressors_with_a_log_link(name: str) -> None:
    X, y = regression(1)
    estimator = getattr(linear_model, name)()
    check(fitted(estimator, X, np.exp(y / np.abs(y).max())), X, {"predict"})


def in_order(value: object) -> str:
    """A test's name, the same in every process: a set of strings has no order of its own."""
    return "+".join(sorted(value)) if isinstance(value, set) else str(value)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize(("estimator", "methods"), CLASSIFIERS, ids=in_order)
def test_classifiers(estimator: Any, methods: set[str], classes: int) -> None:
    X, y = classification(classes)
    check(fitted(estimator, X, y), X, methods)


def test_liblinear() -> None:
    X, y = classification(2)
    estimator = linear_model.LogisticRegression(solver="liblinear")
    check(fitted(estimator, X, y), X, ALL)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("asked", ["ovr", "multinomial"])
def test_options_of_older_releases_are_read(classes: int, asked: str) -> None:
    """LogisticRegression.predict_proba of scikit-learn 1.4."""
    X, y = classification(classes)
    estimator = fitted(linear_model.LogisticRegression(), X, y)
    scores = estimator.decision_function(X[:BATCH])
    if asked == "ovr":
        expected = 1 / (1 + np.exp(-scores))
        if classes == 2:
            expected = np.stack([1 - expected, expected], axis=1)
        expected /= expected.sum(axis=1, keepdims=True)
    else:
        powers = np.exp(np.stack([-scores, scores], axis=1) if classes == 2 else scores)
        expected = powers / powers.sum(axis=1, keepdims=True)
    estimator.multi_class = asked
    (found,) = read_estimator(estimator).graphs(BATCH)["predict_proba"].evaluate([X[:BATCH]])
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("scaler", SCALERS, ids=str)
def test_scalers(scaler: Any) -> None:
    X, y = regression(1)
    check(fitted(scaler, X, y), X, {"transform"})
    Xs = X * 100 + 7
    check(fitted(make_pipeline(scaler, linear_model.Ridge()), Xs, y), Xs, {"predict"})


def test_pipelines_in_pipelines() -> None:
    X, y = classification(3)
    inner = make_pipeline(preprocessing.RobustScaler(), "passthrough", preprocessing.MaxAbsScaler())
    outer = make_pipeline(inner, None, linear_model.LogisticRegression())
    check(fitted(outer, X, y), X, ALL)
    only_scalers = make_pipeline(preprocessing.MinMaxScaler(), preprocessing.StandardScaler())
    check(fitted(only_scalers, X, y), X, {"transform"})


PERCEPTRON = {"hidden_layer_sizes": (9, 7), "max_iter": 8, "random_state": 0}
ACTIVATIONS = ["identity", "logistic", "tanh", "relu"]


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_perceptrons_that_classify(activation: str, classes: int) -> None:
    X, y = classification(classes)
    estimator = neural_network.MLPClassifier(activation=activation, **PERCEPTRON)
    methods = ALL - {"decision_function"}
    check(fitted(estimator, X, y), X, methods)
    check(fitted(make_pipeline(preprocessing.StandardScaler(), estimator), X, y), X, methods)


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_perceptrons_that_regress(activation: str, targets: int) -> None:
    X, y = regression(targets)
    estimator = neural_network.MLPRegressor(activation=activation, **PERCEPTRON)
    check(fitted(estimator, X, y / 100), X, {"predict"})


def test_a_perceptron_of_poisson_loss() -> None:
    X, y = regression(1)
    estimator = neural_network.MLPRegressor(**PERCEPTRON)
    fitted(estimator, X, y / 100)
    expected = np.exp(estimator.predict(X[:BATCH]))
    estimator.out_activation_ = "exp"  # as loss="poisson" has it, from scikit-learn 1.7 on
    (found,) = read_estimator(estimator).graphs(BATCH)["predict"].evaluate([X[:BATCH]])
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "estimator",
    [linear_model.RidgeClassifier(), neural_network.MLPClassifier(**PERCEPTRON)],
    ids=lambda estimator: type(estimator).__name__,
)
def test_several_labels(estimator: Any) -> None:
    X, y = regression(3)
    labels = (y > 0).astype(int)
    fitted(estimator, X, labels)
    graphs = read_estimator(estimator).graphs(BATCH)
    (found,) = graphs["predict"].evaluate([X[:BATCH]])
    assert graphs["predict"].outputs[0].type.element is Element.BOOL
    np.testing.assert_array_equal(found, estimator.predict(X[:BATCH]) > 0)
    for name in graphs.keys() - {"predict"}:
        (found,) = graphs[name].evaluate([X[:BATCH]])
        np.testing.assert_allclose(found, getattr(estimator, name)(X[:BATCH]), atol=1e-5)


@pytest.mark.parametrize("estimator", [linear_model.Perceptron(), svm.LinearSVC()], ids=str)
def test_a_binary_score_of_zero_is_the_first_class(estimator: Any) -> None:
    X, y = classification(2)
    fitted(estimator, X, y).intercept_[:] = 0
    zeros = np.zeros((BATCH, FEATURES), np.float32)
    (found,) = read_estimator(estimator).graphs(BATCH)["predict"].evaluate([zeros])
    np.testing.assert_array_equal(estimator.classes_[found], estimator.predict(zeros))
    assert not found.any()


@pytest.mark.parametrize("classes", [2, 3])
def test_modified_huber_beyond_its_range(classes: int) -> None:
    """If each class alone is impossible, scikit-learn makes all as probable."""
    X, y = classification(classes)
    estimator = fitted(linear_model.SGDClassifier(loss="modified_huber", max_iter=5), X, y)
    estimator.intercept_[:] = -2000
    check(estimator, X, ALL)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("intercept", [-2000, -500, 300])
def test_logistic_scores_far_from_zero(classes: int, intercept: float) -> None:
    """By p = sigmoid(scores), of several classes p / sum(p), in numbers that do not underflow."""
    X, y = classification(classes)
    estimator = fitted(linear_model.SGDClassifier(loss="log_loss", max_iter=5), X, y)
    estimator.intercept_[:] = intercept
    graphs = read_estimator(estimator).graphs(BATCH)
    scores = estimator.decision_function(X[:BATCH])
    expected = -np.logaddexp(0, -(np.stack([-scores, scores], 1) if classes == 2 else scores))
    expected -= np.logaddexp.reduce(expected, axis=1, keepdims=True)
    (found,) = graphs["predict_log_proba"].evaluate([X[:BATCH]])
    np.testing.assert_allclose(found, expected, atol=1e-3, rtol=1e-6)
    (found,) = graphs["predict_proba"].evaluate([X[:BATCH]])
    np.testing.assert_allclose(found, np.exp(expected), atol=1e-3)


def test_sparse_coefficients() -> None:
    X, y = regression(1)
    estimator = fitted(linear_model.Lasso(alpha=20.0), X, y)
    assert (estimator.coef_ == 0).any()
    X, y = classification(4)
    estimator = fitted(linear_model.SGDClassifier(penalty="l1", alpha=0.05), X, y).sparsify()
    check(estimator, X, SCORES)


def test_parameters_and_input_are_float32() -> None:
    X, y = regression(2)
    estimator = fitted(linear_model.Ridge(), X.astype(np.float64), y)
    graph = read_estimator(estimator).graphs(1)["predict"]
    assert {array.dtype for array in graph.constants.values()} == {np.dtype(np.float32)}
    assert [str(value.type) for value in graph.inputs] == [f"float32[1, {FEATURES}]"]
    assert graph.inputs[0].origin.name == "X"


class OwnRidge(linear_model.Ridge):
    """May predict anything."""


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (linear_model.Lasso(), r"the Lasso is not fitted; call its fit"),
        (make_pipeline(preprocessing.StandardScaler()), "the StandardScaler is not fitted"),
        (make_pipeline(None), "no steps"),
        (DBSCAN(), r"sklearn\.cluster\._dbscan\.DBSCAN has no graph; leave it to its own predict"),
        (OwnRidge(), "OwnRidge has no graph"),
        (3, r"builtins\.int has no graph"),
    ],
)
def test_what_has_no_graph(estimator: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_estimator(estimator).graphs(1)


def test_other_steps_before_the_last() -> None:
    X, y = regression(1)
    own = preprocessing.FunctionTransformer(np.sort)
    ridges = make_pipeline(preprocessing.StandardScaler(), own, linear_model.Ridge())
    with pytest.raises(InvalidInput, match="FunctionTransformer"):
        read_estimator(fitted(ridges, X, y)).graphs(1)


def test_every_class_of_the_tables_exists() -> None:
    assert {name for name, _ in all_estimators()} >= frontend._KNOWN | MAPPING
