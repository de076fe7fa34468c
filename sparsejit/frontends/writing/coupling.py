"""Probabilities of classes from probabilities of their pairs, as libsvm couples them.

Method 2 of Wu, Lin and Weng 2004, with the turns and the bound of libsvm's `svm.cpp`:

    Q[t][t] = sum of r[j][t]^2, Q[t][j] = -r[j][t] r[t][j]       r[i][j]: i rather than j
    p minimises p^T Q p, by turns through its elements, until all (Q p)[t] are near p^T Q p

A sample whose p is near keeps it, so that all samples of a batch run through the same turns.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from sparsejit.frontends.writing.arranging import permuted, reshaped, sliced
from sparsejit.frontends.writing.turns import write_turns
from sparsejit.frontends.writing.writer import Writer
from sparsejit.ir.graph import Graph
from sparsejit.ir.values import Array, Element, TensorType, Value

TURNS = 100
_NEAR = 0.005


def both_ways(classes: int) -> tuple[Array, Array]:
    """Weights (classes^2, pairs) and bias of r from the probabilities of pairs, float64.

    A pair has the probability of its first class; pairs are in the order of `combinations`.
    """
    pairs = [*combinations(range(classes), 2)]
    weights, bias = np.zeros((classes, classes, len(pairs))), np.zeros((classes, classes))
    for number, (i, j) in enumerate(pairs):
        weights[i, j, number], weights[j, i, number], bias[j, i] = 1, -1, 1
    return weights.reshape(classes**2, -1), bias.ravel()


def coupled(write: Writer, flat: Value, classes: int, turns: int = TURNS) -> Value:
    """Probabilities of classes (batch, classes) from r (batch, classes^2), in its element."""
    batch, element = flat.shape[0], flat.type.element
    matrix = reshaped(write, flat, (batch, classes, classes))
    turned = permuted(write, matrix, (0, 2, 1))
    same = write.constant(np.eye(classes, dtype=bool)[None], "same class")
    f = write.formula("quadratic form", element)
    own = f("row_sum", f("mul", turned, turned))
    cross = f("neg", f("mul", matrix, turned))
    form = f.finish(f("where", same, own, cross), shape=matrix.shape)
    first = write.constant(np.full((batch, 1, classes), 1 / classes), "even", element)
    (found,) = write_turns(write, _turn(batch, classes, element), turns, [first], [], [form])
    return reshaped(write, found, (batch, classes))


def _turn(batch: int, classes: int, element: Element) -> Graph:
    """A turn through all elements of p (batch, 1, classes), with Q (batch, classes, classes)."""
    write = Writer()
    p = write.input(TensorType((batch, 1, classes), element), "p")
    form = write.input(TensorType((batch, classes, classes), element), "form")
    shape = p.shape
    f = write.formula("products", element)
    product = f.finish(f("row_sum", f("mul", form, p)), shape=form.shape)
    product = reshaped(write, product, shape)
    f = write.formula("total", element)
    total = f.finish(f("row_sum", f("mul", p, product)), shape=shape)
    before, first_product, first_total = p, product, total
    rows = np.eye(classes)
    for number in range(classes):
        one = write.constant(rows[None, number : number + 1], "element", element)
        row = sliced(write, form, 1, number, number + 1)
        f = write.formula("element", element)
        own = f("row_sum", f("mul", row, one))
        at = f("row_sum", f("mul", product, one))
        diff = f("div", f("sub", total, at), own)
        more = f("add", diff, 1.0)
        new = f("div", f("add", p, f("mul", diff, one)), more)
        step = f("mul", diff, f("add", f("mul", diff, own), f("mul", at, 2.0)))
        new_total = f("div", f("div", f("add", total, step), more), more)
        new_product = f("div", f("add", product, f("mul", diff, row)), more)
        p, product, total = f.all(new, new_product, new_total, shape=shape)
    f = write.formula("near", element)
    error = f("row_max", f("abs", f("sub", first_product, first_total)))
    is_near = f("less", error, _NEAR / classes)
    return write.finish(f.finish(f("where", is_near, before, p), shape=shape))
