"""Results of batch contests as tables and sentences."""

from collections.abc import Sequence

from rich.table import Table

from sparsejit.api.shown import table_of
from sparsejit.perf.batch_contest import MKL_CSR, BatchContest, geometric_mean


def contest_table(contest: BatchContest) -> Table:
    """Our kernels and the peers, called from Python, and our kernels and MKL, called natively."""
    rows, columns = contest.shape
    title = f"{rows}x{columns} at 90 % zeros, batch {contest.batch}; microseconds"
    figures = ("from Python", "times faster", "native", "times faster")
    skipped = (f"{name} skipped: {why}" for name, why in contest.skipped.items())
    table = table_of(title, ["who"], figures, skipped)
    for name, times in contest.ours.items():
        table.add_row(
            *(f"{name} ({contest.strategies[name]})", _us(times), f"{contest.ratio(name):.2f}"),
            *(_us(contest.native[name]), f"{contest.native_ratio(name):.2f}"),
        )
    table.add_section()
    for name, times in contest.peers.items():
        table.add_row(name, _us(times))
    table.add_row(MKL_CSR, "", "", _us(contest.native[MKL_CSR]))
    return table


def lines(contests: Sequence[BatchContest]) -> list[str]:
    """A sentence for each of our kernels: geometric mean and least speed-up over the contests."""
    words = []
    for name in contests[0].ours:
        worst = min(contests, key=lambda contest: contest.ratio(name))
        rows, columns = worst.shape
        words.append(
            f"{name}: {geometric_mean(contests, name):.2f} times faster in the geometric mean, "
            f"least {worst.ratio(name):.2f} ({rows}x{columns}, batch {worst.batch}, "
            f"against {worst.best_peer})"
        )
    return words


def _us(times: list[float]) -> str:
    return f"{min(times) / 1000:,.1f}"
