"""Options of `predict` of boosted models, and leaves, against the libraries; linear trees."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runnable import LEVELS

import sparsejit
from sparsejit.errors import InvalidInput

for name in ("treelite", "lightgbm", "xgboost"):
    pytest.importorskip(name)
import lightgbm  # noqa: E402
import xgboost  # noqa: E402
from sklearn import ensemble, tree  # noqa: E402
from sklearn.compose import make_column_transformer  # noqa: E402
from sklearn.decomposition import PCA  # noqa: E402
from sklearn.feature_selection import SelectKBest  # noqa: E402
from sklearn.impute import SimpleImputer  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import (  # noqa: E402
    MinMaxScaler,
    OneHotEncoder,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
    TargetEncoder,
)

pytestmark = pytest.mark.filterwarnings("ignore")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 6))
SCORE = X[:, 0] + np.sin(3 * X[:, 1]) + X[:, 2] * X[:, 3]
TWO, THREE = (SCORE > 0).astype(int), np.digitize(SCORE, [-1, 1])
CATEGORIES = np.column_stack([X, RNG.integers(0, 9, 300)])
ROWS = np.where(RNG.random((60, 6)) < 0.1, np.nan, X[:60])
SMALL = {"n_estimators": 7, "n_jobs": 1}
LIGHT = SMALL | {"verbose": -1}
BAGGED = LIGHT | {"boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.6}
LIGHTS: dict[str, Any] = {
    "regressor": lightgbm.LGBMRegressor(**LIGHT).fit(X, SCORE),
    "classifier": lightgbm.LGBMClassifier(**LIGHT).fit(X, TWO),
    "classes": lightgbm.LGBMClassifier(**LIGHT).fit(X, THREE),
    "bagged": lightgbm.LGBMRegressor(**BAGGED).fit(X, SCORE),
    "booster": lightgbm.LGBMClassifier(**LIGHT).fit(X, THREE).booster_,
    "linear": lightgbm.LGBMRegressor(**LIGHT, linear_tree=True).fit(X, SCORE),
    "linear classes": lightgbm.LGBMClassifier(**LIGHT, linear_tree=True).fit(X, THREE),
    "one leaf": lightgbm.LGBMRegressor(**LIGHT).fit(X, np.ones(300)),
}
EXTREME: dict[str, Any] = {
    "regressor": xgboost.XGBRegressor(**SMALL).fit(X, SCORE),
    "classifier": xgboost.XGBClassifier(**SMALL).fit(X, TWO),
    "classes": xgboost.XGBClassifier(**SMALL).fit(X, THREE),
    "forest": xgboost.XGBRFRegressor(**SMALL).fit(X, SCORE),
    "dart": xgboost.XGBRegressor(**SMALL, booster="dart", rate_drop=0.3).fit(X, SCORE),
}
LIGHT_OPTIONS: list[dict[str, Any]] = [
    {"raw_score": True},
    {"pred_leaf": True},
    {"num_iteration": 3},
    {"start_iteration": 2, "num_iteration": 3},
    {"raw_score": True, "start_iteration": 2},
    {"pred_leaf": True, "num_iteration": 4},
    {"num_iteration": 99},
    {"raw_score": False, "num_iteration": None},
]
EXTREME_OPTIONS: list[dict[str, Any]] = [
    {"output_margin": True},
    {"iteration_range": (2, 5)},
    {"iteration_range": None},
]


def _near(found: Any, wanted: Any) -> None:
    assert found.shape == wanted.shape
    if wanted.dtype.kind == "i":
        assert found.dtype == wanted.dtype
        assert np.array_equal(found, wanted)
    assert np.abs(found - wanted).max() <= 2e-6 * max(1.0, np.abs(wanted).max())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", LIGHTS)
def test_options_of_lightgbm(kind: str, level: str) -> None:
    model = LIGHTS[kind]
    compiled = sparsejit.compile(model, ROWS, target=level)
    for options in LIGHT_OPTIONS:
        if kind == "one leaf" and "start_iteration" in options:
            continue  # it has one round
        _near(compiled.predict(ROWS, **options), model.predict(ROWS, **options))
    if hasattr(model, "predict_proba"):
        found = compiled.predict_proba(ROWS, num_iteration=2)
        _near(found, model.predict_proba(ROWS, num_iteration=2))


@pytest.mark.parametrize("kind", EXTREME)
def test_options_of_xgboost(kind: str) -> None:
    model = EXTREME[kind]
    compiled = sparsejit.compile(model)
    for options in EXTREME_OPTIONS:
        if kind == "forest" and options.get("iteration_range"):
            continue  # of one round
        _near(compiled.predict(ROWS, **options), model.predict(ROWS, **options))
    _near(compiled.apply(ROWS), model.apply(ROWS))
    booster = sparsejit.compile(model.get_booster())
    matrix = xgboost.DMatrix(ROWS)
    for name in ("output_margin", "pred_leaf"):
        wanted = model.get_booster().predict(matrix, **{name: True})
        _near(booster.predict(ROWS, **{name: True}), wanted)


@pytest.mark.parametrize(
    "estimator",
    [
        tree.DecisionTreeClassifier(max_depth=5),
        tree.ExtraTreeRegressor(),
        ensemble.RandomForestClassifier(5),
        ensemble.ExtraTreesRegressor(5),
        ensemble.GradientBoostingRegressor(n_estimators=5),
        ensemble.GradientBoostingClassifier(n_estimators=5),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_leaves_of_scikit_learn(estimator: Any) -> None:
    for y in (TWO, THREE):
        estimator.fit(X, y)
        _near(sparsejit.compile(estimator).apply(X), estimator.apply(X))


def test_leaves_with_categories() -> None:
    fitted = lightgbm.LGBMRegressor(**LIGHT, min_data_per_group=5)
    fitted.fit(CATEGORIES, SCORE, categorical_feature=[6])
    compiled = sparsejit.compile(fitted)
    rows = CATEGORIES[:90].copy()
    rows[:20, 6] = 20  # unseen
    _near(compiled.predict(rows, pred_leaf=True), fitted.predict(rows, pred_leaf=True))


def test_options_in_a_pipeline_and_a_file(tmp_path: Path) -> None:
    pipeline = make_pipeline(StandardScaler(), lightgbm.LGBMClassifier(**LIGHT)).fit(X, THREE)
    compiled = sparsejit.compile(pipeline)
    compiled.save(tmp_path / "e.sjit")
    loaded: Any = sparsejit.load(tmp_path / "e.sjit")
    assert loaded.methods == compiled.methods
    for options in LIGHT_OPTIONS:
        wanted = pipeline.predict(X, **options)
        for one in (compiled, loaded):
            _near(one.predict(X, **options), wanted)


@pytest.mark.parametrize("offset", [0.0, 1e5])
def test_linear_trees(offset: float) -> None:
    for y, kind in ((SCORE, lightgbm.LGBMRegressor), (THREE, lightgbm.LGBMClassifier)):
        fitted = kind(**LIGHT | {"n_estimators": 30}, linear_tree=True).fit(X + offset, y)
        compiled = sparsejit.compile(fitted, ROWS)
        for rows in (ROWS + offset, X[:1] + offset, (ROWS + offset).astype(np.float32)):
            for method in compiled.methods:
                _near(getattr(compiled, method)(rows), getattr(fitted, method)(rows))


def test_linear_trees_take_no_infinity() -> None:
    rows = X[:2].copy()
    rows[0, 0] = np.inf
    with pytest.raises(InvalidInput, match="does not take"):
        sparsejit.compile(LIGHTS["linear"]).predict(rows)


BEFORE: dict[str, list[Any]] = {
    "scaler": [StandardScaler()],
    "imputer and scaler": [SimpleImputer(add_indicator=True), RobustScaler()],
    "powers": [PowerTransformer()],
    "quantiles": [QuantileTransformer(n_quantiles=20)],
    "selector": [SimpleImputer(), SelectKBest(k=3), MinMaxScaler()],
    "parts": [
        make_column_transformer(
            (StandardScaler(), [0, 2]), (OneHotEncoder(handle_unknown="ignore"), [6]),
            ("passthrough", [3, 1]), sparse_threshold=0,
        )
    ],
    "target means": [make_column_transformer((TargetEncoder(cv=2), [6]), ("passthrough", [0, 1]))],
}


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("steps", BEFORE)
def test_linear_models_of_the_results_of_steps(steps: str, offset: float) -> None:
    """Linear trees, and for steps that leave no value missing a linear booster."""
    shift = np.array([offset] * 6 + [0])
    lasts = [
        (lightgbm.LGBMRegressor(**LIGHT | {"n_estimators": 30}, linear_tree=True), SCORE),
        (lightgbm.LGBMClassifier(**LIGHT, linear_tree=True), THREE),
        (xgboost.XGBRegressor(**SMALL, booster="gblinear"), SCORE),
    ]
    rows = CATEGORIES[:60].copy()
    if steps not in ("selector", "parts"):
        rows[:, :6] = ROWS
    for last, y in lasts:
        pipeline = make_pipeline(*BEFORE[steps], last).fit(CATEGORIES + shift, y)
        compiled = sparsejit.compile(pipeline, rows)
        for each in (rows + shift, rows[:1] + shift):
            for method in compiled.methods:
                _near(getattr(compiled, method)(each), getattr(pipeline, method)(each))


def test_linear_models_behind_components_are_refused() -> None:
    for last in (
        lightgbm.LGBMRegressor(**LIGHT, linear_tree=True),
        xgboost.XGBRegressor(**SMALL, booster="gblinear"),
    ):
        with pytest.raises(InvalidInput, match="multiply predictions or components"):
            sparsejit.compile(make_pipeline(PCA(3), last).fit(X, SCORE))
    missing = xgboost.XGBRegressor(**SMALL, booster="gblinear", missing=-1.0)
    with pytest.raises(InvalidInput, match=r"missing=-1\.0; fit it with NaN"):
        sparsejit.compile(make_pipeline(StandardScaler(), missing).fit(X, SCORE))


@pytest.mark.parametrize(
    ("model", "method", "options", "words"),
    [
        (LIGHTS["linear"], "predict", {"pred_contrib": True}, "pred_contrib has no compiled form"),
        (LIGHTS["classes"], "predict", {"output_margin": True}, "has no option output_margin"),
        (LIGHTS["classes"], "predict_proba", {"raw_score": True}, "has no option raw_score"),
        (EXTREME["classes"], "predict", {"iteration_range": (3, 9)}, "3 to 9 are not of 7"),
        (tree.DecisionTreeRegressor().fit(X, SCORE), "predict", {"check": True}, "leave it out"),
    ],
)
def test_other_options_are_refused(model: Any, method: str, options: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        getattr(sparsejit.compile(model), method)(X, **options)


def test_models_by_path(tmp_path: Path) -> None:
    for kind in ("classes", "regressor"):
        LIGHTS[kind].booster_.save_model(tmp_path / "m.txt")
        booster = lightgbm.Booster(model_file=tmp_path / "m.txt")
        _near(sparsejit.compile(tmp_path / "m.txt").predict(X), booster.predict(X))
        for suffix in ("json", "ubj"):
            model = EXTREME[kind]
            model.save_model(tmp_path / f"m.{suffix}")
            compiled = sparsejit.compile(str(tmp_path / f"m.{suffix}"))
            _near(compiled.predict(X), model.predict(X))
            if kind == "classes":
                _near(compiled.predict_proba(X), model.predict_proba(X))
            model.get_booster().set_attr(scikit_learn=None)
            model.get_booster().save_model(tmp_path / f"b.{suffix}")
            wanted = model.get_booster().predict(xgboost.DMatrix(X))
            _near(sparsejit.compile(tmp_path / f"b.{suffix}").predict(X), wanted)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for suffix in ("txt", "json", "ubj"):
        (tmp_path / f"m.{suffix}").write_text("{}")
        with pytest.raises(InvalidInput, match="cannot read"):
            sparsejit.compile(tmp_path / f"m.{suffix}")
        with pytest.raises(InvalidInput, match="check the path"):
            sparsejit.compile(tmp_path / f"none.{suffix}")


LINEAR: dict[str, tuple[Any, Any]] = {
    "reg:squarederror": (xgboost.XGBRegressor, SCORE),
    "count:poisson": (xgboost.XGBRegressor, np.abs(SCORE)),
    "binary:logistic": (xgboost.XGBClassifier, TWO),
    "multi:softprob": (xgboost.XGBClassifier, THREE),
}


@pytest.mark.parametrize("objective", LINEAR)
def test_linear_boosters(objective: str, tmp_path: Path) -> None:
    kind, y = LINEAR[objective]
    model = kind(**SMALL, booster="gblinear", objective=objective).fit(X, y)
    compiled = sparsejit.compile(model, ROWS)
    for rows in (ROWS, X[:1], X.astype(np.float32)):
        for method in compiled.methods:
            _near(getattr(compiled, method)(rows), getattr(model, method)(rows))
        wanted = model.predict(rows, output_margin=True)
        _near(compiled.predict(rows, output_margin=True), wanted)
    booster = sparsejit.compile(model.get_booster())
    _near(booster.predict(X), model.get_booster().predict(xgboost.DMatrix(X)))
    with_number = kind(**SMALL, booster="gblinear", objective=objective, missing=-1.0)
    filled = np.where(np.isnan(ROWS), -1.0, ROWS)
    _near(sparsejit.compile(with_number.fit(X, y)).predict(filled), with_number.predict(filled))
