"""The error of values against exact values, as one number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsejit.ir.values import Array


class ErrorSums:
    """The error of one value, over several arrays of it.

    Attributes:
        largest: the largest difference, over the largest exact value
        mean: the root mean square of the difference, over the root mean square of the exact values

    Where the exact values are whole numbers or bool, both are the share of elements that differ.
    """

    def __init__(self) -> None:
        self._most_off = self._most = self._squares_off = self._squares = 0.0
        self._wrong = self._count = 0

    def add(self, found: Array, exact: Array) -> None:
        """Add an array and its exact values."""
        if exact.dtype.kind != "f":
            self._wrong += int(np.count_nonzero(found != exact))
            self._count += exact.size
            return
        exact = exact.astype(np.float64, copy=False)
        with np.errstate(invalid="ignore"):
            off = np.where(found == exact, 0.0, found - exact)  # equal infinities are no error
        finite = exact[np.isfinite(exact)]
        self._most_off = float(np.fmax(self._most_off, np.abs(off).max(initial=0.0)))
        if np.isnan(off).any():
            self._most_off = float("inf")
        self._most = max(self._most, float(np.abs(finite).max(initial=0.0)))
        self._squares_off += float(np.square(off).sum())
        self._squares += float(np.square(finite).sum())

    @property
    def largest(self) -> float:
        return self._wrong / self._count if self._count else self._most_off / (self._most or 1.0)

    @property
    def mean(self) -> float:
        if self._count:
            return self._wrong / self._count
        return float(np.sqrt(self._squares_off / (self._squares or 1.0)))


class OutputErrors:
    """The errors of a model's outputs, over several elements of the data."""

    def __init__(self) -> None:
        self._sums: list[ErrorSums] = []

    def add(self, found: Sequence[Array], exact: Sequence[Array]) -> None:
        """Add the outputs of an element, and the exact ones."""
        self._sums = self._sums or [ErrorSums() for _ in exact]
        for one, *pair in zip(self._sums, found, exact, strict=True):
            one.add(*pair)

    @property
    def largest(self) -> float:
        """The largest error of the worst output."""
        return max((one.largest for one in self._sums), default=0.0)

    @property
    def mean(self) -> float:
        """The mean error of the worst output."""
        return max((one.mean for one in self._sums), default=0.0)


def output_error(found: Sequence[Sequence[Array]], exact: Sequence[Sequence[Array]]) -> float:
    """Return the largest error of the worst output.

    Both arguments have a list of outputs for each element of the data.
    """
    return _errors(found, exact).largest


def mean_output_error(found: Sequence[Sequence[Array]], exact: Sequence[Sequence[Array]]) -> float:
    """Return the mean error of the worst output; the arguments are as in `output_error`."""
    return _errors(found, exact).mean


def _errors(found: Sequence[Sequence[Array]], exact: Sequence[Sequence[Array]]) -> OutputErrors:
    errors = OutputErrors()
    for pair in zip(found, exact, strict=True):
        errors.add(*pair)
    return errors
