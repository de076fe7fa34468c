"""Transformers that map columns to others: projections, features of kernels, and isotonic curves.

    affine maps     W (x - centre), as decompositions and cross decompositions compute
    cosine maps     a cos(W x + b), of random features, and of logarithms for chi-squared kernels
    sketches        products of count sketches, whose convolution is a product of their spectra
    term weights    counts by their frequency in texts
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.double_values import (
    DOUBLE,
    centred,
    dense_array,
    double_formula,
    log_shares,
    many_products,
    place_of_largest,
    scaled_columns,
    single,
    unit_rows,
)
from sparsejit.estimators.ensembles import lines
from sparsejit.estimators.linear_models import linear_methods
from sparsejit.estimators.model_table import Model
from sparsejit.estimators.numpy_functions import sigmoid
from sparsejit.estimators.writer import WIDE, EstimatorWriter, Write
from sparsejit.frontends.arrays import check_held
from sparsejit.frontends.writing.arranging import joined, reshaped
from sparsejit.frontends.writing.writer import Operand
from sparsejit.ir.ops.selection import ArgMax
from sparsejit.ir.values import Array, Element, Value

# The weights (columns, features) of a map, and the centre (features,) that it subtracts.
_Map = tuple[Array, Array]


def _no_centre(weights: Any) -> _Map:
    dense = dense_array(weights)
    return dense, np.zeros(dense.shape[1])


def _factors(estimator: Any) -> _Map:
    weighted = estimator.components_ / estimator.noise_variance_
    covariance = np.eye(len(weighted)) + weighted @ estimator.components_.T
    return np.linalg.inv(covariance).T @ weighted, estimator.mean_


def _ridge(estimator: Any) -> _Map:
    components = np.asarray(estimator.components_, np.float64)
    gram = components @ components.T + estimator.ridge_alpha * np.eye(len(components))
    return np.linalg.solve(gram, components), estimator.mean_


def _independent(estimator: Any) -> _Map:
    weights = np.asarray(estimator.components_, np.float64)
    return weights, estimator.mean_ if estimator.whiten else np.zeros(weights.shape[1])


def _pooled(estimator: Any) -> _Map:
    if estimator.pooling_func is not np.mean:
        raise InvalidInput(
            f"the FeatureAgglomeration pools by {estimator.pooling_func!r}; use numpy.mean"
        )
    members = np.arange(estimator.labels_.max() + 1)[:, None] == estimator.labels_
    return _no_centre(members / members.sum(axis=1, keepdims=True))


def _rotated(estimator: Any) -> _Map:
    name = "x_rotations_" if hasattr(estimator, "x_rotations_") else "x_weights_"
    rotations = np.asarray(getattr(estimator, name), np.float64)
    return (rotations / np.asarray(estimator._x_std)[:, None]).T, estimator._x_mean


def _linear_discriminant(estimator: Any) -> dict[str, Write]:
    """Methods whose scores of several classes, which may be large, are compared in float64."""
    found = linear_methods(estimator)
    scores = found.get(WIDE)
    if scores is None or len(estimator.classes_) == 2:
        return found
    return found | {
        "predict": lambda writer: place_of_largest(writer, scores(writer)),
        "predict_proba": lambda writer: log_shares(writer, scores(writer), False),
        "predict_log_proba": lambda writer: log_shares(writer, scores(writer), True),
    }


def _kernel_centred(estimator: Any) -> _Map:
    """k - mean(k) - rows + mean(rows), where `rows` are the means of the fit's kernels."""
    count = len(estimator.K_fit_rows_)
    return np.eye(count) - 1 / count, estimator.K_fit_rows_


def _discriminants(estimator: Any) -> Write | None:
    """The function that writes a linear discriminant's columns; None with solver='lsqr'."""
    if estimator.solver == "lsqr":
        return None
    weights = np.asarray(estimator.scalings_, np.float64)[:, : estimator._max_components].T
    centre = estimator.xbar_ if estimator.solver == "svd" else np.zeros(weights.shape[1])
    return _mapped(lambda each: (weights, centre))(estimator)


