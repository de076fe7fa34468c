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
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402

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
