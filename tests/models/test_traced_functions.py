"""Functions of FunctionTransformers, as recorded, against the functions themselves."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import sparsejit
from sparsejit.errors import InvalidInput

pytest.importorskip("sklearn")
pandas = pytest.importorskip("pandas")
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor  # noqa: E402
from sklearn.ensemble import RandomForestRegressor, VotingRegressor  # noqa: E402
from sklearn.impute import SimpleImputer  # noqa: E402
from sklearn.linear_model import LogisticRegression, Ridge  # noqa: E402
from sklearn.pipeline import make_pipeline, make_union  # noqa: E402
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
RNG = np.random.default_rng(5)
X = np.concatenate(
    [
        RNG.standard_normal((30, 3)),
        RNG.random((30, 3)),
        RNG.integers(-3, 30, (20, 3)),
        RNG.standard_normal((10, 3)) * 1e4,
    ]
)
HOLES = np.where(RNG.random(X.shape) < 0.1, np.nan, X)
EDGES = np.array([[0.0, -1.0, 0.5], [1.0, 0.1, 0.7], [1000.0, -0.5, 0.3], [np.inf, 2.0, -np.inf]])
UFUNCS = [
    *"abs arccos arcsin arctan cbrt ceil cos cosh deg2rad degrees exp exp2 expm1 fabs".split(),
    *"floor isfinite isinf isnan log log10 log1p log2 negative positive rad2deg radians".split(),
    *"reciprocal rint sign sin sinh sqrt square tan tanh trunc".split(),
]


def _changed(x: Any) -> Any:
    y = x.copy()
    y[:, 0] = np.log1p(np.abs(y[:, 0]))
    y[np.isnan(y)] = 0
    y[:, 1:] *= 2
    return y


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in UFUNCS},
    "ratio": lambda x: x[:, [0]] / x[:, [1]],
    "stacked": lambda x: np.column_stack([x, x[:, 0] * x[:, 1], np.sin(x[:, 2])]),
    "chosen": lambda x: np.where(x > 0.5, x, -1.0),
    "summed": lambda x: x.sum(axis=1, keepdims=True),
    "mean": lambda x: np.mean(x, axis=1).reshape(-1, 1),
    "centred": lambda x: x - x.mean(axis=1, keepdims=True),
    "filled": lambda x: np.nan_to_num(x, nan=-1.0),
    "marks": lambda x: np.isnan(x).astype(float),
    "hours": lambda x: np.hstack([np.sin(2 * np.pi * x / 24), np.cos(2 * np.pi * x / 24)]),
    "rest": lambda x: x % 7,
    "negative rest": lambda x: x % -5,
    "quotient": lambda x: x // 3,
    "tenths": lambda x: np.floor(x * 10),
    "rounded": lambda x: np.round(x, 2),
    "tens": lambda x: np.round(x, -1),
    "bins": lambda x: np.digitize(x, [-1, 0.0, 0.1, 1.5]),
    "left bins": lambda x: np.searchsorted([0.1, 0.5, 0.5, 0.7], x),
    "powers": lambda x: x**3 + 2.0**x - x**-2,
    "roots": lambda x: np.abs(x) ** 0.7,
    "changed": _changed,
    "truths": lambda x: ((x > 0) & (x < 1)) | ~np.isnan(x),
    "counts": lambda x: (x > 0).sum(axis=1, keepdims=True),
    "any": lambda x: np.column_stack([(x > 0).any(axis=1), (x > 0).all(axis=1)]),
    "product": lambda x: x @ np.arange(6.0).reshape(3, 2),
    "unit": lambda x: x / np.linalg.norm(x, axis=1, keepdims=True),
    "safe unit": lambda x: x / np.where(np.abs(x) == 0, 1, np.abs(x)),
    "selected": lambda x: np.select([x < 0, x < 1], [0.0, x], 2.0),
    "spread": lambda x: x.std(axis=1, keepdims=True),
    "extremes": lambda x: np.stack([x.max(axis=1), x.min(axis=1), np.ptp(x, axis=1)], axis=1),
    "joined": lambda x: np.concatenate([x[:, ::2], x[:, 1:2] ** 2], axis=1),
    "far": lambda x: np.hypot(x[:, [0]], x[:, [1]]),
    "column": lambda x: x[:, 0],
    "totals": lambda x: np.cumsum(x, axis=1),
    "steps": lambda x: np.diff(x, axis=1),
    "listed": lambda x: np.isin(x, [1, 2, 0.5]),
    "means of numbers": lambda x: np.nanmean(x, axis=1)[:, None],
    "clipped": lambda x: np.clip(x, -0.5, [1, 2, 3]),
    "mixed": lambda x: (x > 0) * x + (x[:, [0]] > 0.1).astype(int) / 2,
}


def _near(found: Any, wanted: Any) -> None:
    with np.errstate(all="ignore"):
        rounded = np.asarray(wanted).astype(np.float32)
    found = np.asarray(found)
    assert found.shape == rounded.shape
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(np.where(finite, 0, found), np.where(finite, 0, rounded))
    for each in (finite, finite & (np.abs(rounded) < 100)):
        size = np.abs(rounded[each]).max(initial=1e-30)
        assert np.abs(found[each] - rounded[each]).max(initial=0) <= 1e-6 * size


@pytest.mark.parametrize("name", FUNCTIONS)
def test_its_results_are_the_functions(name: str) -> None:
    """As an array of float64, float32 and whole numbers, and as a frame: equal, or refused."""
    step = FunctionTransformer(FUNCTIONS[name]).fit(X)
    compiled = sparsejit.compile(step)
    whole = np.nan_to_num(X).astype(np.int64)
    rows = np.concatenate([HOLES, EDGES])
    outcomes = []
    for x in (rows, rows.astype(np.float32), whole, pandas.DataFrame(rows), rows[:1], rows[-1:]):
        try:
            wanted = np.asarray(step.transform(x))
        except (AttributeError, KeyError, TypeError, ValueError, pandas.errors.InvalidIndexError):
            with pytest.raises(InvalidInput, match="was recorded for"):
                compiled.transform(x)
            continue
        try:
            found = compiled.transform(x)
        except InvalidInput:
            outcomes.append("refused")
            continue
        if x.dtype == np.float32 if hasattr(x, "dtype") else False:
            sane = np.abs(rows).max(axis=1) < 1e3
            found, wanted = found[sane], wanted[sane]
            with np.errstate(all="ignore"):
                assert np.allclose(found, wanted.astype(np.float32), 1e-4, 1e-4, equal_nan=True)
        else:
            _near(found, wanted)
        outcomes.append("equal")
    assert outcomes[:2] == ["equal", "equal"]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x - x.mean(axis=0), "several rows"),
        (lambda x: x / np.max(x), "several rows"),
        (lambda x: x if x[:, 0] > 0 else -x, "decides by the values"),
        (lambda x: x + np.random.default_rng().random(), "gives other numbers"),
        (lambda x: np.add(x, 1, out=x), "in place"),
        (lambda x: np.asarray(x) + 1, "np.asarray"),
        (lambda x: x + len(x), "number of rows"),
        (lambda x: x + x.shape[0], "number of rows"),
        (lambda x: np.sort(x, axis=1), "numpy's sort"),
        (lambda x: np.floor(np.log10(x)), "last bit"),
        (lambda x: x[x[:, 0] > 0], "chooses rows"),
        (lambda x: x[::2], "chooses rows"),
        (lambda x: x.ravel(), "one axis"),
        (lambda x: x[:, 0] + x, "combines a column"),
        (lambda x: x.T, "raises AttributeError"),
        (lambda x: np.ones((3, 2)), "no array that depends"),
        (lambda x: x % 0.1, "by 0.1"),
        (lambda x: str(x), "no array"),
        (lambda x: np.vstack([x, x]), "vstack"),
        (lambda x: x ** x, "powers that it computes"),
    ],
)
def test_functions_without_a_graph_are_refused_by_their_reason(function: Any, reason: str) -> None:
    step = FunctionTransformer(function)
    step.n_features_in_ = 3
    with pytest.raises(InvalidInput, match=reason):
        sparsejit.compile(step)


FRAME = pandas.DataFrame(X, columns=["a", "b", "c"])
OF_FRAMES: dict[str, Callable[..., Any]] = {
    "ratio": lambda df: df["a"] / df["b"],
    "chosen": lambda df: df[["c", "a"]] * 2,
    "assigned": lambda df: df.assign(d=np.log1p(df.a.abs()), e=lambda x: x.d + 1),
    "dropped": lambda df: df.drop(columns=["a"]).clip(0, 1),
    "filled": lambda df: df.fillna(0).isna(),
    "numbers": lambda df: np.column_stack([df.to_numpy(), df["a"].to_numpy()]),
    "logarithms": lambda df: np.log1p(df),
}


@pytest.mark.parametrize("name", OF_FRAMES)
def test_a_function_of_a_frame_takes_frames(name: str) -> None:
    step = FunctionTransformer(OF_FRAMES[name]).fit(FRAME)
    compiled = sparsejit.compile(step)
    _near(compiled.transform(FRAME), step.transform(FRAME))
    if name != "logarithms":
        with pytest.raises(InvalidInput, match="recorded for frame"):
            compiled.transform(X)


def test_arguments_of_the_function_are_given_to_it() -> None:
    step = FunctionTransformer(np.clip, kw_args={"a_min": 0, "a_max": 1}).fit(X)
    _near(sparsejit.compile(step).transform(HOLES), step.transform(HOLES))


def test_a_validating_transformer_refuses_nan() -> None:
    compiled = sparsejit.compile(FunctionTransformer(np.log1p, validate=True).fit(X))
    with pytest.raises(InvalidInput, match="nan"):
        compiled.transform(HOLES)


Y = X[:, 0] * 1e-3 + np.sin(X[:, 1])
KINDS = [
    make_pipeline(FunctionTransformer(np.cbrt), StandardScaler(), Ridge()),
    make_pipeline(StandardScaler(), FunctionTransformer(np.tanh), LogisticRegression()),
    make_pipeline(make_union(FunctionTransformer(np.abs), StandardScaler()), Ridge()),
    make_pipeline(
        ColumnTransformer([("f", FunctionTransformer(np.sqrt), [0, 2]), ("p", "passthrough", [1])]),
        SimpleImputer(),
        Ridge(),
    ),
    VotingRegressor([("a", make_pipeline(FunctionTransformer(np.log1p), Ridge())), ("b", Ridge())]),
    make_pipeline(FunctionTransformer(lambda x: x * 2), FunctionTransformer(np.floor), Ridge()),
]


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(data=st.data())
def test_it_stands_in_pipelines(data: st.DataObject) -> None:
    """Results are the library's, and refused where it refuses: NaN of roots before a model."""
    estimator = data.draw(st.sampled_from(KINDS))
    is_classifier = hasattr(estimator, "classes_") or hasattr(estimator, "predict_proba")
    size = np.abs(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(size, Y > 0 if is_classifier else Y)
    compiled = sparsejit.compile(estimator)
    kind = data.draw(st.sampled_from(["float64", "float32", "int64", "negative", "frame"]))
    rows: Any = size.astype("float64" if kind in ("negative", "frame") else kind)
    if kind == "negative":
        rows[data.draw(st.integers(0, len(rows) - 1)), 2] = -4
    if kind == "frame":
        rows = pandas.DataFrame(rows)
    try:
        wanted = estimator.predict(rows)
    except ValueError:
        with pytest.raises(InvalidInput):
            compiled.predict(rows)
        return
    found = compiled.predict(rows)
    if is_classifier:
        np.testing.assert_array_equal(found, wanted)
    else:
        tolerance = 1e-6 if kind != "float32" else 1e-4
        assert np.abs(found - wanted).max() <= tolerance * np.abs(wanted).max()


def test_words_beside_a_function_are_encoded() -> None:
    frame = FRAME.assign(w=np.array(["red", "blue"], object)[np.arange(len(X)) % 2])
    parts = [
        ("f", FunctionTransformer(lambda df: df[["a"]] / 2), ["a", "b"]),
        ("w", OneHotEncoder(), ["w"]),
    ]
    estimator = make_pipeline(ColumnTransformer(parts), Ridge()).fit(frame, Y)
    _near(sparsejit.compile(estimator).predict(frame), estimator.predict(frame))


def test_a_saved_one_refuses_what_the_function_refuses(tmp_path: Path) -> None:
    estimator = make_pipeline(FunctionTransformer(np.sqrt), Ridge()).fit(np.abs(X), Y)
    sparsejit.compile(estimator).save(tmp_path / "e.sjit")
    loaded: Any = sparsejit.load(tmp_path / "e.sjit")
    _near(loaded.predict(np.abs(X)), estimator.predict(np.abs(X)))
    with pytest.raises(InvalidInput, match="gives NaN or infinity for row 0"):
        loaded.predict(-np.abs(X))
    with pytest.raises(InvalidInput, match="array int32"):
        loaded.predict(np.abs(X).astype(np.int32))


def test_jumps_behind_a_scaler_and_forests_are_refused() -> None:
    for steps, match in (
        ((StandardScaler(), FunctionTransformer(np.floor), Ridge()), "to the last bit"),
        ((FunctionTransformer(np.cbrt), RandomForestRegressor(2)), "cannot stand before"),
    ):
        with pytest.raises(InvalidInput, match=match):
            sparsejit.compile(make_pipeline(*steps).fit(X, Y))


def test_a_target_that_is_transformed_stays_as_it_was() -> None:
    estimator = TransformedTargetRegressor(
        make_pipeline(FunctionTransformer(np.cbrt), Ridge()), func=np.log1p, inverse_func=np.expm1
    ).fit(X, np.abs(Y))
    found = sparsejit.compile(estimator).predict(X)
    assert np.allclose(found, estimator.predict(X), 1e-5, 1e-5)
