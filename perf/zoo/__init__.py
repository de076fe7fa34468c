"""Whole models to measure: plain torch modules, each with its inputs and its weights to prune.

Weights are random, from a fixed seed: nothing here is trained.
"""

from sparsejit.perf.zoo.zoo_models import (
    SMALL_ZOO,
    ZOO,
    ZooModel,
    check_density,
    models_named,
    pruned,
)

__all__ = ["SMALL_ZOO", "ZOO", "ZooModel", "check_density", "models_named", "pruned"]
