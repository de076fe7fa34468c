"""Model classes of transformers' registry: built small, compiled, and compared with torch.

    python tests/transformers_sweep.py --kinds text,vision --first 20 --cases 30 --minutes 5
    python tests/transformers_sweep.py --case roberta        one case in this process
    python tests/transformers_sweep.py --record --page       all, and the page in docs/notes

Each case runs in a process with limits of memory and time. A finding is a wrong result, an
exception that is not of sparsejit.errors, a crash, or a hang. Ends with 1 where there was one.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from fuzz import limit
from transformers_models import page as pages
from transformers_models.catalogue import KINDS, Case, case_named, cases
from transformers_models.trial import Outcome, try_case

from sparsejit.perf import history
from sparsejit.selftest.trials import Trials

PATIENCE_S = 600.0  # a busy machine is no hang; MOST_CPU_S ends one
MOST_BYTES, MOST_CPU_S = 6 << 30, 150
CASES_A_PROCESS = 12
RESULTS = history.RESULTS / "transformers.jsonl"


def attempt(case: Case) -> Outcome:
    """One case, in a process of its own."""
    limit(MOST_BYTES, MOST_CPU_S)
    return try_case(case)


def died(case: Case, problem: str) -> Outcome:
    """The outcome of a case that took its process with it."""
    return Outcome(case.name, case.kind, case.model_class, "finding", problem)


def run(chosen: list[Case], minutes: float) -> Iterator[Outcome]:
    """Their outcomes as they come, one process at a time, for that many minutes at most."""
    stop = threading.Event()
    timer = threading.Timer(60 * minutes, stop.set)
    timer.daemon = True
    timer.start()
    tasks = itertools.takewhile(lambda case: not stop.is_set(), chosen)
    yield from Trials(attempt, died, 1, PATIENCE_S, most=CASES_A_PROCESS).run(tasks)
    timer.cancel()


def page_of(results: Path) -> str:
    """The page of the newest rows."""
    rows = pages.latest(history.read_rows(results))
    return pages.page(rows, rows[-1]["transformers"])


def main(
    kinds: Annotated[str, typer.Option(help="Names with commas between.")] = ",".join(KINDS),
    first: Annotated[int, typer.Option(min=0, help="Cases to pass over.")] = 0,
    number: Annotated[int, typer.Option("--cases", min=1, help="Of all kinds.")] = sys.maxsize,
    only: Annotated[str, typer.Option(help="Names of cases with commas between.")] = "",
    minutes: Annotated[float, typer.Option(help="For how long at most.")] = 600.0,
    case: Annotated[str, typer.Option(help="One case in this process.")] = "",
    listed: Annotated[bool, typer.Option("--list", help="Print the cases alone.")] = False,
    record: Annotated[bool, typer.Option(help=f"Append to perf/results/{RESULTS.name}.")] = False,
    page: Annotated[bool, typer.Option(help="Write docs/notes from all rows there.")] = False,
    out: Annotated[Path | None, typer.Option(help="Append rows there instead.")] = None,
) -> None:
    """Look for wrong results, raw errors, crashes and hung cases."""
    os.environ.setdefault("SPARSEJIT_CALIBRATE", "0")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if case:
        print(try_case(case_named(case)))
        return
    chosen = [each for each in cases() if each.kind in kinds.split(",")]
    chosen = chosen[first : first + number]
    if only:
        chosen = [case_named(name) for name in only.split(",")]
    if listed:
        print("\n".join(f"{each.kind} {each.name} {each.model_class}" for each in chosen))
        return
    if page and not record:
        pages.PAGE.write_text(page_of(RESULTS))
        return
    counts: Counter[str] = Counter()
    shared = {"transformers": version("transformers"), "torch": version("torch")}
    shared |= history.circumstances() if record else {}
    path = RESULTS if record else out
    for outcome in run(chosen, minutes):
        counts[outcome.status] += 1
        print(f"{outcome.name}: {outcome.status} {outcome.text}", flush=True)
        if path is not None:
            history.append_rows(path, [{**asdict(outcome), **shared}])
    print(dict(counts))
    if page:
        pages.PAGE.write_text(page_of(RESULTS))
    raise typer.Exit(bool(counts["finding"]))


if __name__ == "__main__":
    typer.run(main)
