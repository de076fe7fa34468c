"""Steps that bin, bend, multiply, norm and mark columns, against scikit-learn."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("treelite")

from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.feature_selection import SelectKBest
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    KBinsDiscretizer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    SplineTransformer,
    StandardScaler,
)
from sklearn.tree import DecisionTreeRegressor

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.ir.values import Array

pytestmark = pytest.mark.filterwarnings("ignore")
ROWS = 150
Generator = np.random.Generator
Make = Callable[[Generator], Any]


def splines(g: Generator) -> Any:
    return SplineTransformer(
        n_knots=int(g.integers(2, 7)),
        degree=int(g.integers(1, 5)),
        knots=str(g.choice(["uniform", "quantile"])),
        extrapolation=str(g.choice(["constant", "linear", "continue"])),
        include_bias=bool(g.integers(2)),
    )


def bins(g: Generator) -> Any:
    return KBinsDiscretizer(
        n_bins=int(g.integers(2, 7)),
        encode=str(g.choice(["ordinal", "onehot", "onehot-dense"])),
        strategy=str(g.choice(["uniform", "quantile"])),
    )


def union(g: Generator) -> Any:
    rare = OneHotEncoder(handle_unknown="ignore", min_frequency=10)
    parts = [("scaled", StandardScaler()), ("best", SelectKBest(k=2)), ("rare", rare)]
    others = [("mixed", PCA(2)), ("own", "passthrough"), ("binned", bins(g))]
    return FeatureUnion([*parts, others[g.integers(3)]])


def parts(g: Generator) -> Any:
    return ColumnTransformer(
        [
            ("products", PolynomialFeatures(2), [0, 2]),
            ("bins", bins(g), [1, 3]),
            ("own", "passthrough", [0]),
            ("mixed", make_pipeline(StandardScaler(), PCA(1)), [2, 3]),
        ]
    )


# Steps that forests may stand behind, and all others; with NaN in X, the third.
EITHER: list[Make] = [
    lambda g: Binarizer(threshold=float(g.choice([0, 0.1, -1.5]))),
    bins,
    lambda g: QuantileTransformer(n_quantiles=int(g.choice([2, 40, 150]))),
    lambda g: FunctionTransformer(),
    lambda g: PowerTransformer(standardize=bool(g.integers(2))),
]
POSITIVE: list[Make] = [
    lambda g: PowerTransformer("box-cox", standardize=bool(g.integers(2))),
    lambda g: QuantileTransformer(
        n_quantiles=int(g.choice([5, 40, 150])), output_distribution="normal"
    ),
]
ALONE: list[Make] = [
    lambda g: Normalizer(str(g.choice(["l1", "l2", "max"]))),
    lambda g: PolynomialFeatures(
        int(g.integers(1, 4)),
        interaction_only=bool(g.integers(2)),
        include_bias=bool(g.integers(2)),
    ),
    splines,
    union,
    parts,
]
MISSING: list[Make] = [
    lambda g: make_pipeline(SimpleImputer(), bins(g)),
    lambda g: FeatureUnion([("filled", SimpleImputer()), ("marks", MissingIndicator())]),
    lambda g: make_pipeline(SimpleImputer(strategy="median"), splines(g)),
]
FOREST = RandomForestRegressor(6, max_depth=5, random_state=0)
LAST = [None, Ridge(), FOREST, HistGradientBoostingRegressor(max_iter=3)]


def data(generator: Generator) -> tuple[Array, Array]:
    X = generator.standard_normal((ROWS, 4))
    X[:, 1] = generator.integers(0, 5, ROWS)
    return X, X[:, 0] + 0.2 * X[:, 1] ** 2


def dense(found: Any) -> Array:
    return np.asarray(found.toarray() if hasattr(found, "toarray") else found)


def same(estimator: Any, compiled: Any, method: str, rows: Array) -> None:
    wanted = dense(getattr(estimator, method)(rows))
    found = getattr(compiled, method)(rows)
    largest = max(1.0, float(np.nanmax(np.abs(wanted))))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * largest)


def checked(estimator: Any, method: str, X: Array, folder: Path | None = None) -> None:
    """Rows that were seen, rows beyond them, and one; and the same bits from a file."""
    compiled = sparsejit.compile(estimator, X)
    beyond = np.concatenate([X, 3 * X[:20] + 1]).astype(X.dtype)
    for rows in (beyond, X[:1], X[:0:-7]):
        same(estimator, compiled, method, rows)
    if folder is not None:
        compiled.save(folder / "e.sjit")
        again = sparsejit.load(folder / "e.sjit")
        first, second = getattr(again, method)(beyond), getattr(compiled, method)(beyond)
        np.testing.assert_array_equal(first, second)


def fitted(make: Make, last: Any, generator: Generator, X: Array, y: Array) -> Any:
    """The pipeline, or None where the library refuses it."""
    step = make(generator)
    estimator = step if last is None else make_pipeline(step, last)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return estimator.fit(X, y)
        except (TypeError, ValueError):  # histograms take no sparse matrices
            return None


@settings(max_examples=70)
@given(
    make=st.sampled_from(range(len(EITHER) + len(ALONE))),
    last=st.sampled_from(range(len(LAST))),
    short=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_step(make: int, last: int, short: bool, seed: int) -> None:
    generator = np.random.default_rng(seed)
    X, y = data(generator)
    X = X.astype(np.float32) if short else X
    own = [*EITHER, *ALONE][make]
    model = LAST[last] if own in EITHER or last < 2 else LAST[1]
    estimator = fitted(own, model, generator, X, y)
    if estimator is not None:
        checked(estimator, "transform" if model is None else "predict", X)


@pytest.mark.parametrize("last", range(len(LAST)))
@pytest.mark.parametrize("make", range(len(MISSING)))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_missing_values(make: int, last: int, dtype: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(make)
    X, y = data(generator)
    X[generator.random(X.shape) < 0.2] = np.nan
    model = LAST[last] if make < 2 else LAST[last % 2]
    estimator = fitted(MISSING[make], model, generator, X.astype(dtype), y)
    if estimator is not None:
        method = "transform" if model is None else "predict"
        checked(estimator, method, X.astype(dtype), tmp_path)


def test_new_missing_values_are_refused_as_by_the_library() -> None:
    X, _ = data(np.random.default_rng(0))
    X[3, 2] = np.nan
    marks = MissingIndicator().fit(X)
    compiled = sparsejit.compile(marks)
    same(marks, compiled, "transform", X)
    X[3, 1] = np.nan
    with pytest.raises(ValueError, match="have missing values in transform"):
        marks.transform(X)
    with pytest.raises(InvalidInput, match="nan in row 3, column 1"):
        compiled.transform(X)
    every = MissingIndicator(features="all").fit(X)
    same(every, sparsejit.compile(every), "transform", X)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (SplineTransformer(extrapolation="periodic"), "extrapolation='periodic'"),
        (SplineTransformer(extrapolation="error"), "extrapolation='error'"),
        (KBinsDiscretizer(3, encode="ordinal", dtype=np.float32), "dtype=<class 'numpy.float32'>"),
        (FeatureUnion([("a", Binarizer())], transformer_weights={"a": 2}), "transformer_weights"),
        (MissingIndicator(missing_values=-1), "marks -1"),
    ],
)
def test_steps_without_a_graph_are_named(step: Any, message: str) -> None:
    X, y = data(np.random.default_rng(0))
    X = np.abs(X) + 0.5
    X[0, 0] = -1 if "Missing" in str(step) else 1
    with pytest.raises(InvalidInput, match=message):
        sparsejit.compile(make_pipeline(step, Ridge()).fit(X, y))


def test_forests_behind_sums_of_columns_are_refused() -> None:
    X, y = data(np.random.default_rng(0))
    for step in (Normalizer(), PolynomialFeatures(), SplineTransformer()):
        with pytest.raises(InvalidInput, match=f"{type(step).__name__} cannot stand"):
            sparsejit.compile(make_pipeline(step, RandomForestRegressor(2)).fit(X, y))
    binned = make_pipeline(StandardScaler(), KBinsDiscretizer(3), RandomForestRegressor(2))
    with pytest.raises(InvalidInput, match="follows a scaler"):
        sparsejit.compile(binned.fit(X, y))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("make", POSITIVE)
@pytest.mark.parametrize("seed", range(6))
def test_powers_and_normal_quantiles_of_positive_numbers(
    make: Make, dtype: str, seed: int
) -> None:
    """With numbers that repeat at the ends, missing ones, and numbers beyond the fit."""
    g = np.random.default_rng(seed)
    x = np.exp(g.standard_normal((160, 3)) * 2)
    x[:, 1] = np.clip(np.round(x[:, 1]), 1, 4)
    x[:, 2] = x[:, 2] * 1e3 + 5e4
    x[g.random(x.shape) < 0.05] = np.nan
    x = x.astype(dtype)
    step = make(g).fit(x)
    compiled = sparsejit.compile(step)
    whole = np.nan_to_num(np.round(x) + 1, nan=3).astype(np.int64)
    for rows in (x, x * x.dtype.type(1.5), x + x.dtype.type(1e-7), x[:1], whole):
        wanted = step.transform(rows)
        found = compiled.transform(rows)
        size = np.nanmax(np.abs(wanted))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6 * max(size, 1))


def test_powers_refuse_numbers_that_are_not_positive() -> None:
    x = np.exp(np.random.default_rng(0).standard_normal((50, 2)))
    pipeline = make_pipeline(PowerTransformer("box-cox"), Ridge()).fit(x, x[:, 0])
    compiled = sparsejit.compile(pipeline)
    np.testing.assert_allclose(compiled.predict(x), pipeline.predict(x), atol=1e-5)
    x[3, 1] = 0
    with pytest.raises(InvalidInput, match=r"X has 0\.0 in row 3, column 1"):
        compiled.predict(x)
    for before, last, match in (
        (MinMaxScaler((1, 2)), Ridge(), "before it change X"),
        (MinMaxScaler((1, 2)), DecisionTreeRegressor(), "method='box-cox'"),
    ):
        scaled = make_pipeline(before, PowerTransformer("box-cox"), last).fit(x, x[:, 0])
        with pytest.raises(InvalidInput, match=match):
            sparsejit.compile(scaled)