_MAPS: dict[str, Callable[[Any], _Map]] = {
    "CCA": _rotated,
    "FactorAnalysis": _factors,
    "FastICA": _independent,
    "FeatureAgglomeration": _pooled,
    "GaussianRandomProjection": lambda each: _no_centre(each.components_),
    "KernelCenterer": _kernel_centred,
    "MiniBatchSparsePCA": _ridge,
    "NeighborhoodComponentsAnalysis": lambda each: _no_centre(each.components_),
    "PLSCanonical": _rotated,
    "PLSRegression": _rotated,
    "PLSSVD": _rotated,
    "SparsePCA": _ridge,
    "SparseRandomProjection": lambda each: _no_centre(each.components_),
}


def _mapped(read: Callable[[Any], _Map]) -> Callable[[Any], Write]:
    def transform(estimator: Any) -> Write:
        weights, centre = (np.asarray(each, np.float64) for each in read(estimator))
        check_held(estimator, "its components", weights)

        def write(writer: EstimatorWriter) -> Value:
            x = centred(writer, centre) if centre.any() else writer.plain_columns()
            return writer.product_of(x, weights, np.zeros(len(weights)), "components")

        return write

    return transform


def _cross_regressor(estimator: Any) -> dict[str, Write]:
    """`predict` of cross decompositions: (x - mean) coef^T + intercept."""
    weights = np.atleast_2d(np.asarray(estimator.coef_, np.float64))
    bias = np.broadcast_to(np.asarray(estimator.intercept_, np.float64), len(weights))
    mean = np.asarray(estimator._x_mean, np.float64)
    check_held(estimator, "its coefficients", np.append(weights, bias))

    def predict(writer: EstimatorWriter) -> Value:
        x = centred(writer, mean)
        found = writer.product_of(x, weights, bias, "scores", Element.FLOAT32)
        return reshaped(writer, found, (writer.batch,)) if estimator._predict_1d else found

    return {"predict": predict}


_TURN = 2 * np.pi


def _cosines(estimator: Any) -> Write:
    """a cos(W x + b); whole turns are taken off in float64, before cos in float32."""
    weights = np.asarray(estimator.random_weights_, np.float64).T
    offset = np.asarray(estimator.random_offset_, np.float64)

    def write(writer: EstimatorWriter) -> Value:
        angle = writer.product_of(writer.plain_columns(), weights, offset, "angles")
        return _cosine_of(writer, angle, float(np.sqrt(2 / len(weights))))

    return write


def _cosine_of(writer: EstimatorWriter, angle: Value, size: Operand, kind: str = "cos") -> Value:
    """size cos(angle), or sin, of an angle in float64: float32."""
    f = double_formula(writer, "turns")
    turns = f("round", f("mul", angle, 1 / _TURN))
    near = single(writer, f.finish(f("sub", angle, f("mul", turns, _TURN))))
    g = writer.at(kind).formula(kind)
    return g.finish(g("mul", g(kind, near), size))


def _skewed(estimator: Any) -> Write:
    """a cos(W log(x + skewedness) + b)"""
    weights = np.asarray(estimator.random_weights_, np.float64).T
    offset = np.asarray(estimator.random_offset_, np.float64)

    def write(writer: EstimatorWriter) -> Value:
        x = writer.columns(DOUBLE)
        f = double_formula(writer, "logarithms")
        powers = f.finish(f("log", f("add", x, float(estimator.skewedness))))
        angle = writer.product_of(powers, weights, offset, "angles")
        return _cosine_of(writer, angle, float(np.sqrt(2 / len(weights))))

    return write


def _above_skewness(estimator: Any) -> float:
    return float(np.nextafter(-float(estimator.skewedness), np.inf))


_INTERVALS = {1: 0.8, 2: 0.5, 3: 0.4}  # of AdditiveChi2Sampler by its sample_steps


def _additive(estimator: Any) -> Write:
    """sqrt(L x), and for each step j sqrt(2 L x / cosh(pi j L)) cos(j L log x), and sin."""
    given, steps = estimator.sample_interval, int(estimator.sample_steps)
    interval = _INTERVALS.get(steps) if given is None else float(given)
    if interval is None:
        raise InvalidInput(
            f"the AdditiveChi2Sampler has sample_steps={steps} without a sample_interval; give one"
        )

    def write(writer: EstimatorWriter) -> Value:
        x = writer.columns(DOUBLE)
        f = double_formula(writer, "roots")
        made = [single(writer, f.finish(f("sqrt", f("mul", x, interval))))]
        for step in range(1, steps):
            f = double_formula(writer, "logarithms")
            power = f("log", f("where", f("equal", x, 0.0), 1.0, x))
            angle = f.finish(f("mul", power, step * interval))
            f = double_formula(writer, "sizes")
            squared = f("mul", x, 2 * interval / np.cosh(np.pi * step * interval))
            size = single(writer, f.finish(f("sqrt", squared)))
            made += [_cosine_of(writer, angle, size, kind) for kind in ("cos", "sin")]
        return joined(writer.at("columns"), made, 1)

    return write


