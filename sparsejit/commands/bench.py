"""`sparsejit bench`: measurements, with rivals in the same run."""

import json
from pathlib import Path
from typing import Annotated

import typer

from sparsejit.commands.console import console, error_console, require
from sparsejit.files import atomic_path
from sparsejit.spec import DType
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
    dtype: Annotated[
        list[str] | None, typer.Option(help="float32, bfloat16, ...; repeatable. Default: all.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the rows here, a JSON array.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the kernels chosen automatically on a roofline, PNG.")
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Append the rows to perf/results/kernels.jsonl.")
    ] = False,
) -> None:
    """Time matrix-vector kernels and every library that does the same, on one core."""
    require("torch", "scipy", "threadpoolctl", "matplotlib")
    from sparsejit.perf import history, report
    from sparsejit.perf.kernels import Row, run
    from sparsejit.perf.machine import machine_limits
    from sparsejit.perf.problems import PROBLEMS, problems_named
    from sparsejit.perf.roofline import draw_roofline

    chosen = problems_named(problem or PROBLEMS)
    limits = machine_limits(Target.detect())
    console.print(report.limits_table(limits))
    dtypes = [DType.parse(name) for name in dtype or DType]
    rows: list[Row] = []
    for one in chosen:
        with error_console.status("") as status:
            (comparison,) = run([one], strategy, status.update, dtypes)
        console.print(report.comparison_table(comparison))
        rows += comparison.rows
    values = [row.as_dict() for row in rows]
    if json_file:
        with atomic_path(json_file) as path:
            path.write_text(json.dumps(values, indent=2) + "\n")
    if plot:
        draw_roofline(plot, [row for row in rows if row.auto], limits)
    if record:
        console.print(f"recorded in {history.append('kernels', values, limits)}")
