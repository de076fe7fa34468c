"""The latency study in small, and what its committed rows are said to show."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
from sparsejit.api import Kernel
from sparsejit.perf import latency_pruning
from sparsejit.perf.latency_pruning import CHOSEN, RANDOM, UNIFORM, LatencyRow
from sparsejit.prune import in_model


def pretended_us(kernels: list[Kernel], places: int = 1) -> float:
    """10 ns a kernel and a tenth of one a nonzero."""
    return sum(0.01 + 1e-4 * kernel.stats["nnz"] for kernel in kernels)


@pytest.fixture(scope="module")
def pretended() -> Iterator[None]:
    """A machine of exact times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_model, "us_among_others", lambda kernel, room: pretended_us([kernel]))
        for module in (in_model, latency_pruning):
            patch.setattr(module, "us_in_turn", pretended_us)
        yield


@pytest.fixture(scope="module")
def rows(pretended: None, tmp_path_factory: pytest.TempPathFactory) -> list[LatencyRow]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        short = replace(latency_pruning.TASKS["sequences"], phase=30)
        patch.setitem(latency_pruning.TASKS, "sequences", short)
        patch.setattr(latency_pruning, "PATTERNS", ("lane16",))
        patch.setitem(latency_pruning.BUDGETS, "sequences", (0.2,))
        return list(latency_pruning.study(["sequences"], [0]))


def test_arms_share_the_budget_and_differ_in_amounts(
    rows: list[LatencyRow], pretended: None
) -> None:
    chosen, uniform, random = (row.arm for row in rows)
    assert [row.arm.allocation for row in rows] == [CHOSEN, UNIFORM, RANDOM]
    assert chosen.budget_us == uniform.budget_us > 0
    assert chosen.planned_us <= chosen.budget_us
    assert uniform.planned_us <= 1.02 * chosen.planned_us
    assert len(set(chosen.amounts.values())) > 1 == len(set(uniform.amounts.values()))
    assert random.amounts == chosen.amounts
    assert all(row.measured_us > 0 and row.loss > 0 and row.accuracy > 0.05 for row in rows)


def test_the_table_and_the_plot_show_every_point(rows: list[LatencyRow], tmp_path: Path) -> None:
    table = latency_pruning.markdown(rows).splitlines()
    assert len(table) == 3 and table[2].startswith("| sequences | lane16 |")
    assert f"{rows[1].loss:.3f}" in table[2]
    latency_pruning.draw(tmp_path / "study.png", rows)
    assert (tmp_path / "study.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.recordings
def test_recorded_models_met_their_budgets() -> None:
    by_point = latency_pruning.groups(latency_pruning.recorded())
    assert by_point
    for (*point, budget, allocation), rows in by_point.items():
        if allocation == CHOSEN:
            assert all(row.measured_us <= 1.1 * budget for row in rows), point
            assert 0.9 * budget <= latency_pruning.mean(rows, "measured_us"), point


@pytest.mark.recordings
def test_recorded_losses_are_at_most_those_of_one_amount_for_all() -> None:
    by_point = latency_pruning.groups(latency_pruning.recorded())
    assert by_point
    for (task, pattern, budget, allocation), uniform in by_point.items():
        if allocation == UNIFORM:
            chosen = by_point[task, pattern, budget, CHOSEN]
            assert len(chosen) == len(uniform) == 3
            losses = [latency_pruning.mean(group, "loss") for group in (chosen, uniform)]
            assert losses[0] <= losses[1], (task, pattern, budget)
