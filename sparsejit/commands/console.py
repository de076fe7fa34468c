"""Code that commands share: the terminal, progress, JSON's options, checks of needed packages."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from sparsejit.api.reports.shown import terminal_width
from sparsejit.errors import InvalidInput, MissingDependency
from sparsejit.files import atomic_path, check_writable

if TYPE_CHECKING:
    from sparsejit.api.reports.report import Report
    from sparsejit.prune.shrink.shrunk import Shrunk

# A table that goes to a file or a pipe keeps its columns whole.
_FILE_WIDTH = 150

console = Console(highlight=False, width=None if terminal_width() else _FILE_WIDTH)
error_console = Console(stderr=True, soft_wrap=True, highlight=False)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
JsonFileOption = Annotated[
    Path | None, typer.Option("--out", help="File to write the JSON of --json to.")
]
RecordOption = Annotated[
    bool, typer.Option("--record", help="Append the rows to the recordings in perf/results.")
]


class ProgressBar(Progress):
    """A bar on stderr; without a terminal, nothing or a few lines.

    seconds_a_line: seconds between printed lines where no bar can be drawn; None prints none.
    """

    def __init__(self, seconds_a_line: float | None = None) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
        )
        self._drawn = error_console.is_terminal
        super().__init__(*columns, console=error_console, transient=True, disable=not self._drawn)
        self._bar = self.add_task("")
        self._seconds_a_line = seconds_a_line
        self._printed = -math.inf

    def begin(self, what: str, total: float | None = None) -> None:
        """Start over, with `total` steps, or None for an unknown number of steps."""
        self.reset(self._bar, description=what, total=total)

    def step(self, done: int = 1) -> None:
        """Add `done` steps."""
        self.advance(self._bar, done)

    def show(self, text: str, done: float, total: float | None = 1.0) -> None:
        """Show a text and the share done; without a terminal, print the text where it is due."""
        self.update(self._bar, description=text, completed=done, total=total)
        if self._drawn or self._seconds_a_line is None:
            return
        now = time.monotonic()
        if now - self._printed >= self._seconds_a_line or done == total:
            error_console.print(text)
            self._printed = now


def say(line: str, style: str | None = None) -> None:
    """Print a line unchanged: no path in it is broken, or read as markup."""
    console.print(line, style=style, soft_wrap=True, markup=False)


def print_json(value: Any) -> None:
    """Write `value` to stdout as JSON, without colour or wrapping."""
    typer.echo(json.dumps(value, indent=2))


def write_json(file: Path, value: Any) -> None:
    """Write `value` to a file as JSON. `check_outputs` checks the path, before the work."""
    with atomic_path(file) as path:
        path.write_text(json.dumps(value, indent=2) + "\n")


def write_page(file: Path | None, report: Report | Shrunk) -> None:
    """Write the report to the file, if there is one, as a web page, and say so on stderr."""
    if file is not None:
        with atomic_path(file) as path:
            path.write_text(report.html(), "utf-8")
        error_console.print(f"report in {file}", markup=False)


def check_outputs(*files: Path | None) -> None:
    """Raise InvalidInput for a file that cannot be written, and for one file twice."""
    paths = [file for file in files if file is not None]
    if len({path.resolve() for path in paths}) < len(paths):
        named = ", ".join(map(str, paths))
        raise InvalidInput(f"two outputs are one file ({named}); give each a name of its own")
    for path in paths:
        check_writable(path)


def hand_over(value: Any, as_json: bool, out: Path | None) -> bool:
    """Write `value` as JSON to a file, to stdout, or both, as asked; return whether to stdout."""
    if out is not None:
        write_json(out, value)
    if as_json:
        print_json(value)
    return as_json


def record_rows(record: bool, name: str, rows: Sequence[dict[str, Any]]) -> None:
    """With `record`, append rows to the recordings of that name, and print their file."""
    if record:
        from sparsejit.machine.target import Target
        from sparsejit.perf import history
        from sparsejit.perf.machine import machine_limits

        file = history.append(name, rows, machine_limits(Target.detect()))
        error_console.print(f"recorded in {file}")


# The extra that brings a package, by the package's import name.
EXTRAS = {
    "torch": "torch",
    "soundfile": "voice",
    "onnx": "onnx",
    "treelite": "forests",
    "sklearn": "sklearn",
    "jinja2": "bench",
    "matplotlib": "bench",
    "scipy": "bench",
    "threadpoolctl": "bench",
    "lightgbm": "dev",
}


def require(*packages: str) -> None:
    """Raise MissingDependency, with the extras that bring them, for packages not installed."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        extras = ",".join(dict.fromkeys(EXTRAS[package] for package in missing))
        raise MissingDependency(
            f"this command needs {', '.join(missing)}: pip install 'sparsejit[{extras}]'"
        )
