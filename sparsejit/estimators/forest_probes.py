"""Results of fitted steps for chosen X, and the numbers in them that a forest compares.

A matrix between two steps is dense or sparse, as the earlier step returns it. A OneHotEncoder, a
ColumnTransformer, and steps that keep a sparse X sparse, may return sparse matrices. Zeros that a
sparse matrix leaves out are missing for XGBoost, and zeros for all other forests.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparsejit.estimators.column_steps import SELECTORS, each_step, filling_of, parts_of
from sparsejit.estimators.parts import is_mixing
from sparsejit.ir.values import Array


@dataclass(frozen=True)
class Made:
    """The matrix that steps return for x, dense or sparse as the last step returns it.

    `signs` (rows, columns) are the signs of dense numbers that a step has made sparse, infinite
    for other numbers: where a sign is 0 the sparse matrix leaves a zero out.
    """

    matrix: Any
    signs: Array

    def take(self, columns: Array) -> Made:
        return Made(self.matrix[:, columns], self.signs[:, columns])

    @property
    def is_sparse(self) -> bool:
        return hasattr(self.matrix, "toarray")

    @property
    def leaves_out(self) -> bool:
        """Whether a sparse matrix was made of dense numbers."""
        return bool(np.isfinite(self.signs).any())

    @property
    def dense(self) -> Array:
        return np.asarray(self.matrix.toarray() if self.is_sparse else self.matrix)


@dataclass(frozen=True)
class Seen:
    """The numbers that a forest compares, (rows, outputs), and where they count as missing."""

    values: Array
    is_missing: Array

    @classmethod
    def of_zeros(cls, outputs: int) -> Seen:
        """One row of zeros, none of them missing."""
        return cls(np.zeros((1, outputs)), np.zeros((1, outputs), bool))

    def take(self, outputs: Array, other: Seen, rows: Array) -> None:
        """Copy outputs of `other` into the only row, each from its own row."""
        self.values[0, outputs] = other.values[rows, outputs]
        self.is_missing[0, outputs] = other.is_missing[rows, outputs]


@dataclass(frozen=True)
class Gap:
    """The interval above < x <= last, and the numbers that a forest compares there."""

    above: float
    last: float
    seen: Seen

    def among(self, outputs: int, places: Array) -> Gap:
        """The gap with its numbers at these places among more outputs, which are zeros."""
        seen = Seen.of_zeros(outputs)
        seen.values[0, places], seen.is_missing[0, places] = self.seen.values, self.seen.is_missing
        return replace(self, seen=seen)


@dataclass(frozen=True)
class Probes:
    """Runs chosen numbers of X's element through steps, and finds the numbers that a forest reads.

    `rounds`: the forest rounds to float32 first; `missing`: a number that counts as missing, NaN
    for none; `skips_zeros`: zeros that a sparse matrix leaves out count as missing; `is_sparse`: X
    is a sparse matrix.
    """

    steps: Sequence[Any]
    features: int
    dtype: np.dtype[Any]
    rounds: bool
    missing: float
    skips_zeros: bool
    is_sparse: bool

    def narrowed(self, widths: Sequence[int], outputs: Array) -> tuple[Probes, Array]:
        """Probes of the parts of a ColumnTransformer, the only step, that give some of `outputs`.

        Returns the numbers of the outputs that are left. `widths` are the outputs of each part.
        """
        ends = np.cumsum(widths)
        (transformer,) = self.steps
        parts, kept = parts_of(transformer, self.features), []
        entries = []
        for number, (part, end) in enumerate(zip(parts, ends, strict=True)):
            own = np.arange(end - widths[number], end)
            if np.isin(own, outputs).any():
                kept.append(own)
                entries.append((f"part{number}", _joined(part.steps), part.columns.tolist()))
        narrow = copy.copy(transformer)
        narrow.transformers_ = entries
        return replace(self, steps=[narrow]), np.concatenate([outputs[:0], *kept])

    def missing_row(self) -> Seen:
        """The numbers that the forest compares for a row of X that is all NaN."""
        return self.compared(np.full((1, self.features), np.nan))

    def left_out_row(self) -> Seen:
        """The numbers that the forest compares for a row of a sparse X that stores nothing."""
        from scipy.sparse import csr_matrix

        nothing = csr_matrix((1, self.features), dtype=self.dtype)
        return self._seen(transformed(self.steps, nothing))

    def category_rows(self, source: Array, category: Array) -> tuple[Seen, Seen]:
        """The numbers that the forest compares for x other than a category, and for the category.

        There is a row of each, with the outputs of encoders; outputs without a category are zeros.
        One row of x has a category of every feature, and the last is above all of them.
        """
        outputs = np.flatnonzero(~np.isnan(category))
        others, own = Seen.of_zeros(len(source)), Seen.of_zeros(len(source))
        if len(outputs):
            rows = _repeats(source[outputs])
            x = np.zeros((rows.max() + 2, self.features), self.dtype)
            x[rows, source[outputs]] = category[outputs]
            greatest = np.full(self.features, -np.inf)
            np.maximum.at(greatest, source[outputs], category[outputs])
            x[-1] = np.where(np.isinf(greatest), 0, _above(greatest, self.dtype))
            whole = self.compared(x)
            others.take(outputs, whole, np.full(len(outputs), len(x) - 1))
            own.take(outputs, whole, rows)
        return others, own

    def compared(self, x: Array) -> Seen:
        """The numbers that the forest compares for x (rows, features).

        A sparse x stores all numbers.
        """
        return self._seen(self._made(x))

    def _made(self, x: Array, keeps_zeros: bool = False) -> Made:
        given = x.astype(self.dtype)
        return transformed(self.steps, _stored(given) if self.is_sparse else given, keeps_zeros)

    def _seen(self, made: Made) -> Seen:
        """The numbers of steps' results that the forest compares, and where they are missing."""
        left_out = np.zeros(made.matrix.shape, bool)
        if made.is_sparse:
            stored = made.matrix.tocoo()
            left_out[:] = self.skips_zeros
            left_out[stored.row, stored.col] = False
        values = self._rounded(made.dense)
        is_missing = left_out | np.isnan(values)
        if not np.isnan(self.missing):
            is_missing |= values == self._rounded(np.array(self.missing))
        return Seen(values, is_missing)

    def _rounded(self, values: Array) -> Array:
        with np.errstate(over="ignore"):
            return values.astype(np.float32) if self.rounds else values

    def greatest(
        self, source: Array, outputs: Array, limits: Array, of_signs: bool = False
    ) -> Array:
        """The greatest x for which each of `outputs` is no greater than its limit, as float64.

        No matrix leaves a zero out meanwhile. `source` is the feature of each output of the steps;
        with `of_signs` the limits are of the outputs' signs.
        """
        found = np.empty(len(outputs))
        repeats = _repeats(source)
        for repeat in range(repeats.max(initial=-1) + 1):
            own = repeats == repeat  # one output of each source at a time
            which = own[outputs]
            if which.any():
                wanted = outputs[which], limits[which]
                found[which] = self._bisected((source, own), wanted, of_signs)
        return found

    def _bisected(
        self, outputs: tuple[Array, Array], wanted: tuple[Array, Array], of_signs: bool
    ) -> Array:
        (source, own), (output, limit) = outputs, wanted
        order = np.lexsort((limit, output))
        counts = np.bincount(output, minlength=len(source))
        row = np.empty(len(output), np.int64)
        row[order] = np.arange(len(output)) - np.repeat(np.cumsum(counts) - counts, counts)
        shape = (int(counts.max(initial=1)), len(source))
        limits = np.zeros(shape)
        limits[row, output] = limit
        low, high = np.full(shape, -self._largest - 1), np.full(shape, self._largest + 1)
        for _ in range(8 * self.dtype.itemsize + 1):
            middle = (low >> 1) + (high >> 1) + (low & high & 1)
            x = np.zeros((shape[0], self.features), self.dtype)
            x[:, source[own]] = self._numbered(middle[:, own])
            made = self._made(x, keeps_zeros=True)
            fits = (made.signs if of_signs else self._rounded(made.dense)) <= limits
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        found = self._numbered(low).astype(np.float64)
        found = np.where(low < -self._largest, -np.inf, found)
        return np.where(low == self._largest, np.inf, found)[row, output]

    def gaps(self, source: Array, outputs: Array) -> dict[int, list[Gap]]:
        """Intervals of x, by output, where steps leave a zero out or return a missing number."""
        found: dict[int, list[Gap]] = {}
        if self._made(np.zeros((1, self.features))).leaves_out:
            self._add_gaps(found, source, outputs, (-1.0, 0.0), of_signs=True)
        if not np.isnan(self.missing):
            number = np.float32(self.missing)
            edges = float(np.nextafter(number, np.float32(-np.inf))), float(number)
            self._add_gaps(found, source, outputs, edges, of_signs=False)
        return found

    def _add_gaps(
        self,
        found: dict[int, list[Gap]],
        source: Array,
        outputs: Array,
        edges: tuple[float, float],
        of_signs: bool,
    ) -> None:
        """Add the interval of x for which an output lies above the first edge up to the second."""
        limits = np.repeat(edges, len(outputs))
        low, high = self.greatest(source, np.tile(outputs, 2), limits, of_signs).reshape(2, -1)
        for output, above, last in zip(outputs.tolist(), low, high, strict=True):
            if above < last:
                x = np.zeros((1, self.features))
                x[0, source[output]] = np.clip(last, *self._range)
                gap = Gap(float(above), float(last), self.compared(x))
                found.setdefault(output, []).append(gap)

    @property
    def _range(self) -> tuple[float, float]:
        limits = np.finfo(self.dtype)
        return float(limits.min), float(limits.max)

    @property
    def _largest(self) -> int:
        """The number, as in `_numbered`, of the largest finite value."""
        return int(np.array(np.finfo(self.dtype).max).view(f"i{self.dtype.itemsize}"))

    def _numbered(self, number: Array) -> Array:
        """Floats by number, ascending: 0 is zero, 1 the least above it, -1 the greatest below."""
        size = np.minimum(np.abs(number), self._largest)
        value = size.astype(f"i{self.dtype.itemsize}").view(self.dtype)
        return np.where(number < 0, -value, value)


