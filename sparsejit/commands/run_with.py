"""`sparsejit run-with`: a script whose `import onnxruntime` gives compiled code."""

import runpy
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from sparsejit.errors import SparseJitError

_THEIRS = "onnxruntime"


def run_with(
    context: typer.Context,
    script: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="The Python file to run.")
    ],
    compile_at_use: Annotated[
        int,
        typer.Option(
            min=1, help="Compile at the Nth call of the same sizes; ONNX Runtime runs earlier ones."
        ),
    ] = 1,
) -> None:
    """Run a script with sparsejit in the place of ONNX Runtime; its arguments follow its name."""
    from sparsejit.frontends.onnx.sessions import replace_runtime
    from sparsejit.onnxruntime.settings import COMPILE_AT_USE, DefaultSettings

    replace_runtime(_our_modules())
    DefaultSettings.entries[COMPILE_AT_USE] = str(compile_at_use)
    sys.argv = [str(script), *context.args]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SparseJitError:  # the script's, which shows where it was raised
        traceback.print_exc()
        raise SystemExit(1) from None


def _our_modules() -> dict[str, ModuleType]:
    """Return the modules of `sparsejit.onnxruntime` by their names in ONNX Runtime's package."""
    from sparsejit import onnxruntime

    own = onnxruntime.__name__
    return {
        _THEIRS + name.removeprefix(own): module
        for name, module in sys.modules.items()
        if name == own or name.startswith(f"{own}.")
    }
