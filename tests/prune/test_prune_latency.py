"""Amounts for a time budget: the table of latencies, the Pruner."""

import io
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import rich
import torch
from fake_clock import TICK_NS, FakeClock
from torch import nn

from sparsejit.api.kernels.compile_layer import compile_matrix
from sparsejit.api.kernels.kernel import Kernel
from sparsejit.errors import InvalidInput
from sparsejit.prune import CubicSchedule, Pruner, in_model
from sparsejit.prune.allocation import Amount
from sparsejit.prune.budget import Frontier
from sparsejit.prune.latency import LatencyTable, latency_table
from sparsejit.prune.patterns import PATTERNS
from sparsejit.prune.prunable import prunables

pytestmark = pytest.mark.usefixtures("cache_folder")

TARGETS = ["*.weight"]
# The time of the pretended machine: microseconds a kernel, a nonzero, and a model of such kernels.
A_CALL, A_NONZERO, IN_TURN = 0.01, 1e-3, 1.25


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """A machine of exact times; returns nonzeros and room of every kernel timed in a model."""
    timed: list[tuple[int, int]] = []

    def among_others(kernel: Kernel, room: int) -> float:
        timed.append((kernel.stats["nnz"], room))
        return A_CALL + A_NONZERO * kernel.stats["nnz"]

    monkeypatch.setattr(in_model, "us_among_others", among_others)
    monkeypatch.setattr(
        in_model,
        "us_in_turn",
        lambda kernels: IN_TURN * sum(A_CALL + A_NONZERO * k.stats["nnz"] for k in kernels),
    )
    return timed


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)]
    return nn.Sequential(*layers)


def nonzeros(model: nn.Module) -> list[int]:
    return [int(p.count_nonzero()) for name, p in model.named_parameters() if "weight" in name]


def pretended_us(model: nn.Module) -> float:
    return IN_TURN * sum(A_CALL + A_NONZERO * nnz for nnz in nonzeros(model))


DENSE_US = pretended_us(network())


# --- what a layer loses


@pytest.mark.parametrize("pattern", ["unstructured", "1x8", "lane16"])
def test_energy_left_is_that_of_the_weights_left(pattern: str) -> None:
    model = nn.GRU(20, 24)
    for layer in prunables(model, "weight_*", PATTERNS[pattern]).values():
        amounts = np.array([0.0, 0.3, 0.5, 0.77, 0.95])
        left = [float(layer.pruned(a).double().square().sum()) for a in amounts]
        total = float(layer.weight.double().square().sum())
        np.testing.assert_allclose(layer.energy_left(amounts), np.array(left) / total, rtol=1e-9)


def test_no_amount_empties_a_layer() -> None:
    (layer,) = prunables(nn.Linear(3, 8), "weight", PATTERNS["1x8"]).values()
    assert layer.largest_amount == 2 / 3
    assert layer.pruned(layer.largest_amount).count_nonzero() == 8


# --- the table


@pytest.mark.plans
def test_a_table_has_every_weight_pattern_and_amount(pretended: list[tuple[int, int]]) -> None:
    amounts = (0.0, 0.5, 0.9)
    table = latency_table(network(), TARGETS, ["unstructured", "1x8"], amounts)
    found = [(row.pattern, row.amount, row.name, row.nnz) for row in table.rows]
    assert len(found) == 2 * 3 * 3
    assert ("unstructured", 0.5, "2.weight", 1024) in found
    assert [nnz for nnz, _ in pretended] == [row.nnz for row in table.rows]
    for row in table.rows:
        assert row.us == A_CALL + A_NONZERO * row.nnz
    of_first = A_CALL + A_NONZERO * 1024 * np.array([0.75, 0.3])
    assert table.time_us("0.weight", "unstructured", 0.25) == pytest.approx(of_first[0])
    assert table.time_us("0.weight", "unstructured", 0.7) == pytest.approx(of_first[1], rel=1e-3)
    assert json.loads(table.to_json())["rows"][0]["name"] == "0.weight"
    shown = io.StringIO()
    rich.print(table, file=shown)
    assert "2.weight" in shown.getvalue() and "92.5%" not in shown.getvalue()


@pytest.mark.plans
def test_kernels_are_timed_in_the_room_of_all(pretended: list[tuple[int, int]]) -> None:
    latency_table(network(), TARGETS, ["unstructured"], (0.0, 0.9))
    dense, pruned = pretended[:3], pretended[3:]
    assert len({room for _, room in dense}) == len({room for _, room in pruned}) == 1
    # Code and weights of all three; a dense weight takes at least its four bytes.
    assert dense[0][1] >= 4 * sum(nonzeros(network())) > pruned[0][1]