def _joined(steps: Sequence[Any]) -> Any:
    """A part's steps, as a ColumnTransformer has them."""
    if not steps:
        return "passthrough"
    from sklearn.pipeline import Pipeline

    return Pipeline([(f"step{number}", step) for number, step in enumerate(steps)])


def _stored(x: Array) -> Any:
    """x as a sparse matrix that leaves nothing out."""
    from scipy.sparse import csr_matrix

    rows, columns = x.shape
    places = np.tile(np.arange(columns), rows), np.arange(rows + 1) * columns
    return csr_matrix((x.ravel(), *places), shape=x.shape)


def _above(numbers: Array, dtype: np.dtype[Any]) -> Array:
    """The next greater numbers of a dtype."""
    return np.nextafter(numbers.astype(dtype), dtype.type(np.inf))


def _repeats(source: Array) -> Array:
    """The number of earlier outputs with the same source, for each output."""
    order = np.argsort(source, kind="stable")
    ordered = source[order]
    firsts = np.searchsorted(ordered, ordered)
    found = np.empty(len(source), np.int64)
    found[order] = np.arange(len(source)) - firsts
    return found


def accepting(steps: Sequence[Any]) -> list[Any]:
    """Copies of steps that accept any X: unknown categories, and negative numbers if sparse."""
    copied = copy.deepcopy(list(steps))
    for step in each_step(copied):
        if type(step).__name__ == "OneHotEncoder":
            step.handle_unknown = "ignore"
        elif type(step).__name__ == "QuantileTransformer":
            step.ignore_implicit_zeros = True
    return copied


