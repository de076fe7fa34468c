"""Options of `predict` of boosted models: other results, and some rounds of boosting alone.

    BY_OPTION   methods that are asked for by an option of predict
    Asked       the method and the rounds that a call asks for
    asked_for   read a call's options
    with_rounds the graph of some rounds
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.forest import Contributions, Forest
from sparsejit.ir.values import TensorType, Value

BY_OPTION = ("raw_score", "pred_leaf", "pred_contrib")
# Options that are true for another result, and the method that computes it; None where none does.
_RESULTS: Mapping[str, Mapping[str, str | None]] = {
    "lightgbm": {name: name for name in BY_OPTION},
    "xgboost": {
        "output_margin": "raw_score",
        "pred_leaf": "pred_leaf",
        "pred_contribs": "pred_contrib",
        "approx_contribs": None,
        "pred_interactions": None,
    },
}
# The method for each prediction_type of CatBoost.
_TYPES = {
    "Class": "predict",
    "RawFormulaVal": "raw_score",
    "Probability": "predict_proba",
    "LogProbability": "predict_log_proba",
}
_ROUNDS = {
    "catboost": ("ntree_start", "ntree_end"),
    "lightgbm": ("start_iteration", "num_iteration"),
    "xgboost": ("iteration_range",),
}


@dataclass(frozen=True)
class Asked:
    """A method, and the first round and the end of the rounds that it sums; None for all."""

    method: str
    rounds: tuple[int, int] | None = None


def asked_for(
    library: str, rounds: int, method: str, options: Mapping[str, Any], methods: Any
) -> Asked:
    """Read a call's options. Raises InvalidInput for one that makes no sense here.

    `rounds` is how many the model has, `methods` are all that it can compute.
    """
    results, ranges = _RESULTS.get(library, {}), _ROUNDS.get(library, ())
    asked = method
    for name, value in options.items():
        if library == "catboost" and name == "prediction_type" and method == "predict":
            asked = _of_type(value, methods)
            continue
        if name in ranges or value is None or value is False:
            if name not in ranges and name not in results:
                raise _unknown(method, name, (*results, *ranges))
            continue
        if name not in results or method != "predict":
            raise _unknown(method, name, (*results, *ranges))
        found = results[name]
        if found is None or found not in methods:
            raise InvalidInput(
                f"{name} has no compiled form; leave it to the model's own predict"
            )
        asked = found
    taken = _range(library, rounds, options)
    if taken == (0, rounds):
        return Asked(asked)
    if not 0 <= taken[0] < taken[1] <= rounds:
        raise InvalidInput(
            f"rounds {taken[0]} to {taken[1]} are not of {rounds}; give some of these"
        )
    return Asked(asked, taken)


def _of_type(value: Any, methods: Any) -> str:
    """The method for a prediction_type of CatBoost."""
    found = "predict" if value is None else _TYPES.get(value, "")
    classifies = "predict_proba" in methods
    if found not in methods or (value == "Class" and not classifies):
        raise InvalidInput(
            f"prediction_type={value!r} has no compiled form here; use RawFormulaVal"
            + (", Class, Probability or LogProbability" if classifies else "")
        )
    return found


def _unknown(method: str, name: str, known: tuple[str, ...]) -> InvalidInput:
    remedy = f"use one of {', '.join(known)} with predict" if known else "leave it out"
    return InvalidInput(f"{method} has no option {name}; {remedy}")


def _range(library: str, rounds: int, options: Mapping[str, Any]) -> tuple[int, int]:
    """The rounds that options name, as each library reads them: no number, or 0, is all."""
    if library == "xgboost":
        first, end = options.get("iteration_range") or (0, 0)
        return int(first), int(end) or rounds
    if library == "catboost":
        first, end = (int(options.get(name) or 0) for name in _ROUNDS[library])
        return first, end or rounds
    first = int(options.get("start_iteration") or 0)
    count = int(options.get("num_iteration") or 0)
    first = max(first, 0)
    return first, min(first + count, rounds) if count > 0 else rounds


def with_rounds(graph: Graph, rounds: int, taken: tuple[int, int]) -> Graph:
    """The graph whose forests sum the trees of these rounds alone; means are of these."""
    constants, nodes = dict(graph.constants), []
    for node in graph.nodes:
        if isinstance(node.op, Forest | Contributions):
            trees = node.inputs[4]
            each = constants[trees]
            size = len(each) // rounds
            kept = each[taken[0] * size : taken[1] * size]
            shorter = Value(TensorType(kept.shape, trees.type.element), trees.origin)
            constants[shorter] = kept
            inputs = (*node.inputs[:4], shorter, *node.inputs[5:])
            node = replace(node, inputs=inputs)
            if isinstance(node.op, Forest) and node.op.scale != 1.0:
                scale = node.op.scale * rounds / (taken[1] - taken[0])
                node = replace(node, op=replace(node.op, scale=scale))
        nodes.append(node)
    used = {value for node in nodes for value in node.inputs}
    kept_constants = {value: array for value, array in constants.items() if value in used}
    return replace(graph, nodes=tuple(nodes), constants=kept_constants)
