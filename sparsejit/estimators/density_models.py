"""Models of densities: naive Bayes, discriminants, mixtures of normal distributions, envelopes.

    logarithms of densities of each class, plus logarithms of priors -> the largest, or shares

A normal density is exp(-|A (x - mean)|^2 / 2): products, and sums of squares of groups of columns.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.double_values import (
    DOUBLE,
    centred,
    distances,
    double_formula,
    log_shares,
    log_sum,
    place_of_largest,
    scaled_columns,
    second_of_two,
    single,
    squared_norms,
    wide_shares,
)
from sparsejit.estimators.model_table import Model
from sparsejit.estimators.neighbour_models import outlier_methods, score_methods
from sparsejit.estimators.writer import MOST_DOUBLES, WIDE, EstimatorWriter, Write
from sparsejit.frontends.writing.arranging import reshaped
from sparsejit.ir.ops.columns import Measure, ScaledColumns
from sparsejit.ir.values import Array, Value


def _bayes_methods(scores: Write) -> dict[str, Write]:
    return {
        "predict": lambda writer: place_of_largest(writer, scores(writer)),
        "predict_proba": lambda writer: log_shares(writer, scores(writer), False),
        "predict_log_proba": lambda writer: log_shares(writer, scores(writer), True),
        WIDE: lambda writer: second_of_two(writer, wide_shares(writer, scores(writer))),
    }


def _affine(writer: EstimatorWriter, norms: Value, factor: float, bias: Array) -> Value:
    """factor * norms + bias, float64 (batch, columns)."""
    f = double_formula(writer, "densities")
    added = writer.constant(np.asarray(bias, np.float64)[None], "logarithms", DOUBLE)
    return f.finish(f("add", f("mul", norms, factor), added), shape=norms.shape)


def _scaled_norms(writer: EstimatorWriter, means: Array, scales: Array) -> Value:
    """|scales[c] (x - means[c])|^2 of every class c, float64 (batch, classes)."""
    classes, features = means.shape
    source = np.tile(np.arange(features), classes)
    x = writer.plain_columns()
    made = scaled_columns(writer, x, source, means.ravel(), scales.ravel())
    return squared_norms(writer, made, classes)


def _mapped_norms(writer: EstimatorWriter, means: Array, maps: list[Array]) -> Value:
    """|maps[c] (x - means[c])|^2 of every class c, whose maps (rows, features) are alike."""
    centre = means.mean(axis=0)
    x = centred(writer, centre)
    longest = max(len(each) for each in maps)
    rows = [np.pad(each, ((0, longest - len(each)), (0, 0))) for each in maps]
    weights = np.concatenate(rows)
    bias = np.concatenate([-row @ (mean - centre) for row, mean in zip(rows, means, strict=True)])
    return squared_norms(writer, writer.product_of(x, weights, bias, "maps"), len(maps))


def _gaussian_bayes(estimator: Any) -> dict[str, Write]:
    means, variances = (np.asarray(x, np.float64) for x in (estimator.theta_, estimator.var_))
    with np.errstate(divide="ignore"):
        prior = np.log(np.asarray(estimator.class_prior_, np.float64))
    bias = prior - 0.5 * np.log(2 * np.pi * variances).sum(axis=1)

    def scores(writer: EstimatorWriter) -> Value:
        norms = _scaled_norms(writer, means, 1 / np.sqrt(variances))
        return _affine(writer, norms, -0.5, bias)

    return _bayes_methods(scores)


def _discrete_bayes(estimator: Any) -> dict[str, Write]:
    """MultinomialNB and ComplementNB: products with logarithms of probabilities."""
    weights = np.asarray(estimator.feature_log_prob_, np.float64)
    has_prior = type(estimator).__name__ == "MultinomialNB" or len(weights) == 1
    bias = np.asarray(estimator.class_log_prior_, float) if has_prior else np.zeros(len(weights))
    _check_finite(estimator, weights)
    return _bayes_methods(lambda writer: writer.product(weights, bias, "scores"))


def _check_finite(estimator: Any, weights: Array) -> None:
    if not np.isfinite(weights).all():
        raise InvalidInput(
            f"the {type(estimator).__name__} has a probability of 0, whose logarithm is infinite; "
            "fit it with alpha above 0"
        )


def _bernoulli_bayes(estimator: Any) -> dict[str, Write]:
    logarithms = np.asarray(estimator.feature_log_prob_, np.float64)
    with np.errstate(divide="ignore"):
        others = np.log(1 - np.exp(logarithms))
    _check_finite(estimator, np.concatenate([logarithms, others]))
    weights = logarithms - others
    bias = estimator.class_log_prior_ + others.sum(axis=1)

    def scores(writer: EstimatorWriter) -> Value:
        if estimator.binarize is None:
            return writer.product(weights, bias, "scores")
        x = scaled_columns(writer, writer.plain_columns(), np.arange(weights.shape[1]))
        f = double_formula(writer, "binarized")
        is_above = f("greater", x, float(estimator.binarize))
        ones = f.finish(f("where", is_above, 1.0, 0.0), shape=x.shape)
        return writer.product_of(ones, weights, bias, "scores")

    return _bayes_methods(scores)


def _categorical_bayes(estimator: Any) -> dict[str, Write]:
    """Columns of 0 and 1, one for each category, times the logarithms of its probabilities."""
    tables = [np.asarray(table, np.float64) for table in estimator.feature_log_prob_]
    weights = np.concatenate(tables, axis=1)
    _check_finite(estimator, weights)
    counts = [table.shape[1] for table in tables]
    source = np.repeat(np.arange(len(counts)), counts)
    category = np.concatenate([np.arange(count) for count in counts])
    numbers = np.array([[0.0], [1], [0], [-np.inf], [np.inf], [1]]) + np.zeros(len(source))
    numbers[0] = category

    def scores(writer: EstimatorWriter) -> Value:
        x = writer.plain_columns()
        operands = (
            writer.constant(source, "categories"),
            writer.constant(numbers, "categories.numbers", DOUBLE),
        )
        ones = writer.at("categories").one(ScaledColumns(x.type.element, DOUBLE), x, *operands)
        return writer.product_of(ones, weights, np.asarray(estimator.class_log_prior_), "scores")

    return _bayes_methods(scores)


def _quadratic(estimator: Any) -> dict[str, Write]:
    means = np.asarray(estimator.means_, np.float64)
    maps = [
        (rotation * scaling**-0.5).T
        for rotation, scaling in zip(estimator.rotations_, estimator.scalings_, strict=True)
    ]
    _check_finite(estimator, np.concatenate([each.ravel() for each in maps]))
    spread = np.array([np.log(scaling).sum() for scaling in estimator.scalings_])
    bias = np.log(estimator.priors_) - 0.5 * spread

    def scores(writer: EstimatorWriter) -> Value:
        return _affine(writer, _mapped_norms(writer, means, maps), -0.5, bias)

    return {
        "predict": lambda writer: place_of_largest(writer, scores(writer)),
        **score_methods(scores, len(estimator.classes_)),
    }


def _mixture_scores(estimator: Any) -> Write:
    """The function that writes logarithms of weighted densities, float64 (batch, components).

    What does not depend on X is computed by the library itself, at the means.
    """
    means = np.asarray(estimator.means_, np.float64)
    roots = np.asarray(estimator.precisions_cholesky_, np.float64)
    kind = estimator.covariance_type
    if means.size * means.shape[1] > MOST_DOUBLES:
        raise InvalidInput(
            f"the {type(estimator).__name__} has more than {MOST_DOUBLES} numbers; fit it to "
            "fewer features, or with covariance_type='diag'"
        )

    def norms(writer: EstimatorWriter) -> Value:
        if kind == "tied":
            centre = means.mean(axis=0)
            x = writer.product_of(
                centred(writer, centre), roots.T, np.zeros(len(roots)), "whitened"
            )
            return distances(writer, x, (means - centre) @ roots, Measure.SQUARED)
        if kind == "full":
            return _mapped_norms(writer, means, [root.T for root in roots])
        scales = roots if kind == "diag" else np.repeat(roots[:, None], means.shape[1], 1)
        return _scaled_norms(writer, means, scales)

    # At its own mean a component's density is the part that X does not change.
    weighted = estimator._estimate_log_prob(means) + estimator._estimate_log_weights()
    bias = np.diagonal(weighted).astype(np.float64)
    return lambda writer: _affine(writer, norms(writer), -0.5, bias)


def _mixture(estimator: Any) -> dict[str, Write]:
    scores = _mixture_scores(estimator)

    def samples(writer: EstimatorWriter) -> Value:
        return reshaped(writer, single(writer, log_sum(writer, scores(writer))), (writer.batch,))

    return {
        "predict": lambda writer: place_of_largest(writer, scores(writer)),
        "predict_proba": lambda writer: log_shares(writer, scores(writer), False),
        "score_samples": samples,
    }


def _envelope(estimator: Any) -> dict[str, Write]:
    precision = np.asarray(estimator.get_precision(), np.float64)
    values, vectors = np.linalg.eigh((precision + precision.T) / 2)
    root = (vectors * np.sqrt(np.maximum(values, 0))).T
    location = np.asarray(estimator.location_, np.float64)

    def scores(writer: EstimatorWriter) -> Value:
        norms = _mapped_norms(writer, location[None], [root])
        f = double_formula(writer, "distances")
        return f.finish(f("neg", norms))

    return outlier_methods(scores, float(estimator.offset_))


_DENSITIES: dict[str, Callable[[Any], dict[str, Write]]] = {
    "GaussianNB": _gaussian_bayes,
    "MultinomialNB": _discrete_bayes,
    "ComplementNB": _discrete_bayes,
    "BernoulliNB": _bernoulli_bayes,
    "CategoricalNB": _categorical_bayes,
    "QuadraticDiscriminantAnalysis": _quadratic,
    "GaussianMixture": _mixture,
    "BayesianGaussianMixture": _mixture,
    "EllipticEnvelope": _envelope,
}
DENSITY_MODELS = {name: Model(methods) for name, methods in _DENSITIES.items()}
