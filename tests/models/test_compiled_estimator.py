"""Compiled estimators of scikit-learn answer as the estimators do."""

import subprocess
import sys
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import sparsejit
from sparsejit.api.models.variant import Variant
from sparsejit.api.reports.advisor import Advice
from sparsejit.errors import InvalidInput
from sparsejit.estimators import compiled_estimator
from sparsejit.estimators.compiled_estimator import CompiledEstimator
from sparsejit.machine.target import Target
from sparsejit.runtime.step_timing import StepTimes

pytest.importorskip("sklearn")
from sklearn import linear_model, neural_network, preprocessing, svm
from sklearn.cluster import DBSCAN
from sklearn.compose import make_column_transformer
from sklearn.datasets import (
    make_classification,
    make_multilabel_classification,
    make_regression,
)
from sklearn.pipeline import make_pipeline

FEATURES, SAMPLES = 12, 37
LABELS = np.array(["cherry", "apple", "banana"])
ISAS = ["avx2", *(["avx512"] if Target.detect().isa == "avx512" else [])]
SMALL_LOG = -12.0  # below, scikit-learn's own logarithms have lost their digits


def fitted(estimator: Any, X: np.ndarray, y: np.ndarray) -> Any:
    with warnings.catch_warnings():  # few iterations will do: nothing here must be good
        warnings.simplefilter("ignore")
        return estimator.fit(X, y)


def rounded(X: np.ndarray) -> np.ndarray:
    """X rounded to float32, as float64."""
    return X.astype(np.float32).astype(np.float64)


def classified(estimator: Any, classes: int = 3) -> tuple[Any, np.ndarray]:
    X, y = make_classification(200, FEATURES, n_informative=8, n_classes=classes, random_state=1)
    return fitted(estimator, rounded(X), LABELS[y]), rounded(X[:SAMPLES])


def regressed(estimator: Any, targets: int = 1) -> tuple[Any, np.ndarray]:
    X, y = make_regression(200, FEATURES, n_targets=targets, noise=1.0, random_state=1)
    return fitted(estimator, rounded(X), y), rounded(X[:SAMPLES])


def perceptron(kind: Any) -> Any:
    return kind(hidden_layer_sizes=(17, 9), max_iter=20, random_state=0)


CLASSIFIERS = [
    linear_model.LogisticRegression(),
    svm.LinearSVC(random_state=0),
    linear_model.RidgeClassifier(),
    make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression()),
    perceptron(neural_network.MLPClassifier),
]
REGRESSORS = [
    linear_model.LinearRegression(),
    make_pipeline(preprocessing.MinMaxScaler(), linear_model.Ridge()),
    perceptron(neural_network.MLPRegressor),
]


def check(compiled: CompiledEstimator, estimator: Any, X: np.ndarray) -> None:
    assert compiled.methods
    for name in compiled.methods:
        found, expected = getattr(compiled, name)(X), getattr(estimator, name)(X)
        assert found.shape == expected.shape
        if expected.dtype.kind in "iU":
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)
            continue
        if name == "predict_log_proba":
            assert (found < SMALL_LOG + 1)[expected < SMALL_LOG].all()
            found, expected = (each[expected > SMALL_LOG] for each in (found, expected))
        bound = 1e-5 * max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=bound)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=lambda each: type(each).__name__)
def test_classifiers(estimator: Any, classes: int, batch: int, isa: str) -> None:
    estimator, X = classified(estimator, classes)
    compiled = sparsejit.compile(estimator, X[:batch], target=isa)
    assert isinstance(compiled, CompiledEstimator)
    assert compiled.tile == batch
    check(compiled, estimator, X)
    np.testing.assert_array_equal(compiled.classes_, estimator.classes_)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("estimator", REGRESSORS, ids=lambda each: type(each).__name__)
def test_regressors(estimator: Any, targets: int, isa: str) -> None:
    estimator, X = regressed(estimator, targets)
    check(sparsejit.compile(estimator, (X[:8],), target=isa), estimator, X)


def test_several_labels() -> None:
    X, y = make_multilabel_classification(200, FEATURES, n_classes=4, random_state=0)
    estimator = fitted(perceptron(neural_network.MLPClassifier), rounded(X), y)
    check(sparsejit.compile(estimator), estimator, rounded(X[:SAMPLES]))


def test_a_scaler_alone() -> None:
    X = np.random.default_rng(0).standard_normal((50, FEATURES))
    scaler = preprocessing.RobustScaler().fit(X)
    compiled = sparsejit.compile(scaler)
    assert compiled.methods == ("transform",)
    check(compiled, scaler, X)


def test_it_has_the_methods_of_the_estimator_and_no_others() -> None:
    compiled = sparsejit.compile(classified(svm.LinearSVC(random_state=0))[0])
    assert compiled.methods == ("predict", "decision_function")
    assert not hasattr(compiled, "predict_proba")
    assert "decision_function" in dir(compiled)
    assert "LinearSVC: predict, decision_function" in repr(compiled)


