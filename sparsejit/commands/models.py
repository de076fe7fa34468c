"""`sparsejit compile`, `check` and `run`: whole models from the command line."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsejit.api.reports.shown import counted
from sparsejit.commands.console import (
    JsonOption,
    ProgressBar,
    check_outputs,
    console,
    hand_over,
    print_json,
    say,
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
    ModelArgument,
    ModelRequest,
    ShapesOption,
    StateOption,
    StepOption,
    TargetOption,
    ThreadsOption,
    TuneOption,
    WindowOption,
    given_states,
    is_compiled,
    load_or_compile,
)
from sparsejit.errors import InvalidInput, UnsupportedOperator
from sparsejit.files import atomic_path

if TYPE_CHECKING:
    from sparsejit.api.compiled import Compiled
    from sparsejit.api.models.parted_model import PartedModel

ExportOption = Annotated[
    Path | None,
    typer.Option(help="File to write code for C to, .o, .so or .obj; with --cmake, a folder."),
]
HeaderOption = Annotated[
    Path | None, typer.Option(dir_okay=False, help="File to write the C header to, .h.")
]
CmakeOption = Annotated[
    str, typer.Option(help="Name of a CMake package, which --export writes as a folder.")
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", help="Print all facts about every layer.")
]


def compile_command(
    model: ModelArgument,
    out: Annotated[Path, typer.Option(dir_okay=False, help="File to write the model to, .sjit.")],
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
    export: ExportOption = None,
    header: HeaderOption = None,
    cmake: CmakeOption = "",
    system: Annotated[
        str, typer.Option(help="System of --export: linux, windows or macos.")
    ] = "linux",
    measure: MeasureOption = False,
    verbose: VerboseOption = False,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compile a whole model, save it, and report the time of its layers."""
    _check_outputs(out, export, header, html, system, cmake)
    with ProgressBar() as bar:
        compiled = load_or_compile(
            ModelRequest(
                *(model, shape, constant, batch, dtype, target, threads, tune, exact),
                *(fallback, state, step, axis, window),
            ),
            bar.show,
        )
        if export is not None:
            _export(compiled, export, header, system, cmake)
        compiled.save(out)
        bar.show("measuring" if measure else "explaining", 1.0)
        report = compiled.explain(measure=measure)
    write_page(html, report)
    if as_json:
        print_json(report.as_dict())
        return
    console.print(report if verbose else report.brief())
    say(f"model in {out}")
    if export is not None:
        say(f"code for C in {export}")


def _export(
    compiled: "Compiled | PartedModel", path: Path, header: Path | None, system: str, cmake: str
) -> None:
    """Write code for C. Raises InvalidInput for a package of anything but a model."""
    if not cmake:
        compiled.export(path, header, system=system)
        return
    from sparsejit.api.models.compiled_model import CompiledModel

    if not isinstance(compiled, CompiledModel):
        raise InvalidInput(
            f"a {type(compiled).__name__} has no CMake package; leave out --cmake, and name an "
            "object file"
        )
    compiled.export(path, system=system, cmake=cmake)


