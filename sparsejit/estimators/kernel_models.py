"""Models whose scores are sums of kernel functions: support vectors, ridge, Gaussian processes.

    scores = K(x, rows of the fit) W^T + bias          in float64, since large terms cancel

Votes of support vector machines are as in libsvm's `svm_predict` and scikit-learn's
`_ovr_decision_function`:

    votes[i] += 1 where the score of the pair (i, j) is above 0, else votes[j] += 1
"""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.coupling import coupled_pairs, pair_probabilities
from sparsejit.estimators.double_values import (
    KernelFunction,
    check_digits,
    check_rows,
    dense_array,
    double_formula,
    flat,
    inliers,
    kernel_of,
    many_products,
    place_of_largest,
    single,
)
from sparsejit.estimators.gaussian_processes import gaussian_classifier, gaussian_regressor
from sparsejit.estimators.model_table import Model
from sparsejit.estimators.writer import MOST_DOUBLES, WIDE, EstimatorWriter, Write
from sparsejit.frontends.arrays import check_held
from sparsejit.frontends.writing.arranging import reshaped
from sparsejit.ir.ops.selection import ArgMax
from sparsejit.ir.values import Array, Value


def weighted_kernels(
    writer: EstimatorWriter, kernel: KernelFunction, known: Array, weights: Array, bias: Array
) -> Value:
    """K(x, known) weights^T + bias, float64; a linear kernel becomes one product."""
    if kernel.is_linear:
        return writer.product(weights @ known, bias, "scores")
    return many_products(writer, kernel.of(writer, known), weights, bias, "scores")


_LARGE_WEIGHTS = 1e8


def _svm_scores(estimator: Any) -> Callable[[EstimatorWriter], Value]:
    """The function that writes libsvm's decision values, float64 (batch, pairs or 1)."""
    if estimator.kernel == "precomputed" or callable(estimator.kernel):
        raise InvalidInput(
            f"the {type(estimator).__name__} has the kernel {estimator.kernel!r}, which is no "
            "function of X here; use linear, rbf, poly or sigmoid"
        )
    known = dense_array(estimator.support_vectors_)
    dual, bias = dense_array(estimator._dual_coef_), np.asarray(estimator._intercept_, float)
    classes = len(getattr(estimator, "classes_", ()))
    kernel = kernel_of(
        *(estimator, estimator.kernel, estimator._gamma, float(estimator.coef0)),
        *(float(estimator.degree), known.shape[1]),
    )
    weights = _of_pairs(dual, np.asarray(estimator.n_support_), classes) if classes else dual
    check_rows(estimator, known)
    if weights.size > MOST_DOUBLES:
        raise InvalidInput(
            f"the {type(estimator).__name__} has {len(known)} support vectors for {len(weights)} "
            f"pairs of classes, more than {MOST_DOUBLES:,} numbers; fit it to fewer samples"
        )
    check_held(estimator, "its coefficients", np.append(weights, bias))
    if np.abs(weights).sum() > _LARGE_WEIGHTS:  # decisions of support vectors are about 1
        check_digits(estimator, weights, known)
    return lambda writer: weighted_kernels(writer, kernel, known, weights, bias)


def _of_pairs(dual: Array, counts: Array, classes: int) -> Array:
    """The weights of every pair of classes, (pairs, support vectors).

    The dual coefficients (classes - 1, support vectors) of a class skip the class itself.
    """
    ends = np.cumsum(counts)
    rows = []
    for i, j in combinations(range(classes), 2):
        row = np.zeros(dual.shape[1])
        row[ends[i] - counts[i] : ends[i]] = dual[j - 1, ends[i] - counts[i] : ends[i]]
        row[ends[j] - counts[j] : ends[j]] = dual[i, ends[j] - counts[j] : ends[j]]
        rows.append(row)
    return np.array(rows)


def _pair_matrix(classes: int) -> Array:
    """1 where a pair's score is for a class, -1 where it is against it: (classes, pairs)."""
    pairs = list(combinations(range(classes), 2))
    matrix = np.zeros((classes, len(pairs)))
    for number, (i, j) in enumerate(pairs):
        matrix[i, number], matrix[j, number] = 1, -1
    return matrix


def _votes(writer: EstimatorWriter, scores: Value, classes: int, above: str) -> Value:
    """The votes of each class, float64 (batch, classes): its pairs with a score above 0."""
    f = double_formula(writer, "votes")
    won = f.finish(f("where", f(above, scores, 0.0), 1.0, 0.0), shape=scores.shape)
    matrix = _pair_matrix(classes)
    return writer.product_of(won, matrix, (matrix < 0).sum(axis=1).astype(float), "votes")


def _one_vs_rest(writer: EstimatorWriter, scores: Value, classes: int) -> Value:
    """Votes, with sums of scores that break ties, float64 (batch, classes)."""
    votes = _votes(writer, scores, classes, "greater_equal")
    sums = writer.product_of(scores, _pair_matrix(classes), np.zeros(classes), "sums")
    f = double_formula(writer, "decisions")
    bounded = f("div", sums, f("mul", f("add", f("abs", sums), 1.0), 3.0))
    return f.finish(f("add", votes, bounded))


