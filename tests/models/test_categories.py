"""Categories of trees at any number and in frames, and forests without trees."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparsejit
from sparsejit.errors import InvalidInput

pytest.importorskip("treelite")
lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")
pandas = pytest.importorskip("pandas")
from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: E402

GENERATOR = np.random.default_rng(0)
ROWS = 300
CODES = GENERATOR.integers(0, 6, ROWS)
X = np.column_stack([CODES, GENERATOR.standard_normal(ROWS)])
Y = np.array([3, -1, 2, 5, 0, -4.0])[CODES] + 0.1 * X[:, 1]
LIGHT = {"n_estimators": 5, "verbose": -1, "min_data_per_group": 1, "min_child_samples": 2}
ODD = [-7, -1, np.nextafter(-1, 0), -0.5, -1e-9, -0.0, 0, 0.3, 1, 1.5, 3.0000001, 5, 5.5, 6, 1e18]
FRAME = pandas.DataFrame({"c": pandas.Categorical(np.array([*"abcdef"])[CODES]), "x": X[:, 1]})


def boosted(name: str, rows: Any) -> Any:
    """Histogram gradient boosting, LightGBM or XGBoost, whose first column has categories."""
    if name == "histogram":
        return HistGradientBoostingRegressor(categorical_features=[0], max_iter=5).fit(rows, Y)
    if name.startswith("lightgbm"):
        few = 9 if name.endswith("one") else 1
        light = lightgbm.LGBMRegressor(max_cat_to_onehot=few, n_jobs=1, **LIGHT)
        return light.fit(rows, Y, categorical_feature=[0])
    kinds = {"feature_types": ["c", "q"], "enable_categorical": True}
    return xgboost.XGBRegressor(n_estimators=5, n_jobs=1, **kinds).fit(rows, Y)


def same(estimator: Any, rows: Any) -> None:
    found = sparsejit.compile(estimator).predict(rows)
    np.testing.assert_allclose(found, estimator.predict(rows), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["histogram", "lightgbm", "lightgbm one by one", "xgboost"])
def test_numbers_beside_categories(name: str, dtype: str) -> None:
    """LightGBM cuts x to a whole number; histograms take others than their own for missing."""
    odd = np.column_stack([[*ODD, np.nan], np.zeros(len(ODD) + 1)])
    same(boosted(name, X), odd.astype(dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_categories_that_are_no_whole_numbers(dtype: str) -> None:
    rows = X.copy()
    rows[:, 0] = np.array([-2, -0.5, 0.1, 1.25, 7, np.nan])[CODES]
    estimator = boosted("histogram", rows.astype(dtype))
    odd = np.column_stack([ODD, np.zeros(len(ODD))])
    same(estimator, np.concatenate([rows, odd]))
    same(estimator, np.concatenate([rows, odd]).astype(np.float32))


def test_an_infinite_category_is_refused_as_by_the_library() -> None:
    estimator = boosted("histogram", X)
    rows = X[:3].copy()
    rows[1, 1] = np.inf
    same(estimator, rows)
    rows[1, 0] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        estimator.predict(rows)
    with pytest.raises(InvalidInput, match="inf in row 1, column 0"):
        sparsejit.compile(estimator).predict(rows)


WORDS = {
    "c": pandas.Categorical(np.array([*"abcdef"])[CODES]),
    "x": X[:, 1],
    "n": pandas.Categorical(np.array([3, 70, -1])[CODES % 3]),
}
MANY = pandas.DataFrame(WORDS)
MANY.loc[::7, "c"] = np.nan


@pytest.mark.parametrize("name", ["histogram", "LightGBM"])
def test_frames_of_categories(name: str, tmp_path: Path) -> None:
    """Categories that were not seen, and the order in which a frame lists them, are no codes."""
    estimator: Any = HistGradientBoostingRegressor(max_iter=5, min_samples_leaf=3)
    if name == "LightGBM":
        estimator = lightgbm.LGBMRegressor(n_jobs=1, **LIGHT)
    estimator.fit(MANY, Y)
    compiled = sparsejit.compile(estimator, MANY)
    other = MANY.assign(
        c=pandas.Categorical(np.array([*"fzebay"])[CODES], categories=[*"zyfeba"]),
        n=MANY.n.cat.reorder_categories([70, 3, -1]),
    )
    compiled.save(tmp_path / "e.sjit")
    again = sparsejit.load(tmp_path / "e.sjit")
    for rows in (MANY, other, MANY[2:9], other[4:5]):
        wanted = estimator.predict(rows)
        np.testing.assert_allclose(compiled.predict(rows), wanted, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(again.predict(rows), compiled.predict(rows))


def test_lightgbm_takes_codes_in_arrays_and_categories_in_frames() -> None:
    estimator = lightgbm.LGBMRegressor(n_jobs=1, **LIGHT).fit(FRAME, Y)
    compiled = sparsejit.compile(estimator)
    for rows in (X, X[:3], X.astype(np.float32), X.tolist()):
        found = compiled.predict(rows)
        np.testing.assert_allclose(found, estimator.predict(rows), rtol=1e-6, atol=1e-6)
    for frame in (pandas.DataFrame(X, columns=["c", "x"]), FRAME.astype({"c": object})):
        with pytest.raises(ValueError, match="categorical_feature do not match"):
            estimator.predict(frame)
        with pytest.raises(InvalidInput, match=r"columns \[\]; the fit had them in \[0\]"):
            compiled.predict(frame)


def test_categories_of_columns_that_no_tree_knows_are_refused_in_frames() -> None:
    """LightGBM does not say which columns they were, if one has a single category."""
    frame = FRAME.assign(one=pandas.Categorical(["same"] * ROWS))
    estimator = lightgbm.LGBMRegressor(n_jobs=1, **LIGHT).fit(frame, Y)
    compiled = sparsejit.compile(estimator)
    array = np.column_stack([X, np.zeros(ROWS)])
    wanted = estimator.predict(array)
    np.testing.assert_allclose(compiled.predict(array), wanted, rtol=1e-6, atol=1e-6)
    with pytest.raises(InvalidInput, match="fitted to a frame with columns of categories"):
        compiled.predict(frame)


EXTREME = {"n_estimators": 4, "enable_categorical": True, "n_jobs": 1}
ODD_WORDS = np.array(["", "~", "b c", "True", "1", "e" * 40])


@pytest.mark.parametrize("booster", ["gbtree", "dart"])
@pytest.mark.parametrize("one_by_one", [1, 99])
@pytest.mark.parametrize("y", [Y, CODES % 3, CODES % 2], ids=["number", "three", "two"])
def test_xgboost_of_frames_of_categories(
    y: Any, one_by_one: int, booster: str, tmp_path: Path
) -> None:
    frame = MANY.assign(w=pandas.Categorical(ODD_WORDS[(CODES + 1) % 6]), x=X[:, 1])
    frame.loc[::9, ["c", "n", "w"]] = None
    kind = xgboost.XGBRegressor if y is Y else xgboost.XGBClassifier
    model = kind(max_cat_to_onehot=one_by_one, booster=booster, **EXTREME).fit(frame, y)
    compiled = sparsejit.compile(model)
    compiled.save(tmp_path / "e.sjit")
    loaded: Any = sparsejit.load(tmp_path / "e.sjit")
    codes = np.column_stack([frame[name].cat.codes if name != "x" else frame.x for name in frame])
    codes[codes == -1] = np.nan
    turned = frame.assign(c=frame.c.cat.reorder_categories([*"fedcba"]))
    for method in compiled.methods:
        wanted = getattr(model, method)(frame)
        for each in (compiled, loaded):
            for rows in (frame, turned, codes, frame[:40]):
                found = getattr(each, method)(rows)
                np.testing.assert_allclose(found, wanted[: len(found)], rtol=1e-6, atol=1e-6)
        one = getattr(model, method)(frame[3:4])
        np.testing.assert_allclose(getattr(compiled, method)(frame[3:4]), one, rtol=1e-6, atol=1e-6)
    matrix = xgboost.DMatrix(frame, enable_categorical=True)
    wanted = model.get_booster().predict(matrix, pred_contribs=True)
    found = sparsejit.compile(model.get_booster()).predict(frame, pred_contribs=True)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6 * max(1, np.abs(wanted).max()))


def test_xgboost_refuses_categories_that_it_did_not_see() -> None:
    model = xgboost.XGBRegressor(**EXTREME).fit(FRAME, Y)
    compiled = sparsejit.compile(model)
    other = FRAME[:3].assign(c=pandas.Categorical(["a", "z", "b"]))
    with pytest.raises(xgboost.core.XGBoostError, match="not in the training set"):
        model.predict(other)
    for rows in (other, other[1:2]):
        with pytest.raises(InvalidInput, match=r"has 'z', which the XGBRegressor did not see"):
            compiled.predict(rows)
    with pytest.raises(InvalidInput, match=r"the fit had them in \[0\]"):
        compiled.predict(FRAME.assign(c=X[:, 0]))
    accents = FRAME.assign(c=FRAME.c.cat.rename_categories([*"äöüabc"]))
    with pytest.raises(InvalidInput, match="are not ASCII"):
        sparsejit.compile(model.fit(accents, Y))


def test_a_forest_without_trees_is_refused() -> None:
    for estimator, y in ((xgboost.XGBRegressor(), Y), (xgboost.XGBClassifier(), CODES)):
        fitted = estimator.set_params(n_estimators=0).fit(X, y)
        for each in (fitted, fitted.get_booster()):
            with pytest.raises(InvalidInput, match=r"has no trees; fit it with n_estimators"):
                sparsejit.compile(each)
