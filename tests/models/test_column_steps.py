"""ColumnTransformer and OneHotEncoder in front of estimators, against scikit-learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MinMaxScaler,
    OneHotEncoder,
    RobustScaler,
    StandardScaler,
)

import sparsejit
from sparsejit.errors import InvalidInput

pandas = pytest.importorskip("pandas")
GENERATOR = np.random.default_rng(5)
ROWS = 300
# Columns 1 and 4 hold categories.
X = GENERATOR.standard_normal((ROWS, 6)).astype(np.float32)
X[:, 1] = GENERATOR.choice([2, 3, 7], ROWS)
X[:, 4] = GENERATOR.choice([-1, 0, 1, 12], ROWS)
SCORE = X[:, 0] + 2.0 * (X[:, 1] == 3) - 3.0 * (X[:, 4] == 12) + 0.3 * X[:, 2] * X[:, 5]
CLASSES = np.digitize(SCORE, [-1, 1])
UNSEEN = np.where(GENERATOR.random(X.shape) < 0.1, np.float32(5), X)
ENCODER = OneHotEncoder(handle_unknown="ignore")


def columns(*parts: Any, **more: Any) -> ColumnTransformer:
    return make_column_transformer(*parts, **more)


CASES = {
    "scalers": columns((StandardScaler(), [0, 2]), (MinMaxScaler(), [5, 3]), (RobustScaler(), [4])),
    "encoder": columns((ENCODER, [1, 4]), (StandardScaler(), [0, 2]), remainder="passthrough"),
    "dropped": columns((OneHotEncoder(drop="first"), [4, 1]), ("drop", [5]), ("passthrough", [0])),
    "twice": columns((StandardScaler(), [0, 2]), ("passthrough", slice(0, 3)), (ENCODER, [1])),
    "masks": columns((ENCODER, np.arange(6) == 4), (make_pipeline(StandardScaler()), [-1, 0])),
    "inner": columns((columns((ENCODER, [0]), ("passthrough", [1])), [4, 2]), ("passthrough", [1])),
    "dense": columns((OneHotEncoder(sparse_output=False), [1]), ("passthrough", [0, 4])),
}
seen_only = ("dropped", "dense")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "last",
    [Ridge(), LogisticRegression(), MLPRegressor(hidden_layer_sizes=(8,), max_iter=20)],
    ids=repr,
)
@pytest.mark.filterwarnings("ignore")
def test_before_a_model_of_products(name: str, last: Any) -> None:
    steps = [CASES[name]]
    pipeline = make_pipeline(*steps, last).fit(X, CLASSES)
    compiled = sparsejit.compile(pipeline, X)
    for rows in (X,) if name in seen_only else (X, UNSEEN):
        wanted = pipeline.predict(rows)
        np.testing.assert_allclose(compiled.predict(rows), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_by_itself(name: str) -> None:
    transformer = CASES[name].fit(X)
    wanted = transformer.transform(X)
    wanted = wanted.toarray() if hasattr(wanted, "toarray") else wanted
    np.testing.assert_allclose(sparsejit.compile(transformer).transform(X), wanted, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("after", [(), (StandardScaler(with_mean=False),)], ids=["", "scaled"])
def test_before_a_forest(name: str, after: tuple[Any, ...]) -> None:
    """Exactly: every row falls into the leaf that scikit-learn finds."""
    forest = RandomForestClassifier(30, max_depth=7, random_state=0)
    pipeline = make_pipeline(CASES[name], *after, forest).fit(X, CLASSES)
    compiled = sparsejit.compile(pipeline, X)
    assert len(compiled.variant("predict_proba").steps) == 1
    for rows in (X,) if name in seen_only else (X, UNSEEN):
        wanted = pipeline.predict_proba(rows)
        np.testing.assert_allclose(compiled.predict_proba(rows), wanted, atol=1e-6)


@pytest.mark.parametrize("fill", [3, 99])
def test_missing_values_before_a_forest(fill: int) -> None:
    imputed = make_pipeline(SimpleImputer(strategy="constant", fill_value=fill), ENCODER)
    transformer = columns((imputed, [1, 4]), ("passthrough", [0, 2]), (ENCODER, [4]))
    forest = HistGradientBoostingRegressor(max_iter=30)
    rows = np.where(GENERATOR.random(X.shape) < 0.15, np.float32(np.nan), X)
    dense = columns((transformer, list(range(6))), sparse_threshold=0)
    before = make_pipeline(dense, forest)
    rows[:, 4] = X[:, 4]
    before.fit(rows, SCORE)
    rows[::7, 4] = np.nan
    compiled = sparsejit.compile(before, rows)
    np.testing.assert_allclose(compiled.predict(rows), before.predict(rows), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("last", [Ridge(), LogisticRegression()], ids=repr)
def test_sums_of_many_categories(last: Any, dtype: str) -> None:
    """A feature is encoded twice, and scaled behind that; an imputer has marks."""
    rows = np.where(GENERATOR.random(X.shape) < 0.1, np.nan, X).astype(dtype)
    rows[:, 1:3] = np.round(GENERATOR.uniform(-99, 99, (ROWS, 2)))
    filled = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    before = columns((ENCODER, [1, 2]), (OneHotEncoder(drop="first"), [1]), (filled, [0, 4, 5]))
    behind = StandardScaler(with_mean=False)
    pipeline = make_pipeline(before, behind, last).fit(rows, CLASSES)
    compiled = sparsejit.compile(pipeline, rows)
    report = str(compiled.explain("predict"))
    assert "pieces" in report
    method = "predict" if hasattr(last, "alpha") else "decision_function"
    unseen = rows.copy()
    unseen[::3, 2] = 1000.5
    for given in (rows, unseen):
        wanted = getattr(pipeline, method)(given)
        np.testing.assert_allclose(getattr(compiled, method)(given), wanted, rtol=1e-5, atol=2e-5)


def test_a_column_that_is_left_out_may_be_missing() -> None:
    rows = X.copy()
    rows[::3, 3] = np.nan
    before = columns((StandardScaler(), [0, 2]), ("passthrough", [1, 4, 5]))
    pipeline = make_pipeline(before, Ridge()).fit(rows, SCORE)
    wanted = pipeline.predict(rows)
    np.testing.assert_allclose(sparsejit.compile(pipeline).predict(rows), wanted, atol=1e-5)


def test_an_encoder_behind_a_scaler_is_refused() -> None:
    scaled = make_pipeline(StandardScaler(), ENCODER, RandomForestClassifier(3))
    with pytest.raises(InvalidInput, match="follows a scaler"):
        sparsejit.compile(scaled.fit(X, CLASSES))


NAMES = list("abcdef")
NAMED = pandas.DataFrame(X, columns=NAMES)


@pytest.mark.parametrize("remainder", ["drop", "passthrough"])
@pytest.mark.parametrize("last", [Ridge(), RandomForestClassifier(3, random_state=0)])
def test_a_frame_with_its_columns_in_another_order_is_read_by_name(
    remainder: str, last: Any, tmp_path: Path
) -> None:
    """As scikit-learn does where a ColumnTransformer is the first step; it ignores other columns.

    Columns that no part reads may be missing.
    """
    parts = [("scaled", StandardScaler(), ["c", "a"]), ("numbers", StandardScaler(), [1])]
    before = ColumnTransformer(parts, remainder=remainder)
    pipeline = make_pipeline(before, last).fit(NAMED, CLASSES)
    fast = sparsejit.compile(pipeline)
    fast.save(tmp_path / "e.sjit")
    turned = NAMED[NAMES[::-1]]
    loaded: Any = sparsejit.load(tmp_path / "e.sjit")
    for compiled in (fast, loaded):
        for frame in (turned, turned.assign(more=1.0), NAMED, turned[["b", "a", "c"]]):
            try:
                wanted = pipeline.predict(frame)
            except ValueError:
                with pytest.raises(InvalidInput, match="add d, e, f"):
                    compiled.predict(frame)
                continue
            np.testing.assert_allclose(compiled.predict(frame), wanted, atol=1e-5)
        with pytest.raises(InvalidInput, match="add b"):
            compiled.predict(NAMED.drop(columns="b"))


def test_other_estimators_refuse_another_order() -> None:
    compiled = sparsejit.compile(make_pipeline(StandardScaler(), Ridge()).fit(NAMED, CLASSES))
    with pytest.raises(InvalidInput, match="in this order"):
        compiled.predict(NAMED[NAMES[::-1]])
