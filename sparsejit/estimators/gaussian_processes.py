"""Gaussian processes: composed kernels, means, and probabilities of the Laplace approximation.

    mean = K(x, X_train) alpha, times the targets' spread, plus their mean
    p    = a sum of error functions of the latent mean and variance    (Williams, Barber 1998)
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev

from sparsejit.errors import InvalidInput
from sparsejit.estimators.double_values import (
    KernelFunction,
    check_digits,
    check_rows,
    distances,
    double_formula,
    many_products,
    place_of_largest,
    scaled_columns,
    second_of_two,
    single,
)
from sparsejit.estimators.numpy_functions import power
from sparsejit.estimators.writer import MOST_DOUBLES, WIDE, EstimatorWriter, Write
from sparsejit.frontends.arrays import check_held
from sparsejit.frontends.writing.arranging import joined, reshaped
from sparsejit.frontends.writing.writer import Formula, Operand
from sparsejit.ir.ops.columns import Measure
from sparsejit.ir.values import Array, Element, TensorType, Value

# Writes the values of a kernel for X and the rows of a fit, float64 (batch, rows); a kernel that is
# the same for all rows is a number.
_Of = Callable[[EstimatorWriter, Any, Array], Value | float]


def kernel_of_process(writer: EstimatorWriter, kernel: Any, known: Array) -> Value:
    """The values of a kernel of `sklearn.gaussian_process.kernels`, float64 (batch, rows)."""
    found = _values(writer, kernel, known)
    if isinstance(found, Value):
        return found
    x = writer.plain_columns()
    weights = np.zeros((len(known), x.shape[1]))
    return writer.product_of(x, weights, np.full(len(known), found), "constant")


def _values(writer: EstimatorWriter, kernel: Any, known: Array) -> Value | float:
    write = _KERNELS.get(type(kernel).__name__)
    if write is None:
        raise InvalidInput(
            f"the kernel {type(kernel).__name__} has no code here; use one of "
            f"{', '.join(_KERNELS)}"
        )
    return write(writer, kernel, known)


def _constant(number: Callable[[Any], float]) -> _Of:
    """A kernel that has the same value for all rows."""
    return lambda writer, kernel, known: number(kernel)


def _scaled_distances(
    writer: EstimatorWriter, kernel: Any, known: Array, measure: Measure
) -> Value:
    """Distances of features divided by the kernel's length scales."""
    scale = 1 / np.broadcast_to(np.asarray(kernel.length_scale, float), known.shape[1:])
    x = scaled_columns(writer, writer.plain_columns(), np.arange(known.shape[1]), scale=scale)
    return distances(writer, x, known * scale, measure)


def _rbf(writer: EstimatorWriter, kernel: Any, known: Array) -> Value:
    near = _scaled_distances(writer, kernel, known, Measure.SQUARED)
    f = double_formula(writer, "rbf")
    return f.finish(f("exp", f("mul", near, -0.5)))


def _matern(writer: EstimatorWriter, kernel: Any, known: Array) -> Value:
    if kernel.nu == np.inf:
        return _rbf(writer, kernel, known)
    if kernel.nu not in (0.5, 1.5, 2.5):
        raise InvalidInput(
            f"the kernel Matern has nu={kernel.nu}, which needs Bessel functions; use 0.5, 1.5, "
            "2.5 or infinity"
        )
    near = _scaled_distances(writer, kernel, known, Measure.SQUARED)
    f = double_formula(writer, "matern")
    k = f("sqrt", f("mul", near, 2.0 * kernel.nu))
    factor: Operand = None
    if kernel.nu > 0.5:
        factor = f("add", k, 1.0)
    if kernel.nu == 2.5:
        factor = f("add", factor, f("mul", f("square", k), 1 / 3))
    fading = f("exp", f("neg", k))
    return f.finish(fading if factor is None else f("mul", factor, fading))


def _rational(writer: EstimatorWriter, kernel: Any, known: Array) -> Value:
    near = distances(writer, writer.plain_columns(), known, Measure.SQUARED)
    f = double_formula(writer, "rational quadratic")
    base = f("add", f("mul", near, 1 / (2 * kernel.alpha * kernel.length_scale**2)), 1.0)
    return f.finish(f("exp", f("mul", f("log", base), -float(kernel.alpha))))


def _dot(writer: EstimatorWriter, kernel: Any, known: Array) -> Value:
    product = KernelFunction("linear").of(writer, known)
    f = double_formula(writer, "dot product")
    return f.finish(f("add", product, float(kernel.sigma_0) ** 2))


