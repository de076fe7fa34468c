"""KNNImputer against scikit-learn, and models that transform inside of ColumnTransformers."""

from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import sparsejit
from sparsejit.errors import InvalidInput

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.cluster import Birch, KMeans
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA, FactorAnalysis, FastICA, KernelPCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.impute import KNNImputer
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    RobustScaler,
    StandardScaler,
)
from sklearn.random_projection import GaussianRandomProjection
from sklearn.tree import DecisionTreeRegressor

pytestmark = pytest.mark.filterwarnings("ignore")


def _near(found: Any, wanted: Any) -> None:
    wanted = np.asarray(wanted)
    assert np.shape(found) == wanted.shape
    assert np.abs(found - wanted).max() <= 1e-6 * max(np.abs(wanted).max(), 1e-30)


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    seed=st.integers(0, 9999),
    weights=st.sampled_from(["uniform", "distance"]),
    marks=st.booleans(),
    empty=st.sampled_from(["none", "dropped", "kept"]),
    dtype=st.sampled_from(["float64", "float32"]),
)
def test_numbers_are_those_of_the_nearest_rows(
    seed: int, weights: str, marks: bool, empty: str, dtype: str
) -> None:
    """With rows that lack everything, columns that lack everything, and few donors.

    The library rounds distances to X's dtype: float32 is compared with its results in float64.
    """
    draw = np.random.default_rng(seed)
    features, count = int(draw.integers(2, 6)), int(draw.integers(5, 120))
    x = draw.standard_normal((count, features)) * draw.choice([1, 30], features)
    x[draw.random(x.shape) < draw.choice([0.1, 0.5])] = np.nan
    x[0] = draw.standard_normal(features)
    if empty != "none":
        x[:, 1] = np.nan
    imputer = KNNImputer(
        n_neighbors=int(draw.integers(1, 8)),
        weights=weights,
        add_indicator=marks,
        keep_empty_features=empty == "kept",
    )
    x = x.astype(dtype)
    wide = clone(imputer).fit(x.astype(np.float64))
    imputer.fit(x)
    rows = x[:25] + 0.1 * draw.standard_normal(x[:25].shape)
    rows[1:2] = np.nan
    compiled = sparsejit.compile(imputer, rows)
    for own in (rows.astype(dtype), rows[:1].astype(dtype)):
        _near(compiled.transform(own), wide.transform(own.astype(np.float64)))


