"""`sparsejit selftest`: random kernels against float64, for a processor that is new to us."""

import itertools
import os
import secrets
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from sparsejit import __version__
from sparsejit.api.reports.shown import table_of
from sparsejit.commands.console import (
    JsonFileOption,
    JsonOption,
    ProgressBar,
    check_outputs,
    console,
    error_console,
    hand_over,
)

if TYPE_CHECKING:
    from sparsejit.selftest.examination import Tally, Verdict
    from sparsejit.selftest.trials import SelfTest

_DEFAULT_MINUTES = 1.0
_SECONDS_BETWEEN_LINES = 60.0
_INTERRUPTED = 130  # exit status of a command that Ctrl-C ended, as in shells


def selftest(
    minutes: Annotated[
        float | None,
        typer.Option(min=0.01, help="Duration. [default: 1, or until --kernels are done]"),
    ] = None,
    kernels: Annotated[int | None, typer.Option(min=1, help="Number of kernels.")] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of all random numbers; by default a new one each time."),
    ] = None,
    only: Annotated[int | None, typer.Option(min=0, help="Try one kernel, by its number.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes. [default: one a core]")
    ] = None,
    as_json: JsonOption = False,
    out: JsonFileOption = None,
) -> None:
    """Check random kernels of every family and operator against float64; fail if one differs.

    Each runs between inaccessible pages, in a process that may crash; a failure is printed with the
    one command that repeats it.
    """
    from sparsejit.runtime.workers import available_cores
    from sparsejit.selftest.examination import Tally
    from sparsejit.selftest.trials import SelfTest

    check_outputs(out)
    tally = Tally(secrets.randbelow(2**31) if seed is None else seed)
    numbers = iter([only]) if only is not None else itertools.islice(itertools.count(), kernels)
    if minutes is None and kernels is None and only is None:
        minutes = _DEFAULT_MINUTES
    count = 1 if only is not None else kernels
    test = SelfTest(tally.seed, min(workers or available_cores(), count or 2**31))
    begin = time.monotonic()
    interrupted = not _run(test, numbers, tally, minutes, count)
    seconds = time.monotonic() - begin
    report = {**_surroundings(), "seconds": round(seconds, 1), **tally.as_dict()}
    if not hand_over(report, as_json, out):
        _print(tally, seconds)
    raise typer.Exit(1 if tally.failures else _INTERRUPTED if interrupted else 0)


def _run(
    test: "SelfTest",
    numbers: Iterator[int],
    tally: "Tally",
    minutes: float | None,
    count: int | None,
) -> bool:
    """Fill the tally, showing progress on stderr; False where Ctrl-C ended it."""
    begin = time.monotonic()

    def share_of_time() -> float:
        return 0.0 if minutes is None else (time.monotonic() - begin) / (60 * minutes)

    try:
        with ProgressBar(_SECONDS_BETWEEN_LINES) as bar:
            for verdict in test.run(numbers, lambda: share_of_time() < 1):
                tally.add(verdict)
                if verdict.problem is not None:
                    _print_failure(tally, verdict)
                share = max(share_of_time(), tally.kernels / count if count else 0.0)
                bar.show(f"{min(share, 1):.0%}: {_counts(tally)}", share)
    except KeyboardInterrupt:
        return False
    return True


def _counts(tally: "Tally") -> str:
    return f"{tally.held.total():,} held, {len(tally.failures)} failed"


def _surroundings() -> dict[str, object]:
    from sparsejit.machine.microarchitecture import detect
    from sparsejit.machine.target import Target
    from sparsejit.selftest.cases import levels

    return {
        "version": __version__,
        "processor": Target.detect().model,
        "microarchitecture": detect(),
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "levels": list(levels()),
    }


def _print_failure(tally: "Tally", verdict: "Verdict") -> None:
    """Print the failed kernel, its problem and the command that repeats it, on stderr at once."""
    from sparsejit.selftest.cases import derive

    case = derive(tally.seed, verdict.number)
    for line in (
        f"kernel {verdict.number} {verdict.problem}",
        f"  {case}",
        f"  repeat it: {tally.command(verdict)}",
    ):
        error_console.print(line, style="red", markup=False)


def _print(tally: "Tally", seconds: float) -> None:
    from sparsejit.selftest.cases import levels
    from sparsejit.selftest.trials import MOST_FAILURES

    table = table_of("kernels that held", ("kernel", "dtype"), (*levels(), "failed"))
    for family, dtype in tally.families():
        failed = tally.failed(family, dtype)
        held = (f"{tally.held[family, dtype, level]:,}" for level in levels())
        table.add_row(family, dtype, *held, f"{failed:,}", style="red" if failed else None)
    console.print(table)
    if len(tally.failures) >= MOST_FAILURES:
        console.print(f"stopped after {MOST_FAILURES} failures", style="red")
    around = _surroundings()
    rate = tally.kernels / max(seconds, 1e-9)
    console.print(
        f"{tally.held.total():,} of {tally.kernels:,} kernels held, {tally.shared:,} of them on "
        f"several threads, in {seconds:.0f} s ({rate:.0f} a second)"
    )
    console.print(
        f"{around['processor']}, {' and '.join(levels())}; "
        f"sparsejit {__version__}, seed {tally.seed}"
    )
