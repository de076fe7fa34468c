"""XGBoost's linear booster as a forest of one leaf for each output, which is a linear model.

Missing x adds nothing.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.forest_reading import ReadForest, booster_as_json, learner_of, missing_of
from sparsejit.estimators.lightgbm_text import LinearLeaves
from sparsejit.frontends.arrays import check_held
from sparsejit.ir.values import Array

# The function of the sums for each objective, by treelite's name; of the base score its inverse.
_SIGMOIDS = ("binary:logistic", "reg:logistic")
_EXPONENTIALS = ("count:poisson", "reg:gamma", "reg:tweedie")
_LINKS = {
    **dict.fromkeys(_SIGMOIDS, "sigmoid"),
    **dict.fromkeys(_EXPONENTIALS, "exponential"),
    "multi:softprob": "softmax",
    "multi:softmax": "softmax",
    **dict.fromkeys(("reg:squarederror", "binary:logitraw", "reg:absoluteerror"), "identity"),
    **dict.fromkeys(("reg:pseudohubererror", "reg:squaredlogerror", "rank:ndcg"), "identity"),
    **dict.fromkeys(("rank:map", "rank:pairwise"), "identity"),
}


def is_linear_booster(estimator: Any) -> bool:
    """Whether an estimator or booster of XGBoost is linear, without trees."""
    if not type(estimator).__module__.startswith("xgboost"):
        return False
    return bool(learner_of(estimator)["gradient_booster"]["name"] == "gblinear")


def read_linear_booster(estimator: Any) -> ReadForest:
    """Read a linear booster. Raises InvalidInput for an objective that has no graph."""
    booster = estimator.get_booster() if hasattr(estimator, "get_booster") else estimator
    learner = booster_as_json(booster)["learner"]
    objective, shape = learner["objective"]["name"], learner["learner_model_param"]
    if objective not in _LINKS:
        raise InvalidInput(
            f"the {type(estimator).__name__} is linear with objective={objective!r}, which has no "
            f"graph; use one of {', '.join(_LINKS)}"
        )
    features = int(shape["num_feature"])
    weights = np.asarray(learner["gradient_booster"]["model"]["weights"], np.float64)
    weights = weights.reshape(features + 1, -1).T
    outputs = len(weights)
    base = _margins(objective, shape["base_score"], outputs)
    check_held(estimator, "coefficients", np.append(weights, base))
    linear = LinearLeaves(
        *(np.arange(features), np.zeros(features), weights[:, :-1], weights[:, -1]),
        np.zeros((outputs, features), bool),
    )
    number = np.arange(outputs)
    operands = (
        np.zeros(0),
        np.zeros((0, 4), np.int64),
        np.zeros((outputs, 1), np.float32),
        np.stack([~number, number], axis=1),
        base.astype(np.float32),
    )
    missing = missing_of(estimator)
    link = _LINKS[objective]
    return ReadForest(features, True, missing, operands, 1.0, link, 1.0, None, True, linear=linear)


def _margins(objective: str, text: str, outputs: int) -> Array:
    """The base score of each output, before the objective's function.

    A linear booster adds the first of several base scores to all outputs.
    """
    base = np.full(outputs, np.ravel(json.loads(text))[0], np.float64)
    if objective in _SIGMOIDS:
        return np.log(base / (1 - base))
    return np.log(base) if objective in _EXPONENTIALS else base