def check_command(
    model: ModelArgument,
    shape: ShapesOption = None,
    constant: ConstantsOption = None,
    batch: BatchOption = None,
    fallback: FallbackOption = None,
    state: StateOption = None,
    step: StepOption = None,
    axis: AxisOption = -1,
    window: WindowOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the operators of a model that cannot be compiled, and where; compile nothing.

    Exit status 1 where there are any, unless --fallback runs them: then the parts are listed.
    The states of the model, with --state or --step, are listed too.
    """
    asked = ModelRequest(
        *(model, shape, constant, batch),
        fallback=fallback,
        state=state,
        step=step,
        axis=axis,
        window=window,
    )
    try:
        found: dict[str, Any] = {"compiles": True, **_read(asked), "missing": []}
    except UnsupportedOperator as error:
        found = {"compiles": False, "missing": str(error).splitlines()}
        if fallback is not None:
            found = {"compiles": True, "parts": _parts(asked), "missing": []}
    if not hand_over(found, as_json, None):
        lines = found["missing"] or found.get("parts") or [f"every operator of {model} compiles"]
        if "delay" in found:
            lines.append(f"a step of {step} frames, late by {counted(found['delay'], 'frame')}")
        say("\n".join([*lines, *found.get("states", [])]))
    if found["missing"]:
        raise typer.Exit(1)


def _parts(asked: ModelRequest) -> list[str]:
    """A line for each part in which nodes would be compiled or left, and for each node left."""
    from sparsejit.frontends.onnx import divided_onnx

    source = asked.source()
    model = divided_onnx(source.model, source.args, source.constants)
    lines = []
    for number, part in enumerate(model.parts, 1):
        engine = asked.fallback if part.is_left else "sparsejit"
        lines.append(f"part {number}: {engine}, {counted(len(part.places), 'node')}")
        lines += [f"  {model.left[place]}" for place in part.places if part.is_left]
    return lines


def _read(asked: ModelRequest) -> dict[str, Any]:
    """Number of nodes in a model's graph, and its states, a line each; of a step its delay too.

    Raises UnsupportedOperator, which lists missing operators.
    """
    from sparsejit.api.models.compile_parts import check_fallback
    from sparsejit.api.models.compiled_model import CompiledModel
    from sparsejit.api.sizes.step_reading import read_step
    from sparsejit.estimators.compiled_estimator import is_estimator
    from sparsejit.frontends.model_source import imported_states

    if is_compiled(asked.model):
        compiled = load_or_compile(asked, lambda stage, share: None)
        if not isinstance(compiled, CompiledModel):
            return {"nodes": 1, "states": []}
        return {"nodes": len(compiled.graph.nodes), "states": list(map(str, compiled.states))}
    source, size = asked.source(), asked.size
    if is_estimator(source.model):
        raise InvalidInput(
            f"{asked.model} returned an estimator; use `sparsejit compile`"
        )
    check_fallback(asked.fallback, source.model)
    with source.advising():
        if size is not None:
            size.check(source.args)
            made = read_step(source.read_at, source.args, size).made
            lines = list(map(str, made.states))
            return {"nodes": len(made.graph.nodes), "states": lines, "delay": made.delay}
        imported = source.imported()
    states = imported_states(imported, given_states(asked.state))
    return {"nodes": len(imported.graph().nodes), "states": list(map(str, states))}


def run_command(
    model: Annotated[Path, typer.Argument(help="A .sjit file.")],
    inputs: Annotated[
        list[Path],
        typer.Option("--input", help="A .npy file for each input."),
    ],
    out: Annotated[list[Path], typer.Option(dir_okay=False, help="A .npy file for each output.")],
) -> None:
    """Run a compiled model on arrays in files, in the order of its inputs and outputs."""
    import numpy as np

    from sparsejit.api.models.compiled_model import CompiledModel
    from sparsejit.api.models.parted_model import PartedModel
    from sparsejit.frontends.files import read_npy
    from sparsejit.loading import load

    check_outputs(*out)
    compiled = load(model)
    if not isinstance(compiled, CompiledModel | PartedModel):
        kind = type(compiled).__name__
        raise InvalidInput(f"{model} holds a {kind}, not a model; load and call it in Python")
    results = compiled.run([read_npy(path) for path in inputs])
    if len(results) != len(out):
        raise InvalidInput(f"{len(out)} --out given; the model has {len(results)} outputs")
    for path, result in zip(out, results, strict=True):
        with atomic_path(path) as place, place.open("wb") as file:
            np.save(file, result)
        say(f"{path}: {result.dtype} {list(result.shape)}")


def _check_outputs(
    out: Path,
    export: Path | None,
    header: Path | None,
    html: Path | None,
    system: str,
    cmake: str,
) -> None:
    """Raise InvalidInput for invalid output paths, before the work."""
    if out.suffix != ".sjit":
        raise InvalidInput(f"{out} is not a .sjit path; give a name that ends so")
    if cmake:
        from sparsejit.artefact.cmake_package import check_package

        if export is None or header is not None:
            raise InvalidInput(
                f"--cmake {cmake} is a folder with its own header; name the folder by --export, "
                "and leave out --header"
            )
        check_package(export, cmake, system)
        check_outputs(out, html)
        return
    if export is not None:
        from sparsejit.artefact.export import check_export

        check_export(export, header, system)
    elif header is not None:
        raise InvalidInput(f"--header {header} describes the file of --export; give both")
    check_outputs(out, export, header, html)
