"""Compiled forests answer as their libraries do where these have ways of their own."""

from typing import Any

import numpy as np
import pytest

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.machine.target import Target

pytest.importorskip("treelite")
lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")
from sklearn.base import clone  # noqa: E402
from sklearn.datasets import load_breast_cancer  # noqa: E402
from sklearn.ensemble import (  # noqa: E402
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import MinMaxScaler, StandardScaler  # noqa: E402

GENERATOR = np.random.default_rng(0)
X = GENERATOR.standard_normal((300, 9)).astype(np.float32)
SCORE = X[:, 0] + X[:, 1] * X[:, 2] + 0.1 * GENERATOR.standard_normal(300)
ISAS = ["avx2", *(["avx512"] if Target.detect().isa == "avx512" else [])]

DOUBLES = X + 1e-9 * GENERATOR.standard_normal(X.shape)
MODELS_IN_FLOAT64 = {
    "histogram": HistGradientBoostingRegressor(max_iter=20),
    "lightgbm": lightgbm.LGBMRegressor(n_estimators=20, verbose=-1, min_child_samples=5),
    "scaled xgboost": make_pipeline(StandardScaler(), xgboost.XGBRegressor(n_estimators=20)),
    "scaled forest": make_pipeline(MinMaxScaler(), RandomForestRegressor(10, random_state=0)),
    "forest": RandomForestRegressor(10, random_state=0),
}


@pytest.mark.parametrize("target", ISAS)
@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("name", MODELS_IN_FLOAT64)
def test_numbers_that_float32_cannot_tell_apart(name: str, batch: int, target: str) -> None:
    """Each value has a neighbour in float64 with another result: all are compared exactly."""
    rows = np.concatenate([DOUBLES, np.nextafter(DOUBLES, np.inf), DOUBLES + 1e-9])
    score = np.tile(SCORE, 3) + np.repeat([0.0, 1.0, -1.0], len(X))
    estimator = clone(MODELS_IN_FLOAT64[name]).fit(rows, score)
    found = sparsejit.compile(estimator, rows[:batch], target=target).predict(rows)
    np.testing.assert_allclose(found, estimator.predict(rows), rtol=1e-6, atol=2e-6)
    short = rows.astype(np.float32)
    found = sparsejit.compile(estimator, rows[:batch], target=target).predict(short)
    np.testing.assert_allclose(found, estimator.predict(short), rtol=1e-6, atol=2e-6)


def test_numbers_that_lightgbm_takes_for_zero() -> None:
    rows = np.where(np.abs(X) < 1, 0, X).astype(np.float64)
    estimator = lightgbm.LGBMRegressor(n_estimators=20, verbose=-1).fit(rows, SCORE)
    least = float(np.float32(1e-35))
    edges = [least, np.nextafter(least, 1), np.nextafter(least, 0), 1e-300, 0.0]
    rows = np.where(rows == 0, GENERATOR.choice([*edges, *(-np.array(edges))], X.shape), rows)
    same(sparsejit.compile(estimator), estimator, rows)


def test_histograms_of_measured_data() -> None:
    """22 of 569 rows went another way while X was rounded to float32."""
    rows, classes = load_breast_cancer(return_X_y=True)
    estimator = HistGradientBoostingClassifier(max_iter=50).fit(rows, classes)
    compiled = sparsejit.compile(estimator, rows)
    np.testing.assert_array_equal(compiled.predict(rows), estimator.predict(rows))
    wanted = estimator.predict_proba(rows)
    np.testing.assert_allclose(compiled.predict_proba(rows), wanted, atol=1e-6)


def same(compiled: Any, estimator: Any, rows: Any) -> None:
    """All methods give what the estimator gives, `predict` with its dtype."""
    for name in compiled.methods:
        found, wanted = getattr(compiled, name)(rows), np.asarray(getattr(estimator, name)(rows))
        assert found.shape == wanted.shape
        if name == "predict" and hasattr(estimator, "classes_") and wanted.dtype.kind != "f":
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)
        else:
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("missing", [-999, 0.0, np.inf])
def test_a_number_that_stands_for_missing(missing: float) -> None:
    rows = np.where(GENERATOR.random(X.shape) < 0.2, np.float32(missing), X)
    rows[::5, 3] = np.nan
    estimator = xgboost.XGBClassifier(n_estimators=10, missing=missing).fit(rows, SCORE > 0)
    same(sparsejit.compile(estimator, rows), estimator, rows)
    same(sparsejit.compile(estimator), estimator, rows)


def test_an_imputer_of_other_values_is_refused() -> None:
    imputer = SimpleImputer(missing_values=0)
    with pytest.raises(InvalidInput, match="replaces 0"):
        sparsejit.compile(make_pipeline(imputer, RandomForestRegressor(2)).fit(X, SCORE))


