"""The contests of structured products and masks, small."""

import numpy as np
import pytest

from sparsejit.perf import structured
from sparsejit.perf.checking.claims import CLAIMS
from sparsejit.perf.structured import MASKS, SDPA, attention_contest, factor_contest


def test_masks_are_as_sparse_as_they_say() -> None:
    for name in ("strided causal", "strided two-sided"):
        assert np.mean(MASKS[name](512)) == pytest.approx(0.12, abs=0.002)
    for name, make in MASKS.items():
        assert make(512).diagonal().all(), name


def test_contests_check_outputs_and_name_contestants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structured, "FEATURES", 64)
    monkeypatch.setattr(structured, "TOKENS", 48)
    monkeypatch.setattr(
        structured, "time_python", lambda call, **_: type("Timing", (), {"min_ns": 2000.0})()
    )
    for contest in (
        factor_contest("monarch", 2),
        attention_contest("strided two-sided", 2, with_flex=False),
    ):
        times = contest.times(rounds=2)
        assert times.relative_error < 1e-5
        assert set(times.us.values()) == {2.0}
    assert times.ratio(SDPA) == 1.0


def test_every_contest_is_claimed() -> None:
    claimed = {(claim.subject, claim.against) for claim in CLAIMS}
    assert set(structured.CONTESTS) <= claimed
