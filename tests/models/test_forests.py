"""Compiled forests answer as the libraries that fitted them do."""

import builtins
import threading
from typing import Any

import numpy as np
import pytest

import sparsejit
from sparsejit.artefact.arrays import ArrayReader, ArrayWriter
from sparsejit.artefact.graph_file import graph_from_data, graph_to_data
from sparsejit.errors import InvalidInput, MissingDependency
from sparsejit.estimators import forest_reading
from sparsejit.estimators.graphs import read_estimator

pytest.importorskip("treelite")
lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")
from sklearn.ensemble import (  # noqa: E402
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_selection import (  # noqa: E402
    SelectKBest,
    VarianceThreshold,
    f_regression,
)
from sklearn.impute import SimpleImputer  # noqa: E402
from sklearn.linear_model import LinearRegression  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import (  # noqa: E402
    MaxAbsScaler,
    MinMaxScaler,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)
from sklearn.tree import DecisionTreeRegressor  # noqa: E402

GENERATOR = np.random.default_rng(0)
X = GENERATOR.standard_normal((300, 9)).astype(np.float32)
SCORE = X[:, 0] + X[:, 1] * X[:, 2] + 0.1 * GENERATOR.standard_normal(300)
CLASSES = np.array(["cherry", "apple", "banana"])[np.digitize(SCORE, [-0.5, 0.5])]


@pytest.mark.parametrize("scaler", [StandardScaler(), MinMaxScaler()], ids=repr)
@pytest.mark.parametrize(
    "last", [RandomForestClassifier(20, max_depth=6, random_state=0), GradientBoostingClassifier()]
)
def test_behind_a_scaler(scaler: Any, last: Any) -> None:
    pipeline = make_pipeline(scaler, last).fit(X, CLASSES)
    compiled = sparsejit.compile(pipeline)
    np.testing.assert_array_equal(compiled.predict(X), pipeline.predict(X))
    np.testing.assert_allclose(compiled.predict_proba(X), pipeline.predict_proba(X), atol=1e-6)


STEPS = {
    "scaler": [StandardScaler()],
    "clip": [MinMaxScaler(feature_range=(0, 0.5), clip=True)],
    "two scalers": [RobustScaler(), MaxAbsScaler()],
    "imputer": [SimpleImputer(strategy="median"), StandardScaler()],
    "selector": [VarianceThreshold(0.5), StandardScaler(), SelectKBest(f_regression, k=4)],
    "power": [PowerTransformer()],
    "quantile": [SimpleImputer(), QuantileTransformer(n_quantiles=20)],
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize(
    "last", [xgboost.XGBRegressor(n_estimators=10), lightgbm.LGBMRegressor(verbose=-1)]
)
def test_thresholds_are_those_of_x_behind_a_pipeline(steps: list[Any], last: Any) -> None:
    """XGBoost's are values that x had, so that the least error of rounding would show."""
    rows = X * np.linspace(0.5, 2, X.shape[1], dtype=np.float32)
    if isinstance(steps[0], SimpleImputer):
        rows[GENERATOR.random(rows.shape) < 0.1] = np.nan
    pipeline = make_pipeline(*steps, last).fit(rows, SCORE)
    compiled = sparsejit.compile(pipeline, rows)
    assert len(compiled.variant("predict").steps) == 1
    np.testing.assert_allclose(compiled.predict(rows), pipeline.predict(rows), atol=1e-6)


def test_a_transformer_that_mixes_features_is_refused() -> None:
    pipeline = make_pipeline(PolynomialFeatures(2), RandomForestRegressor(2)).fit(X, SCORE)
    with pytest.raises(InvalidInput, match="PolynomialFeatures"):
        sparsejit.compile(pipeline)


def test_a_tree_of_one_leaf() -> None:
    estimator = DecisionTreeRegressor(max_depth=2).fit(X, np.ones(len(X)))
    np.testing.assert_array_equal(sparsejit.compile(estimator).predict(X[:3]), np.ones(3))


def test_thresholds_between_neighbouring_floats() -> None:
    """A threshold in float64 lies between two float32; rounded up it would take both for one."""
    values = GENERATOR.uniform(10, 100, 50).astype(np.float32)
    rows = np.concatenate([values, np.nextafter(values, np.float32(np.inf))])[:, None]
    target = np.repeat([0.0, 1.0], 50)
    estimator = DecisionTreeRegressor().fit(rows, target)
    np.testing.assert_array_equal(estimator.predict(rows), target)
    np.testing.assert_array_equal(sparsejit.compile(estimator).predict(rows), target)


@pytest.mark.parametrize("kind", [RandomForestRegressor, DecisionTreeRegressor])
def test_several_targets(kind: Any) -> None:
    targets = np.stack([SCORE, -SCORE, SCORE**2], axis=1)
    estimator = kind(max_depth=5, random_state=0).fit(X, targets)
    found = sparsejit.compile(estimator).predict(X)
    np.testing.assert_allclose(found, estimator.predict(X), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("objective", ["binary:hinge", "count:poisson", "reg:logistic"])
def test_a_booster_of_xgboost(objective: str) -> None:
    data = xgboost.DMatrix(X, (SCORE > 0).astype(int))
    booster = xgboost.train({"objective": objective, "max_depth": 3}, data, 8)
    found = sparsejit.compile(booster).predict(X)
    np.testing.assert_allclose(found, booster.predict(data), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("objective", "more"),
    [
        ("binary", {"sigmoid": 0.5}),
        ("poisson", {}),
        ("cross_entropy_lambda", {}),
        ("multiclassova", {"num_class": 3}),
        ("regression", {"reg_sqrt": True}),
    ],
)
def test_a_booster_of_lightgbm(objective: str, more: dict[str, Any]) -> None:
    target = np.digitize(SCORE, [0]) if objective != "multiclassova" else np.digitize(SCORE, [0, 1])
    settings = {"objective": objective, "verbose": -1, "num_threads": 1, **more}
    booster = lightgbm.train(settings, lightgbm.Dataset(X, target), 8)
    found = sparsejit.compile(booster, X).predict(X)
    np.testing.assert_allclose(found, booster.predict(X), rtol=1e-6, atol=1e-6)


def test_fitting_that_stopped_early() -> None:
    estimator = xgboost.XGBRegressor(n_estimators=60, early_stopping_rounds=2, learning_rate=1.0)
    estimator.fit(X[:200], SCORE[:200], eval_set=[(X[200:], SCORE[200:])], verbose=False)
    assert estimator.best_iteration < 40
    found = sparsejit.compile(estimator).predict(X)
    np.testing.assert_allclose(found, estimator.predict(X), rtol=1e-6, atol=1e-6)


def test_categories_that_were_not_seen_count_as_missing() -> None:
    rows = X.astype(np.float64)
    rows[:, 1] = np.array([3, 10, 20, 35, 7])[GENERATOR.integers(0, 5, 300)]
    target = SCORE + np.isin(rows[:, 1], [7, 10])
    estimator = HistGradientBoostingRegressor(max_iter=20, categorical_features=[1])
    estimator.fit(rows, target)
    rows[:100, 1] = GENERATOR.integers(-3, 40, 100)
    found = sparsejit.compile(estimator).predict(rows)
    np.testing.assert_allclose(found, estimator.predict(rows), rtol=1e-6, atol=1e-6)


def test_threads_that_call_at_once_get_their_own_answers() -> None:
    estimator = RandomForestRegressor(30, max_depth=6, random_state=0).fit(X, SCORE)
    compiled = sparsejit.compile(estimator, X[:64])
    wanted = compiled.predict(X)
    wrong: list[int] = []

    def call(number: int) -> None:
        for _ in range(30):
            part = slice(number * 50, number * 50 + 50)
            if not np.array_equal(compiled.predict(X[part]), wanted[part]):
                wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_explain_names_the_kernel_and_what_lost() -> None:
    estimator = RandomForestRegressor(30, max_depth=6, random_state=0).fit(X, SCORE)
    text = str(sparsejit.compile(estimator).explain(measure=False))
    assert "forest-" in text and "30 trees" in text


def test_zero_for_missing_is_refused() -> None:
    rows = np.where(np.abs(X) < 0.5, 0, X)
    estimator = lightgbm.LGBMRegressor(n_estimators=3, zero_as_missing=True, verbose=-1)
    with pytest.raises(InvalidInput, match="zero_as_missing"):
        sparsejit.compile(estimator.fit(rows, SCORE))


def test_what_treelite_cannot_read_is_named() -> None:
    estimator = GradientBoostingRegressor(init=LinearRegression(), n_estimators=2).fit(X, SCORE)
    with pytest.raises(InvalidInput, match="treelite cannot read the GradientBoostingRegressor"):
        sparsejit.compile(estimator)


def test_an_estimator_that_is_not_fitted_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is not fitted"):
        sparsejit.compile(RandomForestRegressor())


def test_a_frame_of_categories_is_refused() -> None:
    pandas = pytest.importorskip("pandas")
    estimator = lightgbm.LGBMRegressor(n_estimators=2, verbose=-1).fit(X, SCORE)
    frame = pandas.DataFrame(X, columns=estimator.feature_name_)
    frame["Column_3"] = pandas.Series(np.arange(len(X)) % 3).astype("category")
    compiled = sparsejit.compile(estimator)
    with pytest.raises(InvalidInput, match=r"cat\.codes"):
        compiled.predict(frame)


def test_without_treelite_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("treelite"):
            raise ImportError("No module named 'treelite'")
        return original(name, *rest, **more)

    estimator = DecisionTreeRegressor(max_depth=2).fit(X, SCORE)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingDependency, match=r"sparsejit\[forests\]"):
        forest_reading.read_forest(estimator)


def test_a_forest_s_graph_comes_back_from_its_file() -> None:
    estimator = RandomForestClassifier(5, max_depth=4, random_state=0).fit(X, CLASSES)
    graph = read_estimator(estimator).graphs(4)["predict_proba"]
    writer = ArrayWriter()
    header = graph_to_data(graph, writer)
    again = graph_from_data(header, ArrayReader(writer.tensors))
    np.testing.assert_array_equal(again.evaluate([X[:4]])[0], graph.evaluate([X[:4]])[0])
