"""Blocks of one input and four outputs: against the float64 oracle, and what shares a step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matvec_checks import block_weights, check, target_of, templates_of

from sparsejit.asm_templates.scheduling.strip_pairing import paired_block_rows, strip_steps
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, MatVec

REACH = 64
ROWS = pytest.mark.parametrize("row", templates_of("broadcast-4x1"))


@ROWS
def test_steps_are_those_expected_and_strips_seldom_idle(row):
    weights = block_weights((256, 300), 0.1, 4)
    image = check(row, weights)
    spec = MatVec(*weights.shape, None, Activation.NONE, row.dtype)
    counts = row.expect(spec, SparseMatrix(weights), target_of(row))
    mnemonics = [text.split()[1] for text in image.listing()]
    assert counts.steps == mnemonics.count("vfmadd231ps") == image.counts["steps"]
    assert counts.steps <= 1.1 * np.count_nonzero(weights) / 8
    # Vectors of inputs that several steps share, and inputs that serve both strips.
    assert mnemonics.count("vblendps") < 0.8 * counts.steps


@given(
    number=st.integers(1, 9),
    inputs=st.integers(1, 150),
    density=st.floats(0, 1),
    seed=st.integers(0),
)
@settings(max_examples=60, deadline=None)
def test_every_input_of_a_strip_comes_once_and_others_only_where_it_has_none(
    number, inputs, density, seed
):
    used = np.random.default_rng(seed).random((number, 2, inputs)) < density
    vector, *strips = strip_steps(used, REACH)
    for strip, own in enumerate(strips):
        times = np.zeros((number, inputs), int)
        np.add.at(times, (vector, own), 1)
        assert (times[used[:, strip]] == 1).all()
        assert len(own) == used.sum(axis=2).max(axis=1).sum()
    assert (np.diff(strips[0]) >= 0).all()


@given(number=st.integers(1, 40), density=st.floats(0, 1), seed=st.integers(0))
@settings(max_examples=40, deadline=None)
def test_every_block_row_has_one_partner(number, density, seed):
    blocks = np.random.default_rng(seed).random((number, 50)) < density
    pairs = paired_block_rows(blocks)
    assert sorted(pairs.ravel()) == list(range(number + number % 2))


def test_like_block_rows_are_partners():
    blocks = np.zeros((4, 12), bool)
    blocks[[0, 3], :6] = blocks[[1, 2], 6:] = True
    assert {frozenset(pair) for pair in paired_block_rows(blocks).tolist()} == {
        frozenset({0, 3}), frozenset({1, 2}),
    }  # fmt: skip


def test_several_vectors_share_two_inputs():
    used = np.zeros((3, 2, 8), bool)
    used[:, 0, [1, 5]] = used[:, 1, [2, 6]] = True
    _, lower, upper = strip_steps(used, REACH)
    assert len(set(zip(lower.tolist(), upper.tolist(), strict=True))) == 2
