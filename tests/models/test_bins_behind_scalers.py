"""Bins and quantiles behind scalers jump at numbers of the fit, where the last bit decides."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
from sklearn.compose import ColumnTransformer
from sklearn.feature_selection import VarianceThreshold
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)

import sparsejit

SCALERS = [
    StandardScaler(),
    StandardScaler(with_mean=False),
    RobustScaler(),
    RobustScaler(with_scaling=False),
    MinMaxScaler(),
    MinMaxScaler((-3, 2), clip=True),
    MaxAbsScaler(),
]
BINS = KBinsDiscretizer(n_bins=5, encode="ordinal")


def rows(seed: int, dtype: str) -> Any:
    """51 rows: the edges of five bins with as many rows each are numbers of the fit."""
    draw = np.random.default_rng(seed)
    return np.round(draw.standard_normal((51, 4)) * draw.choice([1, 30], 4), 3).astype(dtype)


def check(steps: Any, x: Any) -> None:
    steps.fit(x)
    np.testing.assert_array_equal(sparsejit.compile(steps).transform(x), steps.transform(x))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("scaler", SCALERS, ids=repr)
def test_every_number_of_the_fit_is_in_its_bin(scaler: Any, dtype: str) -> None:
    for seed in range(4):
        x = rows(seed, dtype)
        check(make_pipeline(scaler, BINS), x)
        check(make_pipeline(scaler, RobustScaler(), BINS), x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_behind_imputers_selectors_and_in_parts(dtype: str) -> None:
    x = rows(9, dtype)
    lacking = np.where(np.random.default_rng(1).random(x.shape) < 0.1, np.nan, x).astype(dtype)
    check(make_pipeline(SimpleImputer(), StandardScaler(), BINS), lacking)
    check(make_pipeline(StandardScaler(), SimpleImputer(), BINS), lacking)
    check(make_pipeline(StandardScaler(), VarianceThreshold(), BINS), x)
    own = make_pipeline(MinMaxScaler(), BINS)
    parts = [("a", own, [2, 0]), ("b", make_pipeline(StandardScaler(), BINS), [1])]
    check(ColumnTransformer(parts), x)
    check(make_pipeline(RobustScaler(), ColumnTransformer(parts)), x)


@pytest.mark.filterwarnings("ignore")
def test_models_behind_them_choose_alike() -> None:
    x = rows(3, "float64")
    bins = KBinsDiscretizer(n_bins=5, encode="onehot-dense")
    model = make_pipeline(StandardScaler(), bins, LogisticRegression()).fit(x, x[:, 0] > x[:, 1])
    found = sparsejit.compile(model).predict_proba(x)
    np.testing.assert_allclose(found, model.predict_proba(x), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scaler", SCALERS, ids=repr)
def test_quantiles_jump_where_numbers_repeat(scaler: Any) -> None:
    for seed in range(3):
        x = np.round(rows(seed, "float64") / 10) * 0.1
        steps = make_pipeline(scaler, QuantileTransformer(n_quantiles=10)).fit(x)
        found = sparsejit.compile(steps).transform(x)
        np.testing.assert_allclose(found, steps.transform(x), rtol=0, atol=1e-6)
