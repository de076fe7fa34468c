"""`sparsejit compile` and `sparsejit run`: whole models from the command line."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sparsejit.api import CompiledEstimator, CompiledModel, compile_model, load
from sparsejit.artefact.export import check_export
from sparsejit.commands.console import (
    JsonOption,
    check_outputs,
    console,
    print_json,
    require,
    say,
)
from sparsejit.commands.progress import ProgressBar
from sparsejit.errors import InvalidInput
from sparsejit.files import atomic_path
from sparsejit.frontends.factory import call_factory
from sparsejit.frontends.files import read_npy
from sparsejit.frontends.onnx import is_onnx
from sparsejit.frontends.torch_export import read_program
from sparsejit.lowering.context import Progress

ModelArgument = Annotated[
    str,
    typer.Argument(
        help="file.py:factory or package.module:factory, which is run and returns a torch module "
        "or an estimator, and its example inputs; or a .pt2 file of torch.export, which torch "
        "reads; or .onnx."
    ),
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
    require("torch")
    _check_outputs(out, export, header, html)
    options = {"target": target, "threads": threads, "tune": tune, "exact": exact}
    with ProgressBar() as bar:
        compiled = _compiled(model, dtype or ["float32"], options, bar.show)
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
    reference: str, dtypes: list[str], options: dict[str, Any], show: Progress
) -> CompiledModel | CompiledEstimator:
    source, args, kwargs = _source(reference)
    dtype = _dtypes(dtypes)
    return compile_model(source, args, example_kwargs=kwargs, dtype=dtype, progress=show, **options)


def _check_outputs(out: Path, export: Path | None, header: Path | None, html: Path | None) -> None:
    """Raise InvalidInput for outputs that cannot be, before the work."""
    if out.suffix != ".sjit":
        raise InvalidInput(f"{out} is not a .sjit path; name the output so")
    if export is not None:
        check_export(export, header)
    elif header is not None:
        raise InvalidInput(f"--header {header} describes what --export writes; give both")
    check_outputs(out, export, header, html)


def _source(reference: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The model, and what it is called with, by position and by name."""
    if reference.endswith(".pt2"):
        return read_program(reference)
    if is_onnx(reference):
        return reference, (), {}
    made = call_factory(reference)
    if not isinstance(made, tuple) or len(made) != 2:
        raise InvalidInput(
            f"{reference} returned a {type(made).__name__}; return a torch module and a tuple of "
            "its example inputs"
        )
    model, inputs = made
    return model, tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}


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
