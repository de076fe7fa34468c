"""Mathematics in float64 that several models share: distances, kernels, densities, shares.

    metric_of         distances to the rows of a fit, by a metric's name
    kernel_of         kernel functions of X and the rows of a fit, by a kernel's name
    squared_norms     of groups of columns, as in the logarithm of a normal density
    log_shares        logarithms of probabilities from logarithms that are not normalised
    place_of_largest  the first largest column

Results of methods are rounded to float32 once, at the end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.numpy_functions import power, tanh
from sparsejit.estimators.writer import EstimatorWriter
from sparsejit.frontends.writing.arranging import reshaped, sliced
from sparsejit.frontends.writing.writer import Formula, Operand
from sparsejit.ir.ops.columns import Distances, Measure, ScaledColumns
from sparsejit.ir.ops.pointwise import Cast
from sparsejit.ir.ops.selection import ArgMax
from sparsejit.ir.values import Array, Element, Value

DOUBLE = Element.FLOAT64
_LOST = 5e-7  # largest error of results, of the largest, by rounding in float64
_SOME = 64  # rows of a fit whose results tell how large results are
_MANY = 16  # sums of a product for which lanes across sums are faster than lanes along inputs
MOST_KNOWN = 1 << 24  # most numbers of the rows of a fit: 128 MB of float64


def dense_array(values: Any) -> Array:
    """An array, or a sparse matrix, as float64."""
    return np.asarray(values.toarray() if hasattr(values, "toarray") else values, np.float64)


def double_formula(writer: EstimatorWriter, title: str) -> Formula:
    """A formula of float64, whose values are called after its title."""
    return writer.at(title).formula(title, DOUBLE)


def single(writer: EstimatorWriter, x: Value) -> Value:
    """x rounded to float32."""
    return x if x.type.element is Element.FLOAT32 else writer.one(Cast(Element.FLOAT32), x)


def flat(writer: EstimatorWriter, x: Value) -> Value:
    """x as float32 (batch,) if it has one column, else as float32."""
    rounded = single(writer, x)
    return rounded if x.shape[1] > 1 else reshaped(writer, rounded, (writer.batch,))


def scaled_columns(
    writer: EstimatorWriter,
    x: Value,
    source: Array,
    centre: Array | float = 0.0,
    scale: Array | float = 1.0,
) -> Value:
    """scale (x[source] - centre) in float64, (batch, columns)."""
    zeros, ends = np.zeros(len(source)), np.full(len(source), np.inf)
    numbers = np.stack(np.broadcast_arrays(centre, scale, zeros, -ends, ends, zeros))
    operands = (
        writer.constant(source, "columns"),
        writer.constant(numbers, "columns.numbers", DOUBLE),
    )
    return writer.at("columns").one(ScaledColumns(x.type.element, DOUBLE), x, *operands)


def centred(writer: EstimatorWriter, centre: Array) -> Value:
    """The current columns less the centre, in float64."""
    return scaled_columns(writer, writer.plain_columns(), np.arange(len(centre)), centre)


def check_rows(owner: Any, known: Array) -> None:
    """Raise InvalidInput for more rows of a fit than a file, and code beside them, should hold."""
    if known.size > MOST_KNOWN:
        raise InvalidInput(
            f"the {type(owner).__name__} has {len(known)} rows of {known.shape[1]} features, more "
            f"than {MOST_KNOWN:,} numbers; fit it to fewer rows"
        )


def check_digits(owner: Any, weights: Array, known: Array) -> None:
    """Raise InvalidInput where float64 loses the digits of a sum of kernel functions.

    The library's own results then depend on the order of its sums.
    """
    lost = float(np.abs(weights).sum(axis=1).max(initial=0.0)) * 2.0**-52
    method = getattr(owner, "decision_function", owner.predict)
    largest = float(np.abs(method(known[:_SOME])).max(initial=0.0))
    if lost > _LOST * largest:
        raise InvalidInput(
            f"the {type(owner).__name__} has weights that sum to {lost * 2.0**52:.0e}, so that its "
            f"results of about {largest:.0e} have no digits left; fit it with a larger alpha or nu"
        )


def distances(writer: EstimatorWriter, x: Value, known: Array, measure: Measure) -> Value:
    """Distances of x to known rows, float64 (batch, rows)."""
    rows = writer.constant(np.asarray(known, np.float64), "rows", DOUBLE)
    return writer.at("distances").one(Distances(measure, x.type.element), x, rows)


def many_products(
    writer: EstimatorWriter, x: Value, weights: Array, bias: Array, name: str
) -> Value:
    """x weights^T + bias in float64; many sums become lanes, as rows of a fit do."""
    if len(weights) < _MANY:
        return writer.product_of(x, weights, bias, name)
    found = distances(writer, x, weights, Measure.PRODUCT)
    if not bias.any():
        return found
    f = double_formula(writer, name)
    return f.finish(f("add", found, writer.constant(bias[None], f"{name}.bias", DOUBLE)))


@dataclass(frozen=True, eq=False)
class Metric:
    """A metric as a measure of columns that are scaled first, or multiplied by a matrix.

    The distance is the measure, its square root if `is_root`, and 1 less the measure if
    `is_cosine`, of columns that are divided by their norm.
    """

    measure: Measure
    scale: Array | None = None
    matrix: Array | None = None
    is_root: bool = False
    is_cosine: bool = False
    divisor: float = 1.0

    def reduced(self, writer: EstimatorWriter, known: Array) -> Value:
        """Numbers in the same order as the distances, float64 (batch, known rows)."""
        known = np.asarray(known, np.float64)
        x = writer.plain_columns()
        if self.scale is not None:
            x = scaled_columns(writer, x, np.arange(known.shape[1]), scale=self.scale)
            known = known * self.scale
        if self.matrix is not None:
            x = writer.product_of(x, self.matrix.T, np.zeros(self.matrix.shape[1]), "whitened")
            known = known @ self.matrix
        if not self.is_cosine:
            return distances(writer, x, known, self.measure)
        x, known = unit_rows(writer, x), _unit(known)
        f = double_formula(writer, "cosine distance")
        cosine = distances(writer, x, known, self.measure)
        return f.finish(f("maximum", f("minimum", f("sub", 1.0, cosine), 2.0), 0.0))

    def finished(self, f: Formula, reduced: Operand) -> Operand:
        """The distance from the number that `reduced` gives for it."""
        if self.is_root:
            return f("sqrt", reduced)
        return f("div", reduced, self.divisor) if self.divisor != 1 else reduced


def unit_rows(writer: EstimatorWriter, x: Value) -> Value:
    """Rows divided by their norm, float64; zeros stay."""
    if x.type.element is not DOUBLE:
        x = scaled_columns(writer, x, np.arange(x.shape[1]))
    f = double_formula(writer, "unit rows")
    norm = f("sqrt", f("row_sum", f("square", x)))
    whole = f("where", f("equal", norm, 0.0), 1.0, norm)
    return f.finish(f("div", x, whole), shape=x.shape)


def _unit(rows: Array) -> Array:
    norms = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
    return rows / np.where(norms == 0, 1, norms)


_NAMES: Mapping[str, Metric] = {
    **dict.fromkeys(("euclidean", "l2"), Metric(Measure.SQUARED, is_root=True)),
    "sqeuclidean": Metric(Measure.SQUARED),
    **dict.fromkeys(("manhattan", "cityblock", "l1"), Metric(Measure.ABSOLUTE)),
    **dict.fromkeys(("chebyshev", "infinity"), Metric(Measure.LARGEST)),
    "cosine": Metric(Measure.PRODUCT, is_cosine=True),
}
_POWERS = {1.0: "manhattan", 2.0: "euclidean", np.inf: "chebyshev"}


def metric_of(owner: Any, name: Any, parameters: Mapping[str, Any], features: int) -> Metric:
    """The metric of that name. Raises InvalidInput for a metric without a formula here."""
    given = dict(parameters)
    power = float(given.pop("p", 2.0))
    if name == "minkowski":
        name = _POWERS.get(power, f"minkowski with p={power:g}")
    weights = given.pop("w", None)
    if name == "hamming" and not given and weights is None:
        return Metric(Measure.UNEQUAL, divisor=float(features))
    if name == "seuclidean" and set(given) == {"V"}:
        return Metric(Measure.SQUARED, 1 / np.sqrt(np.asarray(given["V"], float)), is_root=True)
    if name == "mahalanobis" and set(given) & {"V", "VI"}:
        inverse = given.get("VI")
        inverse = np.linalg.inv(given["V"]) if inverse is None else np.asarray(inverse, float)
        return Metric(Measure.SQUARED, matrix=np.linalg.cholesky(inverse), is_root=True)
    found = _NAMES.get(name) if isinstance(name, str) else None
    if found is None or given:
        raise InvalidInput(
            f"the {type(owner).__name__} has the metric {name!r}, which has no code here; use one "
            f"of {', '.join(sorted({*_NAMES, 'hamming', 'mahalanobis', 'seuclidean'}))}"
        )
    if weights is None:
        return found
    if found.is_cosine:
        raise InvalidInput(f"the {type(owner).__name__} weights a cosine; use another metric")
    own = np.asarray(weights, float)
    return Metric(found.measure, np.sqrt(own) if found.is_root else own, is_root=found.is_root)


@dataclass(frozen=True, eq=False)
class KernelFunction:
    """A kernel function by scikit-learn's name, with its parameters."""

    name: str
    gamma: float = 1.0
    coef0: float = 1.0
    degree: float = 3.0
    owner: Any = field(default=None, repr=False)

    @property
    def is_linear(self) -> bool:
        return self.name == "linear"

    def of(self, writer: EstimatorWriter, known: Array) -> Value:
        """The kernel of each row of X with each known row, float64 (batch, rows)."""
        known = np.asarray(known, np.float64)
        x = writer.plain_columns()
        if self.name in ("rbf", "laplacian"):
            measure = Measure.SQUARED if self.name == "rbf" else Measure.ABSOLUTE
            near = distances(writer, x, known, measure)
            f = double_formula(writer, self.name)
            return f.finish(f("exp", f("mul", near, -float(self.gamma))))
        if self.name == "cosine":
            return distances(writer, unit_rows(writer, x), _unit(known), Measure.PRODUCT)
        product = distances(writer, x, known, Measure.PRODUCT)
        if self.is_linear:
            return product
        f = double_formula(writer, self.name)
        inner = f("add", f("mul", product, float(self.gamma)), float(self.coef0))
        if self.name == "sigmoid":
            return f.finish(tanh(f, True, inner))
        return f.finish(power(f, inner, float(self.degree)), shape=product.shape)