def test_methods_are_compiled_at_first_use_and_once() -> None:
    stages: list[str] = []
    estimator, X = classified(linear_model.LogisticRegression())
    compiled = sparsejit.compile(estimator, progress=lambda stage, share: stages.append(stage))
    assert not stages
    threads = [threading.Thread(target=compiled.predict, args=(X,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stages.count("writing the code") == 1


def test_a_bound_method_reads_x_as_it_is_by_then() -> None:
    estimator, X = classified(linear_model.LogisticRegression())
    compiled = sparsejit.compile(estimator, X[:8])
    for x in (X[:16].copy(), X[:16].astype(np.float32)):
        places, shares = np.empty(16, np.int64), np.empty((16, 3), np.float32)
        runs = [compiled.bind(x, places), compiled.bind(x, shares, "predict_proba")]
        x[:] = x[::-1].copy()
        for run in runs:
            run()
        np.testing.assert_array_equal(estimator.classes_[places], compiled.predict(x))
        np.testing.assert_array_equal(shares, compiled.predict_proba(x))
    for odd in (X[:8].tolist(), X[:8].astype(np.int64)):
        with pytest.raises(InvalidInput, match=r"bind a numpy|convert it to float32"):
            compiled.bind(odd, np.empty(len(odd), np.int64))


class Frame:
    """An object that numpy makes an array of, with names, as a DataFrame is."""

    def __init__(self, values: np.ndarray, columns: list[str]) -> None:
        self.values, self.columns = values, columns

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype)


def test_any_numbers_will_do() -> None:
    estimator, X = regressed(linear_model.LinearRegression())
    compiled = sparsejit.compile(estimator)
    expected = compiled.predict(X)
    names = [f"c{number}" for number in range(FEATURES)]
    for same in (X.tolist(), Frame(X, names), X.astype(object)):
        np.testing.assert_array_equal(compiled.predict(same), expected)
    np.testing.assert_allclose(compiled.predict(X.astype(np.float32)), expected, rtol=1e-4)
    np.testing.assert_array_equal(compiled.predict(np.asfortranarray(X)), expected)
    whole = np.arange(2 * FEATURES).reshape(2, FEATURES)
    np.testing.assert_allclose(compiled.predict(whole), estimator.predict(whole), rtol=1e-5)


FAR_AWAY = {
    "ridge": linear_model.Ridge(),
    "logistic": linear_model.LogisticRegression(),
    "svm": svm.LinearSVC(random_state=0),
    "perceptron": neural_network.MLPClassifier((9,), max_iter=20, random_state=0),
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize(
    "scaler", ["StandardScaler", "MinMaxScaler", "RobustScaler", "MaxAbsScaler"]
)
@pytest.mark.parametrize("last", FAR_AWAY)
def test_data_far_from_zero(last: str, scaler: str, batch: int, isa: str) -> None:
    """The part of X beyond float32 is subtracted first, or summed in float64."""
    X, y = make_classification(200, FEATURES, n_informative=8, random_state=1)
    far = X + 1e7 * np.arange(1, FEATURES + 1)
    before = [getattr(preprocessing, scaler)()]
    if scaler == "MaxAbsScaler" and last == "perceptron":
        before.insert(0, preprocessing.StandardScaler())
    estimator = fitted(make_pipeline(*before, FAR_AWAY[last]), far, y)
    check(sparsejit.compile(estimator, far[:batch], target=isa), estimator, far[:SAMPLES])


@pytest.mark.parametrize("name", ["ridge", "logistic"])
def test_categories_beside_data_far_from_zero(name: str) -> None:
    X, y = make_classification(200, FEATURES, n_informative=8, random_state=1)
    X += 1e6
    X[:, 0] = np.arange(200) % 4
    encoder = preprocessing.OneHotEncoder(handle_unknown="ignore")
    before = make_column_transformer((encoder, [0]), remainder="passthrough")
    estimator = fitted(make_pipeline(before, FAR_AWAY[name]), X, y)
    check(sparsejit.compile(estimator), estimator, X[:SAMPLES])


@pytest.mark.parametrize("name", ["ridge", "logistic"])
def test_a_linear_model_of_data_far_from_zero(name: str) -> None:
    X, y = make_classification(200, FEATURES, n_informative=8, random_state=1)
    estimator = fitted(FAR_AWAY[name], X, y)
    offset = 1e6 * np.arange(1, FEATURES + 1)
    estimator.intercept_ = estimator.intercept_ - (estimator.coef_ @ offset)
    check(sparsejit.compile(estimator), estimator, X[:SAMPLES] + offset)


def test_sparse_inputs_count_as_dense() -> None:
    scipy_sparse = pytest.importorskip("scipy.sparse")
    estimator, X = regressed(linear_model.LinearRegression())
    compiled = sparsejit.compile(estimator)
    sparse = scipy_sparse.csr_matrix(X)
    np.testing.assert_array_equal(compiled.predict(sparse), compiled.predict(X))


def test_columns_must_be_those_of_the_fit() -> None:
    names = [f"c{number}" for number in range(FEATURES)]
    estimator, X = regressed(linear_model.LinearRegression())
    estimator.feature_names_in_ = np.array(names, object)
    compiled = sparsejit.compile(estimator)
    assert compiled.predict(Frame(X, names)).shape == (SAMPLES,)
    with pytest.raises(InvalidInput, match=r"columns.*c11.*in this order"):
        compiled.predict(Frame(X, names[::-1]))


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros(FEATURES), r"shape \(12,\); give \(samples, 12\).*reshape\(1, -1\)"),
        (np.zeros((2, 5)), r"shape \(2, 5\)"),
        (np.zeros((0, FEATURES)), "no samples"),
        ([["a"] * FEATURES], "dtype <U1; give real numbers"),
        ([["1"] * FEATURES], "dtype <U1; give real numbers"),
        (np.array([["a"] * FEATURES], object), "give numbers"),
        (np.zeros((2, FEATURES), complex), "dtype complex128; give real numbers"),
        (np.zeros((2, FEATURES), "M8[s]"), "give real numbers"),
        (np.where(np.eye(3, FEATURES), 0.0, np.nan), "X has nan in row 0, column 1"),
        (np.where(np.eye(3, FEATURES), -np.inf, 1e300), "X has -inf in row 0, column 0"),
    ],
)
def test_what_is_no_input(X: Any, message: str) -> None:
    compiled = sparsejit.compile(regressed(linear_model.LinearRegression())[0])
    with pytest.raises(InvalidInput, match=message):
        compiled.predict(X)


