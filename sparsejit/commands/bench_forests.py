"""`sparsejit bench forests`: decision trees, and who else compiles or runs them."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

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
        bool, typer.Option("--install", help="Make the rivals' virtual environment first.")
    ] = False,
    as_json: JsonOption = False,
    out: JsonFileOption = None,
    record: RecordOption = False,
) -> None:
    """Time forests of 100 trees, one row a call and 10,000 in one, with rivals in turn."""
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
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(("engine", "version", "one a call", "10,000 a call", "error")):
        table.add_column(column, justify="left" if number < 2 else "right", no_wrap=True)
    for time in found.times:
        cells = (f"{time.ns_single:,.0f}", f"{time.ns_batch:,.0f}", f"{time.relative_error:.1e}")
        table.add_row(time.name, time.version, *cells)
    lines = [f"{name} skipped: {why}" for name, why in found.skipped.items()]
    gains = found.gain(batch=False), found.gain(batch=True)
    lines.append(f"the best rival takes {gains[0]:.1f} and {gains[1]:.1f} times as long")
    table.caption, table.caption_justify = "\n".join(lines), "left"
    return table