def test_times_are_remembered_until_weights_change_or_the_file_is_damaged(
    pretended: list[tuple[int, int]], cache_folder: Path
) -> None:
    def measure(seed: int = 0) -> LatencyTable:
        return latency_table(network(seed), TARGETS, ["1x8"], (0.0, 0.5))

    first = measure()
    assert measure() == first and len(pretended) == 6
    (file,) = cache_folder.glob("latency-*.json")
    for damage in ("{", "[]", '[{"name": 1}]', "null"):
        file.write_text(damage)
        before = len(pretended)
        assert measure() == first and len(pretended) == before + 6
    measure(seed=1)
    assert len(pretended) == 36


def test_a_table_refuses_what_it_does_not_hold(pretended: list[tuple[int, int]]) -> None:
    table = latency_table(network(), TARGETS, ["1x8"], (0.0, 0.5))
    with pytest.raises(InvalidInput, match=r"no 7\.weight in '1x8', only"):
        table.time_us("7.weight", "1x8", 0.5)
    with pytest.raises(InvalidInput, match=r"amount=0\.6 of 0\.weight is outside 0 to 0\.5"):
        table.time_us("0.weight", "1x8", 0.6)
    with pytest.raises(InvalidInput, match="'2:4' fixes the amount"):
        latency_table(network(), TARGETS, ["2:4"])
    with pytest.raises(InvalidInput, match=r"amount=1\.5 is outside"):
        latency_table(network(), TARGETS, ["1x8"], (0.0, 1.5))


@pytest.mark.plans
def test_real_kernels_are_run_in_as_many_copies_as_fill_the_room(steady_clock: FakeClock) -> None:
    """A turn of all copies takes a tick, and a latency is a copy's share of it."""
    table = latency_table(network(), TARGETS, ["unstructured"], (0.0,))
    kernels = [compile_matrix(p.detach().numpy()) for p in network().parameters() if p.ndim == 2]
    sizes = [len(kernel.image.data) for kernel in kernels]
    copies = [math.ceil(sum(sizes) / size) for size in sizes]
    assert [row.us for row in table.rows] == pytest.approx([TICK_NS / 1e3 / n for n in copies])


# --- the Pruner


@pytest.mark.parametrize("pattern", ["unstructured", "1x8", "lane16"])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.8])
def test_a_budget_is_met(pretended: list[tuple[int, int]], pattern: str, share: float) -> None:
    model = network()
    pruner = Pruner(budget_us=share * DENSE_US, pattern=pattern, targets=TARGETS)
    pruner.prepare(model)
    trade_off = pruner.trade_off
    assert trade_off is not None and pruner.amount == trade_off.amounts
    # The pretended model takes 1.25 times its layers' sum, so the table alone would miss.
    assert pretended_us(model) == pytest.approx(trade_off.measured_us)
    assert 0.9 * share * DENSE_US <= trade_off.measured_us <= share * DENSE_US


def test_the_curve_is_never_worse_than_uniform_and_holds_the_choice(
    pretended: list[tuple[int, int]],
) -> None:
    pruner = Pruner(budget_us=0.2 * DENSE_US, targets=TARGETS)
    pruner.prepare(network())
    trade_off = pruner.trade_off
    assert trade_off is not None
    assert (np.diff(trade_off.times_us) >= 0).all() and (np.diff(trade_off.losses) < 0).all()
    curve = Frontier(trade_off.times_us, trade_off.losses, np.zeros((0, 0), np.intp))
    uniform = zip(trade_off.uniform_times_us, trade_off.uniform_losses, strict=True)
    assert all(curve.losses[curve.within(us * 1.002)] <= loss + 1e-12 for us, loss in uniform)
    assert trade_off.loss == curve.losses[curve.within(trade_off.measured_us * 1.0001)]


