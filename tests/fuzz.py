"""Random models, files and graphs: compiled, run and compared for as long as asked.

    python tests/fuzz.py --seed 1 --minutes 60 --kinds torch,onnx --jobs 2 --record
    python tests/fuzz.py --kinds estimators --cases 2000 --minutes 600
    python tests/fuzz.py --case torch:12345          one case again, in this process

Each case runs in a process that may crash or hang. A finding is a wrong result, an exception that
is not of sparsejit.errors, a crash, or a hang. Ends with 1 where there was one.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from temporary_folder import own_temporary_folder

from sparsejit.perf import history
from sparsejit.selftest.trials import Trials

sys.path.append(str(Path(__file__).parent / "models"))  # where pytest finds what kinds share
# Modules with `make(seed) -> case`, whose `title` says what it is, and `check(case) -> outcome`.
KINDS = {
    "torch": "fuzzing.torch_models",
    "files": "fuzzing.saved_files",
    "estimators": "fuzzing.estimators",
    "pipelines": "fuzzing.pipelines",
    "onnx": "fuzzing.onnx_graphs",
    "mutants": "fuzzing.onnx_files",
    "operators": "fuzzing.operator_files",
    "rows": "fuzzing.onnx_rows",
    "qdq": "fuzzing.qdq_files",
    "shrunk": "fuzzing.shrunk_nets",
}
# No case takes a tenth of it; a machine may be busy.
PATIENCE_S = 120.0
# Address space beyond the first of a process, and time of the processor for a case: so that
# a forged size cannot take the machine with it, and a damaged file is refused soon.
MOST_BYTES, MOST_CPU_S = 12 << 30, 3600
OF_DAMAGED_FILES = {"mutants": (2 << 30, 10)}
CASES_A_PROCESS = 150


@dataclass(frozen=True)
class Outcome:
    """The outcome of one case; `problem` is empty unless it is a finding."""

    kind: str
    seed: int
    text: str
    problem: str = ""


@dataclass
class Found:
    """The number of cases of a kind by outcome, and its findings by seed."""

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: dict[int, str] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        """Count a case."""
        self.outcomes["finding" if outcome.problem else outcome.text] += 1
        if outcome.problem:
            self.findings[outcome.seed] = outcome.problem


def attempt(task: tuple[str, int]) -> Outcome:
    """Make and check one case."""
    kind, seed = task
    module = importlib.import_module(KINDS[kind])
    try:
        case = module.make(seed)
        if multiprocessing.parent_process() is not None:
            limit(*OF_DAMAGED_FILES.get(kind, (MOST_BYTES, MOST_CPU_S)))
        return Outcome(kind, seed, module.check(case))
    except Exception as error:  # whatever a case raises is what we look for
        return Outcome(kind, seed, "", f"{type(error).__name__}: {error}"[:2000])


def limit(more_bytes: int, more_s: int) -> None:
    """Limit this process: beyond them MemoryError is raised, or SIGPROF ends it."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.setitimer(signal.ITIMER_PROF, more_s)


def died(task: tuple[str, int], problem: str) -> Outcome:
    """The outcome of a case that took its process with it."""
    return Outcome(*task, "", problem)


def tasks(kinds: list[str], seeds: range, stop: threading.Event) -> Iterator[tuple[str, int]]:
    """Kinds in turn, seed after seed."""
    for seed in seeds:
        for kind in kinds:
            if stop.is_set():
                return
            yield kind, seed


def run(kinds: list[str], seeds: range, minutes: float, jobs: int) -> dict[str, Found]:
    """Cases of the seeds for that many minutes at most; findings are printed as they come."""
    found = {kind: Found() for kind in kinds}
    stop = threading.Event()
    timer = threading.Timer(60 * minutes, stop.set)
    timer.daemon = True
    timer.start()
    trials = Trials(attempt, died, jobs, PATIENCE_S, most=CASES_A_PROCESS)
    try:
        for outcome in trials.run(tasks(kinds, seeds, stop)):
            found[outcome.kind].add(outcome)
            if outcome.problem:
                print(f"--case {outcome.kind}:{outcome.seed}\n{outcome.problem}\n", flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    timer.cancel()
    return found


def again(case: str) -> None:
    """One case in this process, with its traceback."""
    kind, seed = case.split(":")
    module = importlib.import_module(KINDS[kind])
    made = module.make(int(seed))
    print(made.title)
    print(module.check(made))


def main(
    seed: Annotated[int, typer.Option(help="Of the first case of each kind.")] = 1,
    minutes: Annotated[float, typer.Option(help="For how long at most.")] = 1.0,
    cases: Annotated[int, typer.Option(min=1, help="Of each kind at most.")] = sys.maxsize,
    kinds: Annotated[str, typer.Option(help="Names with commas between.")] = ",".join(KINDS),
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    case: Annotated[str, typer.Option(help="One case, as kind:seed.")] = "",
    record: Annotated[bool, typer.Option(help="Append to perf/results/fuzz.jsonl.")] = False,
) -> None:
    """Look for wrong results, raw errors, crashes and hung cases."""
    os.environ.setdefault("SPARSEJIT_CALIBRATE", "0")
    os.environ.setdefault("SPARSEJIT_FILL", "1")  # what is left unwritten is NaN, or -1
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # a forked process has no other threads
    _temporary = own_temporary_folder()  # of the children that crash, too
    if case:
        again(case)
        return
    found = run(kinds.split(","), range(seed, seed + cases), minutes, jobs)
    shared: dict[str, Any] = {"seed": seed, "minutes": minutes, "jobs": jobs}
    rows = [
        {
            "kind": kind,
            **shared,
            "cases": each.outcomes.total(),
            "outcomes": dict(each.outcomes),
            "findings": {str(n): text.partition("\n")[0] for n, text in each.findings.items()},
        }
        for kind, each in found.items()
    ]
    for row in rows:
        print(f"{row['kind']}: {row['cases']} cases, {row['outcomes']}")
    if record:
        history.append_rows(
            history.RESULTS / "fuzz.jsonl", ({**row, **history.circumstances()} for row in rows)
        )
    raise typer.Exit(any(each.findings for each in found.values()))


if __name__ == "__main__":
    typer.run(main)
