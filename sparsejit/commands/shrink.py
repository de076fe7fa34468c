"""`sparsejit shrink`: a trained model made faster by zeros, from samples of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    write_page,
)
from sparsejit.commands.model_options import (
    ConstantsOption,
    TargetOption,
    ThreadsOption,
)
from sparsejit.errors import InvalidInput

if TYPE_CHECKING:
    from sparsejit.frontends.model_source import NamedModel
    from sparsejit.ir.values import Array
    from sparsejit.prune.shrink.shrunk import Shrunk

_PAGE, _JSON = ".html", ".json"

BudgetOption = Annotated[
    str | None, typer.Option(help="Error of the outputs, such as 1% (the default).")
]
SpeedOption = Annotated[
    str | None, typer.Option(help="In place of --budget: times as fast as dense, such as 2x.")
]
MetricOption = Annotated[
    str | None, typer.Option(help="Score: file.py:function of outputs; --budget limits its loss.")
]
DtypeOption = Annotated[
    str, typer.Option(help="auto (int8 and 16 bits where these gain more) or float32.")
]
FinetuneOption = Annotated[
    int, typer.Option(min=0, help="Most steps of training towards the dense outputs.")
]
ResumeOption = Annotated[
    Path | None, typer.Option(dir_okay=False, help="File of error tables, kept for the next run.")
]


def shrink(
    model: Annotated[
        str, typer.Argument(help="An .onnx or .pt2 file, or file.py:factory, which is run.")
    ],
    data: Annotated[Path, typer.Option(help="Samples: .npz, .npy or a folder.")],
    out: Annotated[Path, typer.Option(dir_okay=False, help="Result: .onnx, .pt2 or .safetensors.")],
    budget: BudgetOption = None,
    speed: SpeedOption = None,
    metric: MetricOption = None,
    dtype: DtypeOption = "auto",
    finetune: FinetuneOption = 0,
    resume: ResumeOption = None,
    constant: ConstantsOption = None,
    target: TargetOption = "native",
    threads: ThreadsOption = 1,
    report: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Report: a page (.html) or JSON (.json).")
    ] = None,
    peers: Annotated[
        bool, typer.Option(help="Also time ONNX Runtime and OpenVINO, where they are installed.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Prune and quantise a trained model without training, to an error budget or a speed."""
    require("torch")
    from sparsejit.prune.shrink.data import read_data
    from sparsejit.prune.shrink.shrinking import input_names
    from sparsejit.prune.shrink.shrinking import shrink as shrink_model

    _check_paths(model, out, report)
    source = _source(model, constant)
    options: dict[str, Any] = {"target": target, "threads": threads}
    with ProgressBar() as bar, source.advising():
        elements = read_data(data, input_names(source.model, source.constants))
        result = shrink_model(
            source.model,
            elements,
            **_aims(budget, speed, metric),
            dtype=dtype,
            finetune=finetune,
            resume=resume,
            constants=source.constants,
            progress=lambda stage, share: bar.show(stage, round(1000 * share), 1000),
            **options,
        )
        _save(result, out)
        if peers:
            result = _beside_peers(result, source, elements[0], options, bar)
    _hand_over(result, report, as_json)
    if not as_json:
        say(f"the model is in {out}")


def _save(result: Shrunk, out: Path) -> None:
    """Write the model, and beside a torch model the dtypes and scales of its layers."""
    result.save(out)
    if result.scales is not None and out.suffix != ".onnx":
        result.scales.save(out.with_name(f"{out.stem}-scales.sjit"))


def _check_paths(model: str, out: Path, report: Path | None) -> None:
    """Raise InvalidInput for paths that cannot be written, or have the wrong suffix."""
    from sparsejit.prune.shrink.sources import suffix_of

    wanted = suffix_of(model)
    if out.suffix != wanted:
        raise InvalidInput(f"--out {out} is no {wanted} path; name the file so")
    if report is not None and report.suffix not in (_PAGE, _JSON):
        raise InvalidInput(f"--report {report} is no {_PAGE} or {_JSON} path; name the file so")
    check_outputs(out, report)


def _aims(budget: str | None, speed: str | None, metric: str | None) -> dict[str, Any]:
    """The arguments of `shrink` for these options. Raises InvalidInput for invalid texts."""
    from sparsejit.frontends.model_source import named_function

    return {
        "budget": None if budget is None else parsed_number(budget, "--budget", "%", 0.01),
        "speed": None if speed is None else parsed_number(speed, "--speed", "x", 1.0),
        "metric": None if metric is None else named_function(metric, "metric"),
    }


def _beside_peers(
    result: Shrunk,
    source: NamedModel,
    element: Sequence[Array],
    options: dict[str, Any],
    bar: ProgressBar,
) -> Shrunk:
    """The result with the times of the installed engines; print why one has none."""
    from sparsejit.perf.shrunk_contest import compare_shrunk, installed_peers

    rivals = installed_peers()
    if not rivals:
        return result
    try:
        found = compare_shrunk(
            result, source, element, options, rivals, lambda step: bar.show(step, 990, 1000)
        )
    except Exception as error:  # the result took minutes: no comparison may lose its report
        error_console.print(f"other engines skipped: {error}", markup=False)
        return result
    for name, why in found.skipped.items():
        error_console.print(f"{name} skipped: {why}", markup=False)
    return found.shrunk


def _hand_over(result: Shrunk, report: Path | None, as_json: bool) -> None:
    """Write the report by the suffix of its path, and print the table or JSON."""
    if report is not None and report.suffix == _PAGE:
        write_page(report, result)
    elif report is not None:
        write_json(report, result.as_dict())
    if as_json:
        print_json(result.as_dict())
    else:
        console.print(result)


def _source(model: str, constants: list[str] | None) -> NamedModel:
    """Read the model; the sizes of an ONNX file's inputs come from the data."""
    from sparsejit.frontends.model_source import NamedModel, constants_of, read_source
    from sparsejit.frontends.onnx import declared_inputs

    if model.endswith(".onnx"):
        inputs = tuple(declared_inputs(model))
        return NamedModel(model, model, (), {}, constants_of(constants), inputs)
    return read_source(model, constants=constants)


def parsed_number(text: str, option: str, suffix: str, unit: float) -> float:
    """Parse a number, in `unit`s where it ends with the suffix. Raises InvalidInput otherwise."""
    has_suffix = text.endswith(suffix)
    try:
        return float(text.removesuffix(suffix)) * (unit if has_suffix else 1.0)
    except ValueError:
        raise InvalidInput(f"{option} {text} is no number; give one such as 2{suffix}") from None
