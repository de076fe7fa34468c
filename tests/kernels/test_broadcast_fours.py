"""Blocks of four inputs and four outputs: against the float64 oracle, and what they read."""

from dataclasses import replace

import matvec_checks
import numpy as np
import pytest
from matvec_checks import check, square_weights, target_of, templates_of

from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, MatVec

# Families and dtypes whose weights lie as float32, as far away as L2.
GAINING = {("broadcast-4x4", dtype): "L2" for dtype in ("bfloat16", "float16")}

pytestmark = pytest.mark.parametrize("row", templates_of("broadcast-4x4"))


@pytest.mark.parametrize("density", [0.1, 0.25])
def test_pool_and_steps_are_those_of_the_blocks(row, density):
    weights, target = square_weights((192, 256), density), target_of(row)
    image = check(row, weights)
    weight_bytes = 4 if row.dtype is DType.FLOAT32 else 2
    assert image.pool_bytes <= 1.05 * weight_bytes * np.count_nonzero(weights) + 1024
    spec = MatVec(*weights.shape, None, Activation.NONE, row.dtype)
    counts = row.expect(spec, SparseMatrix(weights), target)
    mnemonics = [text.split()[1] for text in image.listing()]
    assert counts.steps == sum(name in ("vfmadd231ps", "vpermilps") for name in mnemonics)


def test_short_weights_that_are_near_lie_as_float32_where_that_gains(row):
    weights = square_weights((70, 90), 0.3)
    spec = MatVec(*weights.shape, None, Activation.NONE, row.dtype)
    target = target_of(row)
    for widened, stored in (({}, row.dtype), (GAINING, DType.FLOAT32)):
        core = replace(target.core, widened=widened)
        lowered = row.lower(spec, SparseMatrix(weights), replace(target, core=core))
        assert lowered.counts.stored is lowered.storage.dtype is stored


def test_float32_of_short_weights_is_rounded(row, monkeypatch):
    target = target_of(row)
    target = replace(target, core=replace(target.core, widened=GAINING))
    monkeypatch.setattr(matvec_checks, "target_of", lambda row: target)
    check(row, square_weights((70, 90), 0.3))


def test_weights_beyond_l1(row):
    image = check(row, square_weights((600, 902), 0.3))
    assert image.pool_bytes > target_of(row).l1d_bytes
