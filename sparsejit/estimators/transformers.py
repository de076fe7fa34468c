"""Steps that are written as operators of their own, each from columns in float64 to columns.

    _piecewise   bins, splines, quantiles: polynomials on intervals, sampled from the step itself
    _products    polynomial features
    _quantiles   shares as numbers of a normal distribution
    _powers      Yeo-Johnson and Box-Cox powers
    _norms       rows divided by their norms
    _marks       marks of missing values
    _function    a FunctionTransformer's function, as recorded

A step whose result for a column is a polynomial between known bounds is asked for its own results
at as many points of each interval as the polynomial needs; so coefficients need no formula.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.numpy_functions import UFUNCS, normal_quantile
from sparsejit.estimators.piece_writer import PieceWriter
from sparsejit.estimators.traced_functions import read_function, write_function
from sparsejit.ir.ops.columns import (
    CENTRE,
    SCALE,
    ColumnProducts,
    PowerColumns,
    RowNorm,
    ScaledColumns,
)
from sparsejit.ir.values import Array, Element, Value

Dtype = np.dtype[Any]


class _PieceKind(NamedTuple):
    """A kind of step that is a polynomial of a degree between bounds.

    `bounds` returns the bounds of a column, of which each ends an interval that it belongs to;
    `degree` and `widths` return the degree, and how many results each column has.
    """

    bounds: Callable[[Any, int, Dtype], Array]
    degree: Callable[[Any], int]
    widths: Callable[[Any], list[int]]


def _one_each(step: Any) -> list[int]:
    return [1] * int(step.n_features_in_)


def _around(numbers: Any) -> Array:
    """Bounds that set each number apart, for steps that jump there."""
    own = np.unique(np.asarray(numbers, np.float64))
    return np.unique(np.concatenate([np.nextafter(own, -np.inf), own]))


def _of_threshold(step: Any, number: int, dtype: Dtype) -> Array:
    return np.array([dtype.type(step.threshold)], np.float64)


def _of_bins(step: Any, number: int, dtype: Dtype) -> Array:
    if step.dtype is not None and np.dtype(step.dtype) != np.float64:
        raise InvalidInput(
            f"the KBinsDiscretizer has dtype={step.dtype}, to which it rounds X; fit it with "
            "dtype=None"
        )
    return np.unique(np.nextafter(step.bin_edges_[number][1:-1], -np.inf))


def _bin_widths(step: Any) -> list[int]:
    if step.encode == "ordinal":
        return _one_each(step)
    return [int(count) for count in step.n_bins_]


def _of_quantiles(step: Any, number: int, dtype: Dtype) -> Array:
    return _around(step.quantiles_[:, number])


def _of_knots(step: Any, number: int, dtype: Dtype) -> Array:
    if step.extrapolation in ("periodic", "error") or not step.degree:
        raise InvalidInput(
            f"the SplineTransformer has extrapolation={step.extrapolation!r} and degree="
            f"{step.degree}; fit it with 'constant', 'linear' or 'continue', and a degree above 0"
        )
    return _around(step.bsplines_[number].t)


def _spline_widths(step: Any) -> list[int]:
    features = int(step.n_features_in_)
    return [int(step.n_features_out_) // features] * features


_PIECEWISE = {
    "Binarizer": _PieceKind(_of_threshold, lambda step: 0, _one_each),
    "KBinsDiscretizer": _PieceKind(_of_bins, lambda step: 0, _bin_widths),
    "QuantileTransformer": _PieceKind(_of_quantiles, lambda step: 1, _one_each),
    "SplineTransformer": _PieceKind(_of_knots, lambda step: int(step.degree), _spline_widths),
}


def _piecewise(writer: PieceWriter, x: Value, step: Any, dtype: Dtype) -> Value:
    """Polynomials on intervals, one for each result of each column."""
    kind = _PIECEWISE[type(step).__name__]
    widths, degree = kind.widths(step), kind.degree(step)
    columns, bounds, pieces, missing = [], [], [], []
    for number, width in enumerate(widths):
        own = kind.bounds(step, number, dtype)
        first = sum(widths[:number])
        results = slice(first, first + width)
        made = _sampled(_results_of(step, number, results), own, degree)
        of_nan = _result_of_nan(step, number, results)
        for output in range(width):
            columns.append(number)
            bounds.append(own)
            pieces.append(made[:, output])
            missing.append(of_nan[output])
    return writer.pieces(x, columns, bounds, pieces, missing)


def _results_of(step: Any, number: int, results: slice) -> Callable[[Array], Array]:
    """The function from numbers (rows,) of a column to its results (rows, width)."""
    plain = copy.copy(step)
    plain.__dict__.pop("feature_names_in_", None)
    plain.__dict__.pop("_sklearn_output_config", None)
    usual = _usual(step)

    def results_of(numbers: Array) -> Array:
        x = np.tile(usual, (len(numbers), 1))
        x[:, number] = numbers
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = plain.transform(x)
        dense = found.toarray() if hasattr(found, "toarray") else np.asarray(found)
        return np.asarray(dense[:, results], np.float64)

    return results_of


def _usual(step: Any) -> Array:
    """A row that the step takes."""
    if type(step).__name__ == "SplineTransformer":
        return np.array([spline.t[spline.k] for spline in step.bsplines_], np.float64)
    return np.zeros(int(step.n_features_in_))


def _result_of_nan(step: Any, number: int, results: slice) -> Array:
    """The results for NaN; NaN where the step refuses it."""
    try:
        return _results_of(step, number, results)(np.array([np.nan]))[0]
    except ValueError:
        return np.full(results.stop - results.start, np.nan)


def _sampled(results_of: Callable[[Array], Array], bounds: Array, degree: int) -> Array:
    """The pieces (intervals, outputs, numbers) of a function that is a polynomial on each interval.

    The first and the last interval, which have no end, are sampled over the length of all others.
    """
    length = max(float(bounds[-1] - bounds[0]), 1.0) if len(bounds) else 1.0
    first, last = (bounds[0], bounds[-1]) if len(bounds) else (0.0, 0.0)
    low = np.concatenate([[first - length], bounds])
    high = np.concatenate([bounds, [last + length]])
    size = high - low
    is_short = np.nextafter(low, np.inf) >= high  # the interval holds its end alone
    nodes = (np.arange(degree + 1) + 0.5) / (degree + 1)
    x = low[:, None] + size[:, None] * nodes
    x[is_short] = high[is_short, None]
    found = results_of(x.ravel()).reshape(len(low), degree + 1, -1)
    if not degree:
        return np.swapaxes(found, 1, 2)
    scaled = np.linalg.solve(np.vander(nodes, increasing=True), found)
    scaled[is_short, 1:], scaled[is_short, 0] = 0, found[is_short, -1]
    powers = np.arange(degree + 1)
    coefficients = scaled / np.where(is_short, 1, size)[:, None, None] ** powers[:, None]
    origins = np.broadcast_to(low[:, None, None], (len(low), 1, found.shape[2]))
    return np.swapaxes(np.concatenate([origins, coefficients], axis=1), 1, 2)


def _quantiles(writer: PieceWriter, x: Value, step: Any, dtype: Dtype) -> Value:
    """Shares of a QuantileTransformer, or the numbers of a normal distribution that have them."""
    if step.output_distribution == "uniform":
        return _piecewise(writer, x, step, dtype)
    columns = range(int(step.n_features_in_))
    bounds, pieces = [], []
    for number in columns:
        least, most = _ends(step.quantiles_[:, number], dtype)
        own = np.unique(np.append(_around(step.quantiles_[:, number]), [least, most]))
        made = _sampled(_shares_of(step, number), own, 1)[:, 0]
        made[np.append(-np.inf, own) >= most] = (0, 1, 0)
        made[np.append(own, np.inf) <= least] = 0
        bounds.append(own)
        pieces.append(made)
    short = dtype == np.dtype(np.float32)
    result = Element.FLOAT32 if short else Element.FLOAT64
    shares = writer.pieces(x, columns, bounds, pieces, [np.nan] * len(columns), result)
    if short:  # the library rounds shares, which matters near 1
        numbers = np.tile([[0.0], [1], [0], [-np.inf], [np.inf], [0]], len(columns))
        operands = (
            writer.constant(np.arange(len(columns)), "columns"),
            writer.constant(numbers, "numbers", Element.FLOAT64),
        )
        shares = writer.one(ScaledColumns(Element.FLOAT32, Element.FLOAT64), shares, *operands)
    f = writer.formula("normal quantiles", Element.FLOAT64)
    size = NormalDist().inv_cdf(1 - (_THRESHOLD - np.spacing(1)))
    return f.finish(f("maximum", f("minimum", normal_quantile(f, shares), size), -size))


def _shares_of(step: Any, number: int) -> Callable[[Array], Array]:
    """The mean of the shares of a column's numbers, and of the others from above."""
    quantiles, shares = step.quantiles_[:, number], step.references_

    def shares_of(numbers: Array) -> Array:
        below = np.interp(numbers, quantiles, shares)
        above = -np.interp(-numbers, -quantiles[::-1], -shares[::-1])
        return (0.5 * (below + above))[:, None]

    return shares_of


