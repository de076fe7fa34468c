"""The contest of threads, on small models."""

from typing import Any

import pytest
import torch
from torch import nn

import sparsejit
from sparsejit.errors import CompileError
from sparsejit.perf import threads
from sparsejit.perf.checking.claims import CLAIMS
from sparsejit.perf.threads import ThreadContest


@pytest.fixture(autouse=True)
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls take 6, 3, 6, 3 ... microseconds."""
    times = iter(range(100))

    def time_python(call: object, **_: object) -> object:
        return type("Timing", (), {"min_ns": 3000.0 if next(times) % 2 else 6000.0})()

    monkeypatch.setattr(threads, "time_python", time_python)


@pytest.mark.parametrize(("name", "batch"), [("mlp", 32), ("mobilenet-like", 1)])
def test_both_are_checked_and_timed(name: str, batch: int) -> None:
    times = ThreadContest(name, batch, threads=2).times(rounds=3)
    assert times.relative_error < 1e-5
    assert times.median_us == times.least_us == {1: 6.0, 2: 3.0}
    assert times.gain == 2.0


def test_a_wrong_output_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = sparsejit.compile

    def wrong(module: nn.Module, **options: Any) -> Any:
        with torch.no_grad():
            next(module.parameters()).mul_(1.1)
        return honest(module, **options)

    monkeypatch.setattr(sparsejit, "compile", wrong)
    with pytest.raises(CompileError, match="against float64"):
        ThreadContest("mlp", 32, threads=2)


def test_every_contest_is_claimed() -> None:
    claimed = {(claim.subject, claim.against) for claim in CLAIMS}
    assert set(threads.CONTESTS) <= claimed
