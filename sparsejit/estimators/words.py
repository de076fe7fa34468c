"""Columns of codes that are read from words: strings, categories, None, and numbers as objects.

    WordColumn     a feature of X, and the code of each word in it
    WordColumns    several such columns, which follow the features of X in the array that is read

A word's code is found in a dict, natively for arrays of objects (`runtime/object_cells.py`). Words
are what Python finds equal, as in scikit-learn's encoders. Features of words become 0; no step
reads these, since every step that reads words reads a column of codes instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.encoders import is_nan
from sparsejit.ir.values import Array
from sparsejit.runtime.object_cells import REFUSED, cells_reader

# Frames of at most 16 rows become one array of objects; larger ones are read column by column.
FEW_ROWS = 16
_NO_NUMBERS = "cmMSV"  # kinds of dtypes that numpy would turn into float64 all the same


@dataclass(frozen=True, eq=False)
class WordColumn:
    """The code of each word in a feature of X.

    `codes` are the words that are known, `nan` is the code of any NaN, `others` the code of all
    other words; None where these are refused. `step` is the name of the step that refuses.
    """

    feature: int
    codes: dict[Any, float]
    nan: float | None
    others: float | None
    step: str

    def read(self, objects: Array) -> Array:
        """The codes of an array of objects. Raises InvalidInput for the first that is refused."""
        codes = np.empty((len(objects), 1))
        if cells_reader()(np.ascontiguousarray(objects[:, None]), self._table, codes):
            return codes[:, 0]
        return self.coded(objects.tolist())

    @cached_property
    def _table(self) -> Array:
        row = [0, id(self.codes), _bits(self.nan), _bits(self.others)]
        return np.array([row], np.int64)

    def coded(self, values: Sequence[Any]) -> Array:
        """The codes of values. Raises InvalidInput for the first that is refused."""
        return np.array([self._code(value) for value in values], np.float64)

    def _code(self, value: Any) -> float:
        try:
            found = self.codes.get(value)
        except TypeError as error:  # such as a list
            raise InvalidInput(
                f"column {self.feature} of X has {value!r}; give strings or numbers ({error})"
            ) from error
        if found is None:
            found = self.nan if is_nan(value) else self.others
        if found is None:
            raise InvalidInput(
                f"column {self.feature} of X has {value!r}, which the {self.step} did not see; "
                "replace it, or fit with another handle_unknown"
            )
        return found


@dataclass(frozen=True, eq=False)
class WordColumns:
    """The columns of codes behind `features` features of X; `is_read` are the features of numbers.

    Other features hold words. With `reads_codes` words are categories of a frame, as pandas has
    them, and arrays have their codes.
    """

    features: int
    columns: tuple[WordColumn, ...]
    is_read: Array
    reads_codes: bool = False

    @property
    def width(self) -> int:
        """The number of columns of the array that `read` returns."""
        return self.features + len(self.columns)

    def reads(self, X: Any) -> bool:
        """Whether `read` must read X: there are columns of codes, or X is no array or matrix."""
        return bool(self.columns) or not (isinstance(X, np.ndarray) or hasattr(X, "toarray"))

    def read(self, columns: Sequence[Any]) -> Array:
        """The columns of a frame, as `frame_columns` has them, as float64 (rows, width).

        Raises InvalidInput for words that are refused, and for numbers that are none.
        """
        if self.reads_codes:
            self._check_categories(columns)
        rows = len(columns[0])
        if rows > FEW_ROWS:
            return self._by_columns(columns)
        objects = np.empty((rows, self.features), object)
        for number, column in enumerate(columns):
            if rows == 1:  # one cell of a column of categories is read faster than an array of it
                objects[0, number] = column[0]
            else:
                objects[:, number] = np.asarray(column, object)
        array = np.empty((rows, self.width))
        read = cells_reader()(objects, self._table, array)
        return array if read else self._by_columns(columns)

    def read_array(self, X: Array) -> Array:
        """An array of objects (rows, features), as `read` reads a frame."""
        if self.reads_codes:
            numbers = [_numbers(column, number) for number, column in enumerate(X.T)]
            return np.stack([*numbers, *(numbers[each] for each in self._sources)], axis=1)
        array = np.empty((len(X), self.width))
        read = cells_reader()(np.ascontiguousarray(X), self._table, array)
        return array if read else self._by_columns(list(X.T))

    def _check_categories(self, columns: Sequence[Any]) -> None:
        """Raise InvalidInput unless a frame has categories in the columns of the fit."""
        kinds = [_has_categories(column) for column in columns]
        if np.flatnonzero(kinds).tolist() != sorted(set(self._sources)):
            raise InvalidInput(
                f"X has categories in the columns {np.flatnonzero(kinds).tolist()}; the fit had "
                f"them in {sorted(set(self._sources))}: X[column].astype('category')"
            )

    @property
    def _sources(self) -> list[int]:
        return [column.feature for column in self.columns]

    @cached_property
    def _table(self) -> Array:
        numbers = [(8 * n, 0, 0, 0) for n in range(self.features)]
        # A feature of words is read through an empty dict, which makes 0 of all of them.
        nothing = id(self._nothing), _bits(0.0), _bits(0.0)
        rows = [
            row if read else (row[0], *nothing)
            for row, read in zip(numbers, self.is_read.tolist(), strict=True)
        ]
        rows += [
            (8 * each.feature, id(each.codes), _bits(each.nan), _bits(each.others))
            for each in self.columns
        ]
        return np.array(rows, np.int64)

    @cached_property
    def _nothing(self) -> dict[Any, float]:
        return {}

    def _by_columns(self, columns: Sequence[Any]) -> Array:
        """The array of columns of a frame or of arrays."""
        array = np.zeros((len(columns[0]), self.width))
        for number in np.flatnonzero(self.is_read).tolist():
            array[:, number] = _numbers(columns[number], number)
        objects: dict[int, Array] = {}
        for place, column in enumerate(self.columns, self.features):
            given = columns[column.feature]
            if _has_categories(given):
                array[:, place] = _of_categories(column, given)
                continue
            if column.feature not in objects:
                objects[column.feature] = _objects(given)
            array[:, place] = column.read(objects[column.feature])
        return array


def frame_columns(frame: Any, numbers: Iterable[int] | None = None) -> list[Any]:
    """The columns of a frame, or some by number, as arrays of numpy or pandas."""
    wanted = range(frame.shape[1]) if numbers is None else numbers
    # pandas makes a Series in 6 us, and its array, by a function that is not public, in 0.5 us.
    get = getattr(frame, "_get_column_array", None)
    if get is None:
        return [frame.iloc[:, number].array for number in wanted]
    return [get(number) for number in wanted]


def _has_categories(column: Any) -> bool:
    return hasattr(column, "categories")


def _bits(code: float | None) -> int:
    return REFUSED if code is None else int(np.float64(code).view(np.int64))


def _objects(values: Any) -> Array:
    if hasattr(values, "to_numpy"):
        return np.asarray(values.to_numpy(dtype=object))
    return np.asarray(values, object)


def _of_categories(column: WordColumn, given: Any) -> Array:
    """The codes of a column of categories, each of which is looked up once if it is there."""
    places = np.asarray(given.codes)
    there, inverse = np.unique(places, return_inverse=True)
    names = given.categories
    found = column.coded([np.nan if place < 0 else names[place] for place in there.tolist()])
    return found[inverse]


def _numbers(values: Any, number: int) -> Array:
    """A column of numbers as float64, with NaN for missing ones. Raises InvalidInput for others."""
    if getattr(getattr(values, "dtype", None), "kind", "O") in _NO_NUMBERS:
        raise InvalidInput(
            f"column {number} of X has dtype {values.dtype}; give real numbers, as float64"
        )
    try:
        if hasattr(values, "to_numpy"):
            missing = {} if isinstance(values.dtype, np.dtype) else {"na_value": np.nan}
            return np.asarray(values.to_numpy(dtype=np.float64, **missing))
        return np.asarray(values).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"column {number} of X is no column of numbers ({error})") from error
