"""`sparsejit compile` and `sparsejit run`: whole models from the command line."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sparsejit.api import CompiledEstimator, CompiledModel, compile_model, load
from sparsejit.api.compiled_estimator import is_estimator
from sparsejit.artefact.export import check_export
from sparsejit.commands.console import (
    JsonOption,
    check_outputs,
    console,
    hand_over,
    print_json,
    say,
)
from sparsejit.commands.progress import ProgressBar
from sparsejit.errors import InvalidInput, UnsupportedOperator
from sparsejit.files import atomic_path
from sparsejit.frontends.files import read_npy
from sparsejit.frontends.model_source import NamedModel, read_source
from sparsejit.frontends.onnx import import_onnx, is_onnx
from sparsejit.frontends.torch_export import export as export_torch
from sparsejit.lowering.context import Progress

ModelArgument = Annotated[
    str,
    typer.Argument(
        help="file.py:factory or package.module:factory, which is run and returns a torch module "
        "or an estimator, and its example inputs; or a .pt2 file of torch.export, which torch "
        "reads; or .onnx."
    ),
]
ShapesOption = Annotated[
    list[str] | None,
    typer.Option("--shape", help="Of an input of an ONNX file, as x=1x576; repeatable."),
]
ConstantsOption = Annotated[
    list[str] | None,
    typer.Option("--constant", help="In place of an input of an ONNX file, as sr=16000."),
]
DTypesOption = Annotated[
    list[str] | None,
    typer.Option(help="float32, bfloat16, float16 or int8; or LAYERS=DTYPE, several times."),
]
ExportOption = Annotated[
    Path | None, typer.Option(dir_okay=False, help="Also write code for C here, .o or .so.")
]
HtmlOption = Annotated[
    Path | None, typer.Option(dir_okay=False, help="Also write the report here, a web page.")
]


def compile_command(
    model: ModelArgument,
    out: Annotated[Path, typer.Option(dir_okay=False, help="Receives the model, .sjit.")],
    shape: ShapesOption = None,
    constant: ConstantsOption = None,
    dtype: DTypesOption = None,
    target: Annotated[str, typer.Option(help="native, avx2 or avx512.")] = "native",
    threads: Annotated[int, typer.Option(min=1, help="How many may share a layer.")] = 1,
    tune: Annotated[bool, typer.Option(help="Time the most promising kernels here.")] = False,
    exact: Annotated[bool, typer.Option(help="Only kernels that change no weight.")] = False,
    export: ExportOption = None,
    header: Annotated[Path | None, typer.Option(dir_okay=False, help="Its C header, .h.")] = None,
    measure: Annotated[bool, typer.Option(help="Measure each layer for the report.")] = False,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compile a whole model, save it, and say where its time goes."""
    _check_outputs(out, export, header, html)
    source = read_source(model, shape, constant)
    options = {"target": target, "threads": threads, "tune": tune, "exact": exact}
    with ProgressBar() as bar:
        compiled = _compiled(source, dtype or ["float32"], options, bar.show)
        if export is not None:
            compiled.export(export, header)
        compiled.save(out)
        bar.show("measuring" if measure else "explaining", 1.0)
        report = compiled.explain(measure=measure)
    if html is not None:
        with atomic_path(html) as path:
            path.write_text(report.html())
    if as_json:
        print_json(report.as_dict())
        return
    console.print(report)
    say(f"model in {out}")
    if export is not None:
        say(f"code for C in {export}")


def check_command(
    model: ModelArgument,
    shape: ShapesOption = None,
    constant: ConstantsOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the operators of a model that cannot be compiled, and where; compile nothing.

    Exit status 1 where there are any.
    """
    source = read_source(model, shape, constant)
    if is_estimator(source.model):
        raise InvalidInput(f"{model} returned an estimator; `sparsejit compile` says what it lacks")
    try:
        if is_onnx(source.model):
            graph = import_onnx(source.model, source.args, True, source.constants).graph()
        else:
            graph = export_torch(source.model, source.args, source.kwargs, True).graph()
        found: dict[str, Any] = {"compiles": True, "nodes": len(graph.nodes), "missing": []}
    except UnsupportedOperator as error:
        found = {"compiles": False, "missing": str(error).splitlines()}
    if not hand_over(found, as_json, None):
        say("\n".join(found["missing"]) or f"every operator of {model} is known")
    if found["missing"]:
        raise typer.Exit(1)


def run_command(
    model: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A .sjit file.")],
    inputs: Annotated[
        list[Path],
        typer.Option("--input", exists=True, dir_okay=False, help="A .npy file for each input."),
    ],
    out: Annotated[list[Path], typer.Option(dir_okay=False, help="A .npy file for each output.")],
) -> None:
    """Run a compiled model on arrays in files, in the order of its inputs and outputs."""
    check_outputs(*out)
    compiled = load(model)
    if not isinstance(compiled, CompiledModel):
        kind = type(compiled).__name__
        raise InvalidInput(f"{model} holds a {kind}, not a model; load and call it in Python")
    results = compiled.run([read_npy(path) for path in inputs])
    if len(results) != len(out):
        raise InvalidInput(f"{len(out)} --out given; the model has {len(results)} outputs")
    for path, result in zip(out, results, strict=True):
        with atomic_path(path) as place, place.open("wb") as file:
            np.save(file, result)
        say(f"{path}: {result.dtype} {list(result.shape)}")


def _compiled(
    source: NamedModel, dtypes: list[str], options: dict[str, Any], show: Progress
) -> CompiledModel | CompiledEstimator:
    return compile_model(
        source.model,
        source.args,
        example_kwargs=source.kwargs,
        constants=source.constants,
        dtype=_dtypes(dtypes),
        progress=show,
        **options,
    )


def _check_outputs(out: Path, export: Path | None, header: Path | None, html: Path | None) -> None:
    """Raise InvalidInput for outputs that cannot be, before the work."""
    if out.suffix != ".sjit":
        raise InvalidInput(f"{out} is not a .sjit path; name the output so")
    if export is not None:
        check_export(export, header)
    elif header is not None:
        raise InvalidInput(f"--header {header} describes what --export writes; give both")
    check_outputs(out, export, header, html)


def _dtypes(given: list[str]) -> str | dict[str, str]:
    """One dtype, or a mapping from patterns of layers' names."""
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    rules = {}
    for text in given:
        pattern, equals, name = text.rpartition("=")
        if not equals:
            raise InvalidInput(f"--dtype {text} stands among several; write LAYERS={text}")
        rules[pattern] = name
    return rules
