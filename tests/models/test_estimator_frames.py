"""Frames with any names of columns, and single rows as Series."""

from typing import Any

import numpy as np
import pytest

import sparsejit
from sparsejit.errors import InvalidInput

pytest.importorskip("treelite")
pandas = pytest.importorskip("pandas")
lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")
from scipy.sparse import csr_matrix  # noqa: E402
from sklearn.compose import make_column_transformer  # noqa: E402
from sklearn.ensemble import AdaBoostRegressor  # noqa: E402
from sklearn.feature_selection import SelectKBest  # noqa: E402
from sklearn.impute import MissingIndicator, SimpleImputer  # noqa: E402
from sklearn.isotonic import IsotonicRegression  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.pipeline import make_pipeline, make_union  # noqa: E402
from sklearn.preprocessing import Binarizer, OrdinalEncoder, StandardScaler  # noqa: E402

X = np.random.default_rng(0).standard_normal((80, 3))
Y = X[:, 0] > 0
NAMES = {
    "spaces": ["a b", "c", "ä ö"],
    "numbers": [5, 7, 9],
    "several": pandas.MultiIndex.from_tuples([("a", "x"), ("a", "y"), ("b", "x")]),
}
BOOSTED = lightgbm.LGBMClassifier(n_estimators=2, verbose=-1)
ESTIMATORS = {
    "lightgbm": BOOSTED,
    "behind a scaler": make_pipeline(StandardScaler(), BOOSTED),
    "xgboost": xgboost.XGBClassifier(n_estimators=2),
    "sklearn": LogisticRegression(),
}


def compiled(kind: str, names: str) -> tuple[Any, Any, Any]:
    """An estimator that a frame was fitted to, the frame, and the estimator compiled."""
    frame = pandas.DataFrame(X, columns=NAMES[names])
    fitted = ESTIMATORS[kind].fit(frame, Y)
    return fitted, frame, sparsejit.compile(fitted)


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_columns_may_have_any_names(kind: str, names: str) -> None:
    if (kind, names) == ("lightgbm", "several"):
        pytest.skip("LightGBM refuses names with brackets")
    fitted, frame, fast = compiled(kind, names)
    np.testing.assert_allclose(
        fast.predict_proba(frame), fitted.predict_proba(frame), rtol=1e-5, atol=1e-6
    )
    first = fast.predict_proba(frame.iloc[0])
    np.testing.assert_array_equal(first, fast.predict_proba(frame[:1]))
    strings = names == "spaces"
    if strings or kind == "xgboost":
        with pytest.raises(InvalidInput, match="in this order"):
            fast.predict(frame[frame.columns[::-1]] if strings else pandas.DataFrame(X))
    with pytest.raises(InvalidInput, match=r"in this order" if strings else r"in this|shape"):
        fast.predict(frame.iloc[0, :2])


def test_numbers_are_no_names() -> None:
    for kind in ("lightgbm", "sklearn"):
        fitted, frame, fast = compiled(kind, "spaces")
        unnamed = pandas.DataFrame(X)
        np.testing.assert_array_equal(fast.predict(unnamed), fitted.predict(frame))


def test_a_row_of_several_dtypes() -> None:
    _, frame, fast = compiled("sklearn", "spaces")
    mixed = frame.assign(c=1).astype(object)
    assert mixed.iloc[3].dtype == object
    np.testing.assert_array_equal(
        fast.predict_proba(mixed.iloc[3]), fast.predict_proba(mixed[3:4])
    )


def test_options_behind_encoders_of_words() -> None:
    frame = pandas.DataFrame({"w": np.where(X[:, 0] > 0, "red", "blue"), "n": X[:, 1]})
    encoder = make_column_transformer((OrdinalEncoder(), ["w"]), remainder="passthrough")
    estimator = make_pipeline(encoder, xgboost.XGBClassifier(n_estimators=2)).fit(frame, Y)
    found = sparsejit.compile(estimator).predict(frame, output_margin=True)
    wanted = estimator.predict(frame, output_margin=True)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_an_indicator_that_refuses_new_missing_values_before_trees() -> None:
    missing = X.copy()
    missing[::9, 0] = np.nan
    steps = make_union(SimpleImputer(), MissingIndicator())
    estimator = make_pipeline(steps, AdaBoostRegressor(n_estimators=3, random_state=0))
    compiled = sparsejit.compile(estimator.fit(missing, X[:, 1]))
    np.testing.assert_allclose(compiled.predict(missing), estimator.predict(missing), atol=2e-6)
    missing[0, 1] = np.nan
    with pytest.raises(InvalidInput, match="column 1"):
        compiled.predict(missing)


@pytest.mark.parametrize(
    "kinds", [["float64"], ["float32"], ["int64"], ["int64", "float32"], ["float64", "bool"]]
)
@pytest.mark.parametrize("rows", [1, 16, 17])
def test_few_rows_of_any_dtypes_are_read_as_many_are(kinds: list[str], rows: int) -> None:
    columns = [column.astype(kinds[n % len(kinds)]) for n, column in enumerate((9 * X).T)]
    frame = pandas.DataFrame(dict(zip("abc", columns, strict=True)))
    estimator = make_pipeline(StandardScaler(), LogisticRegression()).fit(frame, Y)
    compiled, some = sparsejit.compile(estimator), frame[:rows]
    wanted = estimator.predict_proba(some)
    np.testing.assert_allclose(compiled.predict_proba(some), wanted, rtol=0, atol=1e-6)
    read = compiled._input.read(some)
    np.testing.assert_array_equal(read, compiled._input.read(frame)[:rows], strict=True)


def test_frames_of_a_pipeline_inside_of_another() -> None:
    frame = pandas.DataFrame(X, columns=[*"abc"])
    inner = make_pipeline(SelectKBest(k=1), IsotonicRegression())
    estimator = make_pipeline(StandardScaler(), inner).set_output(transform="pandas")
    wanted = estimator.fit(frame, X[:, 1]).transform(frame)
    found = sparsejit.compile(estimator).transform(frame)
    pandas.testing.assert_frame_equal(found, wanted, check_dtype=False, atol=2e-6)


def test_zeros_that_a_binarizer_makes_of_a_sparse_matrix() -> None:
    """It leaves them out, and they are missing to XGBoost."""
    estimator = make_pipeline(Binarizer(threshold=0.25), xgboost.XGBClassifier(n_estimators=2))
    compiled = sparsejit.compile(estimator.fit(X, Y))
    np.testing.assert_array_equal(compiled.predict(X), estimator.predict(X))
    with pytest.raises(InvalidInput, match="sparse"):
        compiled.predict(csr_matrix(X))
