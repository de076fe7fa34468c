"""Models with mathematics of their own answer as scikit-learn's: at random, saved, and refused."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
from fuzzing.model_kinds import MODEL_KINDS, ModelKind
from hypothesis import given, settings
from hypothesis import strategies as st
from runnable import LEVELS
from scipy.sparse import csr_matrix
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA, KernelPCA
from sklearn.discriminant_analysis import (
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.isotonic import IsotonicRegression
from sklearn.kernel_approximation import AdditiveChi2Sampler, SkewedChi2Sampler
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.manifold import Isomap
from sklearn.naive_bayes import CategoricalNB, GaussianNB
from sklearn.neighbors import (
    KNeighborsClassifier,
    KNeighborsRegressor,
    LocalOutlierFactor,
    RadiusNeighborsClassifier,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import get_tags

import sparsejit
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.estimators import double_values
from sparsejit.estimators.own_models import MODELS
from sparsejit.estimators.parts import MAPPING
from sparsejit.estimators.source import estimator_to_data, read_estimator_file
from sparsejit.ir.values import Array

pytestmark = pytest.mark.filterwarnings("ignore")

VALUES = 1e-6  # of the largest result, or of the sums that make it
TIE = 1e-6
NAMES = [f"{number}-{kind.name}" for number, kind in enumerate(MODEL_KINDS)]


def fitted(kind: ModelKind, generator: np.random.Generator, X: Array) -> Any:
    """An estimator, alone or in a pipeline with a scaler, or before a linear model."""
    last = kind.make(generator)
    plain = kind.data == "plain" and kind.name != "BernoulliNB"
    steps: list[Any] = [StandardScaler()] if plain and generator.random() < 0.3 else []
    y = kind.targets(generator, X)
    maps = kind.name in MAPPING and "SparsePCA" not in kind.name  # which drops an axis of one row
    if maps and kind.target == "none" and generator.random() < 0.3:
        return make_pipeline(*steps, last, Ridge()).fit(X, X[:, 0])
    if kind.name == "NeighborhoodComponentsAnalysis" and generator.random() < 0.5:
        return make_pipeline(*steps, last, LogisticRegression()).fit(X, y)
    estimator = make_pipeline(*steps, last) if steps else last
    return estimator.fit(X) if y is None else estimator.fit(X, y)


def rows_of(kind: ModelKind, generator: np.random.Generator, X: Array) -> Any:
    """Rows of the fit, and near them: an array of either dtype, a frame, or a sparse matrix."""
    rows = X[generator.integers(0, len(X), 40)].copy()
    if kind.data in ("plain", "one"):
        rows[10:] += 0.3 * generator.standard_normal(rows[10:].shape)
    form = generator.choice(["float64", "float64", "float32", "frame", "one row"])
    if form == "frame":
        pandas = pytest.importorskip("pandas")
        return pandas.DataFrame(rows)
    if form == "one row":
        return rows[:1]
    return rows.astype(form)


def is_tied(estimator: Any, rows: Any) -> Array:
    """True where the library's own scores of two classes, or of in and out, are as good as equal.

    Neighbours at the same distance count as tied too: another of them may be chosen.
    """
    for name in ("decision_function", "predict_proba"):
        if hasattr(estimator, name):
            scores = np.asarray(getattr(estimator, name)(rows), np.float64)
            pairs = np.stack([-scores, scores], axis=1) if scores.ndim == 1 else scores
            if pairs.shape[1] < 2:
                break
            best = np.sort(pairs, axis=1)
            gap = best[:, -1] - best[:, -2]
            return np.asarray(gap <= TIE * max(1.0, np.abs(scores).max(initial=0.0)))
    return np.zeros(len(rows) if not hasattr(rows, "shape") else rows.shape[0], bool)


def terms_of(estimator: Any, rows: Any) -> float:
    """The largest sum of magnitudes that a linear score adds in float32; 0 for other scores."""
    dense = rows.to_numpy() if hasattr(rows, "to_numpy") else rows
    weights = getattr(estimator, "coef_", None) if isinstance(dense, np.ndarray) else None
    if not isinstance(weights, np.ndarray) or dense.shape[1:] != weights.shape[-1:]:
        return 0.0
    return float((np.abs(dense) @ np.abs(weights).T).max(initial=0.0))


def assert_equal(estimator: Any, compiled: Any, rows: Any) -> None:
    """The library gets float32 as float64: it computes some of these in float32, or fails to."""
    wide = rows.astype(np.float64) if getattr(rows, "dtype", None) == np.float32 else rows
    for method in compiled.methods:
        answer = getattr(estimator, method)(wide)
        wanted = np.asarray(answer.toarray() if hasattr(answer, "toarray") else answer)
        found = getattr(compiled, method)(rows)
        if method == "transform" and len(found) == 1:  # SparsePCA drops an axis of one row
            wanted = wanted.reshape(found.shape)
        assert found.shape == wanted.shape, f"{method}: {found.shape}, not {wanted.shape}"
        if wanted.dtype.kind in "iuUO":
            kinds = found.dtype.kind, wanted.dtype.kind
            assert found.dtype == wanted.dtype or kinds == ("U", "U"), f"{method}: {found.dtype}"
            wrong = found != wanted
            wrong[is_tied(estimator, wide)] = False
            assert not wrong.any(), f"{method}: {wrong.sum()} other labels"
            continue
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
        finite = np.isfinite(wanted)
        if method == "predict_log_proba":  # the library has log(2e-308) for the logarithm of 0
            finite &= wanted > -700
        largest = max(np.abs(wanted[finite]).max(initial=0.0), terms_of(estimator, wide), 1e-30)
        worst = np.abs(found[finite] - wanted[finite]).max(initial=0.0) / largest
        assert worst <= VALUES, f"{method} differs by {worst:.1e}"


@pytest.mark.parametrize("kind", MODEL_KINDS, ids=NAMES)
@settings(max_examples=4)
@given(seed=st.integers(0, 2**32 - 1))
def test_it_equals_its_library(kind: ModelKind, seed: int) -> None:
    generator = np.random.default_rng(seed)
    X = kind.columns(generator, int(generator.choice([30, 90])), int(generator.choice([3, 6])))
    estimator, rows = fitted(kind, generator, X), rows_of(kind, generator, X)
    example = rows if generator.integers(2) else None
    level = LEVELS[generator.integers(len(LEVELS))]
    compiled = sparsejit.compile(estimator, example, target=level)
    assert_equal(estimator, compiled, rows)


def test_every_model_is_tried() -> None:
    assert {kind.name for kind in MODEL_KINDS} >= set(MODELS)
    assert {name for name, model in MODELS.items() if model.transform is not None} == MAPPING


@pytest.mark.parametrize("kind", MODEL_KINDS, ids=NAMES)
def test_a_sparse_x_is_taken_or_refused_as_the_library_does(kind: ModelKind) -> None:
    generator = np.random.default_rng(1)
    X = kind.columns(generator, 60, 4)
    X[generator.random(X.shape) < 0.5] = 0
    given = csr_matrix(X) if kind.is_sparse else X
    last, y = kind.make(generator), kind.targets(generator, X)
    estimator = last.fit(given) if y is None else last.fit(given, y)
    compiled = sparsejit.compile(estimator, X)
    try:
        getattr(estimator, compiled.methods[0])(csr_matrix(X[:20]))
    except (TypeError, ValueError):
        takes = False
    else:
        takes = get_tags(last).input_tags.sparse
    if takes:
        assert_equal(estimator, compiled, csr_matrix(X[:20]))
    else:
        with pytest.raises(InvalidInput, match="is sparse"):
            compiled.run(compiled.methods[0], csr_matrix(X))


@pytest.mark.parametrize("kind", MODEL_KINDS, ids=NAMES)
def test_a_loaded_file_gives_the_same(kind: ModelKind, tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    X = kind.columns(generator, 40, 4)
    y = kind.targets(generator, X)
    last = kind.make(generator)
    compiled = sparsejit.compile(last.fit(X) if y is None else last.fit(X, y))
    compiled.save(tmp_path / "e.sjit")
    loaded = sparsejit.load(tmp_path / "e.sjit")
    assert loaded.methods == compiled.methods
    method = compiled.methods[-1]
    found, wanted = getattr(loaded, method)(X[:3]), getattr(compiled, method)(X[:3])
    np.testing.assert_array_equal(found, wanted, strict=True)


X = np.random.default_rng(0).standard_normal((50, 3))
CLASSES = np.digitize(X[:, 0], [-0.5, 0.5])
REFUSED = {
    "has the kernel": KernelRidge(kernel=lambda a, b: float(a @ b)),
    "has the metric": KNeighborsClassifier(metric="braycurtis"),
    "weights that are a function": KNeighborsRegressor(weights=lambda d: d),
    "no outlier_label": RadiusNeighborsClassifier(1.0),
    "novelty=False": LocalOutlierFactor(),
}


@pytest.mark.parametrize("message", REFUSED)
def test_options_without_code_are_refused_with_a_remedy(message: str) -> None:
    estimator = REFUSED[message].fit(X, CLASSES)
    with pytest.raises(InvalidInput, match=message):
        sparsejit.compile(estimator)


@pytest.mark.parametrize(
    "estimator",
    [
        KernelRidge(alpha=1e-13, kernel="rbf", gamma=0.1),
        GaussianProcessRegressor(2.0 * RBF(2.0), alpha=1e-13, optimizer=None),
    ],
    ids=lambda each: type(each).__name__,
)
def test_sums_that_float64_does_not_hold_are_refused(estimator: Any) -> None:
    """Noise is fitted to the last digit, by weights that cancel."""
    rows = np.random.default_rng(0).uniform(0, 3, (60, 1))
    estimator.fit(rows, np.random.default_rng(1).standard_normal(60))
    with pytest.raises(InvalidInput, match="a larger alpha"):
        sparsejit.compile(estimator)


@pytest.mark.parametrize("kind", MODEL_KINDS, ids=NAMES)
def test_one_that_is_not_fitted_is_refused(kind: ModelKind) -> None:
    with pytest.raises((InvalidInput, NotFittedError)):
        sparsejit.compile(kind.make(np.random.default_rng(0)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "estimator",
    [SkewedChi2Sampler(skewedness=0.5, random_state=0), AdditiveChi2Sampler()],
    ids=lambda each: type(each).__name__,
)
def test_numbers_without_a_logarithm_are_refused(
    estimator: Any, dtype: str, tmp_path: Path
) -> None:
    """Also by a loaded file, which is refused itself if its least numbers are damaged."""
    rows = np.abs(X).astype(dtype)
    estimator.fit(rows)
    compiled = sparsejit.compile(estimator)
    compiled.save(tmp_path / "e.sjit")
    rows[3, 1] = -0.5
    with pytest.raises(ValueError, match=r"Negative values|smaller than -skewedness"):
        estimator.transform(rows)
    for each in (compiled, sparsejit.load(tmp_path / "e.sjit")):
        with pytest.raises(InvalidInput, match=r"X has -0\.5 in row 3, column 1.* takes no number"):
            each.transform(rows)
    with pytest.raises(InvalidInput, match="steps before it change X"):
        sparsejit.compile(make_pipeline(StandardScaler(), MinMaxScaler(), estimator).fit(X))
    header, tensors = estimator_to_data(compiled._source)
    for damaged in ([0.0], [0, 0, 0], None):
        with pytest.raises(DamagedFile, match="least numbers"):
            read_estimator_file({**header, "least": damaged}, tensors)


@pytest.mark.parametrize("out_of_bounds", ["clip", "nan"])
def test_an_isotonic_x_has_one_axis_or_two(out_of_bounds: str, tmp_path: Path) -> None:
    estimator = IsotonicRegression(out_of_bounds=out_of_bounds).fit(X[:, 0], X[:, 1])
    compiled = sparsejit.compile(estimator, X[:, 0])
    compiled.save(tmp_path / "e.sjit")
    for each in (compiled, sparsejit.load(tmp_path / "e.sjit")):
        for rows in (X[:, 0], X[:, :1], 3 * X[:, 0]):
            assert_equal(estimator, each, rows)
        assert_equal(estimator, each, (2 * X[:, 0]).tolist())
    with pytest.raises(InvalidInput, match=r"X has shape \(50, 3\)"):
        compiled.predict(X)


def test_whole_numbers_that_the_library_rounds_down_are_refused() -> None:
    rows = np.arange(1, 13).reshape(4, 3)
    sampler = AdditiveChi2Sampler().fit(rows)
    assert sampler.transform(rows).dtype == rows.dtype
    compiled = sparsejit.compile(sampler)
    for each in (rows, rows.tolist(), csr_matrix(rows)):
        with pytest.raises(InvalidInput, match="X has dtype int64, to which scikit-learn rounds"):
            compiled.transform(each)
    texts = ["one two", "two three", "three"]
    with pytest.raises(InvalidInput, match="gives whole counts"):
        sparsejit.compile(make_pipeline(CountVectorizer(), AdditiveChi2Sampler()).fit(texts))
    weighted = make_pipeline(TfidfVectorizer(), AdditiveChi2Sampler()).fit(texts)
    wanted = weighted.transform(texts).toarray()
    found = sparsejit.compile(weighted).transform(texts)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=VALUES)


def test_an_isomap_of_a_radius_is_refused() -> None:
    with pytest.raises(InvalidInput, match="has a radius"):
        sparsejit.compile(Isomap(n_neighbors=None, radius=2.0).fit(X))


def test_infinite_and_missing_values_are_refused() -> None:
    compiled = sparsejit.compile(SVC().fit(X, CLASSES))
    for odd in (np.nan, np.inf):
        with pytest.raises(InvalidInput, match="does not take"):
            compiled.predict(np.full((1, 3), odd))


def test_far_from_zero_distances_lose_nothing() -> None:
    """|x|^2 - 2 x y + |y|^2 of numbers around 1e8 has no digits of the distance left."""
    far = X + 1e8
    estimator = KNeighborsRegressor(1, algorithm="kd_tree").fit(far, np.arange(50.0))
    np.testing.assert_array_equal(sparsejit.compile(estimator, far).predict(far), np.arange(50.0))


def test_of_equally_near_rows_the_first_is_chosen() -> None:
    rows = np.array([[1.0], [-1.0], [1.0], [3.0]])
    estimator = KNeighborsRegressor(1, algorithm="brute").fit(rows, [10.0, 20.0, 30.0, 40.0])
    compiled = sparsejit.compile(estimator)
    np.testing.assert_array_equal(compiled.predict([[0.0], [2.0], [1.0]]), [10.0, 10.0, 10.0])


def test_votes_of_many_pairs_are_counted_as_in_libsvm() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = np.digitize(X[:, 0] * X[:, 1], np.quantile(X[:, 0] * X[:, 1], np.arange(1, 9) / 9))
        estimator = SVC(C=10).fit(X, y)
    rows = np.random.default_rng(1).standard_normal((200, 3))
    compiled = sparsejit.compile(estimator, rows)
    np.testing.assert_array_equal(compiled.predict(rows), estimator.predict(rows))


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "part",
    [
        SVC(C=5),
        make_pipeline(StandardScaler(), SVC(decision_function_shape="ovr")),
        KNeighborsClassifier(weights="distance"),
        GaussianNB(),
        QuadraticDiscriminantAnalysis(),
        GaussianProcessClassifier(),
    ],
    ids=lambda part: type(part).__name__,
)
@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
def test_calibration_reads_their_scores_in_float64(part: Any, classes: int, method: str) -> None:
    y = np.digitize(X[:, 0] + X[:, 1] ** 2, [0.5, 1.5][: classes - 1])
    estimator = CalibratedClassifierCV(part, method=method, cv=2).fit(X, y)
    rows = X + 0.1
    assert_equal(estimator, sparsejit.compile(estimator, rows), rows)


def test_ensembles_and_steps_are_made_of_them() -> None:
    y = CLASSES
    named = [("s", SVC()), ("n", KNeighborsClassifier()), ("b", GaussianNB())]
    for estimator in (
        VotingClassifier(named),
        VotingClassifier(named[1:], voting="soft"),
        StackingClassifier(named, cv=2, passthrough=True),
        make_pipeline(StandardScaler(), KMeans(4, n_init=1), LogisticRegression()),
        make_pipeline(PCA(2), LinearDiscriminantAnalysis(), SVC()),
        make_pipeline(KernelPCA(2, kernel="rbf"), KNeighborsClassifier(3)),
    ):
        rows = X + 0.05
        estimator.fit(X, y)
        assert_equal(estimator, sparsejit.compile(estimator, rows), rows)


def test_a_forest_does_not_stand_behind_them() -> None:
    estimator = make_pipeline(KMeans(4, n_init=1), DecisionTreeClassifier()).fit(X, CLASSES)
    with pytest.raises(InvalidInput, match="to the last bit"):
        sparsejit.compile(estimator)


def test_a_category_that_the_fit_did_not_see_is_refused() -> None:
    codes = np.abs(np.round(2 * X)).astype(int)
    compiled = sparsejit.compile(CategoricalNB().fit(codes, CLASSES))
    with pytest.raises(InvalidInput, match="did not see"):
        compiled.predict(codes + 100)


@pytest.mark.parametrize(
    "estimator", [SVC(), KNeighborsClassifier(), KernelRidge(kernel="rbf"), KMeans(9, n_init=1)]
)
def test_too_many_rows_of_a_fit_are_refused(
    estimator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(double_values, "MOST_KNOWN", 20)
    with pytest.raises(InvalidInput, match="fit it to fewer rows"):
        sparsejit.compile(estimator.fit(X, CLASSES))


@pytest.mark.parametrize("algorithm", ["brute", "kd_tree"])
def test_labels_of_whole_numbers_differ_at_most_where_rows_are_equally_near(
    algorithm: str,
) -> None:
    """Some digits have a third and a fourth neighbour at the same distance; a tree may swap them.

    scikit-learn's search by brute force keeps the first of these, as here.
    """
    digits, labels = load_digits(return_X_y=True)
    estimator = KNeighborsClassifier(3, algorithm=algorithm).fit(digits[:1000], labels[:1000])
    rows = digits[1000:]
    far, _ = estimator.kneighbors(rows, 4)
    is_tied = far[:, 2] == far[:, 3]
    assert is_tied.any()
    wrong = sparsejit.compile(estimator, rows).predict(rows) != estimator.predict(rows)
    assert not wrong[~is_tied].any()
    assert algorithm != "brute" or not wrong.any()


def test_support_vectors_whose_weights_cancel_are_refused() -> None:
    """Weights of 1e12 at the same place, of which a difference of about 1 is left."""
    draw = np.random.default_rng(0)
    model = SVC().fit(np.repeat(draw.standard_normal((8, 1)), 2, axis=0), np.arange(16) % 2)
    pairs = np.sign(model._dual_coef_) * 1e12
    assert pairs.sum() == 0
    model._dual_coef_ = pairs
    with pytest.raises(InvalidInput, match="have no digits left"):
        sparsejit.compile(model)
