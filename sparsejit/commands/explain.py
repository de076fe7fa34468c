"""`sparsejit explain` and `sparsejit disasm`: the kernels of a model or matrix, and reasons."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsejit.commands.console import (
    JsonOption,
    ProgressBar,
    check_outputs,
    console,
    hand_over,
    write_page,
)
from sparsejit.commands.model_options import (
    AxisOption,
    BatchOption,
    ConstantsOption,
    DTypesOption,
    ExactOption,
    FallbackOption,
    HtmlOption,
    MeasureOption,
    ModelRequest,
    ShapesOption,
    StateOption,
    StepOption,
    TargetOption,
    ThreadsOption,
    TuneOption,
    WindowOption,
    is_model,
    load_or_compile,
)
from sparsejit.errors import InvalidInput

if TYPE_CHECKING:
    from sparsejit.api.kernels.kernel import Kernel
    from sparsejit.api.reports.advisor import Advice
    from sparsejit.api.reports.report import Report

_MATRIX = ".npy, .safetensors, or a state dict in a .pt file"
WeightsArgument = Annotated[Path, typer.Argument(help=f"The file of a matrix: {_MATRIX}.")]
TensorOption = Annotated[
    str | None, typer.Option(help="Name of the tensor, in a file with several.")
]
StrategyOption = Annotated[str, typer.Option(help="For a matrix: auto, or a kernel family.")]


def explain(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help=f"A model in any form that `compile` takes, or the file of a matrix: {_MATRIX}.",
        ),
    ],
    tensor: TensorOption = None,
    strategy: StrategyOption = "auto",
    shape: ShapesOption = None,
    constant: ConstantsOption = None,
    batch: BatchOption = None,
    dtype: DTypesOption = None,
    target: TargetOption = "native",
    threads: ThreadsOption = 1,
    tune: TuneOption = False,
    exact: ExactOption = False,
    fallback: FallbackOption = None,
    state: StateOption = None,
    step: StepOption = None,
    axis: AxisOption = -1,
    window: WindowOption = None,
    measure: MeasureOption = False,
    advise: Annotated[
        bool, typer.Option("--advise", help="Also list changes that would make a model faster.")
    ] = False,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="File to write the report to, as JSON.")
    ] = None,
) -> None:
    """Report the kernels of a model or a matrix, their cost, and why each was chosen."""
    check_outputs(out, html)
    asked = ModelRequest(
        *(model, shape, constant, batch, dtype, target, threads, tune, exact),
        *(fallback, state, step, axis, window),
    )
    report, advice = _report(asked, tensor, strategy, measure, advise)
    write_page(html, report)
    ideas = {} if advice is None else {"advice": advice.as_dict()}
    if not hand_over(report.as_dict() | ideas, as_json, out):
        console.print(report)
        if advice is not None:
            console.print(advice)


def disasm(
    weights: WeightsArgument,
    tensor: TensorOption = None,
    strategy: StrategyOption = "auto",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or int8.")] = "float32",
    exact: ExactOption = False,
) -> None:
    """List the machine instructions made for a matrix, with the weights they read."""
    asked = ModelRequest(str(weights), dtype=[dtype], exact=exact)
    typer.echo(_kernel(asked, tensor, strategy).disassemble())


def _report(
    asked: ModelRequest, tensor: str | None, strategy: str, measure: bool, advise: bool
) -> tuple[Report, Advice | None]:
    """The report, and with `advise` a model's advice."""
    if Path(asked.model).is_dir():
        raise InvalidInput(f"{asked.model} is a folder; give a model, or a file with a matrix")
    if not is_model(asked.model):
        if advise:
            raise InvalidInput(f"{asked.model} is a matrix; --advise is for models")
        return _kernel(asked, tensor, strategy).explain(measure=measure), None
    if tensor is not None or strategy != "auto":
        raise InvalidInput(f"{asked.model} is a model; --tensor and --strategy are for a matrix")
    from sparsejit.api.kernels.kernel import Kernel

    with ProgressBar() as bar:
        compiled = load_or_compile(asked, bar.show)
        if advise and isinstance(compiled, Kernel):
            raise InvalidInput(f"{asked.model} holds a matrix; --advise is for models")
        bar.show("measuring" if measure else "explaining", 1.0)
        report = compiled.explain(measure=measure)
        return report, None if isinstance(compiled, Kernel) or not advise else compiled.advise()


def _kernel(asked: ModelRequest, tensor: str | None, strategy: str) -> Kernel:
    if asked.shape or asked.constant or asked.state or asked.step:
        raise InvalidInput(
            f"{asked.model} is a matrix; --shape, --constant, --state and --step are for models"
        )
    dtype, *more = asked.dtype or ["float32"]
    if more:
        raise InvalidInput(f"{asked.model} is one matrix; give one --dtype")
    from sparsejit.api.kernels.compile_layer import compile_matrix
    from sparsejit.frontends.files import read_matrix

    return compile_matrix(
        read_matrix(asked.model, tensor),
        batch=asked.batch or 1,
        strategy=strategy,
        dtype=dtype,
        target=asked.target,
        threads=asked.threads,
        tune=asked.tune,
        exact=asked.exact,
    )
