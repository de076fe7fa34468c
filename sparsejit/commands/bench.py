"""`sparsejit bench`: measurements, with rivals in the same run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsejit.api.reports.shown import table_of
from sparsejit.commands.bench_any import ModelsToo, model
from sparsejit.commands.bench_batch import batch, sweep
from sparsejit.commands.bench_models import estimators, forests, models, peers
from sparsejit.commands.bench_planner import planner
from sparsejit.commands.bench_synth import synth
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
from sparsejit.machine.target import ISA_LEVELS, Target

if TYPE_CHECKING:
    from sparsejit.perf.operators import OperatorTime

ProblemsOption = Annotated[
    list[str] | None, typer.Option(help="A, B, C90, ...; repeatable. Default: all.")
]
DtypesOption = Annotated[
    list[str] | None, typer.Option(help="float32, bfloat16, ...; repeatable. Default: all.")
]

bench = typer.Typer(
    cls=ModelsToo,
    no_args_is_help=True,
    help="Time a MODEL of your own beside other engines, or run one of these benchmarks.",
)
bench.command()(model)
bench.command()(models)
bench.command()(peers)
bench.command()(forests)
bench.command()(estimators)
bench.command()(planner)
bench.command()(batch)
bench.command()(sweep)
bench.command()(synth)


@bench.command()
def kernels(
    problem: ProblemsOption = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(help="dense, winograd, attention, ...; repeatable. Default: all."),
    ] = None,
    dtype: DtypesOption = None,
    as_json: JsonOption = False,
    out: JsonFileOption = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the kernels chosen automatically on a roofline, PNG.")
    ] = None,
    record: RecordOption = False,
) -> None:
    """Time every kernel, and libraries that do the same as products, on one core.

    Products are of --problem. A kernel of another operator is timed in a graph of its own, where
    neither --problem nor --strategy is given, or its name as a --strategy.
    """
    require("torch", "scipy", "threadpoolctl", "matplotlib")
    from sparsejit.perf import history, report
    from sparsejit.perf.kernels import Row, check_strategies, run
    from sparsejit.perf.machine import machine_limits
    from sparsejit.perf.problems import ALL_PROBLEMS, problems_named
    from sparsejit.perf.roofline import draw_roofline

    chosen, dtypes = problems_named(problem or ALL_PROBLEMS, ALL_PROBLEMS), _dtypes(dtype)
    check_strategies(strategy or ())
    check_outputs(out, plot)
    show = (lambda table: None) if as_json else console.print
    limits = machine_limits(Target.detect())
    show(report.limits_table(limits))
    rows: list[Row] = []
    for one in chosen:
        with error_console.status("") as status:
            found = run([one], strategy, status.update, dtypes)
        for comparison in found:
            show(report.comparison_table(comparison))
            rows += comparison.rows
    operators = _of_operators(strategy or ([] if problem else None), dtypes)
    if operators:
        show(report.operators_table(operators))
    if not rows and not operators:
        raise InvalidInput(
            "no kernel of this --strategy takes these problems and dtypes: use --strategy auto"
        )
    speeds = history.speeds()
    values = [{**row.as_dict(), **speeds} for row in rows]
    of_operators = [{**row.as_dict(), **speeds} for row in operators]
    if plot:
        draw_roofline(plot, [row for row in rows if row.auto], limits)
    record_rows(record and bool(values), "kernels", values)
    record_rows(record and bool(of_operators), "operators", of_operators)
    hand_over([*values, *of_operators], as_json, out)


def _of_operators(names: list[str] | None, dtypes: tuple[DType, ...]) -> list["OperatorTime"]:
    """Time kernels of operators other than products: the named ones, or with None all."""
    from sparsejit.perf.operators import run_operators
    from sparsejit.planner.kernels import OTHER_KERNELS

    wanted = [name for name in OTHER_KERNELS if names is None or name in names]
    with error_console.status("") as status:
        return run_operators(wanted, dtypes, status.update)


@bench.command()
def recorded(
    isa: Annotated[str, typer.Option(help="avx512 or avx2.")] = ISA_LEVELS[-1],
) -> None:
    """Print the latest recordings in perf/results of all processors, side by side in Markdown."""
    require("torch", "scipy", "threadpoolctl")
    from sparsejit.perf.history import recorded_kernels

    if isa not in ISA_LEVELS:
        raise InvalidInput(f"level {isa!r} is unknown; use one of {', '.join(ISA_LEVELS)}")
    typer.echo("\n".join(recorded_kernels(isa)))


@bench.command()
def padding(as_json: JsonOption = False, out: JsonFileOption = None) -> None:
    """Time loads from L2 for several numbers of lines that are read before one is left out."""
    from sparsejit.perf.machine import KILOBYTES, SPACINGS, compare

    check_outputs(out)
    with error_console.status("") as status:
        found = compare(status.update)
    if hand_over([vars(one) for one in found], as_json, out):
        return
    table = table_of("bytes a cycle", ["lines in a row"], (f"{size} KB" for size in KILOBYTES))
    for run in SPACINGS:
        rates = (one.bytes_a_cycle for one in found if one.run == run)
        table.add_row(run, *(f"{rate:.1f}" for rate in rates))
    console.print(table)


@bench.command()
def threads(
    count: Annotated[int, typer.Option("--threads", help="The most threads a layer may have.")] = 2,
    problem: ProblemsOption = None,
    dtype: DtypesOption = None,
    as_json: JsonOption = False,
    out: JsonFileOption = None,
) -> None:
    """Time layers on one thread and shared among several, and the barrier between these."""
    require("torch", "scipy", "threadpoolctl")
    from sparsejit.measuring.thread_loops import barrier_ns
    from sparsejit.perf.problems import PROBLEMS, problems_named
    from sparsejit.perf.threads import gains
    from sparsejit.planner.split import parse_threads

    chosen = problems_named(problem or PROBLEMS, PROBLEMS)
    dtypes, count = _dtypes(dtype), parse_threads(count)
    check_outputs(out)
    with error_console.status("") as status:
        meeting = barrier_ns(Target.detect(), count)
        found = gains(chosen, count, dtypes, status.update)
    rows = [{**vars(one), "speed_up": one.speed_up} for one in found]
    if hand_over({"barrier_ns": meeting, "gains": rows}, as_json, out):
        return
    figures = ("threads", "alone ns", "shared ns", "speed-up")
    table = table_of("", ("problem", "dtype", "kernel"), figures)
    for one in found:
        times = (f"{one.ns_alone:.0f}", f"{one.ns_shared:.0f}", f"{one.speed_up:.2f}")
        table.add_row(one.problem, one.dtype, one.kernel, str(one.threads), *times)
    console.print(table)
    console.print(f"barrier of {count} threads: {meeting:.0f} ns")


@bench.command()
def check(
    subject: Annotated[
        list[str] | None,
        typer.Option("--claim", help="Subject: A, speech, ...; repeatable. Default: all."),
    ] = None,
    as_json: JsonOption = False,
    out: JsonFileOption = None,
) -> None:
    """Check the project's claims of speed on this machine; exit status 1 where one fails."""
    require("torch", "scipy", "threadpoolctl")
    from sparsejit.machine import microarchitecture
    from sparsejit.perf.checking import check as checking
    from sparsejit.perf.checking.check import claims_table
    from sparsejit.perf.checking.claims import CLAIMS, claims_of

    chosen = claims_of(subject) if subject else CLAIMS
    check_outputs(out)
    with error_console.status("") as status:
        outcomes = checking.check(chosen, status.update)
    target, core, holds = Target.detect(), microarchitecture.detect(), checking.all_hold(outcomes)
    value = {
        "machine": target.model,
        "microarchitecture": core,
        "isa": target.isa,
        "holds": holds,
        "claims": [outcome.as_dict() for outcome in outcomes],
    }
    if not hand_over(value, as_json, out):
        console.print(claims_table(outcomes))
        measured = [outcome for outcome in outcomes if outcome.ratio is not None]
        held = sum(outcome.verdict == checking.HOLDS for outcome in measured)
        console.print(f"{held} of {len(measured)} claims hold on this {core} core, {target.isa}")
    if not holds:
        raise typer.Exit(1)


def _dtypes(names: list[str] | None) -> tuple[DType, ...]:
    return tuple(DType.parse(name) for name in names or DType)
