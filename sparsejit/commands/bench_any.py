"""`sparsejit bench MODEL`: a user's model timed beside other engines on this machine."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from sparsejit.api.reports.shown import table_of
from sparsejit.commands.console import (
    JsonFileOption,
    JsonOption,
    check_outputs,
    console,
    error_console,
    hand_over,
    say,
)
from sparsejit.commands.model_options import (
    AxisOption,
    BatchOption,
    ConstantsOption,
    FallbackOption,
    ModelArgument,
    ModelRequest,
    ShapesOption,
    StateOption,
    StepOption,
    ThreadsOption,
    WindowOption,
    given_states,
    is_compiled,
    load_or_compile,
)
from sparsejit.errors import InvalidInput

if TYPE_CHECKING:
    from sparsejit.frontends.model_source import NamedModel
    from sparsejit.perf.any_model import AnyComparison, CallPace
    from sparsejit.perf.call_latency import LatencyReport

# Calls a second, as of a loop in real time.
_RATE = 100.0
_NAME = "model"
DataOption = Annotated[
    Path | None,
    typer.Option(help="Inputs: .npz by name, or .npy for one. Default: random numbers."),
]
OursOption = Annotated[
    list[str] | None,
    typer.Option(help="Our dtypes, or auto; repeatable. Default: float32, bfloat16, int8."),
]
LatencyOption = Annotated[
    float | None,
    typer.Option(min=0.01, help="Also call each engine at a steady rate, for SECONDS."),
]
RateOption = Annotated[
    float | None, typer.Option(min=0.01, help="Calls a second for --latency. Default: 100.")
]
LoadOption = Annotated[
    bool, typer.Option("--load", help="Keep another core busy during --latency.")
]
_CONVENTION = "called with arrays, or bound to buffers that are set once"
_SHARES = {0.5: "half of the weights zero", 0.75: "three quarters"}


class ModelsToo(TyperGroup):
    """The group `bench`, which takes a path or file.py:factory in place of a command as a model."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the name of the command `model` where a model stands in its place."""
        first = next((word for word in args if not word.startswith("-")), "")
        is_path = any(mark in first for mark in ".:/") or Path(first).exists()
        is_model = first not in self.commands and first != "" and is_path
        return list(super().parse_args(ctx, [_NAME, *args] if is_model else args))


def model(
    model: ModelArgument,
    shape: ShapesOption = None,
    constant: ConstantsOption = None,
    batch: BatchOption = None,
    data: DataOption = None,
    dtype: OursOption = None,
    threads: ThreadsOption = 1,
    fallback: FallbackOption = None,
    state: StateOption = None,
    step: StepOption = None,
    axis: AxisOption = -1,
    window: WindowOption = None,
    latency: LatencyOption = None,
    rate: RateOption = None,
    load: LoadOption = False,
    peers: Annotated[
        str | None, typer.Option(help="Other engines, separated by commas. Default: all installed.")
    ] = None,
    as_json: JsonOption = False,
    out: JsonFileOption = None,
) -> None:
    """Time a model of your own here, and every engine that runs it, on one core, in turn.

    States that --state names or finds are listed; each engine gets them as inputs. With --step no
    other engine is timed: it would run whole sequences.
    """
    from sparsejit.perf.any_model import DTYPES, OURS, compare_any
    from sparsejit.perf.peers.model_peers import MODEL_PEERS, peers_named

    check_outputs(out)
    rivals = peers_named(MODEL_PEERS if peers is None else filter(None, peers.split(",")))
    if unknown := [name for name in dtype or () if name not in OURS]:
        raise InvalidInput(f"dtype {unknown[0]!r} is unknown; use some of {', '.join(OURS)}")
    pace = _pace(latency, rate, load)
    asked = ModelRequest(
        *(model, shape, constant, batch, dtype, "native", threads),
        *(False, False, fallback, state, step, axis, window),
    )
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="sparsejit-bench-"))
        source = _source(asked, data) if asked.size is None else _step(asked, data, Path(folder))
        states = _states(asked, source)
        status = stack.enter_context(error_console.status(""))
        stack.enter_context(source.advising())
        given = source, rivals, dtype or DTYPES, threads, pace
        found = compare_any(*given, status.update, state=given_states(state))
        status.update("predicting the gain of zeros")
        speeds = _speeds_by_zeros(source, threads)
    forecast = [{"zeros": share, "speed": speed} for share, speed in speeds.items()]
    if not hand_over({**found.as_dict(), "shrink": forecast, "states": states}, as_json, out):
        _show(found, states)
        if speeds:
            say(_forecast_line(asked, speeds))


