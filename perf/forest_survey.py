"""Random forests of every kind against the libraries that fitted them.

    python -m sparsejit.perf.forest_survey --models 1000

fits as many small models, compiles each and compares all of its methods on rows with values
missing, unseen and equal to thresholds. It prints what differs, and ends with 1 where anything
does.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import typer

from sparsejit.api.compile_model import compile_model
from sparsejit.ir.graph import Array

TOLERANCE = 2e-6  # of the largest result
_TIE = 1e-6


@dataclass(frozen=True)
class ForestKind:
    """A class of estimators, and its parameters at random. `data` says what it may be given."""

    module: str
    name: str
    parameters: Callable[[np.random.Generator], dict[str, Any]]
    categories: str = ""  # the parameter that names categorical features
    missing: bool = True

    @property
    def is_classifier(self) -> bool:
        return "Classifier" in self.name


def _tree(generator: np.random.Generator) -> dict[str, Any]:
    depth = generator.choice([1, 3, 6, 0])
    return {"max_depth": int(depth) or None, "random_state": int(generator.integers(1000))}


def _bagged(generator: np.random.Generator) -> dict[str, Any]:
    return {**_tree(generator), "n_estimators": int(generator.choice([1, 5, 20, 40]))}


def _boosted(generator: np.random.Generator) -> dict[str, Any]:
    return {**_bagged(generator), "max_depth": int(generator.choice([1, 3, 6]))}


def _histogram(generator: np.random.Generator) -> dict[str, Any]:
    return {**_tree(generator), "max_iter": int(generator.choice([1, 5, 20]))}


def _xgboost(generator: np.random.Generator) -> dict[str, Any]:
    booster = str(generator.choice(["gbtree", "gbtree", "dart"]))
    codes = int(generator.choice([1, 20]))
    return {**_boosted(generator), "booster": booster, "max_cat_to_onehot": codes, "n_jobs": 1}


def _lightgbm(generator: np.random.Generator) -> dict[str, Any]:
    leaves = int(generator.choice([2, 7, 31]))
    least = int(generator.choice([1, 20]))
    more = {"num_leaves": leaves, "min_child_samples": least, "verbose": -1, "n_jobs": 1}
    return {**_bagged(generator), **more, "max_depth": -1, "min_data_per_group": 5}


_SKLEARN_TREES = ("DecisionTree", "ExtraTree")
_SKLEARN_BAGS = ("RandomForest", "ExtraTrees")
_ENDS = ("Classifier", "Regressor")
FOREST_KINDS = (
    *(ForestKind("sklearn.tree", kind + end, _tree) for kind in _SKLEARN_TREES for end in _ENDS),
    *(ForestKind("sklearn.ensemble", bag + end, _bagged) for bag in _SKLEARN_BAGS for end in _ENDS),
    *(
        ForestKind("sklearn.ensemble", f"GradientBoosting{end}", _boosted, missing=False)
        for end in _ENDS
    ),
    *(
        ForestKind(
            "sklearn.ensemble", f"HistGradientBoosting{end}", _histogram, "categorical_features"
        )
        for end in _ENDS
    ),
    *(ForestKind("xgboost", f"XGB{end}", _xgboost, "feature_types") for end in _ENDS),
    *(ForestKind("xgboost", f"XGBRF{end}", _boosted) for end in _ENDS),
    *(ForestKind("lightgbm", f"LGBM{end}", _lightgbm, "categorical_feature") for end in _ENDS),
)


@dataclass(frozen=True, eq=False)
class FittedForest:
    """An estimator, and rows to try it on."""

    name: str
    estimator: Any
    rows: Array


def fitted_forest(seed: int) -> FittedForest:
    """The model of that number: kinds take turns, all else is at random."""
    generator = np.random.default_rng(seed)
    kind = FOREST_KINDS[seed % len(FOREST_KINDS)]
    samples, features = int(generator.integers(40, 400)), int(generator.choice([1, 4, 12, 40, 120]))
    X = generator.standard_normal((samples, features)).astype(np.float32)
    categories = int(generator.choice([3, 12, 40])) if kind.categories else 0
    has_categories = bool(categories and features > 1 and generator.random() < 0.6)
    if has_categories:
        X[:, -1] = generator.integers(0, categories, samples)
    score = X[:, 0] + np.sin(3 * X[:, -1]) + 0.3 * generator.standard_normal(samples)
    if kind.missing and generator.random() < 0.5:
        X[generator.random(X.shape) < 0.1] = np.nan
    classes = int(generator.choice([2, 3, 5]))
    y = np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))
    estimator = _class_of(kind)(**kind.parameters(generator))
    options = _with_categories(estimator, kind, features) if has_categories else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(X, y if kind.is_classifier else score, **options)
    return FittedForest(f"{seed} {kind.name}", estimator, _rows_for(generator, X, kind))


def _class_of(kind: ForestKind) -> Any:
    import lightgbm
    import sklearn.ensemble
    import sklearn.tree
    import xgboost

    modules = (lightgbm, sklearn.ensemble, sklearn.tree, xgboost)
    return getattr({module.__name__: module for module in modules}[kind.module], kind.name)


def _with_categories(estimator: Any, kind: ForestKind, features: int) -> dict[str, Any]:
    """The last feature is one; what `fit` must be told besides."""
    if kind.module == "lightgbm":
        return {kind.categories: [features - 1]}
    if kind.module == "xgboost":
        types = [*["q"] * (features - 1), "c"]
        estimator.set_params(feature_types=types, enable_categorical=True)
    else:
        estimator.set_params(categorical_features=[features - 1])
    return {}


def _rows_for(generator: np.random.Generator, X: Array, kind: ForestKind) -> Array:
    """Rows seen, others near them, and values missing where the library takes them."""
    rows = X[generator.integers(0, len(X), 70)].copy()
    if np.isnan(X).any():
        rows[generator.random(rows.shape) < 0.1] = np.nan
    else:
        rows[::3] = np.round(rows[::3], 1)
    if kind.categories:
        rows[:, -1] = np.abs(np.round(rows[:, -1]))
    return rows


def differences(model: FittedForest, example: Array | None = None, target: str = "native") -> str:
    """What differs between the estimator and itself compiled; empty where nothing does."""
    compiled = compile_model(model.estimator, example, target=target)
    for method in compiled.methods:
        with np.errstate(divide="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = np.asarray(getattr(model.estimator, method)(model.rows))
        found = getattr(compiled, method)(model.rows)
        if found.shape != wanted.shape:
            return f"{method} has shape {found.shape}, not {wanted.shape}"
        if method == "predict" and hasattr(model.estimator, "classes_"):
            tied = _is_tied(model)
            if np.any((found != wanted) & ~tied):
                return f"{method} chooses {np.sum((found != wanted) & ~tied)} other classes"
            continue
        finite = np.isfinite(wanted) & (np.abs(wanted) < 12)  # of logarithms, those with digits
        largest = max(1.0, np.abs(wanted[finite]).max(initial=0.0))
        if method != "predict_log_proba":
            finite, largest = np.isfinite(wanted), max(1.0, np.abs(wanted).max(initial=0.0))
        worst = np.abs(found[finite] - wanted[finite]).max(initial=0.0) / largest
        if not worst <= TOLERANCE:
            return f"{method} differs by {worst:.1e}"
    return ""


def _is_tied(model: FittedForest) -> Array:
    """Where two classes are as probable as each other to float32's precision."""
    probable = np.sort(model.estimator.predict_proba(model.rows), axis=1)
    return np.asarray(probable[:, -1] - probable[:, -2] < _TIE)


def survey(
    models: int = typer.Option(1000, help="How many."), first: int = typer.Option(0, help="Seed.")
) -> None:
    """Compare so many models with their libraries."""
    kinds: Counter[str] = Counter()
    failed = 0
    for seed in range(first, first + models):
        model = fitted_forest(seed)
        # In turn for one row, and for a batch; for this processor, and for the lower level.
        example = model.rows if seed // len(FOREST_KINDS) % 2 else None
        target = "avx2" if seed // len(FOREST_KINDS) % 3 == 2 else "native"
        difference = differences(model, example, target)
        kinds[type(model.estimator).__name__] += 1
        if difference:
            failed += 1
            print(f"{model.name}: {difference}", flush=True)
    print(f"{models} models, {failed} differ; {dict(kinds)}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    typer.run(survey)
