"""The options of commands that take any model, each declared once, and the request they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsejit.errors import InvalidInput

if TYPE_CHECKING:
    from sparsejit.api.kernels.kernel import Kernel
    from sparsejit.api.models.compiled_model import CompiledModel
    from sparsejit.api.models.parted_model import PartedModel
    from sparsejit.api.sizes.step_reading import StepSize
    from sparsejit.estimators.compiled_estimator import CompiledEstimator
    from sparsejit.frontends.model_source import NamedModel
    from sparsejit.frontends.states import GivenStates
    from sparsejit.lowering.context import Progress

ModelArgument = Annotated[
    str,
    typer.Argument(
        help="An .onnx file; a .pt2 file of torch.export, which torch reads; file.py:factory or "
        "package.module:factory, which is run and returns a torch module or an estimator, and its "
        "example inputs; or a .sjit file."
    ),
]
ShapesOption = Annotated[
    list[str] | None,
    typer.Option("--shape", help="Size of an ONNX file's input, such as x=1x576; repeatable."),
]
ConstantsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--constant", help="Value for an ONNX file's input, such as sr=16000; repeatable."
    ),
]
StateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--state", help="auto, or INPUT=OUTPUT of the call before, such as h=hn; repeatable."
    ),
]
StepOption = Annotated[
    int | None,
    typer.Option(min=1, help="Frames a call: make the step of a model of whole sequences."),
]
AxisOption = Annotated[
    int, typer.Option(help="With --step, the axis of time. Default: -1, the last one.")
]
WindowOption = Annotated[
    int | None, typer.Option(min=1, help="With --step, the frames that causal attention keeps.")
]
BatchOption = Annotated[
    int | None,
    typer.Option(min=1, help="Samples in a call, where an ONNX file leaves the batch open."),
]
DTypesOption = Annotated[
    list[str] | None,
    typer.Option(help="float32, bfloat16, float16, int8 or auto; or LAYERS=DTYPE, repeatable."),
]
ThreadsOption = Annotated[int, typer.Option(min=1, help="The most threads that may share a call.")]
TargetOption = Annotated[str, typer.Option(help="native, avx2 or avx512.")]
TuneOption = Annotated[bool, typer.Option(help="Time the most promising kernels here.")]
ExactOption = Annotated[bool, typer.Option(help="Use only kernels that change no weight.")]
FallbackOption = Annotated[
    str | None,
    typer.Option(help="onnxruntime: leave nodes of an ONNX file that do not compile to it."),
]
MeasureOption = Annotated[bool, typer.Option(help="Time every layer too.")]
HtmlOption = Annotated[
    Path | None, typer.Option(dir_okay=False, help="File to write the report to, as a web page.")
]


@dataclass(frozen=True)
class ModelRequest:
    """A model as a command line names it, and its options for compiling; fields are options."""

    model: str
    shape: list[str] | None = None
    constant: list[str] | None = None
    batch: int | None = None
    dtype: list[str] | None = None
    target: str = "native"
    threads: int = 1
    tune: bool = False
    exact: bool = False
    fallback: str | None = None
    state: list[str] | None = None
    step: int | None = None
    axis: int = -1
    window: int | None = None

    @property
    def size(self) -> StepSize | None:
        """The step that is asked for. Raises InvalidInput for its other options alone."""
        from sparsejit.api.sizes.step_reading import step_size

        return step_size(self.step, self.axis, self.window, self.state, self.fallback)

    def source(self, data: Path | None = None, always_inputs: bool = False) -> NamedModel:
        """Read the model and its example inputs, as `read_source` does; a step needs some."""
        from sparsejit.frontends.model_source import read_source

        always = always_inputs or self.step is not None
        named = self.model, self.shape, self.constant
        return read_source(*named, batch=self.batch, data=data, always_inputs=always)


def is_compiled(reference: str) -> bool:
    """Whether the argument names a .sjit file."""
    return reference.endswith(".sjit")


def is_model(reference: str) -> bool:
    """Whether a command's argument names a model: an .onnx, .sjit or .pt2 file, or a factory.

    Else it names a file that holds a matrix.
    """
    from sparsejit.frontends.model_source import is_opened

    return reference.endswith((".onnx", ".sjit", ".py")) or is_opened(reference)


def load_or_compile(
    asked: ModelRequest, show: Progress
) -> Kernel | CompiledModel | PartedModel | CompiledEstimator:
    """Load a .sjit file, or compile the model. Raises as `load` and `compile` do."""
    if is_compiled(asked.model):
        from sparsejit.api.quantising.scales import Scales
        from sparsejit.loading import load

        _refuse_options(asked)
        found = load(asked.model)
        if isinstance(found, Scales):
            raise InvalidInput(f"{asked.model} holds scales; give the model they are for")
        return found
    from sparsejit.compiling import compile_model

    source = asked.source()
    size: dict[str, Any] = {"step": asked.step, "axis": asked.axis, "window": asked.window}
    with source.advising():
        return compile_model(
            source.model,
            source.args,
            **size,
            example_kwargs=source.kwargs,
            constants=source.constants,
            state=given_states(asked.state),
            fallback=asked.fallback,
            dtype=_dtypes(asked.dtype or ["float32"]),
            target=asked.target,
            threads=asked.threads,
            tune=asked.tune,
            exact=asked.exact,
            progress=show,
        )


def _refuse_options(asked: ModelRequest) -> None:
    """Raise InvalidInput for any option beside a .sjit file, which has options of its own."""
    bare = ModelRequest(asked.model)
    for field in fields(asked):
        if getattr(asked, field.name) != getattr(bare, field.name):
            raise InvalidInput(
                f"{asked.model} was compiled with shapes and options of its own; leave out "
                f"--{field.name}, or compile the model again"
            )


def given_states(texts: Sequence[str] | None) -> GivenStates | None:
    """States of a command line, as `compile` takes them; None where there are none."""
    if not texts:
        return None
    if len(texts) == 1 and "=" not in texts[0]:
        return texts[0]
    pairs: dict[str | int, str | int] = dict(text.rpartition("=")[::2] for text in texts)
    if len(pairs) < len(texts) or not all((*pairs.keys(), *pairs.values())):
        raise InvalidInput(
            f"--state {' --state '.join(texts)} is not valid; write INPUT=OUTPUT for each state, "
            "such as --state h=hn, or --state auto alone"
        )
    return pairs


def _dtypes(given: Sequence[str]) -> str | dict[str, str]:
    """The dtype that options --dtype ask for, or dtypes by patterns of layers' names."""
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    rules = {}
    for text in given:
        pattern, equals, name = text.rpartition("=")
        if not equals:
            raise InvalidInput(f"--dtype {text} stands among several; write LAYERS={text}")
        rules[pattern] = name
    return rules