def _states(asked: ModelRequest, source: "NamedModel") -> list[str]:
    """A line for each state that the options name or find, or that a .sjit file has."""
    from sparsejit.api.models.compiled_model import CompiledModel
    from sparsejit.frontends.model_source import imported_states

    if isinstance(source.model, CompiledModel):
        return list(map(str, source.model.states))
    if asked.state is None:
        return []
    return list(map(str, imported_states(source.imported(), given_states(asked.state))))


def _pace(latency: float | None, rate: float | None, load: bool) -> "CallPace | None":
    """The calls of --latency; None without it. Raises InvalidInput for its options alone."""
    from sparsejit.perf.any_model import CallPace

    for name, given in ((f"--rate {rate:g}" if rate else "", rate), ("--load", load)):
        if given and latency is None:
            raise InvalidInput(f"{name} is of no use alone; give --latency SECONDS")
    return None if latency is None else CallPace(latency, rate or _RATE, load)


def _show(found: "AnyComparison", states: Sequence[str] = ()) -> None:
    console.print(_table(found))
    if found.latency is not None:
        console.print(_latency_table(found.latency))
    if found.native is not None:
        console.print(_latency_table(found.native))
    verdicts = found.verdicts
    if len({*verdicts.values()}) == 1:
        say(verdicts["called"], style="bold")
    else:
        for way, verdict in verdicts.items():
            say(f"{way}: {verdict}", style="bold")
    if states:
        say("\n".join(states))


def _speeds_by_zeros(source: "NamedModel", threads: int) -> dict[float, float]:
    """Speeds predicted for `shrink`, by share of zeros; empty for a model it does not take."""
    from sparsejit.api.models.compiled_model import CompiledModel
    from sparsejit.api.quantising.seen_inputs import ExampleCall

    if isinstance(source.model, CompiledModel) or source.fallback is not None:
        return {}
    try:
        from sparsejit.prune.shrink.shrunk import predicted_speeds

        call = ExampleCall(source.args, source.kwargs)
        return predicted_speeds(source.model, call, source.constants, threads)
    except Exception:  # the times are measured by now: no forecast may lose them
        return {}


def _forecast_line(asked: ModelRequest, speeds: dict[float, float]) -> str:
    """The predicted gain in a sentence, and the command that finds its error."""
    from sparsejit.frontends.model_source import shrink_command
    from sparsejit.prune.shrink.sources import suffix_of

    gains = ", ".join(
        f"{speed:.1f} times{'' if number else ' as fast'} with {_SHARES[zeros]}"
        for number, (zeros, speed) in enumerate(speeds.items())
    )
    command = shrink_command(asked.model, asked.constant or (), suffix_of(asked.model))
    return f"shrink: {gains} (predicted); {command} finds the error"


def _source(asked: ModelRequest, data: Path | None) -> "NamedModel":
    """The model, compiled already in a .sjit file, and inputs. Raises InvalidInput otherwise."""
    from sparsejit.api.models.compile_parts import check_fallback
    from sparsejit.estimators.compiled_estimator import is_estimator

    if not is_compiled(asked.model):
        source = asked.source(data, always_inputs=True)
        if is_estimator(source.model):
            raise InvalidInput(f"{asked.model} returned an estimator; `bench` takes models")
        if source.kwargs:
            raise InvalidInput(
                f"{asked.model} takes {', '.join(source.kwargs)} by name; `bench` gives inputs by "
                "position; export it with all inputs by position"
            )
        check_fallback(asked.fallback, source.model)
        return replace(source, fallback=asked.fallback)
    return _saved(asked, asked.model, data)


