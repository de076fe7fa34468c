"""lane16 and N:M to the element: the constraint, the count, and which slots are kept."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sparsejit.errors import InvalidInput
from sparsejit.prune import CubicSchedule, LanePattern, Pruner

SHAPES = st.tuples(st.integers(1, 50), st.integers(1, 40))
AMOUNTS = st.floats(0, 0.99)


def random_linear(outputs: int, inputs: int, seed: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    values = np.random.default_rng(seed).normal(size=(outputs, inputs))
    layer.weight.data = torch.tensor(values, dtype=torch.float32)
    return layer


def expected_lanes(weight: np.ndarray, amount: float) -> np.ndarray:
    """Kept weights, slot by slot: every row's k-th largest of a window, best slots first."""
    slots = []
    for top in range(0, weight.shape[0], 16):
        for left in range(0, weight.shape[1], 16):
            part = weight[top : top + 16, left : left + 16].astype(np.float64)
            order = np.argsort(-np.abs(part), axis=1, kind="stable")
            for k in range(part.shape[1]):
                places = [(top + row, left + order[row, k]) for row in range(len(part))]
                slots.append((np.mean([float(weight[p]) ** 2 for p in places]), places))
    slots.sort(key=lambda slot: slot[0])
    kept = np.zeros(weight.shape, bool)
    for _, places in slots[round(amount * len(slots)) :]:
        for place in places:
            kept[place] = True
    return kept


@given(shape=SHAPES, amount=AMOUNTS, seed=st.integers(0, 1000))
@settings(max_examples=80, deadline=None)
def test_lanes_match_loops_also_at_ragged_edges(shape, amount, seed):
    layer = random_linear(*shape, seed)
    before = layer.weight.detach().numpy().copy()
    Pruner(amount, "lane16", targets=["weight"]).prepare(layer)
    kept = expected_lanes(before, amount)
    np.testing.assert_array_equal(layer.weight.detach().numpy(), np.where(kept, before, 0))


def counts_in_windows(nonzero: np.ndarray, window: int) -> np.ndarray:
    """Nonzeros of every row and window, shape (rows, windows)."""
    padded = np.pad(nonzero, ((0, 0), (0, -nonzero.shape[1] % window)))
    return padded.reshape(len(nonzero), -1, window).sum(2)


@given(shape=SHAPES, amount=AMOUNTS, seed=st.integers(0, 100))
@settings(max_examples=25, deadline=None)
def test_every_row_of_a_group_keeps_the_same_count_through_a_whole_schedule(shape, amount, seed):
    layer = random_linear(*shape, seed)
    noise = torch.Generator().manual_seed(seed)
    schedule = CubicSchedule(0, 6, 2)
    pruner = Pruner(amount, "lane16", targets=["weight"], schedule=schedule)
    pruner.prepare(layer)
    for step in range(1, 7):
        layer.weight.data += torch.randn(layer.weight.shape, generator=noise)
        pruner.step()
        counts = counts_in_windows(layer.weight.detach().numpy() != 0, 16)
        groups = [counts[top : top + 16] for top in range(0, shape[0], 16)]
        assert all((group == group[0]).all() for group in groups)
        if step % 2 == 0:
            slots = len(groups) * shape[1]
            kept = slots - round(schedule.amount(step, amount) * slots)
            assert sum(group[0].sum() for group in groups) == kept
    report = pruner.finalize().layers[0]
    assert (report.pattern, report.blocks) == ("lane16", len(groups) * shape[1])
    assert report.occupied_blocks == kept


def test_lanes_start_afresh_in_every_gate():
    gru = nn.GRU(20, 24)
    pruner = Pruner(0.8, "lane16", targets=["weight_*"], allocation="uniform")
    pruner.prepare(gru)
    for name in ("weight_ih_l0", "weight_hh_l0"):
        nonzero = gru.get_parameter(name).detach().numpy().reshape(3, 24, -1) != 0
        for gate in nonzero:
            counts = counts_in_windows(gate, 16)
            assert (counts[:16] == counts[0]).all() and (counts[16:] == counts[16]).all()
        slots = 2 * nonzero.shape[2]
        kept = [counts_in_windows(gate, 16)[[0, 16]].sum() for gate in nonzero]
        assert kept == [slots - round(0.8 * slots)] * 3


def test_lane_pattern_loses_less_than_whole_blocks_and_more_than_no_pattern():
    lost = {}
    for pattern in ("unstructured", "lane16", "1x16"):
        layer = random_linear(64, 64, seed=3)
        before = layer.weight.detach().clone()
        Pruner(0.9, pattern, targets=["weight"]).prepare(layer)
        assert layer.weight.count_nonzero() == pytest.approx(0.1 * 64 * 64, abs=16)
        lost[pattern] = (before - layer.weight.detach()).square().sum().item()
    assert lost["unstructured"] < lost["lane16"] < lost["1x16"]