_THRESHOLD = 1e-7  # BOUNDS_THRESHOLD of sklearn.preprocessing


def _ends(quantiles: Array, dtype: Dtype) -> tuple[float, float]:
    """The greatest x whose share is 0, and the greatest x whose share is not 1.

    The library subtracts a threshold in the dtype of X.
    """
    lower, upper = quantiles[0], quantiles[-1]
    step = dtype.type(_THRESHOLD)
    least, most = dtype.type(lower + _THRESHOLD), dtype.type(upper - _THRESHOLD)
    far = dtype.type(np.inf)
    while least - step < lower:
        least = np.nextafter(least, far)
    while not least - step < lower:
        least = np.nextafter(least, -far)
    while most + step > upper:
        most = np.nextafter(most, -far)
    while not np.nextafter(most, far) + step > upper:
        most = np.nextafter(most, far)
    return float(least), float(most)


def _products(writer: PieceWriter, x: Value, step: Any, dtype: Dtype) -> Value:
    """The products of a PolynomialFeatures."""
    powers = np.asarray(step.powers_, np.int64)
    degree = max(int(powers.sum(axis=1).max(initial=0)), 1)
    factors = np.full((len(powers), degree), -1)
    for row, each in zip(factors, powers, strict=True):
        own = np.repeat(np.arange(len(each)), each)
        row[: len(own)] = own
    return writer.one(ColumnProducts(), x, writer.constant(factors, "factors"))


