"""Holds the claims of `claims.py` to what this machine measures."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sparsejit.errors import MissingDependency, UnsupportedTarget
from sparsejit.machine import microarchitecture
from sparsejit.machine.target import Target
from sparsejit.perf.claims import CLAIMS, Claim
from sparsejit.perf.contests import Round, contest_of
from sparsejit.perf.peers import single_threaded

HOLDS, FAILS = "holds", "fails"
NOT_HERE, NO_PEER = "not for this processor", "peer absent"

ROUNDS = 5
# All rounds are repeated while they differ by more, for then something else ran beside them.
QUIET = 0.10
MOST_REPEATS = 3


@dataclass(frozen=True)
class Outcome:
    """What came of a claim: the median ratio of the calmest rounds, and how far these differed.

    `ratio` and `spread` are None where nothing was measured; `why` says why not.
    """

    claim: Claim
    verdict: str
    ratio: float | None = None
    spread: float | None = None
    repeats: int = 0
    why: str = ""

    @property
    def noisy(self) -> bool:
        """Whether no repeat was calm."""
        return self.spread is not None and self.spread > QUIET

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "batch": self.claim.batch, "noisy": self.noisy}


def check(
    claims: Iterable[Claim] = CLAIMS, progress: Callable[[str], None] = lambda step: None
) -> list[Outcome]:
    """Measure every claim that applies to this core, in order; the others are listed too.

    Raises CompileError where an output is wrong.
    """
    here = microarchitecture.detect(), Target.detect().isa
    outcomes = []
    with single_threaded():
        for claim in claims:
            progress(f"{claim.subject} {claim.dtype} against {claim.against}")
            outcomes.append(_outcome(claim, claim.applies(*here)))
    return outcomes


def all_hold(outcomes: Iterable[Outcome]) -> bool:
    """Whether nothing that was measured fails."""
    return all(outcome.verdict != FAILS for outcome in outcomes)


def _outcome(claim: Claim, applies: bool) -> Outcome:
    if not applies:
        parts = filter(None, (claim.microarchitecture, claim.isa))
        return Outcome(claim, NOT_HERE, why=f"claimed for {' with '.join(parts)}")
    try:
        contest = contest_of(claim)
    except MissingDependency as problem:
        return Outcome(claim, NO_PEER, why=str(problem))
    except UnsupportedTarget as problem:
        return Outcome(claim, NOT_HERE, why=str(problem))
    return judge(claim, contest)


def judge(claim: Claim, contest: Round) -> Outcome:
    """Run a contest until its rounds agree, or often enough, and compare with the claim."""
    attempts: list[list[float]] = []
    while not attempts or (spread(attempts[-1]) > QUIET and len(attempts) <= MOST_REPEATS):
        attempts.append([contest() for _ in range(ROUNDS)])
    calmest = min(attempts, key=spread)
    ratio = statistics.median(calmest)
    verdict = HOLDS if ratio >= claim.least else FAILS
    return Outcome(claim, verdict, ratio, spread(calmest), len(attempts) - 1)


def spread(ratios: Sequence[float]) -> float:
    """How far rounds differ: from the second least to the second largest, over the largest."""
    inner = sorted(ratios)[1:-1]
    return (inner[-1] - inner[0]) / inner[-1] if inner[-1] else 0.0