KERNELS = ("linear", "rbf", "poly", "polynomial", "sigmoid", "laplacian", "cosine")


def kernel_of(
    owner: Any, name: Any, gamma: float | None, coef0: float, degree: float, features: int
) -> KernelFunction:
    """The kernel of an estimator. Raises InvalidInput for a kernel without a formula here."""
    if name not in KERNELS:
        raise InvalidInput(
            f"the {type(owner).__name__} has the kernel {name!r}, which has no code here; use one "
            f"of {', '.join(KERNELS)}"
        )
    return KernelFunction(name, 1 / features if gamma is None else float(gamma), coef0, degree)


def squared_norms(writer: EstimatorWriter, x: Value, groups: int) -> Value:
    """The sums of squares of each group of x's columns: float64 (batch, groups)."""
    shape = writer.batch, groups, x.shape[1] // groups
    grouped = reshaped(writer, x, shape)
    f = double_formula(writer, "squared norms")
    found = f.finish(f("row_sum", f("square", grouped)), shape=shape)
    return reshaped(writer, found, (writer.batch, groups))


def place_of_largest(writer: EstimatorWriter, x: Value) -> Value:
    """The first of the largest columns of x in float64, int64 (batch,).

    The largest is subtracted first: rounded to float32, all smaller columns stay smaller.
    """
    f = double_formula(writer, "predict")
    apart = f.finish(f("sub", x, f("row_max", x)), shape=x.shape)
    return writer.at("predict").one(ArgMax(), single(writer, apart))


