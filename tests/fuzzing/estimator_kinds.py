"""Estimators of every supported kind at random: classes, parameters, what may stand before."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Parameters = Callable[[np.random.Generator], dict[str, Any]]


@dataclass(frozen=True)
class EstimatorKind:
    """A class of estimators, and its parameters at random.

    `categories` is the parameter that names categorical features; `missing` says whether fitting
    takes NaN, `positive` whether it wants a positive target, `ranks` whether it orders rows of one
    group, `targets` how many it may have, `ensemble` whether it is made of others.
    """

    module: str
    name: str
    parameters: Parameters = lambda generator: {}
    categories: str = ""
    missing: bool = False
    positive: bool = False
    ranks: bool = False
    targets: tuple[int, ...] = (1,)
    ensemble: bool = False

    @property
    def is_classifier(self) -> bool:
        return "Classifi" in self.name or self.name in _CLASSIFIERS

    @property
    def is_forest(self) -> bool:
        trees = not self.module.startswith("sklearn") or self.module in _FOREST_MODULES
        return trees and not self.ensemble

    def make(self, generator: np.random.Generator) -> Any:
        """An estimator that is not fitted."""
        found = getattr(importlib.import_module(self.module), self.name)
        return found(**self.parameters(generator))


_FOREST_MODULES = ("sklearn.tree", "sklearn.ensemble")
_CLASSIFIERS = (
    *("LogisticRegression", "LinearSVC", "Perceptron", "LinearDiscriminantAnalysis"),
    "LogisticRegressionCV",
)


def _isolation(generator: np.random.Generator) -> dict[str, Any]:
    return {
        "n_estimators": int(generator.choice([1, 5, 30])),
        "max_samples": int(generator.choice([1, 2, 16, 256])),
        "max_features": float(generator.choice([0.5, 1.0])),
        "contamination": [0.1, 0.25, "auto"][generator.integers(3)],
        "random_state": int(generator.integers(1000)),
    }


def _part(generator: np.random.Generator, classifies: bool, probable: bool = False) -> Any:
    """The parts that an ensemble may have."""
    from lightgbm import LGBMClassifier, LGBMRegressor
    from sklearn import ensemble, linear_model, neural_network, preprocessing, svm, tree
    from sklearn.decomposition import PCA
    from sklearn.pipeline import make_pipeline
    from xgboost import XGBClassifier, XGBRegressor

    def either(kind: str, module: Any, **parameters: Any) -> Any:
        found = getattr(module, kind + _ENDS[0 if classifies else 1])
        return found(random_state=0, **parameters)

    boosted = (LGBMClassifier, XGBClassifier) if classifies else (LGBMRegressor, XGBRegressor)
    lights, extreme = boosted
    linear = linear_model.LogisticRegression() if classifies else linear_model.Ridge()
    alone = svm.LinearSVC() if classifies else linear_model.Lasso()
    parts = [
        linear,
        make_pipeline(preprocessing.StandardScaler(), linear),
        make_pipeline(preprocessing.StandardScaler(), PCA(1, whiten=True), linear),
        either("DecisionTree", tree, max_depth=3),
        either("RandomForest", ensemble, n_estimators=5),
        either("HistGradientBoosting", ensemble, max_iter=3),
        either("GradientBoosting", ensemble, n_estimators=3),
        lights(n_estimators=3, verbose=-1, n_jobs=1),
        extreme(n_estimators=3, n_jobs=1),
        make_pipeline(preprocessing.MinMaxScaler(), either("MLP", neural_network, max_iter=5)),
        *([] if probable else [make_pipeline(preprocessing.StandardScaler(), alone), alone]),
    ]
    return parts[generator.integers(len(parts))]


def _named(generator: np.random.Generator, classifies: bool, probable: bool = False) -> Any:
    count = int(generator.integers(2, 5))
    return [(f"p{n}", _part(generator, classifies, probable)) for n in range(count)]


def _votes(classifies: bool) -> Parameters:
    def parameters(generator: np.random.Generator) -> dict[str, Any]:
        voting = str(generator.choice(["hard", "soft"]))
        named = _named(generator, classifies, classifies and voting == "soft")
        weights = [None, generator.integers(1, 4, len(named)).astype(float)]
        chosen = {"estimators": named, "weights": weights[generator.integers(2)]}
        return chosen | ({"voting": voting} if classifies else {})

    return parameters


def _stacked(classifies: bool) -> Parameters:
    def parameters(generator: np.random.Generator) -> dict[str, Any]:
        return {
            "estimators": _named(generator, classifies),
            "passthrough": bool(generator.integers(2)),
            "cv": 2,
        }

    return parameters


def _calibrated(generator: np.random.Generator) -> dict[str, Any]:
    return {
        "estimator": _part(generator, True),
        "method": str(generator.choice(["sigmoid", "isotonic", "temperature"])),
        "ensemble": bool(generator.integers(2)),
        "cv": 2,
    }


def _tree(generator: np.random.Generator) -> dict[str, Any]:
    depth = generator.choice([1, 3, 6, 0])
    return {"max_depth": int(depth) or None, "random_state": int(generator.integers(1000))}


def _bagged(generator: np.random.Generator) -> dict[str, Any]:
    return {**_tree(generator), "n_estimators": int(generator.choice([1, 5, 20, 40]))}


def _boosted(generator: np.random.Generator) -> dict[str, Any]:
    return {**_bagged(generator), "max_depth": int(generator.choice([1, 3, 6]))}


def _gradient(generator: np.random.Generator) -> dict[str, Any]:
    return {**_boosted(generator), "n_estimators": int(generator.choice([1, 5, 20]))}


def _histogram(generator: np.random.Generator) -> dict[str, Any]:
    return {**_tree(generator), "max_iter": int(generator.choice([1, 5, 20]))}


def _xgboost(generator: np.random.Generator) -> dict[str, Any]:
    booster = str(generator.choice(["gbtree", "gbtree", "dart"]))
    codes = int(generator.choice([1, 20]))
    missing = float(generator.choice([np.nan, np.nan, -999, 0]))
    more = {"booster": booster, "max_cat_to_onehot": codes, "n_jobs": 1, "missing": missing}
    return {**_boosted(generator), **more}


def _lightgbm(generator: np.random.Generator) -> dict[str, Any]:
    leaves = int(generator.choice([2, 7, 31]))
    least = int(generator.choice([1, 20]))
    more = {"num_leaves": leaves, "min_child_samples": least, "verbose": -1, "n_jobs": 1}
    if generator.random() < 0.3:
        more |= {"boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.6}
    return {**_bagged(generator), **more, "max_depth": -1, "min_data_per_group": 5}


def _perceptron(generator: np.random.Generator) -> dict[str, Any]:
    layers = [(5,), (17, 9)][generator.integers(2)]
    activation = str(generator.choice(["relu", "tanh", "logistic", "identity"]))
    seed = int(generator.integers(1000))
    return {
        "hidden_layer_sizes": layers,
        "activation": activation,
        "max_iter": 15,
        "random_state": seed,
    }


def _descent(generator: np.random.Generator) -> dict[str, Any]:
    loss = str(generator.choice(["hinge", "log_loss", "modified_huber"]))
    return {"loss": loss, "max_iter": 20, "random_state": int(generator.integers(1000))}


def _logistic(generator: np.random.Generator) -> dict[str, Any]:
    return {"solver": str(generator.choice(["lbfgs", "newton-cholesky"])), "max_iter": 30}


_ENDS = ("Classifier", "Regressor")
_LINEAR = "sklearn.linear_model"
_ANY = (1, 3)
KINDS = (
    *(
        EstimatorKind("sklearn.tree", kind + end, _tree, missing=True)
        for kind in ("DecisionTree", "ExtraTree")
        for end in _ENDS
    ),
    *(
        EstimatorKind("sklearn.ensemble", bag + end, _bagged, missing=True)
        for bag in ("RandomForest", "ExtraTrees")
        for end in _ENDS
    ),
    *(EstimatorKind("sklearn.ensemble", f"GradientBoosting{end}", _gradient) for end in _ENDS),
    *(
        EstimatorKind(
            *("sklearn.ensemble", f"HistGradientBoosting{end}", _histogram),
            categories="categorical_features",
            missing=True,
        )
        for end in _ENDS
    ),
    *(
        EstimatorKind("xgboost", f"XGB{end}", _xgboost, categories="feature_types", missing=True)
        for end in _ENDS
    ),
    *(EstimatorKind("xgboost", f"XGBRF{end}", _boosted, missing=True) for end in _ENDS),
    *(
        EstimatorKind(
            *("lightgbm", f"LGBM{end}", _lightgbm), categories="categorical_feature", missing=True
        )
        for end in _ENDS
    ),
    EstimatorKind("xgboost", "XGBRanker", _boosted, ranks=True),
    EstimatorKind("lightgbm", "LGBMRanker", _boosted, ranks=True),
    *(
        EstimatorKind(_LINEAR, name, targets=_ANY)
        for name in ("LinearRegression", "Ridge", "Lasso", "ElasticNet", "RidgeCV")
    ),
    *(
        EstimatorKind(_LINEAR, name)
        for name in (
            *("BayesianRidge", "ARDRegression", "HuberRegressor", "LassoLars", "Lars", "LassoCV"),
            *("ElasticNetCV", "LarsCV", "LassoLarsCV", "LassoLarsIC", "SGDRegressor"),
            *("OrthogonalMatchingPursuit", "OrthogonalMatchingPursuitCV", "QuantileRegressor"),
            *("TheilSenRegressor", "RidgeClassifier", "RidgeClassifierCV", "Perceptron"),
            *("PassiveAggressiveClassifier", "PassiveAggressiveRegressor"),
        )
    ),
    *(
        EstimatorKind(_LINEAR, name, targets=(3,))
        for name in (
            *("MultiTaskLasso", "MultiTaskElasticNet", "MultiTaskLassoCV"),
            "MultiTaskElasticNetCV",
        )
    ),
    *(EstimatorKind(_LINEAR, f"{name}Regressor", positive=True) for name in ("Poisson", "Gamma")),
    EstimatorKind(_LINEAR, "LogisticRegression", _logistic),
    EstimatorKind(_LINEAR, "LogisticRegressionCV", lambda generator: {"Cs": 2, "max_iter": 20}),
    EstimatorKind(_LINEAR, "SGDClassifier", _descent),
    *(EstimatorKind("sklearn.svm", name) for name in ("LinearSVC", "LinearSVR")),
    EstimatorKind("sklearn.discriminant_analysis", "LinearDiscriminantAnalysis"),
    EstimatorKind("sklearn.neural_network", "MLPClassifier", _perceptron),
    EstimatorKind("sklearn.neural_network", "MLPRegressor", _perceptron, targets=_ANY),
)


# Tried from `estimators.FIRST_OF_ENSEMBLES` on.
ENSEMBLE_KINDS = (
    EstimatorKind("sklearn.ensemble", "IsolationForest", _isolation, missing=True),
    *(
        EstimatorKind("sklearn.ensemble", kind + end, of(end == _ENDS[0]), ensemble=True)
        for kind, of in (("Voting", _votes), ("Stacking", _stacked))
        for end in _ENDS
    ),
    EstimatorKind("sklearn.calibration", "CalibratedClassifierCV", _calibrated, ensemble=True),
)


def mixing_steps(generator: np.random.Generator, kind: EstimatorKind, missing: bool) -> list[Any]:
    """An imputer where values are missing, and before some kinds a decomposition."""
    from sklearn import decomposition, feature_selection, impute, preprocessing

    steps: list[Any] = []
    if missing:
        strategy = str(generator.choice(["mean", "median", "most_frequent"]))
        marks = bool(generator.integers(2))
        steps.append(impute.SimpleImputer(strategy=strategy, add_indicator=marks))
    choice = generator.integers(4)
    if choice == 0 and not kind.ensemble and kind.module != "lightgbm":
        steps.append(preprocessing.StandardScaler())
        if not kind.name.startswith("Hist"):
            whiten = bool(generator.integers(2))
            steps.append(decomposition.PCA(1 if kind.is_forest else 2, whiten=whiten))
    elif choice == 1:
        steps.append(feature_selection.VarianceThreshold(0))
    return steps


def steps_before(generator: np.random.Generator, kind: EstimatorKind, missing: bool) -> list[Any]:
    """None, or steps that the kind takes before it; an imputer first where values are missing."""
    from sklearn import feature_selection, impute, preprocessing

    scalers = [
        preprocessing.StandardScaler(with_mean=bool(generator.integers(2))),
        preprocessing.MinMaxScaler(clip=bool(generator.integers(2))),
        preprocessing.MaxAbsScaler(),
        preprocessing.RobustScaler(),
    ]
    if kind.is_forest:
        scalers += [
            preprocessing.PowerTransformer(),
            preprocessing.QuantileTransformer(n_quantiles=20),
            feature_selection.VarianceThreshold(0),
        ]
    count = int(generator.choice([0, 0, 1, 1, 2]))
    steps = [scalers[number] for number in generator.permutation(len(scalers))[:count]]
    if kind.is_forest and missing and (steps or not kind.missing):
        steps.insert(0, impute.SimpleImputer(strategy=str(generator.choice(["mean", "median"]))))
    return steps


def column_steps(generator: np.random.Generator, features: int) -> Any:
    """A ColumnTransformer of scalers, of columns that pass, and of an encoder for the last one."""
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

    order = generator.permutation(features - 1)
    cut, end = sorted(generator.integers(0, features, 2))
    parts = [
        ("standard", StandardScaler(), order[:cut].tolist()),
        ("range", MinMaxScaler(), order[cut:end].tolist()),
        ("plain", "passthrough", order[end:].tolist()),
        ("codes", OneHotEncoder(handle_unknown="ignore"), [features - 1]),
    ]
    chosen = [parts[number] for number in generator.permutation(4)]
    return ColumnTransformer(chosen, sparse_threshold=0)
