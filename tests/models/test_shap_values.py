"""SHAP values, `pred_contrib` of LightGBM and `pred_contribs` of XGBoost, against both."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runnable import LEVELS

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.ir.values import Array

for name in ("treelite", "lightgbm", "xgboost", "pandas", "scipy"):
    pytest.importorskip(name)
import lightgbm  # noqa: E402
import pandas  # noqa: E402
import scipy.sparse  # noqa: E402
import xgboost  # noqa: E402
from sklearn.compose import make_column_transformer  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import OneHotEncoder, StandardScaler  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
ROWS = 400
LIGHT = {"verbose": -1, "n_jobs": 1, "min_child_samples": 3, "min_data_per_group": 2}


def near(found: Any, wanted: Any) -> None:
    """The same type, shape and dtype, and values within 1e-6 of the largest."""
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    assert np.abs(found - wanted).max() <= 1e-6 * max(1.0, np.abs(wanted).max())


def drawn(seed: int, missing: bool, categories: int) -> tuple[Array, Array]:
    """X with a last column of categories, if there are any, and a score to fit to."""
    random = np.random.default_rng(seed)
    x = np.round(random.standard_normal((ROWS, 5)), 2)
    score = x[:, 0] + np.sin(3 * x[:, 1]) + x[:, 2] * x[:, 3]
    if categories:
        codes = random.integers(0, categories, ROWS)
        score = score + random.standard_normal(categories)[codes]
        x = np.column_stack([x, codes])
    if missing:
        x[random.random(x.shape) < 0.15] = np.nan
    return x, score


def of_kind(kind: str, x: Array, score: Array) -> Array:
    """The y of an objective."""
    if kind in ("regression", "reg:squarederror"):
        return score
    if kind in ("poisson", "count:poisson"):
        return np.floor(np.exp(np.minimum(score, 2)))
    if kind in ("binary", "binary:logistic"):
        return (score > 0).astype(int)
    return np.digitize(score, [-1.5, 0, 1.5])


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.sampled_from(["regression", "poisson", "binary", "multiclass"]),
    boosting=st.sampled_from(["gbdt", "dart", "rf"]),
    leaves=st.sampled_from([2, 7, 31, 100]),
    depth=st.sampled_from([-1, 1, 3, 9]),
    categories=st.sampled_from([0, 3, 60]),
    missing=st.booleans(),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_model_of_lightgbm(
    level: str,
    kind: str,
    boosting: str,
    leaves: int,
    depth: int,
    categories: int,
    missing: bool,
    dtype: str,
    seed: int,
) -> None:
    x, score = drawn(seed, missing, categories)
    bagged = {"bagging_freq": 1, "bagging_fraction": 0.7} if boosting == "rf" else {}
    model_kind = lightgbm.LGBMClassifier if kind[0] in "bm" else lightgbm.LGBMRegressor
    model = model_kind(
        n_estimators=4,
        objective=kind,
        boosting_type=boosting,
        num_leaves=leaves,
        max_depth=depth,
        **LIGHT,
        **bagged,
    )
    model.fit(x, of_kind(kind, x, score), categorical_feature=[5] if categories else "auto")
    rows = x[:40].astype(dtype)
    rows[::7, -1] = 1000  # a category that was not seen
    rows[::5] = np.nan
    compiled = sparsejit.compile(model, rows, target=level)
    found = compiled.predict(rows, pred_contrib=True)
    near(found, model.predict(rows, pred_contrib=True))
    some = {"start_iteration": 1, "num_iteration": 2}
    near(
        compiled.predict(rows, pred_contrib=True, **some),
        model.predict(rows, pred_contrib=True, **some),
    )
    if boosting != "rf":  # whose scores are means, and contributions are not
        raw = model.predict(rows, raw_score=True).reshape(40, -1)
        near(found.reshape(40, raw.shape[1], -1).sum(axis=2), raw)


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.sampled_from(
        ["reg:squarederror", "count:poisson", "binary:logistic", "multi:softprob"]
    ),
    booster=st.sampled_from(["gbtree", "dart"]),
    depth=st.sampled_from([1, 3, 8]),
    categories=st.sampled_from([0, 3, 60]),
    missing=st.booleans(),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_model_of_xgboost(
    level: str,
    kind: str,
    booster: str,
    depth: int,
    categories: int,
    missing: bool,
    dtype: str,
    seed: int,
) -> None:
    x, score = drawn(seed, missing, categories)
    types = {"feature_types": ["q"] * 5 + ["c"] * (categories > 0), "enable_categorical": True}
    model_kind = xgboost.XGBClassifier if kind[0] in "bm" else xgboost.XGBRegressor
    model = model_kind(
        n_estimators=4, objective=kind, booster=booster, max_depth=depth, n_jobs=1, **types
    )
    model.fit(x, of_kind(kind, x, score))
    rows = x[:40].astype(dtype)
    rows[::5] = np.nan
    booster_of = model.get_booster()
    matrix = xgboost.DMatrix(rows, **types)
    wanted = booster_of.predict(matrix, pred_contribs=True)
    compiled = sparsejit.compile(booster_of, rows, target=level)
    near(compiled.predict(rows, pred_contribs=True), wanted)
    near(sparsejit.compile(model, target=level).predict(rows, pred_contribs=True), wanted)
    some = {"iteration_range": (0, 3)}
    near(
        compiled.predict(rows, pred_contribs=True, **some),
        booster_of.predict(matrix, pred_contribs=True, **some),
    )


X, SCORE = drawn(0, True, 0)
THREE = of_kind("multiclass", X, SCORE)


def test_deep_trees_of_many_features() -> None:
    random = np.random.default_rng(1)
    x = random.standard_normal((2000, 40))
    model = lightgbm.LGBMRegressor(
        n_estimators=3, num_leaves=500, learning_rate=1.0, **LIGHT | {"min_child_samples": 1}
    )
    model.fit(x, x[:, :20].sum(axis=1) + random.standard_normal(2000))
    near(
        sparsejit.compile(model).predict(x[:20], pred_contrib=True),
        model.predict(x[:20], pred_contrib=True),
    )


@pytest.mark.parametrize("kind", ["csr", "csc"])
@pytest.mark.parametrize("y", [SCORE, THREE], ids=["one", "several"])
def test_a_sparse_x_gives_what_the_library_gives(kind: str, y: Array) -> None:
    x = np.where(np.random.default_rng(2).random(X.shape) < 0.5, 0, np.nan_to_num(X))
    model_kind = lightgbm.LGBMRegressor if y is SCORE else lightgbm.LGBMClassifier
    model = model_kind(n_estimators=3, **LIGHT).fit(x, y)
    rows = getattr(scipy.sparse, f"{kind}_matrix")(x[:30])
    found = sparsejit.compile(model).predict(rows, pred_contrib=True)
    wanted = model.predict(rows, pred_contrib=True)
    assert type(found) is type(wanted)
    pairs = [(found, wanted)] if y is SCORE else zip(found, wanted, strict=True)
    for one, other in pairs:
        assert type(one) is type(other)
        near(one.toarray(), other.toarray())


def test_zeros_that_a_matrix_leaves_out_are_missing_to_xgboost() -> None:
    x = np.where(np.random.default_rng(2).random(X.shape) < 0.5, 0, np.nan_to_num(X))
    rows = scipy.sparse.csr_matrix(x)
    model = xgboost.XGBRegressor(n_estimators=4, n_jobs=1).fit(rows, SCORE)
    wanted = model.get_booster().predict(xgboost.DMatrix(rows), pred_contribs=True)
    near(sparsejit.compile(model).predict(rows, pred_contribs=True), wanted)


def test_frames_and_files(tmp_path: Path) -> None:
    frame = pandas.DataFrame(X, columns=[*"abcde"])
    frame["f"] = pandas.Categorical(np.array([*"uvwxyz"])[np.arange(ROWS) % 6])
    model = lightgbm.LGBMClassifier(n_estimators=4, **LIGHT).fit(frame, THREE)
    compiled = sparsejit.compile(model)
    compiled.save(tmp_path / "e.sjit")
    wanted = model.predict(frame, pred_contrib=True)
    for each in (compiled, sparsejit.load(tmp_path / "e.sjit")):
        near(each.predict(frame, pred_contrib=True), wanted)


def test_contributions_behind_steps_are_of_their_results() -> None:
    x = np.column_stack([np.nan_to_num(X), np.arange(ROWS) % 9])
    encode = make_column_transformer(
        (StandardScaler(), [0, 1, 2, 3, 4]), (OneHotEncoder(), [5]), sparse_threshold=0
    )
    for last, options in (
        (lightgbm.LGBMClassifier(n_estimators=4, **LIGHT), {"pred_contrib": True}),
        (xgboost.XGBClassifier(n_estimators=4, n_jobs=1), {"pred_contribs": True}),
    ):
        pipeline = make_pipeline(encode, last).fit(x, THREE)
        found = sparsejit.compile(pipeline).predict(x, **options)
        behind = encode.transform(x)
        if "pred_contrib" in options:
            near(found, last.predict(behind, pred_contrib=True))
        else:
            booster = last.get_booster()
            near(found, booster.predict(xgboost.DMatrix(behind), pred_contribs=True))


def test_models_of_one_leaf() -> None:
    model = lightgbm.LGBMRegressor(n_estimators=3, **LIGHT).fit(X, np.ones(ROWS))
    found = sparsejit.compile(model).predict(X, pred_contrib=True)
    near(found, model.predict(X, pred_contrib=True))


def test_models_without_contributions_are_refused() -> None:
    linear = lightgbm.LGBMRegressor(n_estimators=3, linear_tree=True, **LIGHT).fit(X, SCORE)
    with pytest.raises(InvalidInput, match="pred_contrib has no compiled form"):
        sparsejit.compile(linear).predict(X, pred_contrib=True)
    model = xgboost.XGBRegressor(n_estimators=3, n_jobs=1).fit(X, SCORE)
    with pytest.raises(InvalidInput, match="pred_interactions has no compiled form"):
        sparsejit.compile(model).predict(X, pred_interactions=True)