def log_shares(writer: EstimatorWriter, x: Value, logarithm: bool) -> Value:
    """exp(x) divided by its sum over a row, or the logarithm of that, as float32."""
    return single(writer, wide_shares(writer, x, logarithm))


def wide_shares(writer: EstimatorWriter, x: Value, logarithm: bool = False) -> Value:
    """The numbers that `log_shares` rounds, float64."""
    f = double_formula(writer, "shares")
    apart = f("sub", x, f("row_max", x))
    powers = f("exp", apart)
    total = f("row_sum", powers)
    found = f("sub", apart, f("log", total)) if logarithm else f("div", powers, total)
    return f.finish(found, shape=x.shape)


def second_of_two(writer: EstimatorWriter, shares: Value) -> Value:
    """The second column if there are two, else all, as calibrators read probabilities."""
    return sliced(writer, shares, 1, 1, 2) if shares.shape[1] == 2 else shares


def log_sum(writer: EstimatorWriter, x: Value) -> Value:
    """The logarithm of the sum of exp(x) over a row, float64 (batch, 1)."""
    f = double_formula(writer, "log sum")
    largest = f("row_max", x)
    total = f("row_sum", f("exp", f("sub", x, largest)))
    return f.finish(f("add", largest, f("log", total)), shape=x.shape)


def inliers(writer: EstimatorWriter, scores: Value, above: str = "greater_equal") -> Value:
    """1 where scores (batch, 1) are at least 0, or with "greater" above it, else -1: (batch,)."""
    f = double_formula(writer, "predict")
    inside = reshaped(writer, f.finish(f(above, scores, 0.0)), (writer.batch,))
    return writer.pointwise("where", inside, 1, -1)
