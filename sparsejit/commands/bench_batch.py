"""`sparsejit bench batch` and `sparsejit bench sweep`: batches beside rivals, and of all sizes."""

from typing import Annotated

import typer

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
from sparsejit.errors import InvalidInput
from sparsejit.ir.spec import DType, Layout


def batch(
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Outputs and inputs of a layer, such as 1024x512; repeatable."),
    ] = None,
    size: Annotated[
        list[int] | None, typer.Option(help="A batch size; repeatable. Default: 16, 64, 256.")
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="A dtype for sparsejit; repeatable. Default: float32, int8."),
    ] = None,
    as_json: JsonOption = False,
    out: JsonFileOption = None,
    record: RecordOption = False,
) -> None:
    """Time batches of layers at 90 % zeros against the best library for pruned weights."""
    require("torch", "scipy", "threadpoolctl", "onnx")
    from sparsejit.perf import batch_contest, history
    from sparsejit.perf.checking.claims import CONTESTED_BATCHES, CONTESTED_SHAPES

    dtypes = tuple(map(DType.parse, dtype)) if dtype else batch_contest.DTYPES
    shapes = [_shape(text) for text in shape] if shape else CONTESTED_SHAPES
    sizes = size or CONTESTED_BATCHES
    if min(sizes) < 2:
        raise InvalidInput(f"batch {min(sizes)} is out of range; use 2 or more")
    check_outputs(out)
    found = []
    for one in shapes:
        for columns in sizes:
            with error_console.status("") as status:
                found.append(batch_contest.run_contest(one, columns, dtypes, status.update))
            if not as_json:
                console.print(batch_contest.contest_table(found[-1]))
    if not as_json:
        console.print("\n".join(batch_contest.lines(found)))
    values = [{**one.as_dict(), **history.speeds()} for one in found]
    record_rows(record, "batch_contest", values)
    hand_over(values, as_json, out)


def _shape(text: str) -> tuple[int, int]:
    rows, _, columns = text.partition("x")
    if not (rows.isdecimal() and columns.isdecimal() and int(rows) and int(columns)):
        raise InvalidInput(f"shape {text!r}; give outputs and inputs, such as 1024x512")
    return int(rows), int(columns)


def sweep(
    problem: Annotated[str, typer.Option(help="The layer: A, B, C90, ...")] = "A",
    size: Annotated[
        list[int] | None,
        typer.Option(help="A batch size; repeatable. Default: 1 to 64, then around sixteens."),
    ] = None,
    layout: Annotated[str, typer.Option(help="batch-major or feature-major.")] = "batch-major",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, ...")] = "float32",
    padded: Annotated[
        bool, typer.Option("--padded", help="Feature-major rows at the pitch that models use.")
    ] = False,
    as_json: JsonOption = False,
    out: JsonFileOption = None,
    record: RecordOption = False,
) -> None:
    """Time one layer at growing batch sizes; none should take longer than a larger one."""
    require("torch", "scipy", "threadpoolctl")
    from sparsejit.perf import batch_sweep
    from sparsejit.perf.problems import PROBLEMS, problems_named

    (layer,) = problems_named([problem], PROBLEMS)
    case = Layout.parse(layout), DType.parse(dtype)
    check_outputs(out)
    with error_console.status("") as status:
        sizes = size or batch_sweep.BATCHES
        rows = batch_sweep.sweep(layer, sizes, *case, status.update, padded)
    values = [vars(row) for row in rows]
    record_rows(record, "batch", values)
    if hand_over(values, as_json, out):
        return
    figures = ("ns", "ns a column", "over the longest before", "step")
    table = table_of("", ("batch", "kernel"), figures)
    for row in rows:
        times = (f"{row.ns:.0f}", f"{row.ns / row.batch:.0f}", f"{row.growth:.2f}")
        table.add_row(str(row.batch), row.strategy, *times, f"{row.column_step:.2f}")
    console.print(table)
    for line in batch_sweep.cliffs(rows):
        console.print(line)
