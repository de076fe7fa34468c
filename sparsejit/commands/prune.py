"""`sparsejit prune`: carry out a recipe on a model."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sparsejit.api.reports.shown import table_of
from sparsejit.commands.console import (
    JsonOption,
    ProgressBar,
    check_outputs,
    console,
    error_console,
    print_json,
    require,
    say,
    write_json,
)
from sparsejit.errors import InvalidInput
from sparsejit.files import atomic_path

if TYPE_CHECKING:
    from sparsejit.prune import PruningResult, Recipe, RunProgress, Workload


def prune(
    model: Annotated[
        str, typer.Argument(help="file.py:factory or package.module:factory; it is run.")
    ],
    recipe: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="A YAML file.")],
    weights: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Trained weights: .safetensors or .pt."),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(dir_okay=False, help="File to write the pruned weights to, .safetensors."),
    ] = Path("out/pruned.safetensors"),
    report: Annotated[
        Path | None, typer.Option(dir_okay=False, help="File to write the report to, as JSON.")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, help="File to save the training to; an existing one is continued."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Prune a model by a recipe while it trains, and report the cost of every layer."""
    require("torch")
    from safetensors.torch import save_model

    from sparsejit.prune import Recipe, load_weights, load_workload

    if out.suffix != ".safetensors":
        raise InvalidInput(f"{out} is not a .safetensors path; give a name that ends so")
    check_outputs(out, report, checkpoint)
    plan = Recipe.load(recipe)
    workload = load_workload(model)
    if weights is not None:
        load_weights(workload.model, weights)
    with ProgressBar() as bar:
        result = _carry_out(plan, workload, checkpoint, bar)
        # Save before anything is timed: a failure there does not lose the training.
        with atomic_path(out) as path:
            save_model(result.model, str(path))
        if checkpoint is not None:
            checkpoint.unlink(missing_ok=True)
        result = _timed(plan, workload, result, bar)
    _report(plan, result, out, report, as_json)


def _timed(
    plan: "Recipe", workload: "Workload", result: "PruningResult", bar: ProgressBar
) -> "PruningResult":
    """The result with the times of its layers in the report."""
    from sparsejit.prune import time_layers

    def stage(name: str) -> None:
        bar.begin(f"timing {name}")

    dtype, batch = plan.prune.get("dtype", "float32"), workload.first_batch()
    timed = time_layers(result.model, result.report, dtype, stage, batch, workload.run)
    return replace(result, report=timed)


def _report(
    plan: "Recipe", result: "PruningResult", out: Path, report: Path | None, as_json: bool
) -> None:
    """Write the report where it was asked for, and print it."""
    summary = {"recipe": plan.to_dict(), "weights": str(out), **result.as_dict()}
    if report is not None:
        write_json(report, summary)
    if as_json:
        print_json(summary)
        return
    console.print(result.report)
    if result.after:
        console.print(_figures(result))
    say(f"pruned weights in {out}")


def _carry_out(
    plan: "Recipe", workload: "Workload", checkpoint: Path | None, bar: ProgressBar
) -> "PruningResult":
    """Run the recipe; Ctrl-C exits with status 130 where there is a checkpoint to go on from."""
    from sparsejit.prune import run_recipe

    if checkpoint is not None and checkpoint.exists():
        error_console.print(f"going on from {checkpoint}")

    def show(state: "RunProgress") -> None:
        bar.show(progress_line(state), state.step, state.steps or None)

    try:
        return run_recipe(workload, plan, checkpoint=checkpoint, progress=show)
    except KeyboardInterrupt:
        if checkpoint is None or not checkpoint.exists():
            raise
        error_console.print(f"stopped; the same command goes on from {checkpoint}")
        raise typer.Exit(130) from None


def progress_line(state: "RunProgress") -> str:
    """Stage, steps, loss and density."""
    if state.loss is None or state.density is None:
        return state.stage
    return f"{state.stage} {state.step}, loss {state.loss:.4f}, density {state.density:.1%}"


def _figures(result: "PruningResult") -> Table:
    table = table_of("", ("", "before", "after"))
    for name, value in result.after.items():
        before = result.before.get(name)
        table.add_row(name, "" if before is None else f"{before:.4g}", f"{value:.4g}")
    return table
