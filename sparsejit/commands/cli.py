"""The `sparsejit` command."""

from typing import Annotated

import typer

from sparsejit import __version__
from sparsejit.commands.bench import bench
from sparsejit.commands.cache import cache
from sparsejit.commands.calibrate import calibrate
from sparsejit.commands.console import error_console
from sparsejit.commands.demo import demo
from sparsejit.commands.doctor import doctor
from sparsejit.commands.explain import disasm, explain
from sparsejit.commands.models import check_command, compile_command, run_command
from sparsejit.commands.prune import prune
from sparsejit.commands.run_with import SETTINGS, run_with
from sparsejit.commands.selftest import selftest
from sparsejit.commands.shrink import shrink
from sparsejit.commands.synth import synth
from sparsejit.commands.train import train
from sparsejit.errors import SparseJitError
from sparsejit.runtime.program import debug_level, dump_folder

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Compile neural networks, pruned or dense, to x86-64 machine code.",
)
for command in (demo, shrink, prune, synth, train, explain, disasm):
    app.command()(command)
for machine_command in (calibrate, cache, selftest, doctor):
    app.command()(machine_command)
app.command("compile")(compile_command)
app.command("check")(check_command)
app.command("run")(run_command)
app.command("run-with", context_settings=SETTINGS)(run_with)
app.add_typer(bench, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sparsejit {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Raise InvalidInput, before any command works, where the environment would fail it later.

    `_print_version` has handled the option already.
    """
    dump_folder()


def main() -> None:
    """Run the command line; an expected error is one line on stderr and exit status 1."""
    try:
        app()
    except SparseJitError as error:
        if debug_level():
            raise
        error_console.print(f"error: {error}", style="red", markup=False)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