def test_what_cannot_be_compiled() -> None:
    with pytest.raises(InvalidInput, match="not fitted"):
        sparsejit.compile(linear_model.LinearRegression())
    X = np.random.default_rng(0).standard_normal((20, 3))
    with pytest.raises(InvalidInput, match="DBSCAN has no graph"):
        sparsejit.compile(DBSCAN().fit(X))
    estimator, X = regressed(linear_model.LinearRegression())
    for odd in ({"free_shapes": True}, {"free_batch": False}, {"example_kwargs": {"X": X}}):
        with pytest.raises(InvalidInput, match="leave out"):
            sparsejit.compile(estimator, **odd)
    with pytest.raises(InvalidInput, match="2 arrays"):
        sparsejit.compile(estimator, (X, X))


def test_weights_stored_otherwise() -> None:
    estimator, X = classified(perceptron(neural_network.MLPClassifier))
    compiled = sparsejit.compile(estimator, dtype={"layer*": "bfloat16"})
    found, expected = compiled.predict_proba(X), estimator.predict_proba(X)
    np.testing.assert_allclose(found, expected, atol=0.05)
    assert np.abs(found - expected).max() > 1e-6
    steps = [step for step in compiled.variant("predict_proba").steps if step.facts.layer]
    assert [step.facts.layer.dtype.value for step in steps] == ["bfloat16", "bfloat16", "float32"]


@pytest.mark.usefixtures("steady_clock")
def test_it_explains_and_advises_by_method() -> None:
    estimator, _ = classified(perceptron(neural_network.MLPClassifier))
    compiled = sparsejit.compile(estimator)
    report = compiled.explain("predict_proba", measure=True)
    assert [layer.layer for layer in report.layers][:3] == ["layer0", "layer1", "scores"]
    assert compiled.explain(measure=False).facts["kernels"] == 4
    assert isinstance(compiled.advise(), Advice)
    with pytest.raises(InvalidInput, match="no method 'transform'; use one of predict, "):
        compiled.explain("transform")


def test_advice_leaves_the_fit_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_predicted(variant: Variant) -> StepTimes:
        steps = [step.facts.predicted_ns or 0.0 for step in variant.steps]
        return StepTimes(sum(steps), steps)

    monkeypatch.setattr(compiled_estimator, "measured_times", as_predicted)
    X, y = np.random.default_rng(0).standard_normal((2, 300, 256))
    estimator = linear_model.LinearRegression().fit(X, y)
    suggestions = sparsejit.compile(estimator).advise().suggestions
    assert any("int8" in each.how for each in suggestions)
    assert not any("Pruner" in each.how for each in suggestions)


def test_no_torch_is_needed() -> None:
    script = """
import sys
import numpy as np, sparsejit
from sklearn.linear_model import LinearRegression
X = np.eye(4)
print(sparsejit.compile(LinearRegression().fit(X, X.sum(axis=1))).predict(X).shape)
print("torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout == "(4,)\nFalse\n", done.stderr


def test_large_coefficients_that_cancel_are_summed_in_float64() -> None:
    """As a Lars has them behind a OneHotEncoder, whose columns always add up to 1."""
    x = np.repeat(np.arange(4, dtype=np.float32)[:, None], 2, axis=1)
    pipeline = make_pipeline(
        preprocessing.OneHotEncoder(sparse_output=False), linear_model.LinearRegression()
    )
    pipeline.fit(x, np.arange(4.0))
    last = pipeline[-1]
    last.coef_ = np.array([1.0, 2, 3, 4, 0, 0, 0, 0]) + 2.0**41
    last.intercept_ = -(2.0**42)
    wanted = pipeline.predict(x)
    assert wanted.tolist() == [1, 2, 3, 4]
    assert sparsejit.compile(pipeline).predict(x).tolist() == wanted.tolist()
