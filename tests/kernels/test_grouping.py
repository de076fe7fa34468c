"""Rows that share accumulators: who may trade places, what it saves, how the order comes back."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matvec_checks import check, scattered, templates_of

import sparsejit
from sparsejit.asm_templates.gather.permute import AVX512
from sparsejit.asm_templates.gather.permute_layout import RowPlan, layout_of
from sparsejit.asm_templates.scheduling.grouping import (
    SWEEPS,
    StepShape,
    blocks,
    exchange_indices,
    exchanges,
    fullest_together,
    swapped,
)
from sparsejit.asm_templates.scheduling.interleaving import accumulators_of
from sparsejit.asm_templates.scheduling.row_order import rows_anywhere
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.machine.target import Target

LANES = 16


def uneven(out_features: int, in_features: int) -> np.ndarray:
    """Row counts as a trained matrix has them: the fullest a hundred times the emptiest."""
    generator = np.random.default_rng(5)
    share = np.geomspace(0.005, 0.5, out_features)
    kept = generator.random((out_features, in_features)) < generator.permutation(share)[:, None]
    return np.where(kept, generator.standard_normal(kept.shape), 0).astype(np.float32)


@settings(max_examples=40, deadline=None)
@given(
    batches=st.integers(1, 3),
    runs=st.integers(1, 3),
    stages=st.integers(0, 3),
    windows=st.integers(1, 2),
    registers=st.integers(1, 5),
    missing=st.integers(0, 20),
    sweeps=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_exchanges_undo_any_grouping(
    batches, runs, stages, windows, registers, missing, sweeps, seed
):
    natural = np.arange(batches * runs * LANES << stages)
    natural = natural.reshape(batches, runs, 1 << stages, LANES)
    rows = max(natural.size - missing, 0)
    random = np.random.default_rng(seed)
    counts = random.poisson(random.exponential(2, (rows, 1, 1)), (rows, windows, registers))
    counts = counts.astype(np.uint16)
    step = StepShape(sources=1 + seed % 2, products=1 + 3 * (seed % 3 == 0))
    held = swapped(fullest_together(natural, counts), counts, sweeps, step)
    assert np.array_equal(np.sort(held, axis=None).reshape(natural.shape), natural)
    assert np.array_equal(
        np.sort(held.reshape(batches, runs, -1)), natural.reshape(batches, runs, -1)
    )
    for batch, expected in zip(held, natural, strict=True):
        assert np.array_equal(exchanged(batch, stages), expected)


def exchanged(held: np.ndarray, stages: int) -> np.ndarray:
    """The result of `vpermi2ps` on sums (runs, vectors, lanes)."""
    sums, indices = held.copy(), exchange_indices(held, stages)
    for number, pair in enumerate(exchanges(held.shape[1], stages)):
        both = np.concatenate([sums[:, vector] for vector in pair], axis=1)
        for part, vector in enumerate(pair):
            sums[:, vector] = np.take_along_axis(both, indices[:, 2 * number + part], axis=1)
    return sums


@pytest.mark.parametrize("row", [*templates_of("permute"), *templates_of("int8-permute")])
@pytest.mark.parametrize("block_rows", [1, 8])
def test_no_row_is_lost_between_windows(row, block_rows):
    """A row may be held in a lane that the last vector of y has no room for, as of 19 or 23 rows.

    Rows want one or other half of the registers, which is what makes them trade places.
    """
    for out_features, seed in itertools.product((19, 23), range(10)):
        random = np.random.default_rng(seed)
        blocks = -(-out_features // block_rows)
        kept = random.random((blocks, 1300)) < 0.2
        kept &= np.arange(1300) // 16 % 2 == random.integers(0, 2, (blocks, 1))
        kept = np.repeat(kept, block_rows, axis=0)[:out_features]
        check(row, np.where(kept, random.standard_normal(kept.shape), 0).astype(np.float32))


def test_rows_that_fill_no_block_form_smaller_ones():
    assert list(blocks(7, 3)) == [(0, 4), (4, 2), (6, 1)]
    assert list(exchanges(3, 3)) == [(0, 1)]
    assert list(exchanges(4, 2)) == [(0, 1), (2, 3), (0, 2), (1, 3)]
    assert not list(exchanges(8, 0))


def least_steps(weights: np.ndarray, most_stages: int, swaps: bool = True) -> int:
    """A lower bound of the steps with exchanges of up to that many stages."""
    machine = replace(AVX512, most_stages=most_stages)
    return RowPlan(SparseMatrix(weights), machine).order(SWEEPS if swaps else 0).steps


@pytest.mark.parametrize("shape", [(256, 256), (500, 300), (768, 512)])
def test_grouping_saves_steps_where_rows_are_random(shape):
    weights = scattered(shape, 0.1)
    as_they_come = least_steps(weights, 0)
    brought_together = least_steps(weights, 3, swaps=False)
    swapped = least_steps(weights, 3)
    assert swapped < 0.96 * brought_together < 0.96 * as_they_come
    assert swapped < 0.9 * as_they_come


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 600), in_features=st.integers(1, 100), seed=st.integers(0, 1000))
def test_rows_that_may_lie_anywhere_stay_in_their_panel(rows, in_features, seed):
    panels = rows_anywhere(scattered((rows, in_features), 0.2, seed) != 0, 8)
    first = 0
    for held in panels:
        assert np.array_equal(np.sort(held, axis=None), first + np.arange(held.size))
        first += held.size
    assert rows <= first < rows + 8


@pytest.mark.parametrize("shape", [(256, 256), (500, 300)])
def test_rows_that_may_lie_anywhere_take_fewer_steps(shape):
    used = scattered(shape, 0.1) != 0
    padded = np.pad(used, ((0, -shape[0] % 8), (0, -shape[1] % 8)))
    counts = padded.reshape(len(padded), -1, 8).sum(axis=2)
    as_they_come = counts.reshape(-1, 8, counts.shape[1]).max(axis=1).sum()
    held = np.concatenate(rows_anywhere(used, 8))
    assert counts[held].max(axis=1).sum() < 0.87 * as_they_come


def test_grouping_saves_half_where_rows_are_uneven():
    weights = uneven(256, 256)
    by_stages = [least_steps(weights, stages) for stages in range(4)]
    assert by_stages == sorted(by_stages, reverse=True)
    assert by_stages[3] < 0.5 * by_stages[0]


def test_folded_runs_keep_their_rows():
    weights = scattered((512, 256), 0.5)
    machine = AVX512.priced_on(Target.named("avx512"))
    layout = layout_of(MatVec(512, 256), SparseMatrix(weights), machine)
    assert {piece.panel.fold for piece in layout.pieces} == {4} and layout.order.stages


@given(
    steps=st.lists(st.integers(0, 200), min_size=1, max_size=8).map(np.array),
    registers=st.integers(8, 20),
)
def test_every_sum_has_an_accumulator_and_long_ones_more(steps, registers):
    ways = accumulators_of(steps, registers, apart=6)
    assert ways.min() >= 1 and ways.sum() <= registers
    if registers >= 14:  # enough for six steps between two that add to the same
        assert np.all(6 * steps <= ways * max(steps.sum(), 1))


def test_an_accumulator_waits_for_its_sum():
    """A row group with most of the steps takes several accumulators in turn."""
    layout = layout_of(MatVec(128, 256), SparseMatrix(uneven(128, 256)), AVX512)
    (piece,) = layout.pieces
    assert max(map(len, piece.accumulators)) > 1
    for number in np.concatenate(piece.accumulators):
        assert np.diff(np.flatnonzero(piece.accumulator_of_step == number)).min(initial=99) >= 4


@pytest.mark.skipif(Target.detect().isa != "avx512", reason="needs AVX-512")
def test_a_kernel_says_what_grouping_saved():
    kernel = sparsejit.compile_matrix(uneven(256, 256), strategy="permute")
    stats = kernel.stats
    assert stats["steps"] < 0.5 * stats["least_steps_ungrouped"]
    assert stats["lane_use"] == stats["nnz"] / (LANES * stats["steps"]) < 1
    assert f"steps: {stats['steps']}, " in str(kernel.explain())
    assert str(stats["least_steps_ungrouped"]) in str(kernel.explain())
    assert "steps" not in sparsejit.compile_matrix(uneven(64, 64), strategy="dense").stats
