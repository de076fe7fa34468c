"""SparseMatrix: what it refuses, and its statistics against slow counting."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sparsejit.errors import InvalidInput
from sparsejit.ir import reference
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import SMALLEST_SCALE

shapes = st.tuples(st.integers(1, 40), st.integers(1, 12))
weights_with_zeros = shapes.flatmap(
    lambda shape: arrays.arrays(
        np.float32, shape, elements=st.sampled_from([0.0, -0.0, 0.5, -3.0, 1e-40])
    )
)


@given(weights_with_zeros, st.sampled_from([1, 4, 8, 16]))
def test_statistics_are_what_counting_gives(weights: np.ndarray, rows: int) -> None:
    matrix = SparseMatrix(weights)
    kept = [[bool(value != 0) for value in row] for row in weights.tolist()]
    assert matrix.nnz == sum(map(sum, kept))
    assert list(matrix.row_counts) == [sum(row) for row in kept]
    blocks = [kept[first : first + rows] for first in range(0, len(kept), rows)]
    mask = [[any(column) for column in zip(*block, strict=True)] for block in blocks]
    assert matrix.block_mask(rows).tolist() == mask
    held = sum(map(sum, mask))
    assert matrix.block_fill(rows) == (matrix.nnz / (held * rows) if held else 1.0)
    assert matrix.density == matrix.nnz / weights.size


def test_statistics_for_a_report() -> None:
    weights = np.zeros((16, 4), np.float32)
    weights[:8, 1] = 1
    assert SparseMatrix(weights).statistics() == {
        "out_features": 16,
        "in_features": 4,
        "nnz": 8,
        "density": 0.125,
        "fill_1x8": 1.0,
        "fill_1x16": 0.5,
    }


def test_the_copy_is_the_matrix_own() -> None:
    weights = np.ones((3, 4), np.float32)
    matrix = SparseMatrix(weights)
    weights[0, 0] = 5
    assert matrix.dense[0, 0] == 1
    with pytest.raises(ValueError, match="read-only"):
        matrix.dense[0, 0] = 2


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8, np.uint32])
@pytest.mark.parametrize("order", ["C", "F"])
def test_any_real_dtype_and_layout_is_taken(dtype: type, order: str) -> None:
    weights = np.array([[1, 0, 3], [0, 5, 6]], dtype, order=order)
    matrix = SparseMatrix(weights)
    assert matrix.dense.dtype == np.float32 and matrix.dense.flags.c_contiguous
    assert matrix.dense.tolist() == weights.tolist()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.zeros(3), r"shape \(3,\); give a 2-d array \(out_features, in_features\)"),
        (np.zeros((2, 2, 2)), r"shape \(2, 2, 2\)"),
        (np.zeros((0, 4)), r"shape \(0, 4\).*at least 1"),
        (3.0, r"shape \(\)"),
        (np.zeros((2, 2), complex), "dtype complex128; give real numbers"),
        (np.zeros((2, 2), bool), "dtype bool; give real numbers"),
        (np.array([["a", "b"]]), "dtype <U1; give real numbers"),
        ([[1.0, 2.0], [float("nan"), 3.0]], r"weights\[1, 0\] is nan \(of 1 values"),
        ([[1.0, float("inf")], [3.0, float("-inf")]], r"weights\[0, 1\] is inf \(of 2 values"),
        (np.array([[1e300]]), r"weights\[0, 0\] is 1e\+300 .* float32 cannot hold"),
    ],
    ids=lambda value: "" if isinstance(value, str) else None,
)
def test_bad_weights_are_refused_with_the_value_and_the_remedy(
    weights: Any, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        SparseMatrix(weights)


@pytest.mark.parametrize("least", [1, 3, 60, 126, 127])
def test_rows_of_whole_steps_keep_them_as_int8(least: int) -> None:
    """As of a network quantised with one scale for all rows, whose largest are not all 127."""
    random = np.random.default_rng(least)
    integers = random.integers(-least, least + 1, (40, 90)) * (random.random((40, 90)) < 0.3)
    integers[:, 7] = least
    scale = np.float32(0.0123)
    matrix = SparseMatrix(integers * scale)
    assert matrix.is_whole_steps
    found, steps = reference.quantised_weights(matrix)
    np.testing.assert_allclose(found * steps[:, None], matrix.dense, rtol=1e-5)
    if least > 63:  # else of twice as fine steps all are whole numbers too
        np.testing.assert_array_equal(found, integers)


def test_the_step_of_whole_numbers_is_one() -> None:
    """So that their sums are whole numbers; not of numbers close to these."""
    weights = np.float32([[1, -1, 0], [63, 21, -42], [127, 1, 5], [128, 1, 5], [1.25, 2, 3]])
    matrix = SparseMatrix(np.concatenate([weights, np.float32([[1e-5, 0, 1e-6]])]))
    np.testing.assert_array_equal(matrix.int8_steps[:3], 1)
    assert np.all(matrix.int8_steps[3:] != 1)
    assert matrix.int8_steps[5] < 1e-6


def test_rows_of_other_numbers_have_127_steps() -> None:
    weights = np.random.default_rng(0).standard_normal((9, 50)).astype(np.float32)
    weights[3] = 0
    weights[4] = 1e-42
    matrix = SparseMatrix(weights)
    assert not matrix.is_whole_steps
    largest = np.abs(weights).max(axis=1)
    expected = np.maximum(largest / np.float32(127), np.float32(SMALLEST_SCALE))
    np.testing.assert_array_equal(matrix.int8_steps, expected)