def _powers(writer: PieceWriter, x: Value, step: Any, dtype: Dtype) -> Value:
    """The columns of a PowerTransformer, which may be scaled at the end."""
    rising = np.asarray(step.lambdas_, np.float64)
    powers = np.stack([rising, 2 - rising], axis=1)
    powers[np.abs(powers) < np.finfo(np.float64).eps] = 0
    if step.method == "box-cox":
        raised = _box_cox(writer, x, rising)
    else:
        constant = writer.constant(powers, "powers", Element.FLOAT64)
        raised = writer.one(PowerColumns(), x, constant)
    if not step.standardize:
        return raised
    count = len(rising)
    numbers = np.tile([[0.0], [1], [0], [-np.inf], [np.inf], [0]], count)
    numbers[CENTRE], numbers[SCALE] = step._scaler.mean_, 1 / step._scaler.scale_
    constants = (
        writer.constant(np.arange(count), "columns"),
        writer.constant(numbers, "numbers", Element.FLOAT64),
    )
    return writer.one(ScaledColumns(Element.FLOAT64, Element.FLOAT64), raised, *constants)


def _box_cox(writer: PieceWriter, x: Value, rising: Array) -> Value:
    """(x^a - 1) / a, or log x where a is 0."""
    is_log = np.abs(rising) < 1e-19
    powers, divisors = (
        writer.constant(np.where(is_log, other, rising)[None], name, Element.FLOAT64)
        for name, other in (("powers", 0.0), ("divisors", 1.0))
    )
    logs = writer.constant(is_log[None].astype(np.float64), "logarithms", Element.FLOAT64)
    f = writer.formula("box-cox", Element.FLOAT64)
    logarithm = f("log", x)
    raised = f("div", UFUNCS["expm1"].write(f, True, f("mul", logarithm, powers)), divisors)
    return f.finish(f("where", f("equal", logs, 1.0), logarithm, raised))


