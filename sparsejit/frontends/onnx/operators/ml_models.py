"""Linear models and support vector machines of ai.onnx.ml, as ONNX Runtime computes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import numpy as np

from sparsejit.frontends.onnx.call import Call
from sparsejit.frontends.onnx.operators.ml_scores import (
    TRANSFORMS,
    Labels,
    of_two,
    rows_of,
    transformed,
)
from sparsejit.frontends.onnx.words import ML_DOMAIN, Texts
from sparsejit.frontends.writing import arranging, pointwise, products
from sparsejit.frontends.writing.coupling import both_ways, coupled
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.values import Array, Value

_LABELS = ("classlabels_strings", "classlabels_ints")
_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
_LEAST = 1e-7  # least probability of a pair
_Labelled = tuple[Value | Texts, Value]


def _floats(call: Call, name: str, default: Any = ()) -> Array:
    return np.asarray(call.attribute(name, default), np.float32)


def _features(write: Writer, call: Call) -> Value:
    return write.floats(rows_of(write, call.value(write, 0)))


def _scores(write: Writer, x: Value, weights: Array, bias: Array | None) -> Value:
    """x weights^T + bias. Raises Unmapped for weights of another number of features."""
    if not weights.size or weights.size % x.shape[1]:
        raise Unmapped(f"has {weights.size} coefficients for {x.shape[1]} features")
    matrix = write.constant(weights.reshape(-1, x.shape[1]), "coefficients")
    found = products.linear(write, x, matrix)
    return found if bias is None else write.pointwise("add", found, bias)


def linear_regressor(write: Writer, call: Call) -> Value:
    """Apply the post_transform to x coefficients^T + intercepts."""
    targets, intercepts = int(call.attribute("targets", 1)), _floats(call, "intercepts")
    x = _features(write, call)
    bias = intercepts if len(intercepts) == targets else None
    scores = _scores(write, x, _floats(call, "coefficients"), bias)
    return transformed(write, scores, call.choice("post_transform", TRANSFORMS))


def linear_classifier(write: Writer, call: Call) -> _Labelled:
    """Return the label of the largest score, and the transformed scores.

    A single score belongs to the second of two classes.
    """
    labels, intercepts = Labels.of(call, _LABELS), _floats(call, "intercepts")
    x, kind = _features(write, call), call.choice("post_transform", TRANSFORMS)
    scores = _scores(write, x, _floats(call, "coefficients"), intercepts)
    if scores.shape[1] > 1:
        if len(labels) != scores.shape[1]:
            raise Unmapped(f"has {len(labels)} labels for {scores.shape[1]} scores")
        return labels.of_largest(write, scores), transformed(write, scores, kind)
    if len(labels) != 2:
        raise Unmapped(f"has one score for {len(labels)} labels")
    return labels.of_second(write, scores, 0.0), of_two(write, scores, kind, is_share=True)


def _distances(write: Writer, x: Value, vectors: Array) -> Value:
    """Squared distances (rows, vectors), from differences, which are exact for near vectors."""
    (rows, features), count = x.shape, len(vectors)
    each = arranging.reshaped(write, x, (rows, 1, features))
    f = write.formula("distances")
    apart = f("sub", each, write.constant(vectors, "support_vectors"))
    found = f.finish(f("row_sum", f("mul", apart, apart)), shape=(rows, count, features))
    return arranging.reshaped(write, found, (rows, count))


def _kernel(write: Writer, call: Call, x: Value, vectors: Array) -> Value:
    """The kernel of each row with each vector, (rows, vectors)."""
    kind = call.choice("kernel_type", _KERNELS)
    parameters = _floats(call, "kernel_params")
    gamma, coef0, degree = parameters.tolist() if len(parameters) else (0.0, 0.0, 0.0)
    if kind == "RBF":
        f = write.formula("rbf")
        return f.finish(f("exp", f("mul", _distances(write, x, vectors), -gamma)))
    if kind == "LINEAR":
        return _scores(write, x, vectors, None)
    found = _scores(write, x, vectors * np.float32(gamma), None)
    found = write.pointwise("add", found, coef0)
    if kind == "SIGMOID":
        return write.pointwise("tanh", found)
    whole = int(degree) if degree % 1 == 0 else degree
    return pointwise.power(write, found, whole)


def svm_regressor(write: Writer, call: Call) -> Value:
    """The weighted sum of kernels with support vectors, (rows, 1); 1 or -1 with `one_class`."""
    x, count = _features(write, call), int(call.attribute("n_supports", 0))
    weights, rho = _floats(call, "coefficients"), _floats(call, "rho")[:1]
    if count:
        vectors = _floats(call, "support_vectors").reshape(count, -1)
        x = _kernel(write, call, x, vectors)
    scores = _scores(write, x, weights, rho)
    if not call.flag("one_class"):
        return scores
    return write.pointwise("where", write.pointwise("greater", scores, 0.0), 1.0, -1.0)


def _one_against_one(counts: list[int], weights: Array) -> Array:
    """Convert libsvm's weights (classes - 1, vectors) to weights (pairs, vectors) of pairs' scores.

    In libsvm a vector has a weight against each class but its own.
    """
    classes, ends = len(counts), np.cumsum(counts)
    own = [slice(int(end) - count, int(end)) for end, count in zip(ends, counts, strict=True)]
    rows = []
    for i, j in combinations(range(classes), 2):
        row = np.zeros(weights.shape[1], np.float32)
        row[own[i]], row[own[j]] = weights[j - 1, own[i]], weights[i, own[j]]
        rows.append(row)
    return np.array(rows)


def _votes(write: Writer, scores: Value, classes: int) -> Value:
    """Count the pairs of classes that each class wins, (rows, classes).

    The first class of a pair wins if the pair's score is above 0, else the second.
    """
    pairs = list(combinations(range(classes), 2))
    win, constant = np.zeros((classes, len(pairs))), np.zeros(classes)
    for number, (i, j) in enumerate(pairs):
        win[i, number], win[j, number] = 1.0, -1.0
        constant[j] += 1.0
    wins = write.floats(write.pointwise("greater", scores, 0.0))
    return _scores(write, wins, win.astype(np.float32), constant.astype(np.float32))


def svm_classifier(write: Writer, call: Call) -> _Labelled:
    """Return the label with the most votes of pairs of classes, and the transformed scores.

    The scores are probabilities of classes if the file has `prob_a`, else the pairs' scores.
    """
    labels, counts = Labels.of(call, _LABELS), list(call.attribute("vectors_per_class", ()))
    x, kind = _features(write, call), call.choice("post_transform", TRANSFORMS)
    weights, rho = _floats(call, "coefficients"), _floats(call, "rho")
    classes = len(labels)
    if classes < 2:
        raise Unmapped(f"has {classes} labels, not two or more")
    if not sum(counts):
        return _liblinear(write, x, labels, weights, rho, kind)
    vectors = _floats(call, "support_vectors").reshape(sum(counts), -1)
    pairs = _one_against_one(counts, weights.reshape(classes - 1, -1))
    scores = _scores(write, _kernel(write, call, x, vectors), pairs, rho[: len(pairs)])
    label = labels.of_largest(write, _votes(write, scores, classes))
    if call.attribute("prob_a"):
        shares = _shares(write, scores, _floats(call, "prob_a"), _floats(call, "prob_b"))
        flat = _scores(write, shares, *(each.astype(np.float32) for each in both_ways(classes)))
        return label, transformed(write, coupled(write, flat, classes), kind)
    if classes > 2:
        return label, transformed(write, scores, kind)
    return label, of_two(write, scores, kind, is_share=kind != "NONE")


def _shares(write: Writer, scores: Value, slopes: Array, shifts: Array) -> Value:
    """The probability of each pair's first class, (rows, pairs).

    It is 1 / (1 + exp(slope * score + shift)), clipped to a range within 0 and 1.
    """
    pairs = scores.shape[1]
    f = write.formula("shares")
    power = f("add", f("mul", scores, slopes[:pairs]), shifts[:pairs])
    share = f("sigmoid", f("neg", power))
    return f.finish(f("minimum", f("maximum", share, _LEAST), 1.0 - _LEAST))


def _liblinear(
    write: Writer, x: Value, labels: Labels, weights: Array, rho: Array, kind: str
) -> _Labelled:
    """Return label and scores of a linear SVM with a row of weights a class, and one constant."""
    scores = _scores(write, x, weights, rho[:1])
    if scores.shape[1] != len(labels):
        raise Unmapped(f"has {len(labels)} labels for {scores.shape[1]} scores")
    found = transformed(write, scores, kind)
    if len(labels) > 2:
        return labels.of_largest(write, scores), found
    raise Unmapped("has two linear scores, whose larger one ONNX Runtime compares with a constant")


OPERATORS: Mapping[str, Callable[[Writer, Call], Any]] = {
    f"{ML_DOMAIN}.LinearClassifier": linear_classifier,
    f"{ML_DOMAIN}.LinearRegressor": linear_regressor,
    f"{ML_DOMAIN}.SVMClassifier": svm_classifier,
    f"{ML_DOMAIN}.SVMRegressor": svm_regressor,
}
