"""What the commands share: the terminal and the `--json` option."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console

console = Console(highlight=False)
error_console = Console(stderr=True, soft_wrap=True, highlight=False)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def print_json(value: Any) -> None:
    """Write `value` to stdout as JSON, without colour or wrapping."""
    typer.echo(json.dumps(value, indent=2))