@given(
    shape=SHAPES,
    n_of_m=st.integers(2, 8).flatmap(lambda m: st.tuples(st.integers(1, m - 1), st.just(m))),
    seed=st.integers(0, 1000),
)
@settings(max_examples=80, deadline=None)
def test_n_of_m_keeps_the_largest_of_every_window(shape, n_of_m, seed):
    n, m = n_of_m
    layer = random_linear(*shape, seed)
    before = layer.weight.detach().numpy().copy()
    Pruner(1 - n / m, f"{n}:{m}", targets=["weight"]).prepare(layer)
    after = layer.weight.detach().numpy()
    for left in range(0, shape[1], m):
        part = np.abs(before[:, left : left + m])
        kept = min(n, part.shape[1])
        threshold = np.sort(part, axis=1)[:, -kept]
        expected = np.where(part >= threshold[:, None], before[:, left : left + m], 0)
        np.testing.assert_array_equal(after[:, left : left + m], expected)


def test_n_of_m_gradually_prunes_one_of_every_window_at_a_time():
    layer = random_linear(6, 16, seed=0)
    pruner = Pruner(0.75, "1:4", targets=["weight"], schedule=CubicSchedule(0, 4, 1))
    pruner.prepare(layer)
    seen = []
    for _ in range(4):
        pruner.step()
        counts = counts_in_windows(layer.weight.detach().numpy() != 0, 4)
        assert (counts == counts[0, 0]).all()
        seen.append(int(counts[0, 0]))
    assert seen == [2, 1, 1, 1]
    assert pruner.finalize().layers[0].occupied_blocks == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"amount": 0.5, "pattern": "1:4"}, r"amount=0\.5 contradicts pattern='1:4': give 0\.75"),
        ({"amount": 0.5, "pattern": "4:4"}, r"'4:4' keeps 4 of 4: give N:M with 1 <= N < M"),
        ({"amount": 0.5, "pattern": "2:4", "allocation": "erk"}, r"'2:4' fixes the amount"),
    ],
)
def test_wrong_n_of_m(options, message):
    with pytest.raises(InvalidInput, match=message):
        Pruner(targets=["weight"], **options)


@pytest.mark.parametrize("pattern", ["unstructured", "1x8", "lane16"])
def test_the_diagonal_stays_and_the_count_is_still_exact(pattern):
    gru = nn.GRU(8, 32)
    diagonal = torch.eye(32, dtype=torch.bool).repeat(3, 1)
    gru.weight_hh_l0.data[diagonal] = 1e-4
    pruner = Pruner(0.7, pattern, targets=["weight_hh_l0"], keep_diagonal=["weight_hh_l0"])
    pruner.prepare(gru)
    assert (gru.weight_hh_l0.detach()[diagonal] != 0).all()
    layer = pruner.sparsity_report().layers[0]
    per_gate = layer.blocks // 3
    assert layer.occupied_blocks == 3 * (per_gate - round(0.7 * per_gate))
    unprotected = nn.GRU(8, 32)
    unprotected.weight_hh_l0.data[diagonal] = 1e-4
    Pruner(0.7, targets=["weight_hh_l0"]).prepare(unprotected)
    assert not (unprotected.weight_hh_l0.detach()[diagonal] != 0).any()


@pytest.mark.parametrize(
    ("amount", "target", "message"),
    [
        (0.98, "weight_hh_l0", r"keep 60 of 3072 blocks, but keep_diagonal protects 96"),
        (0.5, "weight_ih_l0", r"weight_ih_l0 of shape \(96, 20\) is no stack of squares"),
        (0.5, "weight_xy", r"'weight_xy' matches no parameter"),
    ],
)
def test_a_diagonal_that_cannot_be_kept(amount, target, message):
    options = {"keep_diagonal": [target], "schedule": CubicSchedule(5, 9, 1)}
    pruner = Pruner(amount, targets=["weight_*"], allocation="uniform", **options)
    with pytest.raises(InvalidInput, match=message):
        pruner.prepare(nn.GRU(20, 32))


def test_lanes_of_another_width():
    layer = random_linear(16, 16, seed=1)
    Pruner(0.5, LanePattern(rows=8, window=4), targets=["weight"]).prepare(layer)
    counts = counts_in_windows(layer.weight.detach().numpy() != 0, 4)
    assert (counts[:8] == counts[0]).all() and (counts[8:] == counts[8]).all()
    assert layer.weight.count_nonzero() == 128