def _classifier(estimator: Any) -> dict[str, Write]:
    scores, classes = _svm_scores(estimator), len(estimator.classes_)
    of_rest = estimator.decision_function_shape == "ovr" and classes > 2

    def choose(writer: EstimatorWriter) -> Value:
        if estimator.break_ties and of_rest:
            return place_of_largest(writer, _one_vs_rest(writer, scores(writer), classes))
        votes = _votes(writer, scores(writer), classes, "greater")
        return writer.at("predict").one(ArgMax(), single(writer, votes))

    def decide(writer: EstimatorWriter) -> Value:
        found = scores(writer)
        if of_rest:
            return _one_vs_rest(writer, found, classes)
        if classes > 2:
            return found
        f = double_formula(writer, "decision")
        return f.finish(f("neg", found))

    methods: dict[str, Write] = {
        "predict": choose,
        "decision_function": lambda writer: flat(writer, decide(writer)),
        WIDE: decide,
    }
    if hasattr(estimator, "predict_proba") and np.size(estimator._probA):
        methods |= _probabilities(estimator, scores, classes)
    return methods


def _probabilities(estimator: Any, scores: Write, classes: int) -> dict[str, Write]:
    slopes, shifts = (np.asarray(x, np.float64) for x in (estimator._probA, estimator._probB))

    def shares(writer: EstimatorWriter) -> Value:
        pairs = pair_probabilities(writer, scores(writer), slopes, shifts)
        return coupled_pairs(writer, pairs, classes)

    def logarithms(writer: EstimatorWriter) -> Value:
        found = shares(writer)
        f = double_formula(writer, "log")
        return single(writer, f.finish(f("log", found)))

    return {
        "predict_proba": lambda writer: single(writer, shares(writer)),
        "predict_log_proba": logarithms,
    }


def _regressor(estimator: Any) -> dict[str, Write]:
    scores = _svm_scores(estimator)
    return {"predict": lambda writer: flat(writer, scores(writer))}


def _one_class(estimator: Any) -> dict[str, Write]:
    scores = _svm_scores(estimator)
    offset = float(np.ravel(estimator.offset_)[0])

    def samples(writer: EstimatorWriter) -> Value:
        f = double_formula(writer, "scores")
        return flat(writer, f.finish(f("add", scores(writer), offset)))

    return {
        "predict": lambda writer: inliers(writer, scores(writer), "greater"),
        "decision_function": lambda writer: flat(writer, scores(writer)),
        "score_samples": samples,
    }


def _kernel_ridge(estimator: Any) -> dict[str, Write]:
    kernel, known = _named_kernel(estimator, estimator.X_fit_)
    dual = np.asarray(estimator.dual_coef_, np.float64)
    weights = np.atleast_2d(dual.T)
    check_held(estimator, "its coefficients", weights)
    if not kernel.is_linear:
        check_digits(estimator, weights, known)

    def predict(writer: EstimatorWriter) -> Value:
        bias = np.zeros(len(weights))
        found = single(writer, weighted_kernels(writer, kernel, known, weights, bias))
        return reshaped(writer, found, (writer.batch,)) if dual.ndim == 1 else found

    return {"predict": predict}


def _named_kernel(estimator: Any, rows: Any) -> tuple[KernelFunction, Array]:
    """The kernel of an estimator with gamma, coef0 and degree, and its rows."""
    known = dense_array(rows)
    check_rows(estimator, known)
    if getattr(estimator, "kernel_params", None):
        raise InvalidInput(
            f"the {type(estimator).__name__} has kernel_params; give gamma, coef0 and degree"
        )
    gamma = getattr(estimator, "gamma_", estimator.gamma)
    coef0 = 1.0 if estimator.coef0 is None else float(estimator.coef0)
    degree = 3.0 if estimator.degree is None else float(estimator.degree)
    kernel = kernel_of(estimator, estimator.kernel, gamma, coef0, degree, known.shape[1])
    return kernel, known


def kernel_components(estimator: Any) -> Write:
    """The function that writes a KernelPCA's components, float64 (batch, components).

    Centring subtracts means of kernels, which are sums with equal weights:

        (k - mean(k) - rows + mean(rows)) A = k (A - mean(A)) + (mean(rows) - rows) A
    """
    kernel, known = _named_kernel(estimator, estimator.X_fit_)
    weights, bias = centred_components(estimator)
    return lambda writer: weighted_kernels(writer, kernel, known, weights, bias)


def centred_components(estimator: Any) -> tuple[Array, Array]:
    """The weights (components, rows) and the bias of a KernelPCA's components of kernels."""
    values, vectors = estimator.eigenvalues_, estimator.eigenvectors_
    used = values != 0
    alphas = np.zeros(vectors.shape)
    alphas[:, used] = vectors[:, used] / np.sqrt(values[used])
    centerer = estimator._centerer
    bias = (centerer.K_fit_all_ - centerer.K_fit_rows_) @ alphas
    return (alphas - alphas.mean(axis=0)).T, bias


def nystroem_components(estimator: Any) -> Write:
    """The function that writes a Nystroem's features, float64 (batch, components)."""
    kernel, known = _named_kernel(estimator, estimator.components_)
    weights = np.asarray(estimator.normalization_, np.float64)
    bias = np.zeros(len(weights))
    return lambda writer: weighted_kernels(writer, kernel, known, weights, bias)


KERNEL_MODELS = {
    **dict.fromkeys(("SVC", "NuSVC"), Model(_classifier)),
    **dict.fromkeys(("SVR", "NuSVR"), Model(_regressor)),
    "OneClassSVM": Model(_one_class),
    "KernelRidge": Model(_kernel_ridge),
    "KernelPCA": Model(transform=kernel_components),
    "Nystroem": Model(transform=nystroem_components),
    "GaussianProcessRegressor": Model(gaussian_regressor),
    "GaussianProcessClassifier": Model(gaussian_classifier),
}
