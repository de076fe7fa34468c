"""Sparse matrices between steps: zeros that are left out are missing to XGBoost alone."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("treelite")
lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")
from sklearn.calibration import CalibratedClassifierCV  # noqa: E402
from sklearn.compose import make_column_transformer  # noqa: E402
from sklearn.ensemble import StackingClassifier, VotingClassifier  # noqa: E402
from sklearn.feature_selection import VarianceThreshold  # noqa: E402
from sklearn.impute import SimpleImputer  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import (  # noqa: E402
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    QuantileTransformer,
    StandardScaler,
)

import sparsejit  # noqa: E402
from sparsejit.errors import InvalidInput  # noqa: E402

GENERATOR = np.random.default_rng(3)
ROWS = 200
# Columns 0 to 2 hold categories, 3 and 4 numbers with zeros among them.
X = np.column_stack(
    [GENERATOR.integers(0, 5, (ROWS, 3)), np.round(GENERATOR.standard_normal((ROWS, 2)))]
)
Y = (X[:, 0] == 2) ^ (X[:, 1] > 2) ^ (X[:, 2] == 1) ^ (X[:, 3] > 0)
ENCODER = OneHotEncoder(handle_unknown="ignore")
CODES, NUMBERS = [0, 1, 2], [3, 4]


def boosted(**more: Any) -> Any:
    return xgboost.XGBClassifier(n_estimators=5, max_depth=4, n_jobs=1, **more)


def columns(*parts: Any, **more: Any) -> Any:
    return make_column_transformer((ENCODER, CODES), *parts, **more)


PASSED = columns(remainder="passthrough", sparse_threshold=1)
SCALED = columns((StandardScaler(), [3]), (MinMaxScaler(), [4]), sparse_threshold=1)
DENSE = columns((StandardScaler(), NUMBERS), sparse_threshold=0)
BEFORE: dict[str, tuple[Any, ...]] = {
    "encoder": (ENCODER,),
    "dropped": (OneHotEncoder(drop="first"),),
    "not sparse": (OneHotEncoder(sparse_output=False),),
    "scaled": (ENCODER, StandardScaler(with_mean=False), MaxAbsScaler(), VarianceThreshold()),
    "quantiles": (ENCODER, QuantileTransformer(n_quantiles=10)),
    "passed": (PASSED,),
    "parts": (SCALED,),
    "dense parts": (DENSE,),
    "scaled parts": (PASSED, MaxAbsScaler()),
    "inner parts": (make_column_transformer((SCALED, list(range(5))), sparse_threshold=0),),
    "imputed": (make_column_transformer((make_pipeline(SimpleImputer(), ENCODER), CODES)),),
}
LAST = {
    "xgboost": boosted(),
    "a number for missing": boosted(missing=1.0),
    "lightgbm": lightgbm.LGBMClassifier(n_estimators=5, verbose=-1, min_child_samples=2, n_jobs=1),
}


def same(estimator: Any, rows: Any) -> None:
    """Compiled it has the probabilities of the estimator."""
    found = sparsejit.compile(estimator).predict_proba(rows)
    np.testing.assert_allclose(found, estimator.predict_proba(rows), atol=1e-6)


@pytest.mark.parametrize("last", LAST)
@pytest.mark.parametrize("before", BEFORE)
def test_behind_steps_that_return_sparse_matrices(before: str, last: str) -> None:
    estimator = make_pipeline(*BEFORE[before], LAST[last]).fit(X, Y)
    rows = X.copy()
    if before not in ("dropped", "not sparse"):
        rows[GENERATOR.random(X.shape) < 0.1] = 7
    same(estimator, rows)
    same(estimator, rows.astype(np.float32))


def test_missing_values_that_pass_a_sparse_matrix() -> None:
    rows = np.where(GENERATOR.random(X.shape) < 0.2, np.nan, X)
    rows[:, CODES] = X[:, CODES]
    for last in (boosted(), boosted(missing=0.0)):
        same(make_pipeline(PASSED, last).fit(rows, Y), rows)


PIPELINE = make_pipeline(ENCODER, boosted())


@pytest.mark.parametrize(
    "estimator",
    [
        GridSearchCV(PIPELINE, {"xgbclassifier__max_depth": [2, 3]}, cv=2),
        CalibratedClassifierCV(PIPELINE, cv=2),
        VotingClassifier(
            [("a", PIPELINE), ("b", make_pipeline(ENCODER, LogisticRegression()))], voting="soft"
        ),
        StackingClassifier([("a", PIPELINE), ("b", PIPELINE)], cv=2),
        make_pipeline(ENCODER, VotingClassifier([("a", boosted())], voting="soft")),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_inside_of_other_estimators(estimator: Any) -> None:
    same(estimator.fit(X, Y), X)


@pytest.mark.parametrize("missing", [-999.0, 0.0, 2.5])
def test_a_number_for_missing_behind_steps(missing: float) -> None:
    rows = np.where(GENERATOR.random(X.shape) < 0.2, missing, X)
    both = VotingClassifier([("a", boosted(missing=missing)), ("b", LogisticRegression())])
    both.set_params(voting="soft")
    for estimator in (both, make_pipeline(MinMaxScaler((0, 2.5)), boosted(missing=missing))):
        same(estimator.fit(rows, Y), rows)
        same(estimator, rows.astype(np.float32))


def test_infinity_for_missing_behind_steps_is_refused() -> None:
    pipeline = make_pipeline(MinMaxScaler(), boosted(missing=np.inf)).fit(X, Y)
    with pytest.raises(InvalidInput, match="takes inf for missing behind other steps"):
        sparsejit.compile(pipeline)