def _pair(kind: str, combine: Callable[[float, float], float]) -> _Of:
    def write(writer: EstimatorWriter, kernel: Any, known: Array) -> Value | float:
        first, second = (_values(writer, part, known) for part in (kernel.k1, kernel.k2))
        if not isinstance(first, Value) and not isinstance(second, Value):
            return combine(first, second)
        f = double_formula(writer, "kernel")
        return f.finish(f(kind, first, second))

    return write


def _exponentiation(writer: EstimatorWriter, kernel: Any, known: Array) -> Value | float:
    inner = _values(writer, kernel.kernel, known)
    if not isinstance(inner, Value):
        return float(inner**kernel.exponent)
    f = double_formula(writer, "power")
    return f.finish(power(f, inner, float(kernel.exponent)), shape=inner.shape)


_KERNELS: dict[str, _Of] = {
    "ConstantKernel": _constant(lambda kernel: float(kernel.constant_value)),
    "WhiteKernel": _constant(lambda kernel: 0.0),  # the noise of one sample with itself alone
    "RBF": _rbf,
    "Matern": _matern,
    "RationalQuadratic": _rational,
    "DotProduct": _dot,
    "Sum": _pair("add", float.__add__),
    "Product": _pair("mul", float.__mul__),
    "Exponentiation": _exponentiation,
}


def _check_size(estimator: Any, count: int) -> None:
    if count > MOST_DOUBLES:
        raise InvalidInput(
            f"the {type(estimator).__name__} has {count} numbers, more than {MOST_DOUBLES}; fit it "
            "to fewer samples"
        )


def gaussian_regressor(estimator: Any) -> dict[str, Write]:
    """The function that writes `predict`, the mean of the process."""
    if not hasattr(estimator, "X_train_"):
        raise InvalidInput(
            f"the {type(estimator).__name__} is not fitted; call its fit(X, y) first"
        )
    known = np.asarray(estimator.X_train_, np.float64)
    alpha = np.asarray(estimator.alpha_, np.float64)
    spread, mean = (
        np.ravel(np.asarray(x, np.float64))
        for x in (estimator._y_train_std, estimator._y_train_mean)
    )
    weights = np.atleast_2d(alpha.T) * spread[:, None]
    bias = np.broadcast_to(mean, len(weights)).astype(np.float64)
    check_rows(estimator, known)
    _check_size(estimator, weights.size)
    check_held(estimator, "its targets", bias)
    check_digits(estimator, weights, known)

    def predict(writer: EstimatorWriter) -> Value:
        values = kernel_of_process(writer, estimator.kernel_, known)
        found = writer.product_of(values, weights, bias, "mean", Element.FLOAT32)
        return reshaped(writer, found, (writer.batch,)) if len(weights) == 1 else found

    kernel_of_process(_probe(known.shape[1]), estimator.kernel_, known[:1])
    return {"predict": predict}


def _probe(features: int) -> EstimatorWriter:
    """Return a writer for a trial run, which raises InvalidInput for a kernel without a graph."""
    return EstimatorWriter(TensorType((1, features), Element.FLOAT64))


def gaussian_classifier(estimator: Any) -> dict[str, Write]:
    """The functions that write `predict` and `predict_proba`."""
    base = estimator.base_estimator_
    if estimator.n_classes_ > 2 and estimator.multi_class != "one_vs_rest":
        raise InvalidInput(
            "the GaussianProcessClassifier has multi_class='one_vs_one', which has no "
            "probabilities; fit it with multi_class='one_vs_rest'"
        )
    parts = [base] if estimator.n_classes_ == 2 else list(base.estimators_)
    for part in parts:
        known = np.asarray(part.X_train_, np.float64)
        check_rows(estimator, known)
        _check_size(estimator, len(known) ** 2)
        kernel_of_process(_probe(known.shape[1]), part.kernel_, known[:1])
        if "DotProduct" in str(part.kernel_):
            raise InvalidInput(
                "the GaussianProcessClassifier has the kernel DotProduct, whose variance depends "
                "on X; use a stationary kernel"
            )

    def columns(writer: EstimatorWriter) -> Value:
        """Each binary classifier's probability of its second class, float64 (batch, parts)."""
        return joined(writer, [_second_class(writer, part) for part in parts], 1)

    def choose(writer: EstimatorWriter) -> Value:
        if len(parts) > 1:
            return place_of_largest(writer, columns(writer))
        mean = _latent_mean(writer, kernel_of_process(writer, base.kernel_, base.X_train_), base)
        f = double_formula(writer, "predict")
        return writer.cast(
            reshaped(writer, f.finish(f("greater", mean, 0.0)), (writer.batch,)), Element.INT64
        )

    def shares(writer: EstimatorWriter) -> Value:
        found = columns(writer)
        f = double_formula(writer, "probabilities")
        if len(parts) > 1:
            return f.finish(f("div", found, f("row_sum", found)), shape=found.shape)
        other = f.finish(f("sub", 1.0, found))
        return joined(writer, [other, found], 1)

    return {
        "predict": choose,
        "predict_proba": lambda writer: single(writer, shares(writer)),
        WIDE: lambda writer: second_of_two(writer, shares(writer)),
    }