def _norms(writer: PieceWriter, x: Value, step: Any, dtype: Dtype) -> Value:
    return writer.one(RowNorm(str(step.norm)), x)


def _marks(writer: PieceWriter, x: Value, step: Any, dtype: Dtype) -> Value:
    """1 where a column is missing, else 0."""
    marked = marked_by(step).tolist()
    if not marked:
        raise InvalidInput(
            "the MissingIndicator has no column, since its fit saw nothing missing; leave it out, "
            "or fit it with features='all'"
        )
    count = len(marked)
    nothing = np.zeros((1, 1))
    return writer.pieces(x, marked, [np.zeros(0)] * count, [nothing] * count, [1.0] * count)


def marked_by(step: Any) -> Array:
    """The columns that a MissingIndicator marks. Raises InvalidInput unless it marks NaN."""
    missing = step.missing_values
    if not (isinstance(missing, float) and np.isnan(missing)):
        raise InvalidInput(
            f"the MissingIndicator marks {missing!r}; fit it with missing_values=nan"
        )
    return np.asarray(step.features_, np.int64)


def _ranked(writer: PieceWriter, x: Value, step: Any, dtype: Dtype) -> Value:
    """The numbers of ranks."""
    return writer.pieces(
        x,
        range(len(step.tables)),
        [np.arange(len(table) - 1, dtype=np.float64) for table in step.tables],
        [table[:, None] for table in step.tables],
        [np.nan] * len(step.tables),
    )


def _function(writer: PieceWriter, x: Value, step: Any, dtype: Dtype) -> Value:
    """The results of a FunctionTransformer's function, which reads X in its own dtype."""
    return write_function(writer, x, step)[0]


def is_written(step: Any) -> bool:
    """Whether a step has a function that writes it, in `WRITTEN`."""
    return type(step).__name__ in WRITTEN


def outputs_of(step: Any) -> int:
    """The number of results of a written step."""
    kind = type(step).__name__
    if kind in _PIECEWISE:
        return sum(_PIECEWISE[kind].widths(step))
    if kind == "PolynomialFeatures":
        return int(step.n_output_features_)
    if kind == "FunctionTransformer":
        return read_function(step).outputs
    return len(marked_by(step)) if kind == "MissingIndicator" else int(step.n_features_in_)


# Functions that write a step, by its name: of the writer, of x (batch, columns) in float64, of the
# step, and of the dtype in which the library has x. They return the columns behind it in float64.
WRITTEN: dict[str, Callable[[PieceWriter, Value, Any, Dtype], Value]] = {
    **dict.fromkeys(_PIECEWISE, _piecewise),
    "FunctionTransformer": _function,
    "MissingIndicator": _marks,
    "Normalizer": _norms,
    "PolynomialFeatures": _products,
    "PowerTransformer": _powers,
    "QuantileTransformer": _quantiles,
    "Ranked": _ranked,
}
