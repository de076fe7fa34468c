"""The tables of fitted encoders, asked of the encoders themselves.

    tables_of   for each column of an encoder, results for the values that it knows

An encoder transforms one value of every column at a time, so that each result is the library's own.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsejit.ir.values import Array

ENCODERS = frozenset({"OneHotEncoder", "OrdinalEncoder", "TargetEncoder"})
_WORDS = "OUS"  # kinds of dtypes of categories that are no numbers


@dataclass(frozen=True, eq=False)
class EncoderTable:
    """The results of one column of an encoder.

    `values` (known,) are categories, and values that imputers replace by categories. `results`
    (known, outputs) are the encoder's results for them, `unknown` (outputs,) is its result for all
    other values, None where it refuses these.
    """

    values: list[Any]
    results: Array
    unknown: Array | None

    def result_of_nan(self) -> Array | None:
        """The result for NaN: of a category, or as for other values."""
        for value, result in zip(self.values, self.results, strict=True):
            if is_nan(value):
                return result
        return self.unknown


# A replacement of one value by another, by an imputer before an encoder.
Fill = tuple[Any, Any]


def is_nan(value: Any) -> bool:
    """Whether a value of a column, which may be a word, is NaN."""
    return isinstance(value, float | np.floating) and bool(value != value)


def has_words(encoder: Any, number: int) -> bool:
    """Whether the categories of a column are strings or objects."""
    return np.asarray(encoder.categories_[number]).dtype.kind in _WORDS


def groups_rare(encoder: Any) -> bool:
    """Whether rare categories share a result."""
    return any(getattr(encoder, name, None) for name in ("min_frequency", "max_categories"))


def filled(value: Any, fills: Sequence[Fill]) -> Any:
    """Return the value after each imputer, in turn, has replaced it."""
    for missing, fill in fills:
        if _same(value, missing):
            value = fill
    return value


def tables_of(encoder: Any, fills: Sequence[Sequence[Fill]]) -> list[EncoderTable]:
    """The table of each column, behind the replacements of its values."""
    categories = [np.asarray(each).tolist() for each in encoder.categories_]
    given = [_values(*each) for each in zip(categories, fills, strict=True)]
    refuses = encoder.__dict__.get("handle_unknown") == "error"
    rows = max(map(len, given)) + 1
    x = np.empty((rows, len(given)), object)
    for number, (values, known) in enumerate(zip(given, categories, strict=True)):
        behind = [filled(value, fills[number]) for value in values]
        behind += [known[0] if refuses else _Unknown()]
        x[:, number] = known[0]
        x[: len(behind), number] = behind
    found = _transformed(encoder, x)
    tables, first = [], 0
    for number, values in enumerate(given):
        width = _width(encoder, number)
        results = found[: len(values) + 1, first : first + width]
        tables.append(EncoderTable(values, results[:-1], None if refuses else results[-1]))
        first += width
    assert first == found.shape[1]
    return tables


class _Unknown:
    """A value that no encoder knows."""


def _values(categories: list[Any], fills: Sequence[Fill]) -> list[Any]:
    """The values of a column that are known categories once imputers have replaced them."""
    known = {each for each in categories if not is_nan(each)}
    has_nan = any(map(is_nan, categories))

    def is_known(value: Any) -> bool:
        behind = filled(value, fills)
        return has_nan if is_nan(behind) else behind in known

    extra = [missing for missing, _ in fills]
    found: list[Any] = []
    for value in [*categories, *extra]:
        if is_known(value) and not any(_same(value, other) for other in found[len(categories) :]):
            found.append(value)
    return found


def _same(value: Any, other: Any) -> bool:
    """Whether values are equal, NaN counted as equal to NaN."""
    return bool(value is other or value == other or (is_nan(value) and is_nan(other)))


def _width(encoder: Any, number: int) -> int:
    """The number of results of a column."""
    kind = type(encoder).__name__
    if kind == "TargetEncoder":
        several = encoder.target_type_ == "multiclass"
        return len(encoder.classes_) if several else 1
    if kind == "OrdinalEncoder":
        return 1
    count = len(encoder.categories_[number])
    rare = encoder.infrequent_categories_[number] if groups_rare(encoder) else None
    dropped = encoder.drop_idx_
    count -= 0 if rare is None else len(rare) - 1
    return count - (dropped is not None and dropped[number] is not None)


def _transformed(encoder: Any, x: Array) -> Array:
    """The results for an array of objects, as float64."""
    plain = copy.copy(encoder)
    plain.__dict__.pop("feature_names_in_", None)
    plain.__dict__.pop("_sklearn_output_config", None)
    plain.__dict__.update(dtype=np.float64, sparse_output=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about unknown values
        return np.asarray(plain.transform(x), np.float64)
