"""Sparse matrices between steps: zeros that are left out are missing to XGBoost alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("treelite")
lightgbm = pytest.importorskip("lightgbm")
scipy_sparse = pytest.importorskip("scipy.sparse")
xgboost = pytest.importorskip("xgboost")
from sklearn.base import clone  # noqa: E402
from sklearn.calibration import CalibratedClassifierCV  # noqa: E402
from sklearn.compose import make_column_transformer  # noqa: E402
from sklearn.decomposition import TruncatedSVD  # noqa: E402
from sklearn.ensemble import (  # noqa: E402
    BaggingClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
    RandomTreesEmbedding,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_selection import SelectKBest, VarianceThreshold  # noqa: E402
from sklearn.impute import SimpleImputer  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import (  # noqa: E402
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    QuantileTransformer,
    StandardScaler,
)
from sklearn.tree import DecisionTreeClassifier  # noqa: E402

import sparsejit  # noqa: E402
from sparsejit.errors import InvalidInput  # noqa: E402

GENERATOR = np.random.default_rng(3)
ROWS = 200
# Columns 0 to 2 hold categories, 3 and 4 numbers with zeros among them.
X = np.column_stack(
    [GENERATOR.integers(0, 5, (ROWS, 3)), np.round(GENERATOR.standard_normal((ROWS, 2)))]
)
Y = (X[:, 0] == 2) ^ (X[:, 1] > 2) ^ (X[:, 2] == 1) ^ (X[:, 3] > 0)
ENCODER = OneHotEncoder(handle_unknown="ignore")
CODES, NUMBERS = [0, 1, 2], [3, 4]


def boosted(**more: Any) -> Any:
    return xgboost.XGBClassifier(n_estimators=5, max_depth=4, n_jobs=1, **more)


def columns(*parts: Any, **more: Any) -> Any:
    return make_column_transformer((ENCODER, CODES), *parts, **more)


PASSED = columns(remainder="passthrough", sparse_threshold=1)
SCALED = columns((StandardScaler(), [3]), (MinMaxScaler(), [4]), sparse_threshold=1)
DENSE = columns((StandardScaler(), NUMBERS), sparse_threshold=0)
BEFORE: dict[str, tuple[Any, ...]] = {
    "encoder": (ENCODER,),
    "dropped": (OneHotEncoder(drop="first"),),
    "not sparse": (OneHotEncoder(sparse_output=False),),
    "scaled": (ENCODER, StandardScaler(with_mean=False), MaxAbsScaler(), VarianceThreshold()),
    "quantiles": (ENCODER, QuantileTransformer(n_quantiles=10)),
    "passed": (PASSED,),
    "parts": (SCALED,),
    "dense parts": (DENSE,),
    "scaled parts": (PASSED, MaxAbsScaler()),
    "inner parts": (make_column_transformer((SCALED, list(range(5))), sparse_threshold=0),),
    "imputed": (make_column_transformer((make_pipeline(SimpleImputer(), ENCODER), CODES)),),
}
LAST = {
    "xgboost": boosted(),
    "a number for missing": boosted(missing=1.0),
    "lightgbm": lightgbm.LGBMClassifier(n_estimators=5, verbose=-1, min_child_samples=2, n_jobs=1),
}


def same(estimator: Any, *given: Any) -> None:
    """Compiled it has the probabilities of the estimator."""
    compiled = sparsejit.compile(estimator)
    for rows in given:
        found, wanted = compiled.predict_proba(rows), estimator.predict_proba(rows)
        np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("last", LAST)
@pytest.mark.parametrize("before", BEFORE)
def test_behind_steps_that_return_sparse_matrices(before: str, last: str) -> None:
    estimator = make_pipeline(*BEFORE[before], LAST[last]).fit(X, Y)
    rows = X.copy()
    if before not in ("dropped", "not sparse"):
        rows[GENERATOR.random(X.shape) < 0.1] = 7
    same(estimator, rows, rows.astype(np.float32))


def test_missing_values_that_pass_a_sparse_matrix() -> None:
    rows = np.where(GENERATOR.random(X.shape) < 0.2, np.nan, X)
    rows[:, CODES] = X[:, CODES]
    for last in (boosted(), boosted(missing=0.0)):
        same(make_pipeline(PASSED, last).fit(rows, Y), rows)


PIPELINE = make_pipeline(ENCODER, boosted())


@pytest.mark.parametrize(
    "estimator",
    [
        GridSearchCV(PIPELINE, {"xgbclassifier__max_depth": [2, 3]}, cv=2),
        CalibratedClassifierCV(PIPELINE, cv=2),
        VotingClassifier(
            [("a", PIPELINE), ("b", make_pipeline(ENCODER, LogisticRegression()))], voting="soft"
        ),
        StackingClassifier([("a", PIPELINE), ("b", PIPELINE)], cv=2),
        make_pipeline(ENCODER, VotingClassifier([("a", boosted())], voting="soft")),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_inside_of_other_estimators(estimator: Any) -> None:
    same(estimator.fit(X, Y), X)


@pytest.mark.parametrize("missing", [-999.0, 0.0, 2.5])
def test_a_number_for_missing_behind_steps(missing: float) -> None:
    rows = np.where(GENERATOR.random(X.shape) < 0.2, missing, X)
    both = VotingClassifier([("a", boosted(missing=missing)), ("b", LogisticRegression())])
    both.set_params(voting="soft")
    for estimator in (both, make_pipeline(MinMaxScaler((0, 2.5)), boosted(missing=missing))):
        same(estimator.fit(rows, Y), rows, rows.astype(np.float32))


def test_infinity_for_missing_behind_steps_is_refused() -> None:
    pipeline = make_pipeline(MinMaxScaler(), boosted(missing=np.inf)).fit(X, Y)
    with pytest.raises(InvalidInput, match="missing=inf and follows other steps"):
        sparsejit.compile(pipeline)


def sparse() -> Any:
    """A sparse matrix of X, in which some zeros are stored and some numbers are missing."""
    rows = X.copy()
    rows[GENERATOR.random(X.shape) < 0.3] = 0
    rows[3, 4] = rows[5, 1] = np.nan
    places = np.nonzero((rows != 0) | (GENERATOR.random(X.shape) < 0.3))
    return scipy_sparse.csr_matrix((rows[places], places), shape=X.shape)


KEEPING = (StandardScaler(with_mean=False), MaxAbsScaler(), VarianceThreshold())
FILLED = (SimpleImputer(),)
PARTS = make_column_transformer(
    (StandardScaler(with_mean=False), [0, 3]), ("passthrough", [1, 2]), (SimpleImputer(), [4])
)
MIXED = [("a", boosted()), ("b", make_pipeline(SimpleImputer(), LogisticRegression()))]
ON_SPARSE = {
    "xgboost": (boosted(),),
    "a number for missing": (boosted(missing=1.0),),
    "a number for missing, scaled": (MaxAbsScaler(), boosted(missing=0.5)),
    "scaled": (*KEEPING, boosted()),
    "filled": (*FILLED, boosted()),
    "marked": (SimpleImputer(add_indicator=True), boosted()),
    "quantiles": (QuantileTransformer(n_quantiles=10), boosted()),
    "quantiles before a forest": (
        *(*FILLED, QuantileTransformer(n_quantiles=10)),
        RandomForestClassifier(4, random_state=0),
    ),
    "parts": (PARTS, boosted()),
    "sparse parts": (clone(PARTS).set_params(sparse_threshold=1), boosted()),
    "components": (*FILLED, TruncatedSVD(3, random_state=0), boosted()),
    "selected and linear": (*FILLED, SelectKBest(k=3), LogisticRegression()),
    "votes": (VotingClassifier(MIXED, voting="soft"),),
    "scaled votes": (*KEEPING, VotingClassifier(MIXED, voting="soft")),
    "stack": (StackingClassifier(MIXED, cv=2),),
    "lightgbm": (*KEEPING, LAST["lightgbm"]),
}


@pytest.mark.parametrize("fit_to", ["sparse", "dense"])
@pytest.mark.parametrize("name", ON_SPARSE)
@pytest.mark.filterwarnings("ignore")
def test_a_sparse_x(name: str, fit_to: str) -> None:
    """A zero that X leaves out, one that it stores, and NaN, each as the library has it."""
    rows = [abs(sparse()) if "quantiles" in name else sparse() for _ in range(3)]
    given = rows[0] if fit_to == "sparse" else rows[0].toarray()
    estimator = make_pipeline(*ON_SPARSE[name]).fit(given, Y)
    # Parts that are all dense, scipy cannot stack.
    dense = [rows[2].toarray()] if (name, fit_to) != ("sparse parts", "sparse") else []
    same(estimator, rows[1], rows[1].tocsc(), rows[2].astype(np.float32), *dense)


@pytest.mark.parametrize("fit_to", ["sparse", "dense"])
@pytest.mark.parametrize("steps", [(), (VarianceThreshold(),), (MaxAbsScaler(),)])
def test_marks_of_missing_numbers_decide(steps: tuple[Any, ...], fit_to: str) -> None:
    """An imputer's indicator of a sparse X is 1 for NaN, and left out for all numbers."""
    rows = sparse()
    rows.data[GENERATOR.random(rows.nnz) < 0.3] = np.nan
    wanted = np.isnan(rows.toarray()).sum(axis=1) > 1
    given = rows if fit_to == "sparse" else rows.toarray()
    pipeline = make_pipeline(SimpleImputer(add_indicator=True), *steps, boosted())
    same(pipeline.fit(given, wanted), rows, rows.toarray())


