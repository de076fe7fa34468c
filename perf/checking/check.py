"""Checks of the claims of `claims.py` by measurements on this machine.

    check          measures every claim
    claims_table   results of the claims as a rich table
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from sparsejit.api.reports.shown import table_of
from sparsejit.errors import MissingDependency, UnsupportedTarget
from sparsejit.machine import microarchitecture
from sparsejit.machine.target import Target
from sparsejit.perf.checking.claims import CLAIMS, Claim
from sparsejit.perf.checking.contests import Round, contest_of
from sparsejit.perf.peers.peers import single_threaded

HOLDS, FAILS = "holds", "fails"
NOT_HERE, NO_PEER = "not for this processor", "peer absent"

ROUNDS = 5
# Largest spread of calm rounds; beyond it another process ran beside them.
QUIET = 0.10
MOST_REPEATS = 3


@dataclass(frozen=True)
class ClaimResult:
    """Result of a claim: median ratio and spread of the rounds of the deciding attempt.

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
        """Whether the rounds of every attempt differed by more than `QUIET`."""
        return self.spread is not None and self.spread > QUIET

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "batch": self.claim.batch, "noisy": self.noisy}


def check(
    claims: Iterable[Claim] = CLAIMS, progress: Callable[[str], None] = lambda step: None
) -> list[ClaimResult]:
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


def all_hold(outcomes: Iterable[ClaimResult]) -> bool:
    """Whether no measured claim fails."""
    return all(outcome.verdict != FAILS for outcome in outcomes)


def _outcome(claim: Claim, applies: bool) -> ClaimResult:
    if not applies:
        parts = filter(None, (claim.microarchitecture, claim.isa))
        return ClaimResult(claim, NOT_HERE, why=f"claimed for {' with '.join(parts)}")
    try:
        contest = contest_of(claim)
    except MissingDependency as problem:
        return ClaimResult(claim, NO_PEER, why=str(problem))
    except UnsupportedTarget as problem:
        return ClaimResult(claim, NOT_HERE, why=str(problem))
    return judge(claim, contest)


def judge(claim: Claim, contest: Round) -> ClaimResult:
    """Run a contest until its rounds agree and the claim holds, with at most MOST_REPEATS repeats.

    The best attempt whose rounds agree decides: a neighbour on another core can slow all rounds of
    one attempt alike. Where no attempt's rounds agree, the attempt of least spread decides.
    """
    attempts: list[list[float]] = []
    while len(attempts) <= MOST_REPEATS:
        attempts.append([contest() for _ in range(ROUNDS)])
        calm = [ratios for ratios in attempts if spread(ratios) <= QUIET]
        chosen = max(calm, key=statistics.median) if calm else min(attempts, key=spread)
        holds = statistics.median(chosen) >= claim.least
        if calm and holds:
            break
    ratio, repeats = statistics.median(chosen), len(attempts) - 1
    return ClaimResult(claim, HOLDS if holds else FAILS, ratio, spread(chosen), repeats)


def spread(ratios: Sequence[float]) -> float:
    """Spread of rounds: the second largest minus the second least, over the second largest."""
    inner = sorted(ratios)[1:-1]
    return (inner[-1] - inner[0]) / inner[-1] if inner[-1] else 0.0


_STYLES = {HOLDS: "", FAILS: "bold red"}


def claims_table(outcomes: Iterable[ClaimResult]) -> Table:
    """Every claim with its measured ratio; "~" marks rounds that never agreed."""
    figures = ("least", "measured", "spread", "repeats")
    table = table_of("claims of speed, as ratios", ("claim", "dtype", "against", "for"), figures)
    table.add_column("verdict", no_wrap=True)
    for outcome in outcomes:
        table.add_row(*_claim_cells(outcome), style=_STYLES.get(outcome.verdict, "dim"))
    return table


def _claim_cells(outcome: ClaimResult) -> tuple[str, ...]:
    claim = outcome.claim
    measured = "" if outcome.ratio is None else f"{outcome.ratio:.2f}"
    spread = "" if outcome.spread is None else f"{'~' if outcome.noisy else ''}{outcome.spread:.0%}"
    return (
        f"{claim.subject}{f', batch {claim.batch}' if claim.batch > 1 else ''}",
        claim.dtype,
        claim.against,
        " ".join(filter(None, (claim.microarchitecture, claim.isa))) or "any",
        f"{claim.least:.2f}",
        measured,
        spread,
        str(outcome.repeats) if measured else "",
        outcome.verdict,
    )