def _step(asked: ModelRequest, data: Path | None, folder: Path) -> "NamedModel":
    """The step of a model, saved in `folder`, and inputs of a call, its states among them."""
    if len(asked.dtype or ()) > 1:
        raise InvalidInput("a step is timed in one dtype; give one --dtype")
    return _saved(asked, str(folder / "step.sjit"), data)


def _saved(asked: ModelRequest, file: str, data: Path | None) -> "NamedModel":
    """The compiled model in a .sjit file, which is written if it is not the model's own."""
    import numpy as np

    from sparsejit.api.models.compiled_model import CompiledModel
    from sparsejit.frontends.model_source import NamedModel, example_arrays
    from sparsejit.frontends.onnx import DeclaredInput

    compiled = load_or_compile(asked, lambda stage, share: None)
    if not isinstance(compiled, CompiledModel):
        kind = type(compiled).__name__
        raise InvalidInput(f"{asked.model} holds a {kind}, and `bench` takes models")
    if file != asked.model:
        compiled.save(file)
    inputs = [
        DeclaredInput(each.origin.name, np.dtype(each.type.element.value), each.shape)
        for each in compiled.graph.inputs
    ]
    return NamedModel(file, compiled, example_arrays(inputs, data=data), {})


def _skipped(reasons: Mapping[str, str]) -> list[str]:
    """A line for each reason, with the engines that were skipped for it."""
    names: dict[str, list[str]] = {}
    for name, why in reasons.items():
        names.setdefault(why, []).append(name)
    return [f"{', '.join(each)} skipped: {why}" for why, each in names.items()]


def _table(found: "AnyComparison") -> Table:
    figures = ("called min", "called median", "bound min", "bound median", "error")
    title = f"{found.model}; us a call from Python: {_CONVENTION}"
    table = table_of(title, ("engine", "version"), figures, _skipped(found.skipped))
    for one in found.times:
        ns = one.ns_min, one.ns_median, one.bound_ns_min, one.bound_ns_median
        cells = ("" if each is None else f"{each / 1000:,.2f}" for each in ns)
        error = f"{one.relative_error:.1e}"
        table.add_row(one.name, one.version, *cells, error, style=_style(one.name))
    return table


def _latency_table(found: "LatencyReport") -> Table:
    """A row for each engine; histograms in the last column have the same bins."""
    from sparsejit.perf.call_latency import PERCENTILES

    notes = _skipped(found.skipped)
    if found.engines:
        span = f"{found.edges[0]:,.1f} to {found.edges[-1]:,.1f} us"
        calls = ", ".join(sorted({f"{one.calls:,}" for one in found.engines}))
        notes.insert(0, f"{calls} calls each; histogram: {span}, bins and heights by logarithms")
    if any(None in one.percentiles.values() for one in found.engines):
        notes.append("a percentile with no call beyond it is left out")
    if found.load:
        notes.append(f"meanwhile {found.load}")
    title = f"us from when a call with arrays was due to its end, at {found.rate:g} calls a second"
    if not found.rate:
        title = "us of each call, or step of a stream, one after another in a native loop"
    figures = (*(f"p{percent:g}" for percent in PERCENTILES), "worst")
    table = table_of(title, (), (), notes)
    table.box, table.pad_edge = None, False
    table.add_column("engine", no_wrap=True)
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("histogram", no_wrap=True)
    for one in found.engines:
        late = ("" if us is None else _three_digits(us) for us in one.percentiles.values())
        cells = (*late, _three_digits(one.worst), one.bars)
        table.add_row(one.name, *cells, style=_style(one.name))
    return table


def _three_digits(us: float) -> str:
    return f"{us:,.0f}" if us >= 100 else f"{us:.3g}"


def _style(engine: str) -> str | None:
    return "bold" if engine.startswith("sparsejit") else None