def test_a_sparse_x_that_the_library_refuses() -> None:
    histogram = HistGradientBoostingClassifier(max_iter=2)
    for steps in ((StandardScaler(), boosted()), (ENCODER, boosted()), (histogram,)):
        estimator = make_pipeline(*steps).fit(X, Y)
        with pytest.raises((TypeError, ValueError), match=r"[Ss]parse"):
            estimator.predict(sparse())
        with pytest.raises(InvalidInput, match=r"sparse.*does not take; give X.toarray"):
            sparsejit.compile(estimator).predict(sparse())


TREES = (
    DecisionTreeClassifier(max_depth=4),
    RandomForestClassifier(4),
    ExtraTreesRegressor(4),
    BaggingClassifier(DecisionTreeClassifier(max_depth=4), 3),
    IsolationForest(n_estimators=9, random_state=0),
    RandomTreesEmbedding(4),
    VotingClassifier([("a", RandomForestClassifier(4)), ("b", boosted())]),
)


@pytest.mark.parametrize("last", TREES, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("before", [(), KEEPING, (PASSED,)], ids=["none", "kept", "made"])
def test_trees_of_scikit_learn_refuse_nan_in_a_sparse_matrix(
    before: tuple[Any, ...], last: Any, tmp_path: Path
) -> None:
    """An IsolationForest alone computes, something else; a file refuses the same."""
    full = X.copy()
    full[3, 4] = np.nan
    estimator = make_pipeline(*before, last).fit(np.nan_to_num(full), Y)
    method = "predict" if hasattr(estimator, "predict") else "transform"
    refused = full if before == (PASSED,) else scipy_sparse.csr_matrix(full)
    compiled = sparsejit.compile(estimator)
    compiled.save(tmp_path / "e.sjit")
    if not isinstance(last, IsolationForest):
        with pytest.raises(ValueError, match="contains NaN"):
            getattr(estimator, method)(refused)
    for each in (compiled, sparsejit.load(tmp_path / "e.sjit")):
        with pytest.raises(InvalidInput, match="X has nan in row 3, column 4"):
            getattr(each, method)(refused)
    taken = [np.nan_to_num(full)]
    taken += [scipy_sparse.csr_matrix(X), full] if refused is not full else []
    for rows in taken:
        try:
            wanted = getattr(estimator, method)(rows)
        except ValueError:  # a RandomTreesEmbedding refuses NaN in any X
            continue
        wanted = wanted.toarray() if method == "transform" else wanted
        np.testing.assert_allclose(getattr(compiled, method)(rows), wanted, atol=1e-6)


def test_scaled_components_of_a_sparse_x_before_a_forest_are_refused() -> None:
    """scikit-learn multiplies a sparse X by the reciprocal of the scale, a dense one it divides."""
    steps = *FILLED, MaxAbsScaler(), TruncatedSVD(3, random_state=0)
    rows = sparse()
    pipeline = make_pipeline(*steps, RandomForestClassifier(4, random_state=0)).fit(rows, Y)
    compiled = sparsejit.compile(pipeline)
    with pytest.raises(InvalidInput, match=r"to the last bit; give X\.toarray"):
        compiled.predict(rows)
    assert np.array_equal(compiled.predict(rows.toarray()), pipeline.predict(rows.toarray()))
    same(make_pipeline(*steps, LogisticRegression()).fit(rows, Y), rows)


def test_two_numbers_in_one_place_of_a_sparse_x() -> None:
    rows = sparse().tocoo()
    once = boosted().fit(rows, Y)
    twice = scipy_sparse.coo_matrix(
        (np.tile(rows.data, 2), (np.tile(rows.row, 2), np.tile(rows.col, 2))), shape=X.shape
    )
    same(once, twice)
    order = np.argsort(twice.row, kind="stable")
    places = np.append(0, np.cumsum(np.bincount(twice.row, minlength=ROWS)))
    doubled = scipy_sparse.csr_matrix((twice.data[order], twice.col[order], places), shape=X.shape)
    with pytest.raises(InvalidInput, match=r"two numbers in one place.*sum_duplicates"):
        sparsejit.compile(once).predict(doubled)


def test_a_file_keeps_what_a_sparse_x_leaves_out(tmp_path: Path) -> None:
    estimator = make_pipeline(*KEEPING, boosted()).fit(sparse(), Y)
    sparsejit.compile(estimator).save(tmp_path / "e.sjit")
    rows = sparse()
    found = sparsejit.load(tmp_path / "e.sjit").predict_proba(rows)
    np.testing.assert_allclose(found, estimator.predict_proba(rows), atol=1e-6)
