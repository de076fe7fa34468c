"""The speeds that `shrink` is predicted to reach with given shares of zeros, without data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsejit.api.example_calls import ExampleCall
from sparsejit.api.model_compiler import ModelCompiler
from sparsejit.api.options import ModelSettings
from sparsejit.passes.default import folded
from sparsejit.passes.quantised_layers import quantised_layers
from sparsejit.prune.shrink.forms import DENSE
from sparsejit.prune.shrink.layers import shrink_layers
from sparsejit.prune.shrink.layers_of_source import source_layers
from sparsejit.prune.shrink.sources import Source
from sparsejit.prune.shrink.times import LayerTimes

FORECAST_AMOUNTS = (0.5, 0.75)
# A smaller gain is within the error of predictions.
_LEAST_SPEED = 1.05
# Times of more weights take longer to predict than a forecast is worth.
_MOST_WEIGHTS = 6_000_000


def predicted_speeds(
    model: Any, call: ExampleCall, constants: Mapping[str, Any], threads: int
) -> dict[float, float]:
    """Predicted speed-up, by the share of zeros in every layer that `shrink` changes.

    The times are the planner's, for a call of these shapes. Empty for models without such layers,
    with little to gain, or with times that take long to predict. Raises as `compile` does.
    """
    settings = ModelSettings("native", threads, tune=False, exact=False)
    compiler = ModelCompiler(model, True, False, None, constants, None, "float32", settings)
    raw = compiler.read(call).graph
    graph = folded(quantised_layers(raw))
    found = shrink_layers(graph)
    if not found or sum(layer.weights.type.size for layer in found) > _MOST_WEIGHTS:
        return {}
    layers = [each.layer for each in source_layers(raw, found, graph, Source(model))]
    times = LayerTimes(graph, layers, {DENSE.dtype: "float32"}, compiler.options)
    dense, *totals = (times.total(DENSE, amount) for amount in (0.0, *FORECAST_AMOUNTS))
    speeds = {
        amount: float(dense / total)
        for amount, total in zip(FORECAST_AMOUNTS, totals, strict=True)
    }
    return speeds if max(speeds.values()) >= _LEAST_SPEED else {}
