"""Random estimators against the libraries that fitted them.

    case = make(seed)        kinds take turns; data, parameters and steps before are at random
    check(case)              "equal" in all methods, or "refused" where the library refuses too

Rows are seen ones, others near them, values missing and unseen, and in float64 values on thresholds
and one ulp beside.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xgboost
from fuzzing.estimator_kinds import (
    ENSEMBLE_KINDS,
    KINDS,
    EstimatorKind,
    column_steps,
    mixing_steps,
    steps_before,
)
from fuzzing.sparse_pipelines import pipeline
from runnable import LEVELS
from sklearn.pipeline import make_pipeline

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.estimators.graphs import read_estimator
from sparsejit.ir.ops.forest import Forest
from sparsejit.ir.values import Array, Element

TOLERANCE = 2e-6  # of the largest result
PROBABLE = 1e-6
# Scores that float32 cannot tell apart, of the largest: then the class may be the other.
TIE = 1e-7
SMALLEST_LOGARITHM = -12
# Seeds from here on are, in turn, of estimators made of others and of kinds behind other steps.
FIRST_OF_ENSEMBLES = 10_000
# Odd seeds from here on are of pipelines with sparse matrices.
FIRST_OF_SPARSE = 20_000
# Estimators that need labels as places: XGBoost, and its wrappers.
_PLACES_ALONE = ("xgboost", "sklearn.calibration")
# Estimators that are refused since they cannot be equal.
REFUSED = ("are so steep", "other labels", "lose digits", "beside other", "fitted to float32")


@dataclass(frozen=True, eq=False)
class EstimatorCase:
    """A fitted estimator, rows to try it on, and how it is compiled: for an example, or one row."""

    seed: int
    title: str
    estimator: Any
    rows: Any
    example: Any
    target: str


def make(seed: int) -> EstimatorCase:
    """The case of a seed."""
    generator = np.random.default_rng(seed)
    if seed >= FIRST_OF_SPARSE and seed % 2:
        estimator, rows = pipeline(generator)
        example = rows if generator.integers(2) else None
        level = LEVELS[seed // 2 % len(LEVELS)]
        return EstimatorCase(seed, _title(estimator), estimator, rows, example, level)
    kinds = ENSEMBLE_KINDS if seed >= FIRST_OF_ENSEMBLES and seed % 2 else KINDS
    kind = kinds[seed // 2 % len(kinds) if seed >= FIRST_OF_ENSEMBLES else seed % len(kinds)]
    data = _data(generator, kind)
    if seed >= FIRST_OF_ENSEMBLES and generator.random() < 0.3:
        data["X"][generator.random(data["X"].shape) < 0.1] = np.nan
    has_nan = bool(np.isnan(data["X"]).any())
    if seed >= FIRST_OF_ENSEMBLES and (has_nan or generator.integers(2)):
        steps = mixing_steps(generator, kind, has_nan)
    else:
        steps = steps_before(generator, kind, has_nan)
    encodes = data["categories"] and generator.random() < 0.4 and not np.isnan(data["X"]).any()
    if encodes:
        steps = [column_steps(generator, data["X"].shape[1])]
    last = kind.make(generator)
    if steps and hasattr(last, "missing"):
        last.set_params(missing=np.nan)
    options: dict[str, Any] = {"group": [len(data["X"])]} if kind.ranks else {}
    if data["categories"] and not encodes and not steps and kind.categories:
        options |= _with_categories(last, kind, data["X"].shape[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if steps:
            named = {f"{type(last).__name__.lower()}__{key}": options[key] for key in options}
            estimator = make_pipeline(*steps, last).fit(data["X"], data["y"], **named)
        else:
            estimator = last.fit(data["X"], data["y"], **options)
            if not data["categories"] and generator.random() < 0.2:
                estimator = _booster_of(estimator)
    rows = _rows(generator, kind, data, estimator)
    example = rows if generator.integers(2) else None
    title = "-".join(type(step).__name__ for step in [*steps, last])
    target = LEVELS[seed // len(KINDS) % len(LEVELS)]
    return EstimatorCase(seed, title, estimator, rows, example, target)


def _title(estimator: Any) -> str:
    """Its steps, or its class."""
    steps = [step for _, step in getattr(estimator, "steps", [("", estimator)])]
    return "-".join(type(step).__name__ for step in steps)


def _booster_of(estimator: Any) -> Any:
    """The estimator inside one of XGBoost or LightGBM; another as it is."""
    if hasattr(estimator, "get_booster"):
        return estimator.get_booster()
    return getattr(estimator, "booster_", estimator)


def _answer(case: EstimatorCase, method: str) -> Array:
    """The library's results."""
    estimator, rows = case.estimator, case.rows
    if type(estimator).__name__ == "Booster":
        rows = np.asarray(rows, np.float64)
        if hasattr(estimator, "save_config"):
            rows = xgboost.DMatrix(rows)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(getattr(estimator, method)(rows))


