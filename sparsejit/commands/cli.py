"""The `sparsejit` command: a table of commands, whose modules are imported when they run."""

import os
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from sparsejit import __version__
from sparsejit.errors import SparseJitError

_MODELS, _VOICE, _MACHINE = "Models", "Voice", "This machine"


class Command(NamedTuple):
    """A command of the table, in the order of `--help`.

    panel: the heading that it stands under; module: its module in this package; function: its
    name there, of a function or of a Typer app; help: the first line of its docstring; settings:
    settings of its context
    """

    panel: str
    module: str
    function: str
    help: str
    settings: dict[str, Any] | None = None

    def load(self, name: str) -> Any:
        """Import the module, and return the command that it makes of its options."""
        found = getattr(import_module(f"{__package__}.{self.module}"), self.function)
        if isinstance(found, typer.Typer):
            command = get_command(found)
        else:
            app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            app.command(name, context_settings=self.settings)(found)
            command = get_command(app)
        command.name = name
        _leave_out_flag_types(command)
        return command


def _leave_out_flag_types(command: Any) -> None:
    """Leave the type of flags, always bool, out of the help of a command and of those in it."""
    all_params = command.get_params
    command.get_params = lambda ctx: _typeless_flags(all_params(ctx))
    for each in getattr(command, "commands", {}).values():
        _leave_out_flag_types(each)


def _typeless_flags(params: list[Any]) -> list[Any]:
    for each in params:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return params


# Arguments behind the script are the script's own.
_SCRIPT = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}
COMMANDS = {
    "compile": Command(
        *(_MODELS, "models", "compile_command"),
        "Compile a whole model, save it, and report the time of its layers.",
    ),
    "bench": Command(
        *(_MODELS, "bench", "bench"),
        "Time a MODEL of your own beside other engines, or run one of these benchmarks.",
    ),
    "shrink": Command(
        *(_MODELS, "shrink", "shrink"),
        "Prune and quantise a trained model without training, to an error budget or a speed.",
    ),
    "explain": Command(
        *(_MODELS, "explain", "explain"),
        "Report the kernels of a model or a matrix, their cost, and why each was chosen.",
    ),
    "check": Command(
        *(_MODELS, "models", "check_command"),
        "List the operators of a model that cannot be compiled, and where; compile nothing.",
    ),
    "run": Command(
        *(_MODELS, "models", "run_command"),
        "Run a compiled model on arrays in files, in the order of its inputs and outputs.",
    ),
    "run-with": Command(
        *(_MODELS, "run_with", "run_with"),
        "Run a script with sparsejit in the place of ONNX Runtime; its arguments follow its name.",
        _SCRIPT,
    ),
    "prune": Command(
        *(_MODELS, "prune", "prune"),
        "Prune a model by a recipe while it trains, and report the cost of every layer.",
    ),
    "disasm": Command(
        *(_MODELS, "explain", "disasm"),
        "List the machine instructions made for a matrix, with the weights they read.",
    ),
    "synth": Command(
        *(_VOICE, "synth", "synth"),
        "Convert recordings to log-mel features and synthesise speech from them.",
    ),
    "train": Command(
        *(_VOICE, "train", "train"),
        "Train a voice from a folder of audio, pruning it gradually; resumes where it stopped.",
    ),
    "demo": Command(
        *(_VOICE, "demo", "demo"),
        "Prune a small network, synthesise speech with the bundled voice, and time every layer.",
    ),
    "doctor": Command(
        *(_MACHINE, "doctor", "doctor"),
        "Report on this machine, missing parts and their remedies; fail if nothing can run.",
    ),
    "calibrate": Command(
        *(_MACHINE, "calibrate", "calibrate"),
        "Measure the speed of this processor, and keep the rates for the planner.",
    ),
    "cache": Command(
        *(_MACHINE, "cache", "cache"),
        "Print the folder and the size of the code cache, or clear it.",
    ),
    "selftest": Command(
        *(_MACHINE, "selftest", "selftest"),
        "Check random kernels of every family and operator against float64; fail if one differs.",
    ),
}


class CommandTable(TyperGroup):
    """The commands of `COMMANDS`: listed by its lines, and imported when they run."""

    def __init__(self, **given: Any) -> None:
        listed = {
            name: TyperCommand(name, help=command.help, rich_help_panel=command.panel)
            for name, command in COMMANDS.items()
        }
        super().__init__(**{**given, "commands": listed})

    def get_params(self, ctx: Any) -> list[Any]:
        return _typeless_flags(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else COMMANDS[name].load(name), rest


app = typer.Typer(
    cls=CommandTable,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Compile neural networks, pruned or dense, to x86-64 machine code.",
)


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
    if "SPARSEJIT_DUMP" in os.environ:
        from sparsejit.runtime.program import dump_folder

        dump_folder()


def main() -> None:
    """Run the command line; an expected error is one line on stderr and exit status 1."""
    try:
        app()
    except SparseJitError as error:
        from sparsejit.commands.console import error_console
        from sparsejit.runtime.program import debug_level

        if debug_level():
            raise
        error_console.print(f"error: {error}", style="red", markup=False)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
