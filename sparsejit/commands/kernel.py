"""`sparsejit explain` and `sparsejit disasm`: one kernel, made from a matrix in a file."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from safetensors import SafetensorError
from safetensors.numpy import load_file

from sparsejit.api import Kernel, compile_matrix
from sparsejit.commands.console import JsonOption, print_json
from sparsejit.errors import DamagedFile, InvalidInput

WeightsArgument = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, help="A .npy or .safetensors file.")
]
TensorOption = Annotated[
    str | None, typer.Option(help="Which tensor of a .safetensors file that holds several.")
]
StrategyOption = Annotated[str, typer.Option(help="auto, or a kernel family.")]


def explain(
    weights: WeightsArgument,
    tensor: TensorOption = None,
    strategy: StrategyOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Say which kernel a matrix of shape (out, in) gets, what it costs and why."""
    kernel = _compile(weights, tensor, strategy)
    if as_json:
        print_json({**kernel.stats, "reason": kernel.plan.reason})
    else:
        typer.echo(kernel.explain())


def disasm(
    weights: WeightsArgument, tensor: TensorOption = None, strategy: StrategyOption = "auto"
) -> None:
    """List the instructions a matrix becomes, with the weights they read."""
    typer.echo(_compile(weights, tensor, strategy).disassemble())


def _compile(path: Path, tensor: str | None, strategy: str) -> Kernel:
    return compile_matrix(read_matrix(path, tensor), strategy=strategy)


def read_matrix(path: Path, tensor: str | None = None) -> npt.NDArray[Any]:
    """The array in a .npy file, or one tensor of a .safetensors file.

    Raises DamagedFile for a file that does not hold what its name says, and InvalidInput where
    `tensor` is missing, ambiguous or misspelt.
    """
    if path.suffix == ".npy":
        try:
            return np.load(path, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise DamagedFile(f"{path} is not a .npy array ({error}); save it again") from error
    if path.suffix != ".safetensors":
        raise InvalidInput(f"{path} is neither .npy nor .safetensors; convert it to one of them")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise DamagedFile(f"{path} is not a .safetensors file ({error}); save it again") from error
    if tensor is None and len(tensors) == 1:
        return next(iter(tensors.values()))
    if tensor not in tensors:
        names = ", ".join(sorted(tensors))
        raise InvalidInput(f"{path} has no tensor {tensor!r}; name one with --tensor: {names}")
    return tensors[tensor]