def _latent_mean(writer: EstimatorWriter, values: Value, part: Any) -> Value:
    weights = np.asarray(part.y_train_ - part.pi_, np.float64)[None]
    return writer.product_of(values, weights, np.zeros(1), "latent mean")


# As in `_gpc.py` of sklearn.gaussian_process.
_LAMBDAS = (0.41, 0.4, 0.37, 0.44, 0.39)
_COEFFICIENTS = (-1854.8214151, 3516.89893646, 221.29346712, 128.12323805, -2010.49422654)


def _second_class(writer: EstimatorWriter, part: Any) -> Value:
    """A binary classifier's probability of its second class, float64 (batch, 1).

    The variance is k(x, x) - |L^-1 (W^1/2 k)|^2, and k(x, x) is the same for all x.
    """
    values = kernel_of_process(writer, part.kernel_, np.asarray(part.X_train_, np.float64))
    mean = _latent_mean(writer, values, part)
    rows = np.linalg.solve(part.L_, np.diag(part.W_sr_))
    v = many_products(writer, values, rows, np.zeros(len(rows)), "latent variance")
    own = float(part.kernel_.diag(part.X_train_[:1])[0])
    f = double_formula(writer, "variance")
    variance = f.finish(f("sub", own, f("row_sum", f("square", v))), shape=v.shape)
    # alpha = 1 / (2 variance): sqrt(pi / alpha) / (2 sqrt(2 pi variance)) is 1/2.
    total: Value | None = None
    for factor, coefficient in zip(_LAMBDAS, _COEFFICIENTS, strict=True):
        f = double_formula(writer, "error function")
        spread = f("add", f("mul", variance, 2 * factor**2), 1.0)
        argument = f("div", f("mul", mean, factor), f("sqrt", spread))
        term = f("mul", erf(f, argument), coefficient / 2)
        total = f.finish(term if total is None else f("add", total, term))
    assert total is not None
    f = double_formula(writer, "probability")
    return f.finish(f("add", total, sum(_COEFFICIENTS) / 2))


_TERMS = 31


def _erfc_series() -> Array:
    """Chebyshev coefficients of log(erfc(z) exp(z^2) / t), t = 2 / (2 + z), in 2 t - 1.

    `erfcx` is erfc(z) exp(z^2); errors are below 1e-15.
    """
    from scipy.special import erfcx

    def function(u: Array) -> Array:
        t = np.maximum((u + 1) / 2, 1e-12)
        z = 2 / t - 2
        return np.asarray(np.log(erfcx(z) / t))

    nodes = np.cos(np.pi * (np.arange(_TERMS) + 0.5) / _TERMS)
    return np.asarray(chebyshev.chebfit(nodes, function(nodes), _TERMS - 1))


def erf(f: Formula, x: Operand) -> Operand:
    """erf(x) = 1 - erfc(|x|) with the sign of x, in float64."""
    z = f("abs", x)
    t = f("div", 2.0, f("add", z, 2.0))
    u = f("sub", f("mul", t, 2.0), 1.0)
    twice = f("mul", u, 2.0)
    *others, last = (float(c) for c in _erfc_series())
    b, before = f("add", f("mul", u, 0.0), last), f("mul", u, 0.0)
    for coefficient in reversed(others[1:]):  # Clenshaw's recurrence
        b, before = f("add", f("sub", f("mul", twice, b), before), coefficient), b
    value = f("add", f("sub", f("mul", u, b), before), others[0])
    tail = f("mul", t, f("exp", f("sub", value, f("square", z))))
    magnitude = f("sub", 1.0, tail)
    return f("where", f("less", x, 0.0), f("neg", magnitude), magnitude)
