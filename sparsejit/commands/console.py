"""What the commands share: the terminal, the `--json` option, the packages they need."""

import json
import os
import sys
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from rich.console import Console

from sparsejit.errors import MissingDependency

# A table that goes to a file or a pipe keeps its columns whole.
_FILE_WIDTH = 150
_is_terminal = sys.stdout.isatty() or "COLUMNS" in os.environ

console = Console(highlight=False, width=None if _is_terminal else _FILE_WIDTH)
error_console = Console(stderr=True, soft_wrap=True, highlight=False)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def print_json(value: Any) -> None:
    """Write `value` to stdout as JSON, without colour or wrapping."""
    typer.echo(json.dumps(value, indent=2))


def require(*packages: str) -> None:
    """Raise MissingDependency for the first package that is not installed."""
    for package in packages:
        if find_spec(package) is None:
            raise MissingDependency(
                f"this command needs {package}, which is not installed; "
                "`sparsejit doctor` names the remedy"
            )
