"""Estimators whose results float32 does not hold are refused when they are compiled."""

from typing import Any

import numpy as np
import pytest

import sparsejit
from sparsejit.errors import InvalidInput

pytest.importorskip("treelite")
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
    VotingRegressor,
)
from sklearn.linear_model import LinearRegression, PoissonRegressor, Ridge
from sklearn.tree import DecisionTreeRegressor

GENERATOR = np.random.default_rng(0)
X = GENERATOR.standard_normal((80, 3))
Y = 1 + X[:, 0] ** 2


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of histograms
@pytest.mark.parametrize("scale", [1e60, 1e-60])
@pytest.mark.parametrize(
    "estimator",
    [
        LinearRegression(),
        Ridge(fit_intercept=False),
        DecisionTreeRegressor(max_depth=3),
        RandomForestRegressor(2, max_depth=3),
        GradientBoostingRegressor(n_estimators=2),
        HistGradientBoostingRegressor(max_iter=2),
        VotingRegressor([("a", Ridge()), ("b", DecisionTreeRegressor(max_depth=2))]),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_targets_far_from_one(estimator: Any, scale: float) -> None:
    with pytest.raises(InvalidInput, match=r"results are float32, .*scaled targets"):
        sparsejit.compile(estimator.fit(X, scale * Y))


def test_results_behind_an_exponential() -> None:
    estimator = PoissonRegressor().fit(X, Y)
    estimator.intercept_ = 138.0
    with pytest.raises(InvalidInput, match=r"results are float32"):
        sparsejit.compile(estimator)


def test_components_far_from_one() -> None:
    with pytest.raises(InvalidInput, match=r"the PCA has .* results are float32"):
        sparsejit.compile(PCA(2).fit(1e60 * X))


def test_targets_that_float32_holds() -> None:
    for scale in (1e30, 1e-30):
        estimator = DecisionTreeRegressor(max_depth=3).fit(X, scale * Y)
        found = sparsejit.compile(estimator).predict(X)
        np.testing.assert_allclose(found, estimator.predict(X), rtol=1e-6)
