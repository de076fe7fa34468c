"""`sparsejit bench`: measurements, with rivals in the same run."""

import json
from pathlib import Path
from typing import Annotated

import typer

from sparsejit.commands.console import console, error_console, require
from sparsejit.files import atomic_path
from sparsejit.target import Target

bench = typer.Typer(no_args_is_help=True, help="Measure, with rivals in the same run.")


@bench.callback()
def group() -> None:
    """Keep `kernels` a command of its own while it is the only one."""


@bench.command()
def kernels(
    problem: Annotated[
        list[str] | None, typer.Option(help="A, B, C90, C95, G95 or E; repeatable. Default: all.")
    ] = None,
    strategy: Annotated[
        list[str] | None, typer.Option(help="A kernel family; repeatable. Default: all.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the rows here, a JSON array.")
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Append the rows to perf/results/kernels.jsonl.")
    ] = False,
) -> None:
    """Time matrix-vector kernels and every library that does the same, on one core."""
    require("torch", "scipy", "threadpoolctl")
    from sparsejit.perf import history, report
    from sparsejit.perf.kernels import run
    from sparsejit.perf.machine import machine_limits
    from sparsejit.perf.problems import PROBLEMS, problems_named

    chosen = problems_named(problem or PROBLEMS)
    limits = machine_limits(Target.detect())
    console.print(report.limits_table(limits))
    rows = []
    for one in chosen:
        with error_console.status("") as status:
            (comparison,) = run([one], strategy, progress=status.update)
        console.print(report.comparison_table(comparison))
        rows += [row.as_dict() for row in comparison.rows]
    if json_file:
        with atomic_path(json_file) as path:
            path.write_text(json.dumps(rows, indent=2) + "\n")
    if record:
        console.print(f"recorded in {history.append('kernels', rows, limits)}")
