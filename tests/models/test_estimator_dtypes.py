"""X of other dtypes, in frames too: compared on thresholds in the dtype that scikit-learn has."""

from typing import Any

import numpy as np
import pytest

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.ir.ops.forest import Forest
from sparsejit.ir.values import Array

pytest.importorskip("treelite")
pandas = pytest.importorskip("pandas")
from sklearn.compose import ColumnTransformer  # noqa: E402
from sklearn.feature_selection import VarianceThreshold  # noqa: E402
from sklearn.impute import SimpleImputer  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.mixture import GaussianMixture  # noqa: E402
from sklearn.naive_bayes import CategoricalNB  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import (  # noqa: E402
    KBinsDiscretizer,
    MaxAbsScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    QuantileTransformer,
    StandardScaler,
)
from sklearn.tree import DecisionTreeRegressor  # noqa: E402

GENERATOR = np.random.default_rng(0)
SCALE = np.array([0.1, 1, 5, 90, 90], np.float32)
X = SCALE * GENERATOR.standard_normal((200, 5)).astype(np.float32)
X[:, 3:] = np.round(X[:, 3:])
SCORE = X @ np.array([99, 9, 2, 0.1, 0.1]) + GENERATOR.standard_normal(200)
PARTS = ColumnTransformer(
    [
        ("scaled", StandardScaler(), [0, 1]),
        ("largest", make_pipeline(SimpleImputer(), MaxAbsScaler()), [2, 3]),
        ("plain", "passthrough", [4]),
    ]
)


def fitted(*steps: Any) -> tuple[Any, Any]:
    """A tree behind steps, and compiled."""
    tree = DecisionTreeRegressor(max_depth=6, random_state=0)
    estimator = make_pipeline(*steps, tree).fit(X, SCORE)
    return estimator, sparsejit.compile(estimator)


def on_thresholds(compiled: Any, element: str) -> Array:
    """All rows with a value on each threshold of a compiled forest, and with the next above."""
    graph = compiled.variant("predict", np.dtype(element)).graph
    (node,) = (node for node in graph.nodes if isinstance(node.op, Forest))
    thresholds, nodes = (graph.constants[value] for value in node.inputs[1:3])
    on = np.tile(X.astype(element), (len(nodes), 1))
    above, values = on.copy(), np.repeat(thresholds.astype(element), len(X))
    places = np.arange(len(on)), np.repeat(nodes[:, 0], len(X))
    on[places], above[places] = values, np.nextafter(values, np.array(np.inf, element))
    return np.concatenate([on, above])


@pytest.mark.parametrize("element", ["float32", "float64"])
@pytest.mark.parametrize(
    "step", [StandardScaler(), PowerTransformer(), QuantileTransformer(n_quantiles=20), PARTS]
)
def test_x_on_a_threshold_goes_where_the_library_sends_it(step: Any, element: str) -> None:
    estimator, compiled = fitted(step)
    rows = on_thresholds(compiled, element)
    np.testing.assert_allclose(compiled.predict(rows), estimator.predict(rows), rtol=1e-6)


@pytest.mark.parametrize(
    ("element", "others"),
    [
        ("float32", {4: "int64"}),  # passes as it is
        ("float32", {3: "int16", 4: "Int64"}),  # beside float32, which holds it
        ("float64", {3: "int64", 4: "float32"}),
    ],
)
def test_parts_compute_in_the_dtype_of_their_columns(element: str, others: Any) -> None:
    estimator, compiled = fitted(PARTS)
    frame = pandas.DataFrame(on_thresholds(compiled, element))
    frame[[*others]] = np.round(frame[[*others]])
    frame = frame.astype(others)
    np.testing.assert_allclose(compiled.predict(frame), estimator.predict(frame), rtol=1e-6)


@pytest.mark.parametrize(
    "others",
    [
        {3: "int64"},  # scaled in float64, the first part in float32
        {0: "float64", 1: "float64"},
        {4: "int64"},  # but 2^24 + 1 is none of float32
    ],
)
def test_parts_of_different_dtypes_are_refused(others: Any) -> None:
    frame = pandas.DataFrame(X)
    frame = frame.astype(others)
    frame.loc[0, 4] = 2**24 + 1
    with pytest.raises(InvalidInput, match=r"ColumnTransformer.*give one dtype"):
        fitted(PARTS)[1].predict(frame)


