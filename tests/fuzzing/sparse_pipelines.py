"""Pipelines at random whose steps return sparse matrices, or that are given one.

    pipeline(generator)     fitted steps and a model, and rows to try them on

X has categories in its first columns, and numbers with zeros and NaN among them. A sparse X leaves
out some zeros and stores others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn import calibration, ensemble, impute, linear_model, model_selection, preprocessing
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_selection import SelectKBest, VarianceThreshold
from sklearn.pipeline import make_pipeline

from sparsejit.ir.values import Array

CATEGORIES = 2  # columns of X that hold some
Generator = np.random.Generator


def pipeline(generator: Generator) -> tuple[Any, Any]:
    """A fitted estimator, and rows. Tries until the library takes what it drew."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        while True:
            X, y = _data(generator)
            is_sparse = bool(generator.integers(2))
            estimator = _estimator(generator, X.shape[1], is_sparse)
            try:
                fits_sparse = is_sparse and bool(generator.integers(2))
                estimator.fit(as_sparse(generator, X) if fits_sparse else X, y)
            except (AttributeError, TypeError, ValueError):
                continue
            return estimator, _rows(generator, X, is_sparse)


def as_sparse(generator: Generator, rows: Array) -> Any:
    """A sparse matrix of rows, which stores some of the zeros."""
    places = np.nonzero((rows != 0) | (generator.random(rows.shape) < 0.3))
    kind = [sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array][generator.integers(3)]
    return kind(sparse.csr_matrix((rows[places], places), shape=rows.shape))


def _data(generator: Generator) -> tuple[Array, Array]:
    samples, numbers = int(generator.integers(50, 150)), int(generator.integers(1, 5))
    X = np.concatenate(
        [
            generator.integers(0, 4, (samples, CATEGORIES)).astype(float),
            np.abs(np.round(generator.standard_normal((samples, numbers)), 1)),
        ],
        axis=1,
    )
    X[generator.random(X.shape) < 0.2] = 0
    y = (X[:, 0] == 2) ^ (X[:, 1] > 2) ^ (X[:, -1] > generator.choice([0.0, 0.5]))
    if generator.random() < 0.3:
        X[:, CATEGORIES:][generator.random((samples, numbers)) < 0.1] = np.nan
    return X, y.astype(int)


def _rows(generator: Generator, X: Array, is_sparse: bool) -> Any:
    """Rows that were seen, and others; in either element."""
    rows = X[generator.integers(0, len(X), 60)].copy()
    moved = generator.random(rows.shape) < 0.2
    moved[:, :CATEGORIES] = False
    rows[moved] = np.abs(np.round(generator.standard_normal(moved.sum()), 1))
    rows[generator.random(rows.shape) < 0.1] = 0
    if generator.random() < 0.3:
        rows = rows.astype(np.float32)
    return as_sparse(generator, rows) if is_sparse else rows


def _estimator(generator: Generator, features: int, is_sparse: bool) -> Any:
    """Steps and a model, at times inside of others."""
    name = str(generator.choice([*MODELS]))
    last = MODELS[name](generator)
    steps = _steps(generator, features, is_sparse, name)
    inner = make_pipeline(*steps, last)
    choice = generator.integers(8)
    if choice == 0:
        return model_selection.GridSearchCV(inner, {}, cv=2)
    if choice == 1 and name in ("linear", "forest"):
        return calibration.CalibratedClassifierCV(inner, cv=2)
    if choice == 2:
        other = make_pipeline(*_steps(generator, features, is_sparse, "linear"), _linear(generator))
        named = [("a", inner), ("b", other)]
        return ensemble.VotingClassifier(named, voting="soft")
    if choice == 3:
        named = [("a", last), ("b", _xgb(generator))]
        return make_pipeline(*steps, ensemble.VotingClassifier(named))
    if choice == 4:
        return ensemble.StackingClassifier([("a", inner), ("b", inner)], cv=2)
    return inner


def _steps(generator: Generator, features: int, is_sparse: bool, last: str) -> Sequence[Any]:
    if not is_sparse:
        first = [[_encoder(generator)], [_columns(generator, features)], []][generator.integers(3)]
        fills = [impute.SimpleImputer()] if generator.integers(2) or last == "linear" else []
        if first and isinstance(first[0], preprocessing.OneHotEncoder):
            first = [_codes_alone(generator, first[0])]
        return [*first, *fills, *_keeping(generator, last)]
    fills = [impute.SimpleImputer(add_indicator=bool(generator.integers(2)))]
    first = fills if generator.integers(2) or last == "linear" else []
    if generator.random() < 0.3:
        first = [_plain_columns(generator, features), *first]
    return [*first, *_keeping(generator, last)]


