"""Estimators of estimators, and behind steps that mix columns, against scikit-learn."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.estimators.ensembles import _check_votes

for name in ("treelite", "lightgbm", "xgboost"):
    pytest.importorskip(name)
from lightgbm import LGBMClassifier  # noqa: E402
from sklearn.calibration import CalibratedClassifierCV  # noqa: E402
from sklearn.decomposition import PCA, TruncatedSVD  # noqa: E402
from sklearn.ensemble import (  # noqa: E402
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.feature_selection import SelectKBest  # noqa: E402
from sklearn.frozen import FrozenEstimator  # noqa: E402
from sklearn.impute import SimpleImputer  # noqa: E402
from sklearn.linear_model import LogisticRegression, Ridge  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.neural_network import MLPClassifier  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.svm import LinearSVC  # noqa: E402
from sklearn.tree import DecisionTreeRegressor  # noqa: E402
from xgboost import XGBClassifier  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((160, 5))
SCORE = X[:, 0] + np.sin(3 * X[:, 1]) + 0.3 * RNG.standard_normal(160)
TWO = np.array(["no", "yes"])[(SCORE > 0).astype(int)]
THREE = np.array(["low", "middle", "high"])[np.digitize(SCORE, [-0.5, 0.5])]
HOLES = np.where(RNG.random(X.shape) < 0.1, np.nan, X)
HOLES[:, 4] = np.nan  # which an imputer leaves out
FAR = X + 1e6

LINEAR, SCALED = LogisticRegression(), make_pipeline(StandardScaler(), LinearSVC())
TREES = RandomForestClassifier(5, max_depth=4, random_state=0)
BOOSTED = LGBMClassifier(n_estimators=3, verbose=-1)
THRICE = [("linear", LINEAR), ("trees", TREES), ("boosted", BOOSTED)]
NUMBERS = [("ridge", Ridge()), ("tree", DecisionTreeRegressor(max_depth=4))]
CASES: dict[str, tuple[Any, Any, Any]] = {
    "isolation": (IsolationForest(n_estimators=9, random_state=0), X, None),
    "isolation of few features": (
        make_pipeline(StandardScaler(), IsolationForest(n_estimators=9, max_features=0.5)),
        *(FAR, None),
    ),
    "imputer": (SimpleImputer(add_indicator=True), HOLES, None),
    "imputer, linear": (
        make_pipeline(SimpleImputer(strategy="median", add_indicator=True), SCALED),
        *(HOLES + 1e6, THREE),
    ),
    "imputer, perceptron": (
        make_pipeline(StandardScaler(), SimpleImputer(), MLPClassifier((4,), max_iter=3)),
        *(HOLES, THREE),
    ),
    "imputer, forest": (make_pipeline(SimpleImputer(add_indicator=True), TREES), HOLES, THREE),
    "selector": (make_pipeline(SelectKBest(k=2), LINEAR), X, THREE),
    "components": (PCA(3, whiten=True), FAR, None),
    "components, linear": (make_pipeline(PCA(3), StandardScaler(), LINEAR), FAR, THREE),
    "components, forest": (make_pipeline(StandardScaler(), TruncatedSVD(3), TREES), X, THREE),
    "hard votes": (VotingClassifier(THRICE), X, THREE),
    "weighted votes": (VotingClassifier(THRICE[:2], weights=[0.7, 0.25]), X, TWO),
    "soft votes": (
        make_pipeline(
            StandardScaler(),
            VotingClassifier([*THRICE, ("other", XGBClassifier(n_estimators=3))], voting="soft"),
        ),
        *(X, THREE),
    ),
    "means": (VotingRegressor(NUMBERS, weights=[1, 3]), X, SCORE),
    "stack": (StackingClassifier([*THRICE, ("more", SCALED)], cv=2), X, THREE),
    "stack and X": (StackingRegressor(NUMBERS, passthrough=True, cv=2), X + 1e3, SCORE),
    "stack, perceptron": (
        StackingClassifier(THRICE, MLPClassifier((4,), max_iter=3), passthrough=True, cv=2),
        *(X, TWO),
    ),
    "sigmoid": (CalibratedClassifierCV(TREES, cv=2), X, THREE),
    "sigmoid of steep scores": (CalibratedClassifierCV(LinearSVC(), cv=2), X + 1e5, THREE),
    "isotonic": (CalibratedClassifierCV(SCALED, method="isotonic", cv=2), FAR, THREE),
    "isotonic of trees": (CalibratedClassifierCV(TREES, method="isotonic", cv=2), X, THREE),
    "isotonic of boosted trees": (
        CalibratedClassifierCV(
            HistGradientBoostingClassifier(max_iter=5), method="isotonic", ensemble=False, cv=2
        ),
        *(X, TWO),
    ),
    "frozen": (CalibratedClassifierCV(FrozenEstimator(LogisticRegression().fit(X, TWO))), X, TWO),
    "calibrated stack and X": (
        StackingClassifier(
            THRICE, CalibratedClassifierCV(LinearSVC(), cv=2), passthrough=True, cv=2
        ),
        *(X, TWO),
    ),
    "search": (GridSearchCV(LINEAR, {"C": [0.1, 1]}, cv=2), X, TWO),
}
if "temperature" in str(CalibratedClassifierCV._parameter_constraints["method"]):
    CASES["temperature"] = (
        CalibratedClassifierCV(SCALED, method="temperature", cv=2),
        *(X, TWO),
    )


@pytest.mark.parametrize("name", CASES)
def test_all_methods_answer_as_the_library(name: str) -> None:
    estimator, x, y = CASES[name]
    estimator.fit(x) if y is None else estimator.fit(x, y)
    compiled = sparsejit.compile(estimator, x[:16])
    again, last = pickle.loads(pickle.dumps(compiled)), compiled.methods[-1]
    np.testing.assert_array_equal(getattr(again, last)(x), getattr(compiled, last)(x), strict=True)
    for method in compiled.methods:
        wanted, found = np.asarray(getattr(estimator, method)(x)), getattr(compiled, method)(x)
        assert found.shape == wanted.shape
        if wanted.dtype.kind in "Ui":
            np.testing.assert_array_equal(found, wanted, strict=True)
        else:
            largest = max(1.0, float(np.abs(wanted).max()))
            np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-7 * largest)


@pytest.mark.parametrize("samples", [81, 101, 121])
def test_a_score_that_is_the_offset_is_in(samples: int) -> None:
    """With a tenth outside, the offset is the score of a sample."""
    estimator = IsolationForest(n_estimators=30, contamination=0.1, random_state=0)
    x = np.round(RNG.standard_normal((samples, 3)), 2).astype(np.float32)
    estimator.fit(x)
    assert (estimator.decision_function(x) == 0).any()
    np.testing.assert_array_equal(
        sparsejit.compile(estimator, x).predict(x), estimator.predict(x), strict=True
    )


def test_scores_of_many_deep_trees_are_rounded_once() -> None:
    x = RNG.standard_normal((2000, 4))
    estimator = IsolationForest(n_estimators=300, max_samples=2000, random_state=0).fit(x)
    compiled = sparsejit.compile(estimator, x)
    for method in ("score_samples", "decision_function"):
        wanted = getattr(estimator, method)(x)
        found = getattr(compiled, method)(x)
        assert np.abs(found - wanted).max() <= 6e-8 * np.abs(wanted).max()


def test_an_ensemble_is_loaded_without_the_libraries(tmp_path: Path) -> None:
    estimator, x, y = CASES["stack"]
    compiled = sparsejit.compile(estimator.fit(x, y), x[:16])
    compiled.save(tmp_path / "e.sjit")
    np.save(tmp_path / "x.npy", x)
    script = """