def test_a_choice_is_remembered_until_its_file_is_damaged(
    pretended: list[tuple[int, int]], cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen() -> Amount:
        pruner = Pruner(budget_us=0.2 * DENSE_US, targets=TARGETS)
        pruner.prepare(network())
        return pruner.amount

    first = chosen()
    monkeypatch.setattr(in_model, "us_in_turn", lambda kernels: 0.2 * DENSE_US)
    assert chosen() == first
    (file,) = cache_folder.glob("choice-*.json")
    for damage in ("[1", "{}", "null"):
        file.write_text(damage)
        assert chosen() != first


def test_a_budget_above_the_dense_time_prunes_nothing(pretended: list[tuple[int, int]]) -> None:
    model = network()
    Pruner(budget_us=2 * DENSE_US, targets=TARGETS).prepare(model)
    assert nonzeros(model) == nonzeros(network())


def test_a_budget_out_of_reach_names_what_can_be_reached(
    pretended: list[tuple[int, int]],
) -> None:
    least = IN_TURN * sum(A_CALL + A_NONZERO * round(nnz * 0.01) for nnz in nonzeros(network()))
    with pytest.raises(InvalidInput, match=f"out of reach: .* these layers take {least:.3g} us"):
        Pruner(budget_us=0.01, targets=TARGETS).prepare(network())


def test_a_time_that_jumps_is_searched_from_both_sides(
    pretended: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a model outgrows a cache: 1.5 times slower from 500 nonzeros on."""

    def us(weights: int) -> float:
        return weights * (1.5e-3 if weights >= 500 else 1e-3)

    monkeypatch.setattr(
        in_model, "us_in_turn", lambda kernels: us(sum(k.stats["nnz"] for k in kernels))
    )
    model = network()
    pruner = Pruner(budget_us=0.6, targets=TARGETS)
    pruner.prepare(model)
    assert pruner.trade_off is not None
    assert 0.48 < pruner.trade_off.measured_us < 0.5
    assert 480 < sum(nonzeros(model)) < 500


def test_a_slow_moment_does_not_decide(
    pretended: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first, seven measurements take 1.4 times as long, as beside a busy neighbour."""
    calls = itertools.count()

    def us_in_turn(kernels: list[Kernel]) -> float:
        slow = 1.4 if next(calls) in range(1, 8) else 1.0
        return 0.8e-3 * slow * sum(k.stats["nnz"] for k in kernels)

    monkeypatch.setattr(in_model, "us_in_turn", us_in_turn)
    pruner = Pruner(budget_us=0.6, targets=TARGETS)
    pruner.prepare(network())
    assert pruner.trade_off is not None
    assert 0.56 < pruner.trade_off.measured_us <= 0.6


def test_a_schedule_ends_at_the_chosen_amounts(pretended: list[tuple[int, int]]) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    pruner = Pruner(
        budget_us=0.2 * DENSE_US, targets=TARGETS, schedule=CubicSchedule(0, 10, every=2)
    )
    pruner.prepare(model, optimizer)
    assert nonzeros(model) == nonzeros(network())
    for _ in range(10):
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        pruner.step()
    amounts = pruner.amount
    assert isinstance(amounts, dict) and len(set(amounts.values())) > 1
    sizes = nonzeros(network())
    left = [n - round(a * n) for n, a in zip(sizes, amounts.values(), strict=True)]
    assert nonzeros(model) == left


def test_protected_diagonals_limit_what_a_layer_can_give(pretended: list[tuple[int, int]]) -> None:
    model = nn.GRU(16, 16)
    pruner = Pruner(
        budget_us=0.6, pattern="1x8", targets="weight_*", keep_diagonal=["weight_hh_l0"]
    )
    pruner.prepare(model)
    assert isinstance(pruner.amount, dict)
    assert pruner.amount["weight_hh_l0"] <= 0.5 < pruner.amount["weight_ih_l0"]


def test_resuming_keeps_the_saved_amounts(pretended: list[tuple[int, int]]) -> None:
    def prepared(model: nn.Module) -> Pruner:
        schedule = CubicSchedule(0, 4, every=1)
        pruner = Pruner(budget_us=0.2 * DENSE_US, targets=TARGETS, schedule=schedule)
        pruner.prepare(model)
        return pruner

    saved = io.BytesIO()
    first = prepared(network())
    first.step()
    torch.save(first.state_dict(), saved)
    other = network()  # of other weights until they are loaded
    nn.init.sparse_(other[2].weight, 0.5)
    resumed = prepared(other)
    assert resumed.amount != first.amount
    saved.seek(0)
    resumed.load_state_dict(torch.load(saved, weights_only=True))
    assert resumed.amount == first.amount and resumed.trade_off is None
    for _ in range(3):
        first.step()
        resumed.step()
    ends = [pruner.finalize().layers for pruner in (first, resumed)]
    assert [layer.nnz for layer in ends[0]] == [layer.nnz for layer in ends[1]]


def test_a_state_with_an_amount_does_not_fit_a_budget(pretended: list[tuple[int, int]]) -> None:
    by_amount, by_budget = Pruner(0.5, targets=TARGETS), Pruner(budget_us=2, targets=TARGETS)
    by_amount.prepare(network())
    by_budget.prepare(network())
    for one, other in ((by_amount, by_budget), (by_budget, by_amount)):
        with pytest.raises(InvalidInput, match="has budget_us, the other an amount"):
            one.load_state_dict(other.state_dict())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "amount=None and budget_us=None: give one"),
        ({"amount": 0.5, "budget_us": 3}, "amount=0.5 and budget_us=3: give one"),
        ({"budget_us": 0}, "budget_us=0: give microseconds above 0"),
        ({"budget_us": float("nan")}, "budget_us=nan"),
        ({"budget_us": 3, "allocation": "lamp"}, "drop either"),
        ({"budget_us": 3, "pattern": "2:4"}, "'2:4' fixes the amount"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Pruner(targets=TARGETS, **arguments)  # type: ignore[arg-type]


def test_the_trade_off_is_drawn_and_shown(pretended: list[tuple[int, int]], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pruner = Pruner(budget_us=0.2 * DENSE_US, targets=TARGETS)
    pruner.prepare(network())
    assert pruner.trade_off is not None
    pruner.trade_off.plot(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    shown = io.StringIO()
    rich.print(pruner.trade_off, file=shown)
    assert "2.weight" in shown.getvalue()
