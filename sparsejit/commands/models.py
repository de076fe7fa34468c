"""`sparsejit compile` and `sparsejit run`: whole models from the command line."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import Progress, TextColumn

from sparsejit.api import CompiledModel, compile_model, load
from sparsejit.commands.console import (
    JsonOption,
    check_outputs,
    console,
    error_console,
    print_json,
    require,
)
from sparsejit.errors import InvalidInput
from sparsejit.files import atomic_path
from sparsejit.frontends.factory import call_factory
from sparsejit.frontends.torch_export import read_program

ThreadsOption = Annotated[int, typer.Option(min=1, help="How many may share a layer.")]


def compile_command(
    model: Annotated[
        str,
        typer.Argument(
            help="file.py:factory or package.module:factory, which is run and returns a torch "
            "module and its example inputs; or a .pt2 file of torch.export."
        ),
    ],
    out: Annotated[Path, typer.Option(dir_okay=False, help="Receives the model, .sjit.")],
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="float32, bfloat16, float16 or int8; or LAYERS=DTYPE, several times."),
    ] = None,
    threads: ThreadsOption = 1,
    tune: Annotated[bool, typer.Option(help="Time the most promising kernels here.")] = False,
    measure: Annotated[bool, typer.Option(help="Measure each layer for the report.")] = True,
    html: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Also write the report here, a web page.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compile a whole model, save it, and say where its time goes."""
    require("torch")
    if out.suffix != ".sjit":
        raise InvalidInput(f"{out} is not a .sjit path; name the output so")
    check_outputs(out, html)
    source, args, kwargs = _source(model)
    with Progress(TextColumn("{task.description}"), console=error_console) as bar:
        task = bar.add_task("starting")
        compiled = compile_model(
            source,
            args,
            example_kwargs=kwargs,
            dtype=_dtypes(dtype or []),
            threads=threads,
            tune=tune,
            progress=lambda stage, share: bar.update(task, description=f"{share:4.0%} {stage}"),
        )
    compiled.save(out)
    report = compiled.explain(measure=measure)
    if html is not None:
        with atomic_path(html) as path:
            path.write_text(report.html())
    if as_json:
        print_json(report.as_dict())
    else:
        console.print(report)


def run_command(
    model: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A .sjit file.")],
    inputs: Annotated[
        list[Path],
        typer.Option("--input", exists=True, dir_okay=False, help="A .npy file for each input."),
    ],
    out: Annotated[
        list[Path], typer.Option(dir_okay=False, help="A .npy file for each output.")
    ],
    threads: ThreadsOption = 1,
) -> None:
    """Run a compiled model on arrays in files."""
    check_outputs(*out)
    compiled = load(model)
    if not isinstance(compiled, CompiledModel):
        raise InvalidInput(f"{model} holds one kernel; give a file of `sparsejit compile`")
    arrays = [np.load(path, allow_pickle=False) for path in inputs]
    results = compiled.run(arrays)
    if len(results) != len(out):
        raise InvalidInput(f"the model has {len(results)} outputs; give as many --out files")
    for path, result in zip(out, results, strict=True):
        with atomic_path(path) as place, place.open("wb") as file:
            np.save(file, result)


def _source(reference: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The model, and what it is called with."""
    if reference.endswith(".pt2"):
        return read_program(reference)
    made = call_factory(reference)
    if not isinstance(made, tuple) or len(made) != 2:
        raise InvalidInput(
            f"{reference} returned {type(made).__name__}; return a torch module and a tuple of "
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
            raise InvalidInput(f"--dtype {text} among several; write LAYERS=DTYPE")
        rules[pattern] = name
    return rules
