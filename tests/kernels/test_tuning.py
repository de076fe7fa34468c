"""Measuring instead of predicting: the choice, the record, the memory of both; calibration."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_clock import TICK_NS, FakeClock
from matvec_checks import block_weights

import sparsejit
from sparsejit.asm_templates.families import MATVEC_TEMPLATES, Template
from sparsejit.machine.microarchitecture import UNKNOWN, core_named
from sparsejit.machine.target import Target
from sparsejit.measuring import kernel_times
from sparsejit.planner import calibration, tuning
from sparsejit.planner.cost import all_steps, step_cycles

pytestmark = pytest.mark.plans

WEIGHTS = block_weights((64, 64), 0.2)
X = np.random.default_rng(0).standard_normal(64).astype(np.float32)


@pytest.fixture(autouse=True)
def cache_folder(cache_folder: Path) -> Iterator[Path]:
    calibration.forget_calibration()
    yield cache_folder
    calibration.forget_calibration()


def pretend(times: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let families take these times; returns the list of families timed."""
    timed: list[str] = []

    def time(template: Template, *_: object) -> float:
        timed.append(template.family)
        return times[template.family]

    monkeypatch.setattr(tuning, "kernel_ns", time)
    return timed


def test_the_measured_fastest_is_taken_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    predicted = sparsejit.compile_matrix(WEIGHTS).plan
    slow, fast, other = (c.template.family for c in predicted.candidates[:3])
    timed = pretend({slow: 30.0, fast: 10.0, other: 20.0}, monkeypatch)
    kernel = sparsejit.compile_matrix(WEIGHTS, tune=True)
    assert kernel.strategy == fast
    assert timed == [slow, fast, other]
    assert list(kernel.plan.measured_ns.values()) == [10.0, 20.0, 30.0]
    assert "measured: f32-" in str(kernel.explain()) and " 30 " in str(kernel.explain())
    np.testing.assert_allclose(kernel(X), WEIGHTS.astype(np.float64) @ X, atol=1e-4)


def test_a_second_compile_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [c.template.family for c in sparsejit.compile_matrix(WEIGHTS).plan.candidates[:3]]
    timed = pretend(dict(zip(names, (3.0, 1.0, 2.0), strict=True)), monkeypatch)
    for _ in range(2):
        assert sparsejit.compile_matrix(WEIGHTS, tune=True).strategy == names[1]
    assert len(timed) == 3


