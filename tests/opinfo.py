"""torch's own operator and module tests, compiled: every sample equal to torch, or refused.

    python tests/opinfo.py --jobs 2 --out /tmp/opinfo.jsonl     goes on where it stopped
    python tests/opinfo.py --out /tmp/opinfo.jsonl --again     what was not supported there
    python tests/opinfo.py --only "fft_.*" --dtypes float32
    python tests/opinfo.py --page /tmp/opinfo.jsonl             the page of the documentation
    python tests/opinfo.py --sample nn_functional_pad_circular:float32:3

Each entry of the databases runs in a process that may crash or hang. A finding is a wrong result,
an exception that is neither UnsupportedOperator nor InvalidInput, a crash, or a hang. Ends with 1
where there was one.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsejit.selftest.trials import Trials

# Limits of an entry in one dtype; a machine may be busy.
PATIENCE_S = 1800.0
MOST_BYTES, MOST_CPU_S = 8 << 30, 1200
ENTRIES_A_PROCESS = 60
# The outcomes that are findings.
FINDINGS = ("wrong", "raw", "crash")

Task = tuple[str, str, int | None]


def attempt(task: Task) -> dict[str, Any]:
    """The outcomes of an entry's samples in a dtype."""
    name, dtype, most = task
    from operator_database import batches, samples

    _limit()
    cases = batches.cases_of(samples.samples(name, dtype, most))
    found = batches.outcomes(cases)
    refused = [each for each in found if each.kind == batches.REFUSED]
    others = [
        batches.Case(each.case.sample, each.case.plain, each.case.exact, fixed=True)
        for each in found
        if each.kind in (batches.REFUSED, batches.RAW) and len(each.case.sample.places) > 1
    ]
    with_weights = batches.outcomes(others)
    mended = {x.case.sample.number: x for x in with_weights if x.kind != batches.REFUSED}
    row: dict[str, Any] = {"name": name, "dtype": dtype, "samples": len(cases)}
    row["counts"] = dict(Counter(each.kind for each in found))
    row["with_weights"] = sum(x.kind == batches.EQUAL for x in mended.values())
    row["refused"] = dict(Counter(each.text for each in refused))
    row["findings"] = [
        {"kind": each.kind, "sample": str(each.case.sample), "text": each.text, "fixed": n}
        for n, some in enumerate((found, list(mended.values())))
        for each in some
        if each.kind in FINDINGS
    ]
    return row


def _limit() -> None:
    """Limit this process: beyond them MemoryError is raised, or SIGPROF ends it."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)


def died(task: Task, problem: str) -> dict[str, Any]:
    """The row of an entry that took its process with it."""
    finding = {"kind": "crash", "sample": "", "text": problem, "fixed": 0}
    return {
        "name": task[0],
        "dtype": task[1],
        "samples": 0,
        "counts": {},
        "with_weights": 0,
        "refused": {},
        "findings": [finding],
    }


def tasks(only: str, dtypes: list[str], most: int | None, known: set[Any]) -> Iterator[Task]:
    """Every entry in every dtype, those known excepted."""
    from operator_database import samples

    for dtype in dtypes:
        for name in samples.entries():
            wanted = re.fullmatch(only, name) and dtype in samples.dtypes_of(name)
            if wanted and (name, dtype) not in known:
                yield name, dtype, most


def one_sample(text: str) -> None:
    """One sample in this process, with its traceback."""
    from operator_database import batches, samples

    name, dtype, number = text.split(":")
    for sample in samples.samples(name, dtype):
        if sample.number == int(number):
            print(sample)
            (case,) = batches.cases_of([sample])
            (outcome,) = batches.attempt([case])
            print(outcome.kind, outcome.text)


def main(
    only: Annotated[str, typer.Option(help="Pattern of names of entries.")] = ".*",
    dtypes: Annotated[str, typer.Option(help="Names with commas between.")] = (
        "float32,int64,bool,float16,bfloat16"
    ),
    most: Annotated[int | None, typer.Option(help="Samples of an entry in a dtype.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    out: Annotated[Path | None, typer.Option(help="File of rows, which is added to.")] = None,
    sample: Annotated[str, typer.Option(help="One sample, as name:dtype:number.")] = "",
    again: Annotated[
        bool, typer.Option(help="Try entries again that were not supported, or had findings.")
    ] = False,
    page: Annotated[Path | None, typer.Option(help="Make the page of the rows in a file.")] = None,
) -> None:
    """Compile torch's samples of its operators and modules, and compare."""
    os.environ.setdefault("SPARSEJIT_CALIBRATE", "0")
    os.environ.setdefault("SPARSEJIT_CODE_CACHE_MB", "0")
    os.environ.setdefault("SPARSEJIT_FILL", "1")  # what is left unwritten is NaN, or -1
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # a forked process has no other threads
    if sample:
        one_sample(sample)
        return
    if page is not None:
        write_page(read_rows(page))
        return
    rows = read_rows(out) if out is not None and out.exists() else []
    if again and out is not None:
        rows = [
            row
            for row in rows
            if not re.fullmatch(only, row["name"]) or (is_supported(row) and not row["findings"])
        ]
        out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    known = {(row["name"], row["dtype"]) for row in rows}
    trials = Trials(attempt, died, jobs, PATIENCE_S, most=ENTRIES_A_PROCESS)
    for row in trials.run(tasks(only, dtypes.split(","), most, known)):
        rows.append(row)
        print(f"{row['name']} {row['dtype']}: {row['counts']}", flush=True)
        for each in row["findings"][:3]:
            print(f"  {each['kind']}: {each['sample']}: {each['text'][:300]}", flush=True)
        if out is not None:
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
    raise typer.Exit(any(row["findings"] for row in rows))


def write_page(rows: list[dict[str, Any]]) -> None:
    """Make the page of the documentation from rows of a sweep."""
    from operator_database import page, samples
    from torch.testing._internal.common_methods_invocations import op_db

    order = {name: number for number, name in enumerate(samples.entries())}
    known = [row for row in rows if row["name"] in order]
    known.sort(key=lambda row: (samples.DTYPES.index(row["dtype"]), order[row["name"]]))
    page.PAGE.write_text(page.page_of(known, [op.formatted_name for op in op_db]))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a sweep."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def is_supported(row: dict[str, Any]) -> bool:
    """Whether a row says so of its entry."""
    from operator_database import page

    return page.state_of(row) == page.SUPPORTED


if __name__ == "__main__":
    typer.run(main)
