"""Activations behind products, of sums that are large, infinite, NaN or below the normal numbers.

A kernel applies an activation to its sums in its own place, so each is asked. Weights of a row have
one sign, so that no infinities cancel.
"""

from functools import cache

import numpy as np
import pytest
from matvec_checks import compile_kernel, templates_of
from test_batch import KINDS, compiled
from test_every_family import OF_1, ZEROS

from sparsejit.asm_templates.families import MATVEC_TEMPLATES, Template
from sparsejit.ir import reference
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, Layout, MatMul, MatVec
from sparsejit.native.executable_memory import ExecutableMemory

SHAPE = (40, 24)
# The value of all elements of x; 3e38 makes sums that float32 does not hold.
EDGES = [0.0, 1e-41, 1e-30, 1e-3, 0.5, 4.0, 10.0, 90.0, 1e4, 1e20, 1e30, 3e38, np.inf, np.nan]
FAMILIES = dict.fromkeys(row.family for row in MATVEC_TEMPLATES)
ROWS = [row for family in FAMILIES for row in templates_of(family)]
BATCH = 5
WITHOUT_ZEROS = ("dense", "dot")


@cache
def weights_for(family: str) -> np.ndarray:
    """Rows of one sign by turns, with the zeros that the family takes, none of them empty."""
    kept = ZEROS.get(family, (OF_1,))[0](SHAPE, 0.3, seed=3) != 0
    if family == "immediate":  # which has room for few
        kept &= np.arange(SHAPE[1]) % 12 == 1
    if family in WITHOUT_ZEROS:
        kept |= True
    signs = np.where(np.arange(SHAPE[0]) // 4 % 2 == 0, 1, -1)[:, None]
    return (kept * signs * np.linspace(1, 2, SHAPE[1])).astype(np.float32)


def expected(spec: MatVec, matrix: SparseMatrix, value: float) -> np.ndarray:
    """In float64, with sums that float32 does not hold as infinite as they are there."""
    rows = reference.stored_weights(matrix, spec.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        sums = np.where(rows != 0, rows * float(np.float32(value)), 0.0).sum(axis=1)
        rounded = sums.astype(np.float32).astype(np.float64)
        return reference.ACTIVATIONS[spec.activation](rounded)


def wrong(found: np.ndarray, wanted: np.ndarray, value: float, row: Template) -> str:
    """The differences, or nothing."""
    if np.isinf(value) and row.dtype is DType.INT8:  # the step is no number then
        return ""
    nan = np.isnan(wanted)
    with np.errstate(invalid="ignore"):
        close = np.abs(found - wanted) <= 1e-6 + _tolerance(row) * np.abs(wanted)
    same = np.where(np.isfinite(wanted), close, found == wanted)
    if np.isinf(value) and row.family not in WITHOUT_ZEROS:
        same |= np.isnan(found)  # a product took zeros in, or an index lies in the weight
    bad = ~np.where(nan, np.isnan(found), same)
    return f"x = {value}: {found[bad][:4]} instead of {wanted[bad][:4]}" if bad.any() else ""


def _tolerance(row: Template) -> float:
    return 0.02 if row.dtype is DType.INT8 else 2e-5


@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("row", ROWS)
def test_of_a_vector(row: Template, activation: Activation) -> None:
    matrix = SparseMatrix(weights_for(row.family))
    spec = MatVec(*SHAPE, None, activation, row.dtype)
    kernel = ExecutableMemory(compile_kernel(row, spec, matrix).data)
    native, y = kernel.function(2), np.empty(SHAPE[0], np.float32)
    found = []
    for value in EDGES:
        x = np.full(SHAPE[1], value, np.float32)
        native(x.ctypes.data, y.ctypes.data)
        found.append(wrong(y, expected(spec, matrix, value), value, row))
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in KINDS])
def test_of_a_batch(row: Template, activation: Activation, layout: Layout) -> None:
    matrix = SparseMatrix(weights_for(row.family))
    each = MatVec(*SHAPE, None, activation, row.dtype)
    spec = MatMul(each, BATCH, layout)
    native = compiled(row, spec, matrix).function(2)
    found = []
    for edge in EDGES:
        value = edge
        if row.family == "dense-pairs":  # rounds x
            value = float(reference.round_to_bfloat16(np.array([edge], np.float32))[0])
        x = np.full(spec.x_shape, value, np.float32)
        y = np.empty(spec.y_shape, np.float32)
        native(x.ctypes.data, y.ctypes.data)
        rows = y if layout is Layout.BATCH_MAJOR else y.T
        wanted = expected(each, matrix, value)
        found += [wrong(one, wanted, value, row) for one in rows]
    assert not any(found), "\n".join(filter(None, found))