@pytest.mark.parametrize("change", ["weights", "activation", "compiler"])
def test_any_change_is_measured_anew(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [c.template.family for c in sparsejit.compile_matrix(WEIGHTS).plan.candidates[:3]]
    timed = pretend(dict.fromkeys(names, 1.0), monkeypatch)
    sparsejit.compile_matrix(WEIGHTS, tune=True)
    weights = 2 * WEIGHTS if change == "weights" else WEIGHTS
    if change == "compiler":
        monkeypatch.setattr(tuning, "compiler_digest", lambda: "another")
    sparsejit.compile_matrix(
        weights, activation="relu" if change == "activation" else None, tune=True
    )
    assert len(timed) == 6


def test_a_named_strategy_is_not_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = pretend({}, monkeypatch)
    kernel = sparsejit.compile_matrix(WEIGHTS, strategy="dense", tune=True)
    assert kernel.strategy == "dense" and not timed


def test_kernels_are_really_run_and_of_equals_the_predicted_is_taken(
    steady_clock: FakeClock,
) -> None:
    predicted = sparsejit.compile_matrix(WEIGHTS).plan
    tuned = sparsejit.compile_matrix(WEIGHTS, tune=True).plan
    first = [c.template.name for c in predicted.candidates[: tuning.MEASURED_CANDIDATES]]
    assert dict(tuned.measured_ns) == dict.fromkeys(first, float(TICK_NS))
    assert tuned.chosen.template.name == first[0]


def test_calibration_is_kept_and_counts_what_was_read(
    cache_folder: Path, steady_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every loop takes a tick, so a rate in bytes a cycle is bytes over the cycles in a tick."""
    monkeypatch.setenv("SPARSEJIT_CALIBRATE", "1")
    monkeypatch.setattr(calibration, "_PLAUSIBLE", (1e-6, 1e6))  # no core is so slow
    target = replace(Target.detect(), l3_bytes=16 << 20, core=core_named(UNKNOWN))
    core = calibration.calibrate(target)
    assert calibration.calibrated(target).core == core
    cycles = core.rates.cycles_per_ns * TICK_NS
    assert core.rates.data["L1"] == pytest.approx(target.l1d_bytes / 2 / cycles, rel=0.05)
    assert core.rates.data["memory"] == pytest.approx(2 * target.l3_bytes / cycles, rel=0.05)
    assert core.rates.code["L2"] == pytest.approx(target.l2_bytes / 4 / cycles, rel=0.05)
    (file,) = cache_folder.glob("processor-*.json")
    file.write_text("[]")
    calibration.forget_calibration()
    assert calibration.recalled(target).core.rates == target.core.rates


@pytest.fixture
def pretended_cycles(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], float]], None]:
    """Let every kernel take some times the cycles it should, by how often it was timed before."""

    def pretend(factor: Callable[[int], float]) -> None:
        timed: Counter[int] = Counter()

        def ns(one: kernel_times._Timed) -> float:
            timed[id(one)] += 1
            counts = one.kernel.lowered.counts
            steps = (
                step.steps * step_cycles(counts.target, step.kind, counts.stored)
                for step in counts.work
            )
            return factor(timed[id(one)] - 1) * sum(steps)

        chain_cycles = kernel_times.CHAIN_CYCLES * kernel_times._CHAIN_CALLS
        monkeypatch.setattr(kernel_times, "duration_ns", lambda loop, calls: chain_cycles)
        monkeypatch.setattr(kernel_times._Timed, "ns", ns)

    return pretend


def test_steps_cost_as_many_times_their_price_as_kernels_take(
    pretended_cycles: Callable[[Callable[[int], float]], None],
) -> None:
    """Every kind of step that there is on this machine, from the least of the rounds."""
    target = Target.detect()
    pretended_cycles(lambda time: 1.7 if time % 5 else 1.3)
    found = calibration.step_prices(target)
    assert found == {key: pytest.approx(1.3 * all_steps(target.core)[key].cycles) for key in found}
    rows = [row for row in MATVEC_TEMPLATES if row.made_for(target)]
    assert {key[0] for key in found} >= {row.family for row in rows}


def test_steps_that_no_two_halves_of_the_rounds_agree_on_count_at_their_least(
    pretended_cycles: Callable[[Callable[[int], float]], None],
) -> None:
    """Or of two rivals one would have a measured and one an assumed price."""
    target = Target.detect()
    pretended_cycles(lambda time: 1.0 + time % 2)
    found = calibration.step_prices(target)
    assert found
    assert found == {key: pytest.approx(all_steps(target.core)[key].cycles) for key in found}


def test_the_winner_is_priced_from_what_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [c.template.family for c in sparsejit.compile_matrix(WEIGHTS).plan.candidates[:3]]
    pretend(dict(zip(names, (3.0, 2.0, 1.0), strict=True)), monkeypatch)
    for _ in range(2):  # timed, then remembered
        choice = sparsejit.compile_matrix(WEIGHTS, tune=True).plan
        assert choice.chosen.template.family == names[2] and choice.chosen.is_lowered
        assert choice.chosen in choice.candidates


def test_other_contenders_have_times_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[str] = []
    monkeypatch.setattr(tuning, "kernel_ns", lambda template, *_: timed.append(template) or 1.0)
    for exact in (False, True, False, True):
        sparsejit.compile_matrix(WEIGHTS, tune=True, exact=exact, target="avx2")
    assert len(timed) == 6
