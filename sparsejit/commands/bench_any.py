"""`sparsejit bench MODEL`: whether we are faster for a model of your own, on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from sparsejit.api.shown import table_of
from sparsejit.commands.console import (
    JsonFileOption,
    JsonOption,
    check_outputs,
    console,
    error_console,
    hand_over,
    require,
    say,
)
from sparsejit.commands.model_options import ConstantsOption, ModelArgument, ShapesOption
from sparsejit.frontends.model_source import read_source

if TYPE_CHECKING:
    from sparsejit.perf.any_model import AnyComparison

_NAME = "model"


class ModelsToo(TyperGroup):
    """Takes what is no command of `bench` for a model: a path, or file.py:factory."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """With the command's name where a model stands in its place."""
        first = next((word for word in args if not word.startswith("-")), "")
        is_model = first not in self.commands and any(mark in first for mark in ".:/")
        return list(super().parse_args(ctx, [_NAME, *args] if is_model else args))


def model(
    model: ModelArgument,
    shape: ShapesOption = None,
    constant: ConstantsOption = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Where an ONNX file leaves axis 0 open.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Inputs by name, .npz; else at random."),
    ] = None,
    peers: Annotated[
        str | None, typer.Option(help="Peers, with commas between. Default: all that are there.")
    ] = None,
    as_json: JsonOption = False,
    out: JsonFileOption = None,
) -> None:
    """Time a model of your own here, and every engine that runs it, on one core, in turn."""
    require("torch")
    from sparsejit.perf.any_model import compare_any
    from sparsejit.perf.peers.model_peers import MODEL_PEERS, peers_named

    check_outputs(out)
    rivals = peers_named(MODEL_PEERS if peers is None else filter(None, peers.split(",")))
    source = read_source(model, shape, constant, batch=batch, data=data, always_inputs=True)
    with error_console.status("") as status:
        found = compare_any(source, rivals, status.update)
    if not hand_over(found.as_dict(), as_json, out):
        console.print(_table(found))
        say(found.verdict, style="bold")


def _table(found: "AnyComparison") -> Table:
    skipped = (f"{name} skipped: {why}" for name, why in found.skipped.items())
    figures = ("min, us", "median, us", "error")
    table = table_of(f"{found.model}; called from Python", ("engine", "version"), figures, skipped)
    for one in found.times:
        cells = (f"{one.ns_min / 1000:,.2f}", f"{one.ns_median / 1000:,.2f}")
        style = "bold" if one.name.startswith("sparsejit") else None
        table.add_row(one.name, one.version, *cells, f"{one.relative_error:.1e}", style=style)
    return table