import sys
for name in ("sklearn", "lightgbm", "treelite"):
    sys.modules[name] = None
import numpy as np, sparsejit
again = sparsejit.load("e.sjit")
np.save("y.npy", again.predict_proba(np.load("x.npy")))
"""
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), compiled.predict_proba(x))
    assert compiled.explain("predict").layers


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (StackingClassifier(THRICE, TREES, cv=2), "RandomForestClassifier compares the predict"),
        (
            make_pipeline(PCA(2), HistGradientBoostingClassifier(max_iter=2)),
            "float64 results of the PCA",
        ),
        (
            CalibratedClassifierCV(MLPClassifier((4,)), method="isotonic", cv=2),
            "so steep",
        ),
        (VotingClassifier(THRICE, weights=[0.3, 0.2, 0.1]), "give whole numbers"),
        (
            StackingClassifier(THRICE, make_pipeline(StandardScaler(), LINEAR), passthrough=True),
            "passthrough=True",
        ),
        (VotingClassifier([("a", XGBClassifier(missing=np.inf)), *THRICE]), "several estimators"),
    ],
)
def test_ensembles_that_cannot_be_equal_are_refused(estimator: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        sparsejit.compile(estimator.fit(X, TWO))


def test_components_of_float32_are_not_compared() -> None:
    narrow = make_pipeline(PCA(2), TREES).fit(X.astype(np.float32), TWO)
    with pytest.raises(InvalidInput, match=r"PCA was fitted to float32.*astype\(np.float64\)"):
        sparsejit.compile(narrow)


def test_estimators_that_are_not_fitted_are_named() -> None:
    for estimator in (VotingClassifier(THRICE), CalibratedClassifierCV(), GridSearchCV(LINEAR, {})):
        with pytest.raises(InvalidInput, match=r"the \w+ (is not fitted|has no best_estimator_)"):
            sparsejit.compile(estimator)


def test_weights_that_float32_orders_otherwise() -> None:
    _check_votes([1.0] * 40)
    _check_votes([0.5, 0.25, 1.5])
    for weights in ([0.1, 0.2, 0.3], [0.1] * 13):
        with pytest.raises(InvalidInput, match="whole numbers"):
            _check_votes(weights)


def test_missing_values_are_refused_where_a_part_does() -> None:
    voting = VotingClassifier([("linear", LINEAR), ("boosted", BOOSTED)]).fit(X, TWO)
    with pytest.raises(InvalidInput, match="nan in row 0"):
        sparsejit.compile(voting).predict(HOLES)
