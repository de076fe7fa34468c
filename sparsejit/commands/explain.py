"""`sparsejit explain` and `sparsejit disasm`: one kernel, made from a matrix in a file."""

from pathlib import Path
from typing import Annotated

import typer

from sparsejit.api import Kernel, compile_matrix
from sparsejit.commands.console import JsonOption, check_outputs, hand_over
from sparsejit.frontends.files import read_matrix

WeightsArgument = Annotated[
    Path,
    typer.Argument(
        exists=True, dir_okay=False, help="A .npy or .safetensors file, or a state dict as .pt."
    ),
]
TensorOption = Annotated[
    str | None, typer.Option(help="Which tensor of a file that holds several.")
]
StrategyOption = Annotated[str, typer.Option(help="auto, or a kernel family.")]
DTypeOption = Annotated[str, typer.Option(help="float32, bfloat16, float16 or int8.")]
ExactOption = Annotated[bool, typer.Option(help="Only kernels that change no weight.")]


def explain(
    weights: WeightsArgument,
    tensor: TensorOption = None,
    strategy: StrategyOption = "auto",
    dtype: DTypeOption = "float32",
    exact: ExactOption = False,
    measure: Annotated[bool, typer.Option(help="Time the kernel, too.")] = False,
    as_json: JsonOption = False,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Also write the report here, JSON.")
    ] = None,
) -> None:
    """Say which kernel a matrix of shape (out, in) gets, what it costs and why."""
    check_outputs(out)
    report = _compile(weights, tensor, strategy, dtype, exact).explain(measure=measure)
    if not hand_over(report.as_dict(), as_json, out):
        typer.echo(str(report))


def disasm(
    weights: WeightsArgument,
    tensor: TensorOption = None,
    strategy: StrategyOption = "auto",
    dtype: DTypeOption = "float32",
    exact: ExactOption = False,
) -> None:
    """List the instructions a matrix becomes, with the weights they read."""
    typer.echo(_compile(weights, tensor, strategy, dtype, exact).disassemble())


def _compile(path: Path, tensor: str | None, strategy: str, dtype: str, exact: bool) -> Kernel:
    weights = read_matrix(path, tensor)
    return compile_matrix(weights, strategy=strategy, dtype=dtype, exact=exact)