def test_a_sparse_matrix_leaves_out_what_is_missing_to_xgboost() -> None:
    scipy_sparse = pytest.importorskip("scipy.sparse")
    rows = scipy_sparse.csr_matrix(np.where(np.abs(X) < 0.5, 0, X))
    estimator = xgboost.XGBRegressor(n_estimators=10).fit(rows, SCORE)
    same(sparsejit.compile(estimator), estimator, rows)


def own_logistic(y: Any, score: Any) -> Any:
    probability = 1 / (1 + np.exp(-score))
    return probability - y, probability * (1 - probability)


BAGGED = {"boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}
ODD_CLASSIFIERS = {
    "lightgbm rf": (lightgbm.LGBMClassifier(n_estimators=9, verbose=-1, **BAGGED), 2),
    "lightgbm rf of 3": (lightgbm.LGBMClassifier(n_estimators=9, verbose=-1, **BAGGED), 3),
    "own objective": (
        lightgbm.LGBMClassifier(n_estimators=9, verbose=-1, objective=own_logistic),
        2,
    ),
    "xgboost's own objective": (
        xgboost.XGBClassifier(n_estimators=9, objective=own_logistic),
        2,
    ),
    "raw scores": (xgboost.XGBClassifier(n_estimators=9, objective="binary:logitraw"), 2),
    "softmax": (xgboost.XGBClassifier(n_estimators=9, objective="multi:softmax"), 3),
    "random forest of xgboost": (xgboost.XGBRFClassifier(n_estimators=9), 3),
}


@pytest.mark.parametrize("name", ODD_CLASSIFIERS)
def test_classifiers_that_answer_in_their_own_way(name: str) -> None:
    estimator, classes = ODD_CLASSIFIERS[name]
    estimator = clone(estimator).fit(X, np.digitize(SCORE, [-0.5, 0.5][: classes - 1]))
    same(sparsejit.compile(estimator, X), estimator, X)


def test_several_labels_of_xgboost() -> None:
    estimator = xgboost.XGBClassifier(n_estimators=5)
    estimator.fit(X, np.stack([SCORE > 0, SCORE > 1, X[:, 0] > 0], axis=1).astype(int))
    compiled = sparsejit.compile(estimator, X)
    found, wanted = compiled.predict(X), estimator.predict(X)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(compiled.predict_proba(X), estimator.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("objective", ["multi:softmax", "multi:softprob"])
def test_a_booster_of_several_classes(objective: str) -> None:
    data = xgboost.DMatrix(X, np.digitize(SCORE, [-0.5, 0.5]))
    booster = xgboost.train({"objective": objective, "num_class": 3}, data, 8)
    found, wanted = sparsejit.compile(booster).predict(X), booster.predict(data)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("estimator", "takes_nan", "takes_infinity"),
    [
        (RandomForestRegressor(3), True, False),
        (GradientBoostingRegressor(n_estimators=3), False, False),
        (HistGradientBoostingRegressor(max_iter=3), True, True),
        (lightgbm.LGBMRegressor(n_estimators=3, verbose=-1), True, True),
        (xgboost.XGBRegressor(n_estimators=3), True, True),
        (make_pipeline(SimpleImputer(), GradientBoostingRegressor(n_estimators=3)), True, False),
        (make_pipeline(StandardScaler(), HistGradientBoostingRegressor(max_iter=3)), True, False),
        (make_pipeline(StandardScaler(), GradientBoostingRegressor()), False, False),
    ],
    ids=lambda value: "" if isinstance(value, bool) else "-".join(str(value).split()),
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_that_the_library_refuses_are_refused(
    estimator: Any, takes_nan: bool, takes_infinity: bool, dtype: Any
) -> None:
    estimator.fit(X, SCORE)
    compiled = sparsejit.compile(estimator)
    for odd, is_taken in ((np.nan, takes_nan), (-np.inf, takes_infinity)):
        rows = X[:4].astype(dtype)
        rows[2, 5] = odd
        if is_taken:  # XGBoost's `apply` refuses infinity
            found, wanted = compiled.predict(rows), estimator.predict(rows)
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
            continue
        with pytest.raises(ValueError, match="contains"):
            estimator.predict(rows)
        with pytest.raises(InvalidInput, match=f"X has {odd} in row 2, column 5"):
            compiled.predict(rows)


def test_frames_are_read_as_the_library_reads_them() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(DOUBLES, columns=[*"abcdefghi"])
    frame["b"] = np.round(frame["b"] * 1000).astype(np.int64)
    frame["c"] = np.round(frame["c"] * 100).astype("Int64")
    frame["d"] = frame["d"].astype(np.float32)
    frame["e"] = frame["e"] > 0
    for estimator in (
        HistGradientBoostingRegressor(max_iter=20),
        lightgbm.LGBMRegressor(n_estimators=20, verbose=-1, min_child_samples=5),
        xgboost.XGBRegressor(n_estimators=10),
        RandomForestRegressor(5),
    ):
        estimator.fit(frame, SCORE)
        compiled = sparsejit.compile(estimator)
        same(compiled, estimator, frame)
        with pytest.raises(InvalidInput, match="in this order"):
            compiled.predict(frame[frame.columns[::-1]])
