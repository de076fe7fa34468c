"""Results over time: one JSON object a line, with the machine and the commit they belong to."""

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sparsejit.errors import InvalidInput
from sparsejit.machine import microarchitecture
from sparsejit.machine.target import Target
from sparsejit.measuring.core_loops import cycles_per_ns
from sparsejit.perf.machine import MachineLimits
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
