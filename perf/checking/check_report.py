"""Results of the claims as a rich table."""

from collections.abc import Iterable

from rich.table import Table

from sparsejit.api.shown import table_of
from sparsejit.perf.checking.check import FAILS, HOLDS, ClaimResult

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
