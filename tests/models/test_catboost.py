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
from sklearn.preprocessing import FunctionTransformer, StandardScaler  # noqa: E402

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


def _with_categories(draw: np.random.Generator) -> tuple[Any, Any]:
    """A frame of numbers, words, whole numbers and many identifiers, and a score."""
    count = int(draw.integers(60, 300))
    frame = pandas.DataFrame(
        {
            "a": draw.standard_normal(count).round(2),
            "w": np.array(["red", "green", "x y", "\u00fc", "a" * 40], object)[
                draw.integers(0, 5, count)
            ],
            "k": draw.integers(-2, 9, count),
            "b": draw.standard_normal(count),
            "two": np.array(["y", "n"], object)[draw.integers(0, 2, count)],
            "big": [f"id{number}" for number in draw.integers(0, 60, count)],
        }
    )
    score = frame.b + (frame.w == "red") * 2 + frame.k / 4 + (frame.two == "y") * 3
    if draw.integers(2):
        frame.loc[draw.random(count) < 0.1, "a"] = np.nan
    return frame, score + 0.3 * draw.standard_normal(count)


_TABLES = [{"simple_ctr": ["Buckets"]}, {"simple_ctr": ["Counter"]}, {}, {},
           {"simple_ctr": ["BinarizedTargetMeanValue"], "combinations_ctr": ["Buckets"]},
           {"counter_calc_method": "Full"}, {"model_size_reg": 0}]  # fmt: skip


@settings(max_examples=30, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(seed=st.integers(0, 9999), options=TREES, more=st.sampled_from(_TABLES))
def test_categories_are_hashed_as_catboost_does(
    seed: int, options: dict[str, Any], more: dict[str, Any]
) -> None:
    """Tables of one category and of several, one-hot categories, unseen ones, and missing numbers.
    """
    draw = np.random.default_rng(seed)
    frame, score = _with_categories(draw)
    named = [name for name in ("w", "k", "two", "big") if draw.random() < 0.7] or ["w"]
    frame = frame[[name for name in frame if name in named or name in "abk"]]
    kinds = {
        "two": (catboost.CatBoostClassifier, (score > 0).astype(int)),
        "three": (catboost.CatBoostClassifier, np.digitize(score, [-0.5, 1])),
        "score": (catboost.CatBoostRegressor, score),
    }
    kind, y = kinds[str(draw.choice([*kinds]))]
    options |= {"one_hot_max_size": int(draw.choice([1, 2, 5, 10]))}
    options |= {"max_ctr_complexity": int(draw.integers(1, 5)), "cat_features": named, **more}
    model = kind(**PLAIN, **options).fit(frame, y)
    compiled = sparsejit.compile(model)
    rows = frame.sample(40, random_state=1)
    for name in named:
        unseen = 77 if name == "k" else "never"
        rows[name] = [unseen if draw.random() < 0.2 else value for value in rows[name]]
    shares = model.predict_proba(rows) if hasattr(model, "predict_proba") else None
    for x in (rows, rows.to_numpy(object)):
        for method in compiled.methods:
            wanted = np.asarray(getattr(model, method)(rows))
            _near(getattr(compiled, method)(x), wanted, method, shares)
    first = None if shares is None else shares[:1]
    _near(compiled.predict(rows[:1]), np.asarray(model.predict(rows[:1])), "predict", first)


def test_a_model_with_categories_is_saved_and_read_from_its_file(tmp_path: Path) -> None:
    frame, score = _with_categories(np.random.default_rng(1))
    named = ["w", "k", "two", "big"]
    model = catboost.CatBoostRegressor(**PLAIN, iterations=20, cat_features=named)
    model.fit(frame, score)
    model.save_model(str(tmp_path / "model.cbm"))
    compiled: Any = sparsejit.compile(tmp_path / "model.cbm")
    compiled.save(tmp_path / "e.sjit")
    loaded: Any = sparsejit.load(tmp_path / "e.sjit")
    as_categories = frame.astype({"w": "category", "k": "category", "two": "string"})
    for one in (compiled, loaded):
        for x in (frame, as_categories):
            _near(one.predict(x), model.predict(x), "predict")
        for name, value in (("w", None), ("k", 1.5), ("big", np.nan)):
            odd = frame.astype(object)
            odd.loc[3, name] = value
            with pytest.raises(InvalidInput, match="give strings or whole numbers"):
                one.predict(odd)
        with pytest.raises(InvalidInput, match="no column of numbers"):
            one.predict(frame.assign(a="red"))


def test_a_model_with_categories_stands_alone() -> None:
    frame, score = _with_categories(np.random.default_rng(1))
    model = catboost.CatBoostRegressor(**PLAIN, iterations=2, cat_features=["w"])
    frame = frame[["a", "w"]]
    pipeline = make_pipeline(FunctionTransformer(), model)
    with pytest.raises(InvalidInput, match="compile it by itself"):
        sparsejit.compile(pipeline.fit(frame, score))
    of_texts = catboost.CatBoostRegressor(**PLAIN, iterations=2, text_features=["w"])
    of_texts.fit(frame.assign(w=[f"the {word} cat" for word in frame.w]), score)
    with pytest.raises(InvalidInput, match="text features"):
        sparsejit.compile(of_texts)


def test_what_is_refused() -> None:
    kind = catboost.CatBoostClassifier
    labels = np.stack([TWO, 1 - TWO], axis=1)
    several = kind(**PLAIN, iterations=3, loss_function="MultiLogloss").fit(X, labels)
    with pytest.raises(InvalidInput, match="MultiLogloss"):
        sparsejit.compile(several)
    with pytest.raises(InvalidInput, match="not fitted"):
        sparsejit.compile(kind())
    fitted = sparsejit.compile(catboost.CatBoostRegressor(**PLAIN, iterations=3).fit(X, SCORE))
    with pytest.raises(InvalidInput, match="prediction_type='Class'"):
        fitted.predict(X, prediction_type="Class")