def test_steps_behind_parts_need_one_dtype() -> None:
    frame = pandas.DataFrame(X).astype({4: "int64"})
    with pytest.raises(InvalidInput, match=r"ColumnTransformer.*give one dtype"):
        fitted(PARTS, StandardScaler())[1].predict(frame)


def test_an_encoder_takes_any_dtype() -> None:
    encoder = OneHotEncoder(handle_unknown="ignore")
    parts = ColumnTransformer([("codes", encoder, [3]), ("rest", StandardScaler(), [0, 1])])
    estimator, compiled = fitted(parts)
    frame = pandas.DataFrame(X).astype({3: "int32"})
    np.testing.assert_allclose(compiled.predict(frame), estimator.predict(frame), rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-6, 1e18])
@pytest.mark.parametrize("element", ["float32", "float64"])
def test_powers_of_small_and_of_large_numbers(scale: float, element: str) -> None:
    rows = (scale * np.exp(3 * GENERATOR.standard_normal((200, 1)))).astype(element)
    tree = DecisionTreeRegressor(random_state=0)
    estimator = make_pipeline(PowerTransformer(), tree).fit(rows, np.log(rows[:, 0]))
    found = sparsejit.compile(estimator).predict(rows)
    np.testing.assert_allclose(found, estimator.predict(rows), rtol=1e-6)


def test_powers_of_positive_numbers_alone_are_refused() -> None:
    rows = np.exp(X / 100)
    estimator = make_pipeline(PowerTransformer(method="box-cox"), DecisionTreeRegressor())
    with pytest.raises(InvalidInput, match="has method='box-cox', which refuses numbers"):
        sparsejit.compile(estimator.fit(rows, SCORE))


def test_scalers_are_not_given_float16() -> None:
    scaled = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, SCORE > 0)
    for given in (X.astype(np.float16), pandas.DataFrame(X.astype(np.float16))):
        with pytest.raises(InvalidInput, match=r"float16.*astype\(np.float32\)"):
            sparsejit.compile(scaled).predict(given)
        assert len(sparsejit.compile(scaled[-1]).predict(given)) == len(X)


def test_a_frame_of_too_few_columns_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"shape \(200, 3\)"):
        fitted(PARTS)[1].predict(pandas.DataFrame(X[:, :3]))


@pytest.mark.parametrize("steps", [[], [VarianceThreshold()]])
def test_mixtures_whose_densities_scikit_learn_rounds_down(steps: list[Any]) -> None:
    whole = np.round(X[:, :2]).astype(np.int64)
    estimator = make_pipeline(*steps, GaussianMixture(2, random_state=0)).fit(whole)
    compiled = sparsejit.compile(estimator)
    frame = pandas.DataFrame({"a": whole[:, 0], "b": whole[:, 1] > 0})
    for rows in (whole, frame, frame.astype(int)):
        with pytest.raises(InvalidInput, match=r"rounds results of the .* down"):
            compiled.score_samples(rows)
    wanted = estimator.score_samples(whole.astype(float))
    found = compiled.score_samples(whole.astype(float))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())
    scaled = make_pipeline(StandardScaler(), GaussianMixture(2, random_state=0)).fit(whole)
    np.testing.assert_array_equal(sparsejit.compile(scaled).predict(whole), scaled.predict(whole))


@pytest.mark.filterwarnings("ignore")
def test_codes_for_categorical_bayes() -> None:
    """Encoders and bins give codes that are compared with the fit; other steps give none."""
    labels, codes = SCORE > 0, np.round(np.abs(X[:, 3:]) % 3)
    bins = KBinsDiscretizer(3, encode="ordinal")
    for steps in ([bins], [OneHotEncoder(sparse_output=False), bins], [OrdinalEncoder()]):
        model = make_pipeline(*steps, CategoricalNB(min_categories=3)).fit(codes, labels)
        compiled = sparsejit.compile(model)
        np.testing.assert_array_equal(compiled.predict(codes), model.predict(codes))
    unseen = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=9)
    for steps, message in (
        ([unseen], "refuses codes that an encoder of numbers gives"),
        ([MaxAbsScaler()], "reads the results of the MaxAbsScaler as codes"),
    ):
        model = make_pipeline(*steps, CategoricalNB(min_categories=3)).fit(codes, labels)
        with pytest.raises(InvalidInput, match=message):
            sparsejit.compile(model)
