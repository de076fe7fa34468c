"""Results over time: one JSON object a line, with the machine and the commit they belong to.

    append, read_rows   rows of a file in perf/results
    kernels_table       the latest recordings of every processor side by side, as Markdown for
                        docs/notes/figures.md

The table shows the last recorded row of each processor, problem and dtype: a recording may have
only some problems.
"""

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sparsejit.errors import InvalidInput
from sparsejit.machine import microarchitecture
from sparsejit.machine.target import Target
from sparsejit.measuring.core_loops import cycles_per_ns
from sparsejit.perf.checking.claims import MKL_CSR
from sparsejit.perf.machine import MachineLimits
from sparsejit.perf.problems import PROBLEMS
from sparsejit.planner.calibration import calibrated

RESULTS = Path(__file__).resolve().parent / "results"


def append(name: str, rows: Iterable[dict[str, Any]], limits: MachineLimits) -> Path:
    """Append rows to perf/results/`name`.jsonl and return that path.

    Each row also gets its circumstances, the core's measured limits, its clock now, and the rates
    that the planner used. Rows from before 22 November 2026 lack clock, rates and
    microarchitecture.

    Raises InvalidInput outside a git checkout: a result without its commit means nothing.
    """
    shared = {"limits": limits.as_dict(), **speeds(), **circumstances()}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.jsonl"
    append_rows(path, ({**row, **shared} for row in rows))
    return path


def speeds() -> dict[str, Any]:
    """The core: its design, its clock now, and the rates that the planner uses."""
    target = Target.detect()
    return {
        "microarchitecture": target.core.key,
        "clock_ghz": cycles_per_ns(target),
        "rates": asdict(calibrated(target).core.rates),
    }


def append_rows(results: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows to a file, all of them or, where one cannot be written as JSON, none."""
    lines = _lines(rows)
    with results.open("a") as file:
        file.write(lines)


def read_rows(results: Path) -> list[dict[str, Any]]:
    """The rows of a file, none where the file is not there yet."""
    return (
        [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    )


def circumstances() -> dict[str, str]:
    """The machine and its microarchitecture, the checkout's commit and the time in UTC.

    Raises InvalidInput outside a git checkout.
    """
    return {
        "machine": Target.detect().model,
        "microarchitecture": microarchitecture.detect(),
        "commit": _commit(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _commit() -> str:
    """The checkout's commit, with "-dirty" where files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=RESULTS.parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as problem:
        raise InvalidInput(
            f"{RESULTS.parent} is not in a git checkout ({problem}); "
            "results are recorded with their commit: run from a clone"
        ) from problem
    return done.stdout.strip()


# Microarchitecture of rows from before 22 November 2026, which lack it: all are of one machine.
FIRST_CORE = "zen5"
_DTYPES = ("float32", "bfloat16", "int8")

Rows = Sequence[dict[str, Any]]


def recorded_kernels(isa: str = "avx512") -> list[str]:
    """Lines of a table: nanoseconds of the chosen kernel, of MKL's CSR product, and their ratio.

    Raises InvalidInput where there are no recordings.
    """
    rows = read_rows(RESULTS / "kernels.jsonl")
    if not rows:
        raise InvalidInput(f"{RESULTS} holds no recordings; run from a clone")
    return kernels_table(rows, isa)


def kernels_table(rows: Rows, isa: str) -> list[str]:
    """Lines of the table for any rows; each processor has its own columns."""
    chosen = [row for row in rows if row["auto"] and row["isa"] == isa]
    latest = {
        (_core(row), row["problem"], row["dtype"]): row
        for row in sorted(chosen, key=lambda row: str(row["time"]))
    }
    cores = list(dict.fromkeys(core for core, _, _ in latest))
    titles = [f"{core} {what}" for core in cores for what in (*_DTYPES, MKL_CSR, "ratio")]
    lines = _heading(["", "matrix", "zeros", *titles])
    for name, problem in PROBLEMS.items():
        if not any((core, name, dtype) in latest for core in cores for dtype in _DTYPES):
            continue
        cells = [name, f"{problem.out_features} x {problem.in_features}"]
        pattern = problem.pattern.name
        inside = "" if pattern == "unstructured" else f" in {pattern}"
        cells.append(f"{problem.sparsity:.0%}{inside}".replace("%", " %"))
        for core in cores:
            cells += _cells([latest.get((core, name, dtype)) for dtype in _DTYPES])
        lines.append(_line(cells))
    return [*lines, "", *_origins(latest.values())]


def _core(row: dict[str, Any]) -> str:
    return str(row.get("microarchitecture", FIRST_CORE))


def _cells(by_dtype: Sequence[dict[str, Any] | None]) -> list[str]:
    float32 = by_dtype[0]
    peer = {one["name"]: one["ns_min"] for one in (float32 or {}).get("peers", [])}.get(MKL_CSR)
    ratio = f"{peer / float32['ns_min']:.1f}x" if peer and float32 else ""
    times = (f"{row['ns_min']:,.0f}" if row else "" for row in by_dtype)
    return [*times, f"{peer:,.0f}" if peer else "", ratio]


def _origins(rows: Iterable[dict[str, Any]]) -> list[str]:
    """One line a processor and recording: machine, clock where it is known, and commit."""
    found = {}
    for row in rows:
        clock = f", {row['clock_ghz']:.2f} GHz" if "clock_ghz" in row else ""
        found[_core(row), row["commit"]] = f"{row['machine']}{clock}, {row['time'][:10]}"
    return [f"{core}: {text}, commit {commit}" for (core, commit), text in found.items()]


def _heading(titles: list[str]) -> list[str]:
    return [_line(titles), "|" + "---|" * len(titles)]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
