"""Compiled estimators inside of scikit-learn: its tags, scores, evaluation, votes and pipelines."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparsejit
from sparsejit.errors import InvalidInput

pytest.importorskip("treelite")
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier, VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import cross_val_score, cross_validate
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

pytestmark = pytest.mark.filterwarnings("ignore")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((90, 4))
PLACES = (X[:, 0] + 0.5 * RNG.standard_normal(90) > 0).astype(int)
WORDS = np.array(["no", "yes"])[PLACES]
VALUES = X @ RNG.standard_normal((4, 2)) + RNG.standard_normal((90, 2))
WEIGHTS = RNG.random(90)
FITTED: dict[str, tuple[Any, Any]] = {
    "classifier": (RandomForestClassifier(5, random_state=0).fit(X, WORDS), WORDS),
    "linear": (make_pipeline(StandardScaler(), LogisticRegression()).fit(X, WORDS), WORDS),
    "labels": (
        MultiOutputClassifier(LogisticRegression()).fit(X, np.stack([PLACES, 1 - PLACES], axis=1)),
        np.stack([PLACES, 1 - PLACES], axis=1),
    ),
    "regressor": (LinearRegression().fit(X, VALUES[:, 0]), VALUES[:, 0]),
    "outputs": (LinearRegression().fit(X, VALUES), VALUES),
}


@pytest.mark.parametrize("name", FITTED)
def test_scores_are_the_library_s(name: str, tmp_path: Path) -> None:
    estimator, y = FITTED[name]
    compiled = sparsejit.compile(estimator)
    compiled.save(tmp_path / "e.sjit")
    for one in (compiled, sparsejit.load(tmp_path / "e.sjit")):
        assert one.score(X, y) == pytest.approx(estimator.score(X, y), abs=1e-6)
        if name != "labels":
            wanted = estimator.score(X, y, sample_weight=WEIGHTS)
            assert one.score(X, y, sample_weight=WEIGHTS) == pytest.approx(wanted, abs=1e-6)
        assert get_tags(one).estimator_type == get_tags(estimator).estimator_type
        assert get_tags(one).input_tags.allow_nan == get_tags(estimator).input_tags.allow_nan


def test_a_constant_target_scores_as_in_the_library() -> None:
    estimator = LinearRegression().fit(X, VALUES[:, 0])
    assert sparsejit.compile(estimator).score(X, np.ones(90)) == estimator.score(X, np.ones(90))


@pytest.mark.parametrize("name", ["classifier", "linear", "regressor", "outputs"])
def test_it_is_evaluated_on_folds(name: str) -> None:
    estimator, y = FITTED[name]
    compiled = sparsejit.compile(estimator)
    wanted = cross_val_score(FrozenEstimator(estimator), X, y, cv=3)
    assert cross_val_score(compiled, X, y, cv=3) == pytest.approx(wanted, abs=1e-5)
    if is_classifier(compiled):
        found = cross_validate(compiled, X, y, cv=3, scoring=["roc_auc", "neg_log_loss"])
        wanted = cross_validate(
            FrozenEstimator(estimator), X, y, cv=3, scoring=["roc_auc", "neg_log_loss"]
        )
        assert found["test_roc_auc"] == pytest.approx(wanted["test_roc_auc"], abs=1e-6)
    else:
        assert is_regressor(compiled)


def test_it_votes_beside_fitted_parts() -> None:
    forest = RandomForestClassifier(5, random_state=0).fit(X, PLACES)
    linear = LogisticRegression().fit(X, PLACES)
    for voting in ("hard", "soft"):
        own = [("a", sparsejit.compile(forest)), ("b", sparsejit.compile(linear))]
        theirs = [("a", FrozenEstimator(forest)), ("b", FrozenEstimator(linear))]
        votes, wanted = (
            VotingClassifier(parts, voting=voting).fit(X, PLACES) for parts in (own, theirs)
        )
        assert np.array_equal(votes.predict(X), wanted.predict(X))


def test_it_ends_a_pipeline_and_stands_in_one() -> None:
    scaler = StandardScaler().fit(X)
    linear = LogisticRegression().fit(scaler.transform(X), WORDS)
    for pipeline in (
        make_pipeline(StandardScaler(), sparsejit.compile(linear)),
        make_pipeline(sparsejit.compile(scaler), linear),
    ):
        assert np.array_equal(
            pipeline.fit(X, WORDS).predict(X), linear.predict(scaler.transform(X))
        )


def test_it_is_cloned_and_fitted_to_itself() -> None:
    compiled = sparsejit.compile(FITTED["classifier"][0])
    check_is_fitted(compiled)
    assert clone(compiled) is compiled
    assert compiled.fit(X, WORDS) is compiled
    assert compiled.get_params() == {}
    assert compiled.set_params() is compiled
    with pytest.raises(InvalidInput, match="compile it again"):
        compiled.set_params(n_estimators=3)


def test_it_has_the_methods_of_the_estimator_alone() -> None:
    for name in ("classifier", "linear", "regressor"):
        estimator, _ = FITTED[name]
        compiled = sparsejit.compile(estimator)
        for method in ("predict", "predict_proba", "decision_function", "transform", "apply"):
            assert hasattr(compiled, method) == hasattr(estimator, method)
            assert (method in dir(compiled)) == hasattr(estimator, method)
        assert compiled.predict.__name__ == "predict"
    with pytest.raises(AttributeError, match="has no 'transform'; it has predict"):
        sparsejit.compile(FITTED["regressor"][0]).transform(X)


def test_scores_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidInput, match="no classifier or regressor"):
        sparsejit.compile(PCA(2).fit(X)).score(X, WORDS)
    with pytest.raises(InvalidInput, match="one label or value for each"):
        sparsejit.compile(FITTED["classifier"][0]).score(X, WORDS[:-1])
