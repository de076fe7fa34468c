"""`sparsejit shrink`: a trained model made faster by zeros, from samples of its inputs."""

from pathlib import Path
from typing import Annotated

import typer

from sparsejit.commands.console import (
    JsonOption,
    check_outputs,
    console,
    print_json,
    require,
    say,
    write_json,
)
from sparsejit.commands.model_options import (
    ConstantsOption,
    TargetOption,
    ThreadsOption,
)
from sparsejit.commands.progress import ProgressBar
from sparsejit.errors import InvalidInput
from sparsejit.frontends.factory import named_function
from sparsejit.frontends.model_source import NamedModel, constants_of, read_source


def shrink(
    model: Annotated[
        str, typer.Argument(help="An .onnx or .pt2 file, or file.py:factory, which is run.")
    ],
    data: Annotated[Path, typer.Option(exists=True, help="Samples: .npz, .npy or a folder.")],
    out: Annotated[Path, typer.Option(dir_okay=False, help="Result: .onnx, .pt2 or .safetensors.")],
    budget: Annotated[
        str | None, typer.Option(help="Error of the outputs, such as 1% (the default).")
    ] = None,
    speed: Annotated[
        str | None, typer.Option(help="In place of it, how many times as fast: 2x.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="file.py:function of the outputs; --budget is its loss.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="float32, or auto for int8 and 16 bits where these gain more.")
    ] = "float32",
    finetune: Annotated[
        int, typer.Option(min=0, help="Steps of training on the dense outputs, at most.")
    ] = 0,
    resume: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Keeps the tables of errors; goes on from them."),
    ] = None,
    constant: ConstantsOption = None,
    target: TargetOption = "native",
    threads: ThreadsOption = 1,
    report: Annotated[Path | None, typer.Option(dir_okay=False, help="Report, as JSON.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a trained model faster by zeros, without training, within an error or to a speed."""
    require("torch")
    from sparsejit.prune.shrink.shrinking import shrink as shrink_model
    from sparsejit.prune.shrink.sources import suffix_of

    wanted = suffix_of(model)
    if out.suffix != wanted:
        raise InvalidInput(f"--out {out} is no {wanted} path; name the file so")
    check_outputs(out, report)
    source = _source(model, constant)
    with ProgressBar() as bar, source.advising():
        result = shrink_model(
            source.model,
            data,
            budget=None if budget is None else parsed_number(budget, "--budget", "%", 0.01),
            speed=None if speed is None else parsed_number(speed, "--speed", "x", 1.0),
            metric=None if metric is None else named_function(metric, "metric"),
            dtype=dtype,
            finetune=finetune,
            resume=resume,
            constants=source.constants,
            target=target,
            threads=threads,
            progress=lambda stage, share: bar.show(stage, round(1000 * share), 1000),
        )
    result.save(out)
    if result.scales is not None and wanted != ".onnx":
        result.scales.save(out.with_name(f"{out.stem}-scales.sjit"))
    if report is not None:
        write_json(report, result.as_dict())
    if as_json:
        print_json(result.as_dict())
        return
    console.print(result)
    say(f"the model is in {out}")


def _source(model: str, constants: list[str] | None) -> NamedModel:
    """The model; the data says the sizes of an ONNX file."""
    if model.endswith(".onnx"):
        return NamedModel(model, model, (), {}, constants_of(constants))
    return read_source(model, constants=constants)


def parsed_number(text: str, option: str, suffix: str, unit: float) -> float:
    """A number, in units where it ends with the suffix. Raises InvalidInput for anything else."""
    has_suffix = text.endswith(suffix)
    try:
        return float(text.removesuffix(suffix)) * (unit if has_suffix else 1.0)
    except ValueError:
        raise InvalidInput(f"{option} {text} is no number; give one such as 2{suffix}") from None
