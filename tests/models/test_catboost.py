"""Models of CatBoost against CatBoost: oblivious and grown trees, links, missing values, files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from runnable import LEVELS

import sparsejit
from sparsejit.errors import InvalidInput

pytest.importorskip("treelite")
catboost = pytest.importorskip("catboost")
pandas = pytest.importorskip("pandas")
from sklearn.ensemble import VotingClassifier  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((250, 5))
SCORE = X[:, 0] + np.sin(3 * X[:, 1]) + 0.2 * RNG.standard_normal(250)
HOLES = np.where(RNG.random(X.shape) < 0.1, np.nan, X)
TWO, THREE = (SCORE > 0).astype(int), np.digitize(SCORE, [-1, 1])
WORDS = np.array(["no", "yes"])[TWO]
PLAIN: dict[str, Any] = {
    "verbose": 0, "thread_count": 1, "allow_writing_files": False, "random_seed": 0
}
CLASSIFIERS = [
    ({}, TWO),
    ({}, WORDS),
    ({"loss_function": "MultiClass"}, THREE),
    ({"loss_function": "MultiClassOneVsAll"}, np.array(list("abc"))[THREE]),
    ({"loss_function": "CrossEntropy"}, TWO),
    ({"class_weights": [1, 3]}, TWO),
]
REGRESSORS = [
    ({}, SCORE),
    ({"loss_function": "MAE"}, SCORE + 1e4),
    ({"loss_function": "Quantile:alpha=0.3"}, SCORE),
    ({"loss_function": "Poisson"}, np.abs(SCORE)),
    ({"loss_function": "Tweedie:variance_power=1.5"}, np.abs(SCORE)),
    ({"loss_function": "MultiRMSE"}, np.stack([SCORE, -SCORE, SCORE**2], axis=1)),
]
TREES = st.fixed_dictionaries(
    {
        "iterations": st.sampled_from([1, 5, 20]),
        "depth": st.sampled_from([1, 3, 6]),
        "grow_policy": st.sampled_from(["SymmetricTree", "Depthwise", "Lossguide"]),
        "nan_mode": st.sampled_from(["Min", "Max"]),
    }
)


def _near(found: Any, wanted: Any, name: str, shares: Any = None) -> None:
    """Compare; labels may differ where the two largest of the probabilities `shares` are alike."""
    assert found.shape == wanted.shape, name
    if wanted.dtype.kind != "f":
        assert found.dtype == wanted.dtype
        differing = (found != wanted).reshape(len(found), -1).any(axis=1)
        if shares is not None:
            largest = np.sort(shares, axis=1)
            differing &= largest[:, -1] - largest[:, -2] > 1e-6
        assert not differing.any(), name
        return
    bound = 1e-6 if name == "predict_proba" else 2e-6
    assert np.abs(found - wanted).max() <= bound * max(1.0, np.abs(wanted).max()), name


@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(data=st.data())
def test_it_equals_catboost(data: st.DataObject) -> None:
    classifies = data.draw(st.booleans())
    loss, y = data.draw(st.sampled_from(CLASSIFIERS if classifies else REGRESSORS))
    kind = catboost.CatBoostClassifier if classifies else catboost.CatBoostRegressor
    options = data.draw(TREES)
    if loss.get("loss_function") == "MultiRMSE":
        options["grow_policy"] = "SymmetricTree"
    fitted_to = data.draw(st.sampled_from([X, HOLES]))
    model = kind(**PLAIN, **options, **loss).fit(fitted_to, y)
    rows = fitted_to[:50].copy()
    borders = [border for each in model.get_borders().values() for border in each]
    for number, border in enumerate(borders[:40]):
        rows[number % 50, number % 5] = border
    compiled = sparsejit.compile(model, rows, target=data.draw(st.sampled_from(LEVELS)))
    given_as = data.draw(st.sampled_from(["array", "one", "narrow", "frame"]))
    if given_as == "one":
        rows = rows[:1]
    rows = rows.astype(np.float32) if given_as == "narrow" else rows
    x = pandas.DataFrame(rows) if given_as == "frame" else rows
    own = ("predict", "predict_proba", "predict_log_proba")
    assert compiled.methods == tuple(name for name in own if hasattr(model, name))
    shares = model.predict_proba(rows) if classifies else None
    for name in compiled.methods:
        _near(getattr(compiled, name)(x), np.asarray(getattr(model, name)(rows)), name, shares)
    for asked in ({"prediction_type": "RawFormulaVal"}, {"ntree_end": 1}):
        first = model.predict_proba(rows, ntree_end=1) if classifies else None
        wanted = np.asarray(model.predict(rows, **asked))
        _near(compiled.predict(x, **asked), wanted, str(asked), first)


def test_a_threshold_of_probability() -> None:
    model = catboost.CatBoostClassifier(**PLAIN, iterations=10).fit(X, TWO)
    model.set_probability_threshold(0.3)
    assert np.array_equal(sparsejit.compile(model).predict(X), model.predict(X))


@pytest.mark.parametrize("y", [TWO, THREE], ids=["two", "three"])
def test_its_file_is_compiled_and_saved(tmp_path: Path, y: Any) -> None:
    model = catboost.CatBoostClassifier(**PLAIN, iterations=10).fit(X, y)
    path = tmp_path / "model.cbm"
    model.save_model(str(path))
    compiled = sparsejit.compile(path)
    compiled.save(tmp_path / "e.sjit")
    loaded: Any = sparsejit.load(tmp_path / "e.sjit")
    for one in (compiled, loaded):
        _near(one.predict(X), model.predict(X), "predict")
        _near(one.predict_proba(X), model.predict_proba(X), "predict_proba")
        assert one.score(X, y) == model.score(X, y)


def test_it_stands_behind_a_scaler_and_in_a_vote() -> None:
    model = catboost.CatBoostClassifier(**PLAIN, iterations=5)
    scaled = make_pipeline(StandardScaler(), model).fit(X, TWO)
    _near(sparsejit.compile(scaled).predict_proba(X), scaled.predict_proba(X), "predict_proba")
    parts = [("trees", model), ("linear", LogisticRegression())]
    votes = VotingClassifier(parts, voting="soft").fit(X, TWO)
    _near(sparsejit.compile(votes).predict_proba(X), votes.predict_proba(X), "predict_proba")


def test_names_of_a_frame_are_compared() -> None:
    frame = pandas.DataFrame(X, columns=list("abcde"))
    model = catboost.CatBoostRegressor(**PLAIN, iterations=5).fit(frame, SCORE)
    compiled = sparsejit.compile(model)
    _near(compiled.predict(frame), model.predict(frame), "predict")
    with pytest.raises(InvalidInput, match="in this order"):
        compiled.predict(frame[list("bacde")])


def test_what_is_refused() -> None:
    codes = np.column_stack([X.astype(object), RNG.integers(0, 5, 250)])
    kind = catboost.CatBoostClassifier
    with pytest.raises(InvalidInput, match="categorical features"):
        sparsejit.compile(kind(**PLAIN, iterations=3, cat_features=[5]).fit(codes, TWO))
    labels = np.stack([TWO, 1 - TWO], axis=1)
    several = kind(**PLAIN, iterations=3, loss_function="MultiLogloss").fit(X, labels)
    with pytest.raises(InvalidInput, match="MultiLogloss"):
        sparsejit.compile(several)
    with pytest.raises(InvalidInput, match="not fitted"):
        sparsejit.compile(kind())
    fitted = sparsejit.compile(catboost.CatBoostRegressor(**PLAIN, iterations=3).fit(X, SCORE))
    with pytest.raises(InvalidInput, match="prediction_type='Class'"):
        fitted.predict(X, prediction_type="Class")