def _data(generator: np.random.Generator, kind: EstimatorKind) -> dict[str, Any]:
    """X, y, and how many categories the last feature of X has, 0 where it has none."""
    samples = int(generator.integers(40, 300))
    sizes = [1, 4, 12, 40] if kind.is_forest else [2, 7, 20]
    features = int(generator.choice(sizes))
    X = generator.standard_normal((samples, features))
    if generator.random() < 0.5:
        X = X.astype(np.float32)
    elif generator.random() < 0.3:
        X += 1e5
    has_categories = features > 1 and generator.random() < 0.3
    categories = int(generator.choice([3, 12, 40])) if has_categories else 0
    if categories:
        X[:, -1] = generator.integers(0, categories, samples)
    plain = (X - X.mean(axis=0)) / (X.std(axis=0) + 1e-9)
    score = plain[:, 0] + np.sin(3 * plain[:, -1]) + 0.3 * generator.standard_normal(samples)
    if kind.missing and generator.random() < 0.4:
        X[generator.random(X.shape) < 0.1] = np.nan
    if kind.is_classifier:
        classes = int(generator.choice([2, 3, 5]))
        y = np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))
        if kind.module not in _PLACES_ALONE and generator.integers(2):
            y = np.array(["cherry", "apple", "date", "banana", "elder"])[y]
    elif kind.ranks:
        y = np.digitize(score, [-1, 0, 1])
    elif kind.positive:
        y = np.exp(score / 3)
    else:
        targets = int(generator.choice(kind.targets))
        y = score if targets == 1 else np.stack([score, -score, score**2], axis=1)
    return {"X": X, "y": y, "categories": categories}


def _with_categories(estimator: Any, kind: EstimatorKind, features: int) -> dict[str, Any]:
    """The last feature is one; what `fit` must be told besides."""
    if kind.module == "lightgbm":
        return {kind.categories: [features - 1]}
    if kind.module == "xgboost":
        types = [*["q"] * (features - 1), "c"]
        estimator.set_params(feature_types=types, enable_categorical=True)
    else:
        estimator.set_params(categorical_features=[features - 1])
    return {}


def _rows(
    generator: np.random.Generator, kind: EstimatorKind, data: dict[str, Any], estimator: Any
) -> Any:
    """Rows of either element, or a frame of them."""
    X = data["X"]
    rows = X[generator.integers(0, len(X), 70)].copy()
    if np.isnan(X).any():
        rows[generator.random(rows.shape) < 0.1] = np.nan
    else:
        rows[::3] = np.round(rows[::3], 1)
    # The library's own scalers leave no digits of float32 far from zero.
    if generator.random() < 0.2 and np.nanmax(np.abs(rows)) < 1e4:
        rows = rows.astype(np.float32 if rows.dtype == np.float64 else np.float64)
    if kind.is_forest:
        _on_thresholds(generator, estimator, rows)
    if data["categories"]:
        rows[:, -1] = np.abs(np.round(rows[:, -1]))
    missing = getattr(estimator, "missing", np.nan)
    if not np.isnan(missing):
        rows[generator.random(rows.shape) < 0.1] = missing
    if generator.random() < 0.1:
        odd = generator.choice([np.nan, np.inf, -np.inf])
        rows[generator.integers(len(rows)), generator.integers(rows.shape[1])] = odd
    return _framed(generator, rows) if generator.random() < 0.25 else rows