def _keeping(generator: Generator, last: str) -> list[Any]:
    """Steps that keep a sparse matrix sparse, and one that does not."""
    steps: list[Any] = [
        preprocessing.StandardScaler(with_mean=False),
        preprocessing.MaxAbsScaler(),
        preprocessing.RobustScaler(with_centering=False),
        VarianceThreshold(),
    ]
    if last not in ("linear",):
        steps.append(preprocessing.QuantileTransformer(n_quantiles=10))
    count = int(generator.choice([0, 1, 1, 2]))
    chosen = [steps[place] for place in generator.permutation(len(steps))[:count]]
    choice = generator.integers(6)
    if choice == 0:
        chosen.append(SelectKBest(k=1))
    elif choice == 1 and last in ("linear", "xgboost", "forest"):
        chosen = [step for step in chosen if "Quantile" not in type(step).__name__]
        chosen.append(TruncatedSVD(2, random_state=0))
    return chosen


def _encoder(generator: Generator) -> Any:
    drop = [None, None, "first", "if_binary"][generator.integers(4)]
    is_sparse = bool(generator.integers(4))
    unknown = "ignore" if drop is None else "error"
    return preprocessing.OneHotEncoder(sparse_output=is_sparse, drop=drop, handle_unknown=unknown)


def _codes_alone(generator: Generator, encoder: Any) -> Any:
    parts = [("codes", encoder, list(range(CATEGORIES)))]
    return ColumnTransformer(parts, sparse_threshold=_threshold(generator))


def _columns(generator: Generator, features: int) -> Any:
    """A ColumnTransformer of an encoder, scalers and what passes."""
    numbers = list(range(CATEGORIES, features))
    scaler = [preprocessing.StandardScaler(), preprocessing.MinMaxScaler(), "passthrough"]
    parts = [
        ("codes", _encoder(generator), list(range(CATEGORIES))),
        ("scaled", scaler[generator.integers(3)], numbers),
        ("again", "passthrough", numbers[:1]),
    ]
    chosen = [parts[place] for place in generator.permutation(3)[: generator.integers(1, 4)]]
    return ColumnTransformer(chosen, sparse_threshold=_threshold(generator))


def _plain_columns(generator: Generator, features: int) -> Any:
    """A ColumnTransformer that takes a sparse X."""
    order = generator.permutation(features).tolist()
    cut = int(generator.integers(1, features))
    parts = [
        ("scaled", preprocessing.MaxAbsScaler(), order[:cut]),
        ("filled", impute.SimpleImputer(), order[cut:]),
        ("again", "passthrough", order[:1]),
    ]
    chosen = [parts[place] for place in generator.permutation(3)[: generator.integers(1, 4)]]
    return ColumnTransformer(chosen, sparse_threshold=_threshold(generator))


def _threshold(generator: Generator) -> float:
    return float(generator.choice([0, 0.3, 1]))


def _xgb(generator: Generator) -> Any:
    import xgboost

    missing = float(generator.choice([np.nan, np.nan, 0, 1]))
    depth = int(generator.choice([1, 4]))
    return xgboost.XGBClassifier(n_estimators=4, max_depth=depth, missing=missing, n_jobs=1)


def _lightgbm(generator: Generator) -> Any:
    import lightgbm

    return lightgbm.LGBMClassifier(n_estimators=4, min_child_samples=2, verbose=-1, n_jobs=1)


def _linear(generator: Generator) -> Any:
    return linear_model.LogisticRegression()


def _forest(generator: Generator) -> Any:
    return ensemble.RandomForestClassifier(4, max_depth=5, random_state=0)


def _other(generator: Generator) -> Any:
    kinds = [
        ensemble.HistGradientBoostingClassifier(max_iter=4, min_samples_leaf=2),
        ensemble.GradientBoostingClassifier(n_estimators=3, random_state=0),
        ensemble.IsolationForest(n_estimators=4, random_state=0),
    ]
    return kinds[generator.integers(3)]


MODELS: dict[str, Callable[[Generator], Any]] = {
    "xgboost": _xgb,
    "lightgbm": _lightgbm,
    "linear": _linear,
    "forest": _forest,
    "other": _other,
}
