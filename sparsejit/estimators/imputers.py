"""KNNImputer: missing numbers from the nearest rows of its fit that have them.

    d^2 = features * sum of (x - row)^2 over what both have / the number of these

The sums are products of x^2, x and marks of x, less the means of the fit, with numbers of the rows.
"""

from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.double_values import (
    DOUBLE,
    check_rows,
    double_formula,
    many_products,
    scaled_columns,
    single,
)
from sparsejit.estimators.model_table import Model
from sparsejit.estimators.neighbour_models import inverse_distances
from sparsejit.estimators.writer import EstimatorWriter, Write
from sparsejit.frontends.arrays import check_held
from sparsejit.frontends.writing.arranging import joined, sliced
from sparsejit.ir.ops.selection import BagKind, EmbeddingBag, TopK
from sparsejit.ir.values import Array, Value

_INFINITY = float("inf")


def _check(imputer: Any) -> None:
    """Raise InvalidInput for options that have no graph."""
    missing = imputer.missing_values
    if not (isinstance(missing, float) and np.isnan(missing)):
        raise InvalidInput(f"the KNNImputer replaces {missing!r}; fit it with missing_values=nan")
    if imputer.metric != "nan_euclidean" or imputer.weights not in ("uniform", "distance", None):
        raise InvalidInput(
            f"the KNNImputer has metric={imputer.metric!r} and weights={imputer.weights!r}; fit it "
            "with metric='nan_euclidean' and weights='uniform' or 'distance'"
        )


def _imputed(imputer: Any) -> Write:
    """A function that writes X with its missing numbers filled in, and marks behind."""
    _check(imputer)
    known = np.asarray(imputer._fit_X, np.float64)
    check_rows(imputer, known)
    has = ~np.isnan(known)
    valid = np.asarray(imputer._valid_mask)
    counts = np.maximum(has.sum(axis=0), 1)
    means = np.where(has, known, 0).sum(axis=0) / counts
    check_held(imputer, "its rows", known[has])
    indicator = imputer.indicator_
    marked = np.arange(0) if indicator is None else np.asarray(indicator.features_, np.int64)

    def write(writer: EstimatorWriter) -> Value:
        x = writer.columns(DOUBLE)
        distances = _distances(writer, x, np.where(has, known - means, 0), has, means)
        made = []
        for number in range(known.shape[1]):
            own = sliced(writer, x, 1, number, number + 1)
            if valid[number]:
                made.append(_filled(writer, own, distances, known[:, number], imputer))
            elif imputer.keep_empty_features:
                f = double_formula(writer, "empty")
                is_missing = f("not_equal", own, own)
                made.append(f.finish(f("where", is_missing, 0.0, 0.0), shape=own.shape))
        if len(marked):
            f = double_formula(writer, "marks")
            read = scaled_columns(writer, x, marked)
            made.append(f.finish(f("where", f("not_equal", read, read), 1.0, 0.0)))
        return joined(writer.at("imputed"), made, 1)

    return write


def _distances(
    writer: EstimatorWriter, x: Value, rows: Array, has: Array, means: Array
) -> Value:
    """The distance to each row of the fit; infinite for a row without a feature that x has."""
    count, features = rows.shape
    centred = scaled_columns(writer, x, np.arange(features), means)
    f = double_formula(writer, "present")
    is_missing = f("not_equal", centred, centred)
    marks, own, square = f.all(
        f("where", is_missing, 0.0, 1.0),
        f("where", is_missing, 0.0, centred),
        f("where", is_missing, 0.0, f("square", centred)),
    )
    both = joined(writer.at("present"), [square, own, marks], 1)
    weights = np.concatenate([has, -2 * rows, np.square(rows)], axis=1).astype(np.float64)
    total = many_products(writer, both, weights, np.zeros(count), "squares")
    shared = many_products(writer, marks, has.astype(np.float64), np.zeros(count), "shared")
    f = double_formula(writer, "distances")
    mean = f("div", f("maximum", total, 0.0), f("maximum", shared, 1.0))
    found = f("sqrt", f("mul", mean, float(features)))
    return f.finish(f("where", f("equal", shared, 0.0), _INFINITY, found), shape=total.shape)


def _filled(
    writer: EstimatorWriter, x: Value, distances: Value, numbers: Array, imputer: Any
) -> Value:
    """A column with NaN replaced by the mean of its donors, or of the fit where none is near."""
    has = ~np.isnan(numbers)
    own = numbers[has]
    count = min(int(imputer.n_neighbors), len(own))
    # As the library adds up, in the dtype of the fit.
    mean = float(np.ma.array(numbers.astype(imputer._fit_X.dtype), mask=~has).mean())
    f = double_formula(writer, "donors")
    excluded = writer.constant(np.where(has, 0.0, _INFINITY)[None], "donors", DOUBLE)
    donors = f.finish(f("add", distances, excluded))
    least, found = writer.at("nearest").many(TopK(count, least=True), donors)
    f = double_formula(writer, "weights")
    if imputer.weights == "distance":
        weights = f.finish(inverse_distances(f, least), shape=least.shape)
        f = double_formula(writer, "weights")
        weights = f.finish(f("where", f("equal", least, _INFINITY), 0.0, weights))
    else:
        weights = f.finish(f("where", f("equal", least, _INFINITY), 0.0, 1.0))
    middle = (own.max() + own.min()) / 2  # sums of float32 lose digits far from zero
    table = np.stack([np.where(has, numbers - middle, 0), np.ones(len(numbers))], axis=1)
    rows = writer.constant(table, "numbers")
    bag = EmbeddingBag(BagKind.SUM, weighted=True)
    sums = writer.at("donors").one(bag, found, rows, single(writer, weights))
    total, share = (
        scaled_columns(writer, sums, np.array([place], np.int64)) for place in range(2)
    )
    f = double_formula(writer, "imputed")
    has_no_donor = f("equal", share, 0.0)
    value = f("add", f("div", total, f("where", has_no_donor, 1.0, share)), float(middle))
    filled = f.finish(f("where", has_no_donor, mean, value), shape=x.shape)
    if writer.takes_singles:  # the library writes into X
        filled = scaled_columns(writer, single(writer, filled), np.zeros(1, np.int64))
    f = double_formula(writer, "imputed")
    return f.finish(f("where", f("not_equal", x, x), filled, x), shape=x.shape)


IMPUTERS = {"KNNImputer": Model(transform=_imputed)}
