"""Rows that native code takes as they are: arrays, none with a value that is not finite."""

from typing import Any

import numpy as np
import pytest

from sparsejit.runtime import array_checks as checking
from sparsejit.runtime.array_checks import rows_check

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("columns", [1, 3, 8, 16, 30, 33])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_a_value_that_is_not_finite_is_found_at_any_place(
    columns: int, dtype: np.dtype[Any]
) -> None:
    check = rows_check(columns, (FLOAT32, FLOAT64), finite=True)
    for rows in (1, 2, 7):
        X = RNG.standard_normal((rows, columns)).astype(dtype)
        assert check(X) is True
        for place in range(X.size):
            for value in (np.finfo(dtype).max, -np.finfo(dtype).smallest_subnormal):
                assert check(changed(X, place, value)) is True
            for value in (np.nan, -np.nan, np.inf, -np.inf):
                assert check(changed(X, place, value)) is False


def changed(X: np.ndarray, place: int, value: float) -> np.ndarray:
    other = X.copy()
    other.flat[place] = value
    return other


def test_only_rows_of_its_dtypes_are_taken() -> None:
    check = rows_check(3, (FLOAT32,), finite=False)
    X = np.full((4, 3), np.nan, np.float32)
    assert check(X) is True
    others = [X.astype(np.float64), X.astype(">f4"), X[:0], X[:, :2], X[:, ::-1], X.ravel(), X.T]
    for other in (*others, np.ma.array(X), None, 1.0, [[1.0] * 3]):
        assert check(other) is False


def test_vast_arrays_are_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_MOST_BYTES", 100)
    check = rows_check(5, (FLOAT32,), finite=True)
    assert check(np.zeros((5, 5), np.float32)) is True
    assert check(np.zeros((6, 5), np.float32)) is False
