"""What the commands share: the terminal, the `--json` option, the packages they need."""

import json
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from rich.console import Console

from sparsejit.errors import MissingDependency

console = Console(highlight=False)
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