def test_far_from_zero_distances_keep_their_digits() -> None:
    """The library's distances lose them there: compare with sums of differences."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((60, 3)) + 1e6
    rows = x[:20] + 0.01 * draw.standard_normal((20, 3))
    rows[:, 2] = np.nan
    compiled = sparsejit.compile(KNNImputer(n_neighbors=3, weights="distance").fit(x), rows)
    away = np.sqrt(1.5 * np.square(rows[:, None, :2] - x[:, :2]).sum(axis=2))
    nearest = np.argsort(away, axis=1)[:, :3]
    shares = 1 / np.take_along_axis(away, nearest, axis=1)
    wanted = (shares * x[nearest, 2]).sum(axis=1) / shares.sum(axis=1)
    found = compiled.transform(rows)[:, 2].astype(np.float64)
    assert np.abs(found - wanted).max() <= 0.1  # of float32 at 1e6
    centred = make_pipeline(KNNImputer(n_neighbors=3, weights="distance"), StandardScaler()).fit(x)
    scaler = centred[-1]
    exact = (wanted - scaler.mean_[2]) / scaler.scale_[2]
    assert np.abs(sparsejit.compile(centred).transform(rows)[:, 2] - exact).max() <= 1e-5


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"missing_values": -1}, "replaces -1"),
        ({"weights": lambda away: away}, "weights="),
        ({"metric": lambda x, y, missing_values: 0.0}, "metric="),
    ],
)
def test_options_without_a_graph_are_refused(options: dict[str, Any], match: str) -> None:
    x = np.random.default_rng(0).standard_normal((20, 2))
    with pytest.raises(InvalidInput, match=match):
        sparsejit.compile(KNNImputer(**options).fit(x))


DRAW = np.random.default_rng(3)
X = DRAW.standard_normal((90, 4))
Y = X[:, 0] + np.abs(X[:, 1])
CLASSES = np.digitize(Y, [0, 1])
STEPS = [
    KMeans(3, n_init=1, random_state=0),
    Birch(n_clusters=3),
    FactorAnalysis(2),
    FastICA(2, random_state=0),
    KernelPCA(2, kernel="rbf"),
    LinearDiscriminantAnalysis(n_components=2),
    Nystroem(n_components=5, random_state=0),
    RBFSampler(n_components=6, random_state=0),
    GaussianRandomProjection(2, random_state=0),
    KNNImputer(n_neighbors=2),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
@pytest.mark.parametrize("inside", ["transformer", "union", "nested"])
def test_models_transform_inside_of_parts(step: Any, inside: str) -> None:
    scaled = make_pipeline(MinMaxScaler(), step)
    before: Any = ColumnTransformer(
        [("own", scaled, [0, 1, 3]), ("plain", StandardScaler(), [2])], remainder="passthrough"
    )
    if inside == "union":
        before = FeatureUnion([("own", step), ("plain", StandardScaler()), ("pca", PCA(2))])
    elif inside == "nested":
        before = ColumnTransformer([("inner", before, [3, 2, 1, 0])])
    for last in (Ridge(), LogisticRegression()):
        pipeline = make_pipeline(before, last).fit(X, CLASSES)
        compiled = sparsejit.compile(pipeline, X)
        method = "predict" if isinstance(last, Ridge) else "predict_proba"
        _near(getattr(compiled, method)(X), getattr(pipeline, method)(X))
    _near(sparsejit.compile(pipeline[0]).transform(X), pipeline[0].transform(X))


def test_words_are_encoded_beside_a_model() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcd"))
    frame["w"] = np.array(["red", "blue"], object)[np.arange(len(X)) % 2]
    frame.loc[::7, "a"] = np.nan
    parts = [
        ("near", make_pipeline(KNNImputer(), KMeans(3, n_init=1, random_state=0)), ["a", "b"]),
        ("words", OneHotEncoder(), ["w"]),
    ]
    pipeline = make_pipeline(ColumnTransformer(parts), Ridge()).fit(frame, Y)
    _near(sparsejit.compile(pipeline).predict(frame), pipeline.predict(frame))


def test_forests_do_not_stand_behind_them() -> None:
    before = ColumnTransformer([("near", KNNImputer(), [0, 1]), ("own", "passthrough", [2])])
    pipeline = make_pipeline(before, DecisionTreeRegressor()).fit(X, Y)
    with pytest.raises(InvalidInput, match="KNNImputer cannot stand before"):
        sparsejit.compile(pipeline)


def test_a_mean_in_float32_is_the_library_s_own() -> None:
    """A single column, scaled by its median, which is that mean: its norm is 0 or 1."""
    x = np.float32([[0.423], [0.309], [-1.589], [np.nan], [0.721], [-1.088], [np.nan], [np.nan]])
    x = np.concatenate([x, np.full((3, 1), np.nan, np.float32)])
    steps = make_pipeline(KNNImputer(n_neighbors=3), RobustScaler(), Normalizer("l1")).fit(x)
    np.testing.assert_array_equal(sparsejit.compile(steps).transform(x), steps.transform(x))


def test_frames_of_a_step_without_names_are_refused() -> None:
    frame = pandas.DataFrame({"a": [1.0, -2.0, 3.0]})
    parts = ColumnTransformer([("own", FunctionTransformer(np.abs), ["a"])])
    parts = parts.fit(frame).set_output(transform="pandas")
    with pytest.raises(InvalidInput, match=r"a step names no columns .*feature_names_out"):
        sparsejit.compile(parts)
