"""Probabilities of classes from the scores of a support vector machine, in float64, as libsvm's.

`frontends/writing/coupling.py` has the turns.
"""

import numpy as np

from sparsejit.estimators.double_values import double_formula
from sparsejit.estimators.writer import EstimatorWriter
from sparsejit.frontends.writing.coupling import TURNS, both_ways, coupled
from sparsejit.ir.values import Array, Value

_LEAST = 1e-7  # least probability of a pair


def pair_probabilities(
    writer: EstimatorWriter, scores: Value, slopes: Array, shifts: Array
) -> Value:
    """1 / (1 + exp(slope * score + shift)) of every pair, float64 (batch, pairs)."""
    power = writer.product_of(scores, np.diag(slopes), shifts, "powers")
    f = double_formula(writer, "pairs")
    share = f("div", 1.0, f("add", f("exp", power), 1.0))
    return f.finish(f("minimum", f("maximum", share, _LEAST), 1 - _LEAST))


def coupled_pairs(writer: EstimatorWriter, pairs: Value, classes: int) -> Value:
    """Probabilities of classes from probabilities of pairs (batch, pairs), float64."""
    flat = writer.product_of(pairs, *both_ways(classes), "pairs")
    return coupled(writer.at("coupling"), flat, classes, max(TURNS, classes))
