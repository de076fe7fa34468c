"""`sparsejit bench models`, `forests` and `peers`: models and forests, and their engines."""

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
from sparsejit.errors import InvalidInput

if TYPE_CHECKING:
    from sparsejit.perf.forests import ForestComparison
    from sparsejit.perf.models import ModelComparison


def models(
    model: Annotated[
        list[str] | None, typer.Option(help="mlp, gru-tagger, ...; repeatable. Default: all.")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(help="A batch size; repeatable. Default: 1.")
    ] = None,
    peers: Annotated[
        str | None, typer.Option(help="Other engines, separated by commas. Default: all installed.")
    ] = None,
    density: Annotated[
        float, typer.Option(help="Share of the pruned layers' weights that is left; 1 is dense.")
    ] = 0.1,
    pattern: Annotated[
        str, typer.Option(help="Pattern of the zeros, as `Pruner(pattern=...)` takes it.")
    ] = "unstructured",
    as_json: JsonOption = False,
    out: JsonFileOption = None,
    record: RecordOption = False,
) -> None:
    """Time whole models and every engine that runs them, on one core, in turn."""
    require("torch")
    from sparsejit.perf.models import compare
    from sparsejit.perf.peers.model_peers import MODEL_PEERS, peers_named
    from sparsejit.perf.zoo import ZOO, check_density, models_named
    from sparsejit.prune.patterns import choose_pattern

    chosen, batches = models_named(model or ZOO), batch or [1]
    rivals = peers_named(MODEL_PEERS if peers is None else filter(None, peers.split(",")))
    check_density(density)
    choose_pattern(pattern)
    for size in batches:
        if size < 1:
            raise InvalidInput(f"batch {size} is out of range; use 1 or more")
    check_outputs(out)
    rows = []
    for one in chosen:
        for size in batches:
            with error_console.status("") as status:
                found = compare(one, size, density, rivals, status.update, pattern=pattern)
            if not as_json:
                console.print(_comparison_table(found))
            rows.append(found.as_dict())
    record_rows(record, "models", rows)
    hand_over(rows, as_json, out)


def peers(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Default: all.")
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Make the virtual environments that are missing.")
    ] = False,
    as_json: JsonOption = False,
    out: JsonFileOption = None,
) -> None:
    """List the engines that whole models are compared with, and install them."""
    from sparsejit.perf.peers.model_peers import MODEL_PEERS, peers_named

    chosen = peers_named(names or MODEL_PEERS)
    check_outputs(out)
    if install:
        with error_console.status("") as status:
            for peer in chosen:
                peer.install(status.update)
    rows = [
        {
            "name": peer.name,
            "about": peer.about,
            "requirements": list(peer.requirements),
            "pythons": list(peer.pythons),
            "installed": peer.is_installed,
        }
        for peer in chosen
    ]
    if hand_over(rows, as_json, out):
        return
    table = table_of("", ("peer", "what", "pip installs", "Python", "installed"))
    for peer in chosen:
        needs = ", ".join(peer.requirements) or "nothing"
        state = "yes" if peer.is_installed else "no"
        table.add_row(peer.name, peer.about, needs, " or ".join(peer.pythons) or "any", state)
    console.print(table)


def _comparison_table(found: "ModelComparison") -> Table:
    title = (
        f"{found.model}, batch {found.batch}, density {found.density:g} {found.pattern}; "
        "called from Python"
    )
    skipped = (f"{name} skipped: {why}" for name, why in found.skipped.items())
    figures = ("min, us", "median, us", "error")
    table = table_of(title, ("engine", "version"), figures, skipped)
    reference = found.reference
    if reference is not None:
        table.add_column(f"times\n{reference.name}", justify="right")
        for time in found.times:
            cells = (f"{time.ns_min / 1000:,.2f}", f"{time.ns_median / 1000:,.2f}")
            ratio = f"{time.ns_min / reference.ns_min:.2f}"
            style = "bold" if time.name == "sparsejit" else None
            error = f"{time.relative_error:.1e}"
            table.add_row(time.name, time.version, *cells, error, ratio, style=style)
    return table


def estimators(
    estimator: Annotated[
        list[str] | None, typer.Option(help="PCA, SVC, ...; repeatable. Default: all.")
    ] = None,
) -> None:
    """Print which estimators of scikit-learn compile, each fitted and compared, in Markdown."""
    require("treelite", "sklearn")
    from sparsejit.perf.estimators import markdown, tried_estimators

    with error_console.status("fitting estimators"):
        rows = tried_estimators(estimator)
    typer.echo("\n".join(markdown(rows)))


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
        console.print(_forest_table(one))


def _forest_table(found: "ForestComparison") -> Table:
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
