"""Cells of arrays of objects as codes and numbers, and those that are left to slower code."""

from typing import Any

import numpy as np
import pytest

from sparsejit.runtime.object_cells import REFUSED, cells_reader

CODES = {"aa": 0.0, "b": 1.0, None: 7.0, True: 3.0}


def bits(code: float) -> int:
    return int(np.float64(code).view(np.int64))


# A feature of numbers, one of words that takes others, and one that refuses them.
TABLE = np.array(
    [
        [0, 0, 0, 0],
        [8, id(CODES), bits(5), bits(-1)],
        [16, id(CODES), REFUSED, REFUSED],
    ]
)


def read(rows: list[list[Any]]) -> Any:
    result = np.zeros((len(rows), 3))
    objects = np.empty((len(rows), 3), object)
    objects[:] = rows
    return result if cells_reader()(objects, TABLE, result) else None


def test_words_become_codes_and_numbers_stay() -> None:
    found = read(
        [
            [1.5, "aa", "b"],
            [7, None, "aa"],
            [True, float("nan"), "b"],
            [-1, "z", 1],
            [np.float32(3.5), np.str_("b"), None],
            [-1.0, -0.5, "".join(["a", "a"])],
            [float("nan"), -float("nan"), "b"],
        ]
    )
    wanted = [[1.5, 0, 1], [7, 7, 0], [1, 5, 1], [-1, -1, 3], [3.5, 1, 7], [-1, -1, 0]]
    np.testing.assert_array_equal(found[:-1], wanted)
    np.testing.assert_array_equal(found[-1], [np.nan, 5, 1])


@pytest.mark.parametrize(
    "row",
    [
        ["1.5", "aa", "b"],
        [None, "aa", "b"],
        [10**400, "aa", "b"],
        [1.0, "aa", "z"],
        [1.0, "aa", float("nan")],
        [1.0, "aa", 0.5],
        [1.0, ["aa"], "b"],
        [1.0, np.float32("nan"), "b"],
    ],
    ids=str,
)
def test_odd_cells_are_left_to_slower_code(row: list[Any]) -> None:
    assert read([row]) is None
    assert read([[1.0, "aa", "b"], row]) is None


def test_no_rows_are_read_at_once() -> None:
    assert cells_reader()(np.empty((0, 3), object), TABLE, np.zeros((0, 3))) is True


def test_no_reference_is_kept() -> None:
    import sys

    word = "".join(["some", " word"])
    before = sys.getrefcount(word)
    for _ in range(50):
        read([[1.0, word, "b"], [2, word, "b"]])
    assert sys.getrefcount(word) == before