def _sketched(estimator: Any) -> Write:
    """The convolution of the count sketches of x, as the product of their spectra."""
    places, signs = np.asarray(estimator.indexHash_), np.asarray(estimator.bitHash_, np.float64)
    features, size = int(estimator.n_features_in_), int(estimator.n_components)
    scale = np.full(places.shape[1], np.sqrt(float(estimator.gamma)))
    scale[features:] = np.sqrt(float(estimator.coef0))
    spectra = []
    for place, sign in zip(places, signs * scale, strict=True):
        sketch = np.zeros((size, len(scale)))
        sketch[place, np.arange(len(scale))] = sign
        spectra.append(np.fft.rfft(sketch, axis=0))
    unit = np.eye(size // 2 + 1)
    back = np.concatenate([np.fft.irfft(unit, size), np.fft.irfft(1j * unit, size)]).T

    def write(writer: EstimatorWriter) -> Value:
        x = writer.plain_columns()
        parts = []
        for spectrum in spectra:
            bias = spectrum[:, features:].sum(axis=1)
            pairs = ((spectrum.real, bias.real), (spectrum.imag, bias.imag))
            parts.append([many_products(writer, x, w[:, :features], b, "sketch") for w, b in pairs])
        (real, imag), *others = parts
        for more, turned in others:
            f, g = double_formula(writer, "real"), double_formula(writer, "imaginary")
            left = f.finish(f("sub", f("mul", real, more), f("mul", imag, turned)))
            imag = g.finish(g("add", g("mul", real, turned), g("mul", imag, more)))
            real = left
        both = joined(writer.at("spectra"), [real, imag], 1)
        return many_products(writer, both, back, np.zeros(size), "sketches")

    return write


def _term_weights(estimator: Any) -> Write:
    """Counts, or 1 + log of them, by the rarity of their terms, divided by the norm of the row."""
    rarity = np.asarray(estimator.idf_, np.float64)[None] if estimator.use_idf else None
    if rarity is not None:
        check_held(estimator, "its weights", rarity)

    def write(writer: EstimatorWriter) -> Value:
        x = writer.columns(DOUBLE)
        f = double_formula(writer, "weights")
        found: Operand = x
        if estimator.sublinear_tf:
            is_none = f("equal", x, 0.0)
            found = f("add", f("log", f("where", is_none, 1.0, x)), f("where", is_none, 0.0, 1.0))
        weight = 1.0 if rarity is None else writer.constant(rarity, "rarity", DOUBLE)
        counts = f.finish(f("mul", found, weight), shape=x.shape)
        if estimator.norm == "l2":
            return unit_rows(writer, counts)
        if estimator.norm is None:
            return counts
        f = double_formula(writer, "norm")
        size = f("row_sum", f("abs", counts))
        whole = f("where", f("equal", size, 0.0), 1.0, size)
        return f.finish(f("div", counts, whole), shape=x.shape)

    return write


def _hidden(estimator: Any) -> Write:
    """Probabilities of a BernoulliRBM's hidden units."""
    weights = np.asarray(estimator.components_, np.float64)
    bias = np.asarray(estimator.intercept_hidden_, np.float64)

    def write(writer: EstimatorWriter) -> Value:
        scores = writer.product_of(writer.plain_columns(), weights, bias, "hidden")
        f = double_formula(writer, "sigmoid")
        return f.finish(sigmoid(f, scores))

    return write


def _isotonic(estimator: Any) -> dict[str, Write]:
    """Lines between points; beyond them the curve is constant, or NaN."""
    if estimator.out_of_bounds == "raise":
        raise InvalidInput(
            "the IsotonicRegression has out_of_bounds='raise'; fit it with 'clip' or 'nan'"
        )
    low, high = float(estimator.X_min_), float(estimator.X_max_)
    check_held(estimator, "its targets", np.asarray(estimator.y_thresholds_, np.float64))

    def predict(writer: EstimatorWriter) -> Value:
        x = writer.plain_columns()
        found = lines(writer, [estimator], x)
        if estimator.out_of_bounds == "nan":
            wide = scaled_columns(writer, x, np.arange(1))
            f = double_formula(writer, "bounds")
            beyond = f.finish(f("logical_or", f("less", wide, low), f("greater", wide, high)))
            found = writer.at("bounds").pointwise("where", beyond, float("nan"), found)
        return reshaped(writer, found, (writer.batch,))

    return {"predict": predict, "transform": predict}


def _one_class(estimator: Any) -> dict[str, Write]:
    """SGDOneClassSVM: a linear score, less its offset."""
    weights = np.atleast_2d(np.asarray(estimator.coef_, np.float64))
    offset = np.ravel(np.asarray(estimator.offset_, np.float64))

    def scores(bias: Array) -> Write:
        def write(writer: EstimatorWriter) -> Value:
            found = writer.product(weights, bias, "scores", Element.FLOAT32)
            return reshaped(writer, found, (writer.batch,))

        return write

    def choose(writer: EstimatorWriter) -> Value:
        """0 or 1, the place of -1 and 1 in the labels, which the library has as int32."""
        found = writer.product(weights, -offset, "scores")
        f = double_formula(writer, "predict")
        inside = reshaped(writer, f.finish(f("greater_equal", found, 0.0)), (writer.batch,))
        return writer.cast(inside, Element.INT64)

    return {
        "predict": choose,
        "decision_function": scores(-offset),
        "score_samples": scores(np.zeros(1)),
    }


def _constant(writer: EstimatorWriter, numbers: Array) -> Value:
    """The same row for every sample, float64; X is not read."""
    x = writer.plain_columns()
    return writer.product_of(x, np.zeros((len(numbers), x.shape[1])), numbers, "constant")


def _dummy_regressor(estimator: Any) -> dict[str, Write]:
    numbers = np.ravel(np.asarray(estimator.constant_, np.float64))
    check_held(estimator, "its targets", numbers)

    def predict(writer: EstimatorWriter) -> Value:
        found = single(writer, _constant(writer, numbers))
        return found if len(numbers) > 1 else reshaped(writer, found, (writer.batch,))

    return {"predict": predict}


def _dummy_classifier(estimator: Any) -> dict[str, Write]:
    if estimator.n_outputs_ > 1 or estimator._strategy in ("stratified", "uniform"):
        raise InvalidInput(
            f"the DummyClassifier has strategy={estimator._strategy!r} and "
            f"{estimator.n_outputs_} outputs; use strategy='prior', with one output"
        )
    prior = np.ravel(np.asarray(estimator.class_prior_, np.float64))
    chosen = int(prior.argmax())
    if estimator._strategy == "constant":
        chosen = int(np.flatnonzero(estimator.classes_ == np.ravel(estimator.constant)[0])[0])
    one = np.asarray(np.arange(len(prior)) == chosen, np.float64)
    shares = prior if estimator._strategy == "prior" else one

    def logarithms(writer: EstimatorWriter) -> Value:
        found = single(writer, _constant(writer, shares))
        return writer.at("log").pointwise("log", found)

    return {
        "predict": lambda writer: writer.at("predict").one(
            ArgMax(), single(writer, _constant(writer, one))
        ),
        "predict_proba": lambda writer: single(writer, _constant(writer, shares)),
        "predict_log_proba": logarithms,
    }


COLUMN_MODELS = {
    **{name: Model(transform=_mapped(read)) for name, read in _MAPS.items()},
    **{
        name: Model(_cross_regressor, _mapped(_rotated))
        for name in ("CCA", "PLSCanonical", "PLSRegression")
    },
    "LinearDiscriminantAnalysis": Model(_linear_discriminant, _discriminants),
    "AdditiveChi2Sampler": Model(transform=_additive, least=lambda each: 0.0),
    "BernoulliRBM": Model(transform=_hidden),
    "DummyClassifier": Model(_dummy_classifier),
    "DummyRegressor": Model(_dummy_regressor),
    "IsotonicRegression": Model(_isotonic),
    "PolynomialCountSketch": Model(transform=_sketched),
    "RBFSampler": Model(transform=_cosines),
    "SGDOneClassSVM": Model(_one_class, labels=lambda each: np.array([-1, 1], np.int32)),
    "SkewedChi2Sampler": Model(transform=_skewed, least=_above_skewness),
    "TfidfTransformer": Model(transform=_term_weights),
}
