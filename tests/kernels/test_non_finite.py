"""Results of NaN and infinity in x, by family, as docs/notes/models.md states it."""

from functools import cache

import numpy as np
import pytest
from matvec_checks import compile_kernel, scattered, templates_of

import sparsejit
from sparsejit.asm_templates.families import MATVEC_TEMPLATES, Template
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, MatVec, Quantisation
from sparsejit.native.executable_memory import ExecutableMemory

WEIGHTS = scattered((56, 72), 0.05)
X = np.random.default_rng(0).standard_normal(72).astype(np.float32)
BAD = [np.nan, np.inf, -np.inf]
# An input that begins a register, where kernels with the index in the weight park idle lanes, and
# one that does not.
PLACES = [64, 21]
# Rows that hold one block of the broadcast families, which is 8 or 16 outputs long.
BLOCK = 16

FAMILIES = dict.fromkeys(row.family for row in MATVEC_TEMPLATES)
EVERY_ROW = [row for family in FAMILIES for row in templates_of(family)]
FLOATS = [one for one in EVERY_ROW if one.values[0].dtype is not DType.INT8]
INTEGERS = [one for one in EVERY_ROW if one.values[0].dtype is DType.INT8]
ALONE = {"immediate"}  # an input without a weight is never read for a row
EVERY_OUTPUT = {"dense", "dot"}  # which multiply zeros too
BY_BLOCK = {"broadcast", "broadcast-loop", "broadcast-mixed"}
BY_SQUARE = {"broadcast-4x4"}  # which multiply the zeros of a block of four by four
IN_IDLE_LANES = {"broadcast-4x1", "permute", "permute-inline", "lane16", "lookup"}


@cache
def kernel_of(row: Template, input_scale: float | None) -> ExecutableMemory:
    steps = None if input_scale is None else Quantisation(input_scale, 0, symmetric=True)
    spec = MatVec(*WEIGHTS.shape, None, Activation.NONE, row.dtype, steps)
    return ExecutableMemory(compile_kernel(row, spec, SparseMatrix(WEIGHTS)).data)


def product(row: Template, x: np.ndarray, input_scale: float | None = None) -> np.ndarray:
    y = np.empty(len(WEIGHTS), np.float32)
    kernel_of(row, input_scale).function(2)(x.ctypes.data, y.ctypes.data)
    return y


def with_value(value: float, place: int) -> np.ndarray:
    x = X.copy()
    x[place] = value
    return x


def test_every_family_is_stated() -> None:
    stated = ALONE | EVERY_OUTPUT | BY_BLOCK | BY_SQUARE | IN_IDLE_LANES
    assert stated == {row.family for row in MATVEC_TEMPLATES if row.dtype is not DType.INT8}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", BAD, ids=str)
@pytest.mark.parametrize("row", FLOATS)
def test_outputs_with_a_weight_for_it_show_it(
    row: Template, value: float, place: int
) -> None:
    """Infinity may become NaN where the kernel keeps the index in the weight."""
    used = WEIGHTS[:, place] != 0
    y = product(row, with_value(value, place))[used]
    assert used.any() and not np.isfinite(y).any()
    if row.changes_weights_by == 0:
        expected = WEIGHTS[used, place] * np.float32(value)
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", BAD, ids=str)
@pytest.mark.parametrize("row", FLOATS)
def test_outputs_without_a_weight_for_it_are_nan_or_as_they_were(
    row: Template, value: float, place: int
) -> None:
    used = WEIGHTS[:, place] != 0
    y, without = product(row, with_value(value, place)), product(row, with_value(0, place))
    affected = np.isnan(y) & ~used
    np.testing.assert_array_equal(y[~used & ~affected], without[~used & ~affected])
    if row.family in ALONE:
        assert not affected.any()
    elif row.family in EVERY_OUTPUT:
        assert affected[~used].all()
    elif row.family in BY_BLOCK:
        padded = np.pad(used, (0, -len(used) % BLOCK)).reshape(-1, BLOCK)
        in_a_block = np.repeat(padded.any(axis=1), BLOCK)[: len(used)]
        assert affected.any() and not affected[~in_a_block].any()
    elif row.family in BY_SQUARE:
        inputs = slice(place // 4 * 4, place // 4 * 4 + 4)
        block_rows = (WEIGHTS[:, inputs] != 0).reshape(-1, 4 * 4).any(axis=1)
        assert affected.any() and not affected[~np.repeat(block_rows, 4)].any()


@pytest.mark.parametrize("row", INTEGERS)
def test_int8_with_a_step_of_its_own_spoils_every_output(row: Template) -> None:
    """The step follows from the largest magnitude, which is then no number."""
    for value in BAD:
        y = product(row, with_value(value, 21))
        assert np.isnan(y).all() if np.isnan(value) else not np.isfinite(y).any()


@pytest.mark.parametrize("row", INTEGERS)
def test_int8_with_a_fixed_step_clips(row: Template) -> None:
    """NaN counts as the largest value."""
    for value, clipped in ((np.nan, 1e6), (np.inf, 1e6), (-np.inf, -1e6)):
        y = product(row, with_value(value, 21), input_scale=0.05)
        expected = product(row, with_value(clipped, 21), input_scale=0.05)
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("activation", list(Activation))
def test_activations_pass_nan_on(activation: Activation) -> None:
    kernel = sparsejit.compile_matrix(WEIGHTS, activation=activation)
    assert np.isnan(kernel(with_value(np.nan, 21))[WEIGHTS[:, 21] != 0]).all()


@pytest.mark.parametrize("strategy", ["panels", "rows", "mixed"])
@pytest.mark.parametrize("value", BAD, ids=str)
def test_in_a_batch_only_its_own_column_is_touched(strategy: str, value: float) -> None:
    kernel = sparsejit.compile_matrix(WEIGHTS, batch=37, strategy=strategy)
    x = np.tile(X, (37, 1))
    clean = kernel(x)
    x[5, 21] = value
    y, used = kernel(x), WEIGHTS[:, 21] != 0
    others = np.arange(37) != 5
    np.testing.assert_array_equal(y[others], clean[others])
    assert not np.isfinite(y[5, used]).any()
    if strategy != "rows":  # a full panel multiplies by the weights there are
        assert np.isfinite(y[5, ~used]).all()
