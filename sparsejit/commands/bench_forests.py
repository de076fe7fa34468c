"""`sparsejit bench forests`: decision trees beside other libraries that compile or run them."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sparsejit.api.reports.shown import table_of
from sparsejit.commands.console import (
    JsonFileOption,
    JsonOption,
    RecordOption,
    check_outputs,
    console,
    error_console,
    hand_over,
    record_rows,
    require,
)

if TYPE_CHECKING:
    from sparsejit.perf.forests import ForestComparison


def forests(
    forest: Annotated[
        list[str] | None, typer.Option(help="random-forest, lightgbm; repeatable. Default: all.")
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Make the other libraries' virtual environment first.")
    ] = False,
    as_json: JsonOption = False,
    out: JsonFileOption = None,
    record: RecordOption = False,
) -> None:
    """Time forests of 100 trees, one row a call and 10,000 in one, beside other libraries."""
    require("treelite", "sklearn", "lightgbm")
    from sparsejit.perf.forests import FOREST_PROBLEMS, PEER, compare_forests, problems_named

    chosen = problems_named(forest or list(FOREST_PROBLEMS))
    check_outputs(out)
    with error_console.status("") as status:
        if install:
            PEER.install(status.update)
        found = [compare_forests(problem, status.update) for problem in chosen]
    rows = [one.as_dict() for one in found]
    record_rows(record, "forests", rows)
    if hand_over(rows, as_json, out):
        return
    for one in found:
        console.print(_table(one))


def _table(found: "ForestComparison") -> Table:
    title = f"{found.problem}: {found.kernels[0]}, in batches {found.kernels[1]}; ns a row"
    lines = [f"{name} skipped: {why}" for name, why in found.skipped.items()]
    gains = found.gain(batch=False), found.gain(batch=True)
    lines.append(f"the best rival takes {gains[0]:.1f} and {gains[1]:.1f} times as long")
    figures = ("one a call", "10,000 a call", "error")
    table = table_of(title, ("engine", "version"), figures, lines)
    for time in found.times:
        cells = (f"{time.ns_single:,.0f}", f"{time.ns_batch:,.0f}", f"{time.relative_error:.1e}")
        table.add_row(time.name, time.version, *cells)
    return table