def transformed(steps: Sequence[Any], x: Any, keeps_zeros: bool = False) -> Made:
    """Apply steps to x (rows, features).

    With `keeps_zeros`, a sparse matrix that is made from a dense one stores zeros.
    """
    return _transformed(steps, Made(x, np.full(x.shape, np.inf)), keeps_zeros)


def _transformed(steps: Sequence[Any], made: Made, keeps_zeros: bool) -> Made:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # about feature names, which x lacks
        for step in steps:
            made = _stepped(step, made, keeps_zeros)
            made = Made(_finite(made.matrix), made.signs)
    return made


def _finite(x: Any) -> Any:
    """x without infinities, which the next step refuses."""
    if x.dtype.kind != "f":
        return x
    limits = np.finfo(x.dtype)
    if hasattr(x, "toarray"):
        x.data = np.clip(x.data, limits.min, limits.max)
        return x
    return np.clip(x, limits.min, limits.max)


def _stepped(step: Any, made: Made, keeps_zeros: bool) -> Made:
    kind, x = type(step).__name__, made.matrix
    if kind in SELECTORS:  # most of these refuse NaN
        return made.take(step.get_support(indices=True))
    if kind == "ColumnTransformer":  # with names of columns it takes frames only
        parts = [
            _transformed(part.steps, made.take(part.columns), keeps_zeros)
            for part in parts_of(step, x.shape[1])
        ]
        return _side_by_side(step, parts, keeps_zeros)
    if kind == "MissingIndicator":  # X with NaN in other columns is refused before
        step = copy.copy(step).set_params(error_on_new=False)
    with _without_checks():  # a PowerTransformer refuses infinities that its powers make
        found = step.transform(x.copy())
    found = found.tocsr() if hasattr(found, "toarray") else np.asarray(found)
    return Made(found, _signs_behind(step, made.signs, found.shape))


def _without_checks() -> AbstractContextManager[None]:
    """A context in which scikit-learn takes infinite numbers."""
    from sklearn import config_context

    return config_context(assume_finite=True)


def _signs_behind(step: Any, signs: Array, shape: tuple[int, ...]) -> Array:
    """The signs of each column behind a step, infinite for columns that the step adds."""
    kept: Any = slice(None)
    if type(step).__name__ == "SimpleImputer":
        kept = filling_of(step).kept
    elif type(step).__name__ in ("OneHotEncoder", "MissingIndicator") or is_mixing(step):
        kept = slice(0)
    own = signs[:, kept]
    return np.hstack([own, np.full((shape[0], shape[1] - own.shape[1]), np.inf)])


def _side_by_side(transformer: Any, parts: list[Made], keeps_zeros: bool) -> Made:
    """Join the parts' matrices by columns, as scikit-learn's ColumnTransformer does.

    A sparse result leaves out zeros of dense parts, unless `keeps_zeros`.
    """
    signs = [each.signs for each in parts]
    if not transformer.sparse_output_:
        return Made(np.hstack([each.dense for each in parts]), np.hstack(signs))
    from scipy.sparse import csr_matrix, hstack

    given = [
        _stored(each.matrix) if keeps_zeros and not each.is_sparse else csr_matrix(each.matrix)
        for each in parts
    ]
    signs = [each.signs if each.is_sparse else np.sign(each.dense) for each in parts]
    return Made(hstack(given).tocsr(), np.hstack(signs))
