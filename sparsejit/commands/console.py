"""Code that commands share: the terminal, the options for JSON, checks of needed packages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

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
