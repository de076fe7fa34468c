"""lane16 against the float64 oracle, on its pattern and off it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matvec_checks import check, templates_of

from sparsejit.asm_templates.gather import permute
from sparsejit.ir.sparse_matrix import LANE16, SparseMatrix
from sparsejit.ir.spec import Activation, MatVec
from sparsejit.machine.target import Target
from sparsejit.perf.problems import Problem

every_template = pytest.mark.parametrize("row", templates_of("lane16"))


@every_template
@settings(max_examples=20, deadline=None)
@given(
    groups=st.integers(1, 20),
    windows=st.integers(1, 60),
    sparsity=st.floats(0, 0.9),
    biased=st.booleans(),
    activation=st.sampled_from(list(Activation)),
    seed=st.integers(0, 1000),
)
def test_layers_of_the_pattern(row, groups, windows, sparsity, biased, activation, seed):
    weights = Problem("", 16 * groups, 16 * windows, sparsity, LANE16, seed).weights()
    bias = np.random.default_rng(seed).standard_normal(16 * groups, np.float32)
    check(row, weights, bias if biased else None, activation)


@every_template
def test_no_lane_idles_where_the_pattern_holds(row):
    problem = Problem("", 256, 256, 0.9, LANE16, 0)
    weights = problem.weights()
    steps = np.count_nonzero(weights) // 16
    image = check(row, weights)
    matrix, target = SparseMatrix(weights), Target.named("avx512")
    spec = MatVec(*weights.shape)
    assert permute.expect_lane16(spec, matrix, target).steps == steps
    assert permute.lower_lane16(spec, matrix, target).counts.steps == steps
    assert image.pool_bytes == 64 * steps
