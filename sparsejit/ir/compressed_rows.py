"""Matrices as compressed sparse rows, and the distinct numbers of an array."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput

IntArray = npt.NDArray[np.int64]

# A vast matrix has more elements than the first number, and more a nonzero than the second.
_SMALL, _ELEMENTS_A_NONZERO = 1 << 24, 512
_AT_ONCE = 1 << 22  # elements of a dense array that are scanned together
_MARKS_A_NUMBER = 8  # most marks scanned for each number; above that, sorting the numbers is faster


@dataclass(frozen=True, eq=False)
class CompressedRows:
    """A sparse matrix in CSR form: row r has `values[starts[r]:starts[r + 1]]`, at these `columns`.

    `shape` is (rows, columns). `starts` is int64 (rows + 1,); `columns`, int64, and `values` are
    (nonzeros,), the columns of a row ascending.
    """

    shape: tuple[int, int]
    starts: IntArray
    columns: IntArray
    values: npt.NDArray[Any]

    def check(self) -> None:
        """Raise InvalidInput for arrays that do not fit each other."""
        rows, columns = self.shape
        fits = (
            self.starts.shape == (rows + 1,)
            and self.columns.shape == self.values.shape == (self.starts[-1],)
            and not self.starts[0]
            and bool(np.all(np.diff(self.starts) >= 0))
        )
        if fits and len(self):
            inside = self.columns.min() >= 0 and self.columns.max() < columns
            ascends = (np.diff(self.rows) > 0) | (np.diff(self.columns) > 0)
            fits = bool(inside and ascends.all())
        if not fits:
            raise InvalidInput(
                f"compressed rows of shape {self.shape} have starts {self.starts.shape}, columns "
                f"{self.columns.shape} and values {self.values.shape} that do not fit each other; "
                "give each nonzero once, row after row"
            )

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_vast(self) -> bool:
        """Whether the matrix has too many zeros to store or scan its elements; see `is_vast`."""
        return is_vast(self.shape[0] * self.shape[1], len(self))

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    @property
    def ndim(self) -> int:
        return 2

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """Starts, columns and values."""
        return self.starts, self.columns, self.values

    @cached_property
    def rows(self) -> IntArray:
        """The row of each nonzero."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self.starts))

    def place(self, number: int) -> tuple[int, int]:
        """Row and column of nonzero `number`."""
        return int(self.rows[number]), int(self.columns[number])

    def some_rows(self, first: int, end: int) -> "CompressedRows":
        """Rows `first` to `end` - 1 as a matrix; its columns and values are views of this one's."""
        starts = self.starts[first : end + 1]
        own = slice(int(starts[0]), int(starts[-1]))
        shape = len(starts) - 1, self.shape[1]
        return CompressedRows(shape, starts - starts[0], self.columns[own], self.values[own])

    def with_values(self, values: npt.NDArray[Any]) -> "CompressedRows":
        """The matrix with `values`, one for each nonzero, in its place; zeros are left out."""
        kept = values != 0
        if kept.all():
            return CompressedRows(self.shape, self.starts, self.columns, values)
        before = np.append(0, np.cumsum(kept))
        return CompressedRows(self.shape, before[self.starts], self.columns[kept], values[kept])

    def dense(self) -> npt.NDArray[Any]:
        """The matrix as an array, zeros included."""
        array = np.zeros(self.shape, self.dtype)
        array[self.rows, self.columns] = self.values
        return array

    def largest_by_row(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The largest of `values`, one for each nonzero, in each row (rows,); 0 in an empty row."""
        largest = np.zeros(self.shape[0], values.dtype)
        used = np.flatnonzero(np.diff(self.starts))
        if len(used):
            largest[used] = np.maximum.reduceat(values, self.starts[used])
        return largest

    def sums_by_row(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """The sum of `values`, one for each nonzero, in each row: float64 (rows,)."""
        sums = np.bincount(self.rows, values.astype(np.float64), minlength=self.shape[0])
        return sums.astype(np.float64)

    @classmethod
    def of_places(
        cls, shape: tuple[int, ...], rows: IntArray, columns: IntArray, values: npt.NDArray[Any]
    ) -> "CompressedRows":
        """Make rows from elements in any order; elements of one place are added, as in scipy."""
        order = np.lexsort((columns, rows))
        rows, columns, values = rows[order], columns[order], values[order]
        new = np.ones(len(rows), bool)
        new[1:] = (np.diff(rows) != 0) | (np.diff(columns) != 0)
        if not new.all():
            values = np.add.reduceat(values, np.flatnonzero(new))
            rows, columns = rows[new], columns[new]
        starts = np.searchsorted(rows, np.arange(shape[0] + 1))
        found = cls((shape[0], shape[1]), starts, columns, values)
        return found.with_values(values)

    @classmethod
    def of_numbers(
        cls, shape: tuple[int, int], numbers: IntArray, values: npt.NDArray[Any]
    ) -> "CompressedRows":
        """Make rows from nonzeros at the flat, row-major indices `numbers`, which ascend."""
        row, column = np.divmod(numbers, shape[1])
        return cls(shape, np.searchsorted(row, np.arange(shape[0] + 1)), column, values)

    @classmethod
    def of(cls, array: npt.NDArray[Any]) -> "CompressedRows":
        """Make rows from the nonzeros of a dense array (rows, columns); NaN counts as one."""
        rows, columns = array.shape
        at_once = max(1, _AT_ONCE // columns)
        parts = []
        for first in range(0, rows, at_once):
            part = np.ascontiguousarray(array[first : first + at_once])
            used = part != 0
            places, counts = np.flatnonzero(used), np.count_nonzero(used, axis=1)
            before = np.repeat(np.arange(len(part)) * columns, counts)
            parts.append((counts, places - before, part.ravel()[places]))
        counts, found, values = (np.concatenate(each) for each in zip(*parts, strict=True))
        return cls((rows, columns), np.append(0, np.cumsum(counts)), found, values)


def is_vast(elements: int, nonzeros: int) -> bool:
    """Whether a matrix has so few nonzeros that work on all its elements would cost too much."""
    return elements > max(_SMALL, _ELEMENTS_A_NONZERO * nonzeros)


def distinct(numbers: IntArray, below: int) -> tuple[IntArray, IntArray]:
    """The distinct ones of `numbers` (0 to `below` - 1), ascending; each number's index there."""
    if _are_few(numbers, below):
        order = np.argsort(numbers, kind="stable")
        new = _changes(numbers[order])
        places = np.empty(len(numbers), np.int64)
        places[order] = np.cumsum(new) - 1
        return numbers[order][new], places
    marks = _marks(numbers, below)
    return np.flatnonzero(marks), (np.cumsum(marks) - 1)[numbers]


def count_distinct(numbers: IntArray, below: int) -> int:
    """Count of distinct numbers among numbers in 0 .. `below` - 1."""
    if _are_few(numbers, below):
        return int(np.count_nonzero(_changes(np.sort(numbers))))
    return int(np.count_nonzero(_marks(numbers, below)))


def _are_few(numbers: IntArray, below: int) -> bool:
    return below > max(_AT_ONCE, _MARKS_A_NUMBER * len(numbers))


def _changes(ascending: IntArray) -> npt.NDArray[np.bool_]:
    """Whether each number differs from the one before."""
    return np.diff(ascending, prepend=-1) != 0


def _marks(numbers: IntArray, below: int) -> npt.NDArray[np.bool_]:
    marks = np.zeros(below, bool)
    marks[numbers] = True
    return marks