def _on_thresholds(generator: np.random.Generator, estimator: Any, rows: Array) -> None:
    """Put values where a forest compares them, and next to that, in the element of the rows."""
    if any(hasattr(step, "components_") for _, step in getattr(estimator, "steps", ())):
        return  # they are not columns of X
    read = read_estimator(estimator)
    element = Element.FLOAT64 if read.input.reads_float64 else Element.FLOAT32
    graph = read.graphs(1, element)["predict"]
    (node,) = (node for node in graph.nodes if isinstance(node.op, Forest))
    thresholds, nodes = (graph.constants[value] for value in node.inputs[1:3])
    if not len(thresholds):
        return
    chosen = generator.integers(0, len(nodes), rows.size // 2)
    values = thresholds[chosen].astype(rows.dtype)
    away = np.array([-np.inf, np.inf], rows.dtype)[generator.integers(0, 2, len(chosen))]
    values = np.where(generator.random(len(chosen)) < 0.5, values, np.nextafter(values, away))
    # A forest may refuse numbers beyond float32.
    values = np.where(np.abs(values) < np.finfo(np.float32).max, values, 0)
    rows[generator.integers(0, len(rows), len(chosen)), nodes[chosen, 0]] = values


def _framed(generator: np.random.Generator, rows: Array) -> Any:
    """A frame, some of whose columns have another dtype; the rows where there is no pandas."""
    try:
        import pandas
    except ImportError:
        return rows
    frame = pandas.DataFrame(rows)
    for column in generator.choice(rows.shape[1], rows.shape[1] // 3, replace=False):
        values = frame[column]
        if np.isfinite(values).all() and (np.abs(values) < 1e6).all():
            kind = generator.choice(["float32", "int64", "Int64", "int32"])
            frame[column] = (values if kind == "float32" else np.round(values)).astype(kind)
    return frame


def check(case: EstimatorCase) -> str:
    """Raises AssertionError for a difference."""
    try:
        compiled = sparsejit.compile(case.estimator, _plain(case.example), target=case.target)
    except InvalidInput as error:
        if case.seed >= FIRST_OF_ENSEMBLES and any(why in str(error) for why in REFUSED):
            return "cannot be equal"
        raise
    answers = [_compare(case, compiled, method) for method in compiled.methods]
    assert len(set(answers)) == 1, f"{case.seed} {case.title}: {answers}"
    return answers[0]


def _plain(example: Any) -> Any:
    """An example with as many rows, as any estimator takes it."""
    return None if example is None else np.ones(example.shape)


def _compare(case: EstimatorCase, compiled: Any, method: str) -> str:
    name = f"{case.seed} {case.title}.{method}"
    try:
        wanted = _answer(case, method)
    except xgboost.core.XGBoostError:  # of infinities, which it takes from other arrays
        getattr(compiled, method)(case.rows)
        return "taken where XGBoost has no answer"
    except (TypeError, ValueError) as error:
        if hasattr(case.rows, "toarray") and "contains NaN" in str(error):
            getattr(compiled, method)(case.rows)  # forests that take NaN of dense rows alone
            return "taken where scikit-learn has no answer"
        try:
            getattr(compiled, method)(case.rows)
        except InvalidInput:
            return "refused"
        raise AssertionError(f"{name}: the library refuses: {error}") from error
    try:
        found = getattr(compiled, method)(case.rows)
    except InvalidInput as error:
        if "computes with each part in its own dtype" in str(error):
            return "refused for its dtypes"
        if "compares their sums to the last bit" in str(error):
            return "refused for its rounding"
        raise
    assert found.shape == wanted.shape, f"{name} has shape {found.shape}, not {wanted.shape}"
    if method == "predict" and hasattr(case.estimator, "classes_"):
        assert found.dtype == wanted.dtype, f"{name} is of {found.dtype}, not {wanted.dtype}"
        wrong = (found != wanted) & ~_is_tied(case)
        assert not wrong.any(), f"{name} chooses {wrong.sum()} other classes"
        return "equal"
    if wanted.dtype == object:  # of a frame with pandas' own kinds of columns, passed on
        wanted = wanted.astype(np.float64)
    finite, bound = np.isfinite(wanted), TOLERANCE
    if method == "predict_proba":
        bound = PROBABLE
        if hasattr(case.estimator, "decision_function"):  # scores have the digits of float32
            scores = np.abs(_answer(case, "decision_function"))
            bound += float(np.finfo(np.float32).eps * scores.max(initial=0.0)) / 4
    if method == "predict_log_proba":  # below, the library's own has lost its digits
        finite &= wanted > SMALLEST_LOGARITHM
    largest = max(1.0, np.abs(wanted[finite]).max(initial=0.0))
    worst = np.abs(found[finite] - wanted[finite]).max(initial=0.0) / largest
    if worst > bound:
        bound += 2 * _own_error(case, method, finite) / largest
    assert worst <= bound, f"{name} differs by {worst:.1e}"
    return "equal"


def _own_error(case: EstimatorCase, method: str, which: Array) -> float:
    """The reach of rounding in the library's own sums of products: float32's, and float64's.

    And the reach of rounding predictions to float32 in the results of a stacking estimator.
    """
    last = case.estimator[-1] if hasattr(case.estimator, "steps") else case.estimator
    final = getattr(last, "final_estimator_", last)
    if not hasattr(final, "coef_") and case.seed < FIRST_OF_ENSEMBLES:
        return 0.0
    exact = replace(case, rows=case.rows.astype(np.float64))
    apart = np.abs(_answer(exact, method) - _answer(case, method))
    found = float(apart[which].max(initial=0.0))
    if hasattr(final, "coef_"):
        terms = np.abs(final.coef_).sum() + np.abs(final.intercept_).max()  # of X around 1
        found += np.finfo(np.float64 if final is last else np.float32).eps * terms
    return found


def _is_tied(case: EstimatorCase) -> Array:
    """True where the library's own scores of two classes are the same to float32's precision."""
    last = case.estimator[-1] if hasattr(case.estimator, "steps") else case.estimator
    if getattr(last, "voting", "") == "hard":
        return _any_part_is_tied(case, last)
    decides = hasattr(case.estimator, "decision_function")
    if not decides and not hasattr(case.estimator, "predict_proba"):
        return np.zeros(case.rows.shape[0], bool)
    method = "decision_function" if decides else "predict_proba"
    scores = _answer(case, method).astype(np.float64)
    scores = np.stack([-scores, scores], axis=1) if scores.ndim == 1 else np.sort(scores, axis=1)
    gap = np.abs(scores[:, -1] - scores[:, -2])
    near = TIE if case.seed < FIRST_OF_ENSEMBLES else PROBABLE
    return np.asarray(gap <= near * max(1.0, np.abs(scores).max(initial=0.0)))


def _any_part_is_tied(case: EstimatorCase, voting: Any) -> Array:
    """True where a part of a hard vote, which has no scores itself, is tied."""
    rows = case.rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _, step in getattr(case.estimator, "steps", ())[:-1]:
            rows = rows if isinstance(step, str) else step.transform(rows)
    parts = (replace(case, estimator=part, rows=rows) for part in voting.estimators_)
    return np.any([_is_tied(part) for part in parts], axis=0)
