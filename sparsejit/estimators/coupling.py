"""Probabilities of classes from probabilities of their pairs, as in libsvm.

Method 2 of Wu, Lin and Weng 2004, with the turns and the bound of libsvm's `svm.cpp`:

    Q[t][t] = sum of r[j][t]^2, Q[t][j] = -r[j][t] r[t][j]       r[i][j]: i rather than j
    p minimises p^T Q p, by turns through its elements, until all (Q p)[t] are near p^T Q p

A sample whose p is near keeps it, so that all samples of a batch run through the same turns.
"""

from itertools import combinations

import numpy as np

from sparsejit.estimators.double_values import DOUBLE, double_formula
from sparsejit.estimators.writer import EstimatorWriter
from sparsejit.frontends.writing.arranging import permuted, reshaped, sliced
from sparsejit.frontends.writing.turns import write_turns
from sparsejit.frontends.writing.writer import Writer
from sparsejit.ir.graph import Graph
from sparsejit.ir.values import Array, TensorType, Value

_LEAST = 1e-7  # least probability of a pair
_TURNS = 100


def pair_probabilities(
    writer: EstimatorWriter, scores: Value, slopes: Array, shifts: Array
) -> Value:
    """1 / (1 + exp(slope * score + shift)) of every pair, float64 (batch, pairs)."""
    power = writer.product_of(scores, np.diag(slopes), shifts, "powers")
    f = double_formula(writer, "pairs")
    share = f("div", 1.0, f("add", f("exp", power), 1.0))
    return f.finish(f("minimum", f("maximum", share, _LEAST), 1 - _LEAST))


def coupled(writer: EstimatorWriter, pairs: Value, classes: int) -> Value:
    """Probabilities of classes from probabilities of pairs (batch, pairs), float64."""
    batch = writer.batch
    weights, bias = np.zeros((classes, classes, pairs.shape[1])), np.zeros((classes, classes))
    for number, (i, j) in enumerate(combinations(range(classes), 2)):
        weights[i, j, number], weights[j, i, number], bias[j, i] = 1, -1, 1
    flat = writer.product_of(pairs, weights.reshape(classes**2, -1), bias.ravel(), "pairs")
    matrix = reshaped(writer, flat, (batch, classes, classes))
    turned = permuted(writer, matrix, (0, 2, 1))
    same = writer.constant(np.eye(classes, dtype=bool)[None], "same class")
    f = double_formula(writer, "quadratic form")
    own = f("row_sum", f("square", turned))
    cross = f("neg", f("mul", matrix, turned))
    form = f.finish(f("where", same, own, cross), shape=matrix.shape)
    first = writer.constant(np.full((batch, 1, classes), 1 / classes), "even", DOUBLE)
    body = _turn(batch, classes)
    (found,) = write_turns(writer.at("coupling"), body, max(_TURNS, classes), [first], [], [form])
    return reshaped(writer, found, (batch, classes))


def _turn(batch: int, classes: int) -> Graph:
    """A turn through all elements of p (batch, 1, classes), with Q (batch, classes, classes)."""
    write = Writer()
    p = write.input(TensorType((batch, 1, classes), DOUBLE), "p")
    form = write.input(TensorType((batch, classes, classes), DOUBLE), "form")
    shape = p.shape
    f = write.formula("products", DOUBLE)
    product = f.finish(f("row_sum", f("mul", form, p)), shape=form.shape)
    product = reshaped(write, product, shape)
    f = write.formula("total", DOUBLE)
    total = f.finish(f("row_sum", f("mul", p, product)), shape=shape)
    before, first_product, first_total = p, product, total
    rows = np.eye(classes)
    for number in range(classes):
        one = write.constant(rows[None, number : number + 1], "element", DOUBLE)
        row = sliced(write, form, 1, number, number + 1)
        f = write.formula("element", DOUBLE)
        own = f("row_sum", f("mul", row, one))
        at = f("row_sum", f("mul", product, one))
        diff = f("div", f("sub", total, at), own)
        more = f("add", diff, 1.0)
        new = f("div", f("add", p, f("mul", diff, one)), more)
        step = f("mul", diff, f("add", f("mul", diff, own), f("mul", at, 2.0)))
        new_total = f("div", f("div", f("add", total, step), more), more)
        new_product = f("div", f("add", product, f("mul", diff, row)), more)
        p, product, total = f.all(new, new_product, new_total, shape=shape)
    f = write.formula("near", DOUBLE)
    error = f("row_max", f("abs", f("sub", first_product, first_total)))
    is_near = f("less", error, 0.005 / classes)
    return write.finish(f.finish(f("where", is_near, before, p), shape=shape))

