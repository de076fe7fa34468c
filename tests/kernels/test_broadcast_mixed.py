"""Straight-line code and loops side by side: against the float64 oracle, and what L1 holds."""

from dataclasses import replace

import pytest
from matvec_checks import block_weights, check, compile_kernel, target_of, templates_of

from sparsejit.asm_templates.broadcast.mixed import straight_rows
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, MatVec

every_row = pytest.mark.parametrize("row", templates_of("broadcast-mixed"))


@every_row
@pytest.mark.parametrize("shape", [(1024, 1024), (3072, 512), (600, 2000)])
@pytest.mark.parametrize(("block_rows", "density"), [(8, 0.05), (16, 0.05), (16, 0.2)])
def test_code_fits_l1_whatever_the_matrix(row, shape, block_rows, density):
    weights = block_weights(shape, density, block_rows)
    image, target = check(row, weights), target_of(row)
    rows = straight_rows(SparseMatrix(weights), target, row.dtype)
    assert rows % target.lanes == 0 and rows < shape[0]
    assert 0.5 * target.l1i_bytes < image.code_bytes <= 1.1 * target.l1i_bytes


@every_row
def test_code_within_l1_has_no_loop(row):
    matrix = SparseMatrix(block_weights((100, 64), 0.2, 16))
    assert straight_rows(matrix, target_of(row), row.dtype) == 100


@pytest.mark.parametrize(
    "row",
    [
        parameter
        for parameter in templates_of("broadcast") + templates_of("broadcast-mixed")
        if parameter.id.startswith("bf16") and parameter.id.endswith("avx512")
    ],
)
def test_two_short_weights_share_a_load_where_lines_are_read_in_order(row):
    image = check(row, block_weights((128, 200), 0.2, 16))
    unpacking = [text for text in image.listing() if "vpslld" in text or "vpandd" in text]
    assert len(unpacking) > 100 and not any("[" in text for text in unpacking)


@every_row
def test_lines_are_left_out_only_where_that_gains(row):
    weights = block_weights((1024, 1024), 0.05, 16)
    spec = MatVec(*weights.shape, None, Activation.NONE, row.dtype)
    for gains in (True, False):
        target = target_of(row)
        target = replace(target, core=replace(target.core, padding=gains))
        image = compile_kernel(row, spec, SparseMatrix(weights), target)
        assert bool(image.counts["padding_bytes"]) is gains
