"""`sparsejit bench planner`: the planner's choices and predictions against measurements."""

from dataclasses import replace
from typing import Annotated

import typer

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
from sparsejit.ir.spec import DType
from sparsejit.machine.microarchitecture import UNKNOWN, core_named
from sparsejit.machine.target import Target


def planner(
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="A batch size; repeatable. Default: 1, 16, 64")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--layers", min=1, help="Number of layers to try. Default: all.")
    ] = None,
    first: Annotated[
        int, typer.Option("--from", min=0, help="Number of layers to skip first.")
    ] = 0,
    dtype: Annotated[
        list[str] | None, typer.Option(help="float32, bfloat16, ...; repeatable. Default: all.")
    ] = None,
    generic: Annotated[
        bool, typer.Option("--generic", help="Plan as for a processor that has no data of its own.")
    ] = False,
    as_json: JsonOption = False,
    out: JsonFileOption = None,
    record: RecordOption = False,
) -> None:
    """Compare the planner's choice with the fastest of all kernels, on layers of every kind.

    SPARSEJIT_MAX_ISA=avx2 surveys the kernels without AVX-512.
    """
    require("torch", "scipy", "threadpoolctl")
    from sparsejit.perf import history
    from sparsejit.perf.checking.claims import SURVEYED_BATCHES
    from sparsejit.perf.planner_survey import (
        lines,
        losses_table,
        ratios_table,
        summary,
        survey,
        survey_layers,
    )

    target, dtypes = _target(generic), tuple(DType.parse(name) for name in dtype or DType)
    end = None if count is None else first + count
    chosen = [survey_layers(size, dtypes)[first:end] for size in batch or SURVEYED_BATCHES]
    if not all(chosen):
        raise InvalidInput(f"no layers from {first} to {end}; there are fewer")
    check_outputs(out)
    values, speeds = [], {**history.speeds(), "prices": target.core.origin}
    for layers in chosen:
        with error_console.status("") as status:
            rows = survey(layers, target, status.update)
        found = summary(rows)
        as_dicts = [row.as_dict() for row in rows]
        values.append({"summary": found.as_dict(), "rows": as_dicts, **speeds})
        if not as_json:
            tables = losses_table(rows), ratios_table(found)
            console.print(*tables, "\n".join(lines(found)))
    record_rows(record, "planner", values)
    hand_over(values, as_json, out)


def _target(generic: bool) -> Target:
    from sparsejit.planner.calibration import calibrated

    machine = Target.detect()
    return calibrated(replace(machine, core=core_named(UNKNOWN)) if generic else machine)
