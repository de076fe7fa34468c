"""Compare sparsejit, in several dtypes, with every peer that runs a user's model."""

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.api.models.parted_model import PartedModel
from sparsejit.compiling import compile_model
from sparsejit.errors import InvalidInput, SparseJitError, UnsupportedOperator
from sparsejit.frontends.model_source import NamedModel
from sparsejit.frontends.onnx import import_onnx, is_onnx
from sparsejit.frontends.onnx.reading import read_model
from sparsejit.frontends.onnx.sessions import model_bytes, open_session
from sparsejit.frontends.states import GivenStates
from sparsejit.frontends.torch_export import export
from sparsejit.ir.graph import Graph
from sparsejit.ir.values import Array
from sparsejit.perf.call_latency import (
    LatencyReport,
    busy_core,
    latency_report,
    native_latencies,
    spare_core,
)
from sparsejit.perf.model_contest import ROUNDS, Arrays, ContestantTime, ModelRounds, export_onnx
from sparsejit.perf.peers.model_peers import MODEL_PEERS, ModelPeer

# sparsejit as a contestant, by the dtype that weights are stored in.
OURS = {
    "float32": ModelPeer("sparsejit", "this project, float32"),
    "bfloat16": ModelPeer("sparsejit-bfloat16", "its weights in bfloat16", is_float32=False),
    "float16": ModelPeer("sparsejit-float16", "its weights in float16", is_float32=False),
    "int8": ModelPeer(
        "sparsejit-int8", "its weights and inputs in int8", is_float32=False
    ),
    "auto": ModelPeer(
        "sparsejit-auto", "as short as 1 % of the largest output allows", is_float32=False
    ),
}
DTYPES = ("float32", "bfloat16", "int8")
# A float32 engine whose relative error exceeds this computes another model.
_WRONG = 1e-2
_REFUSED = "InvalidInput: "  # the beginning of a worker's message


class CallPace(NamedTuple):
    """Calls to measure latencies: seconds for each engine, calls a second, another core busy."""

    seconds: float
    rate: float
    is_loaded: bool = False


@dataclass(frozen=True)
class AnyComparison:
    """Times of all engines, fastest first, and the reason for each engine that was skipped.

    `latency` is of calls from Python at a steady rate, `native` of ours in one native loop.
    """

    model: str
    times: tuple[ContestantTime, ...]
    skipped: dict[str, str]
    latency: LatencyReport | None = None
    native: LatencyReport | None = None

    @property
    def verdicts(self) -> dict[str, str]:
        """A sentence for each way to call: the speed-up over the fastest peer in float32.

        An engine that has no bound call counts with its plain one.
        """
        called = self._verdict(lambda one: one.ns_min)
        return {"called": called, "bound": self._verdict(lambda one: one.least_bound_ns)}

    def _verdict(self, ns: Callable[[ContestantTime], float]) -> str:
        times = {one.name: one for one in self.times}
        ours = [times.pop(peer.name) for peer in OURS.values() if peer.name in times]
        if not ours:
            why = (self.skipped.get(peer.name) for peer in OURS.values())
            return f"sparsejit does not run it: {next(filter(None, why), '--dtype leaves it out')}"
        short = [one for one in times.values() if not MODEL_PEERS[one.name].is_float32]
        wrong = [one for one in times.values() if one.relative_error > _WRONG and one not in short]
        others = [one for one in times.values() if one not in short + wrong]
        parts = [_wrong(one) for one in wrong]
        if not others:
            brings = "`sparsejit bench peers --install` brings some"
            if self.model.endswith(".sjit"):
                brings = "compare the model that it was compiled from"
            return "; ".join((*parts, f"no other engine here runs it; {brings}"))
        best = min(others, key=ns)
        first, *more = ours
        parts += [_compared(first, best, ns(best) / ns(first))]
        parts += [
            f"{one.name.removeprefix('sparsejit-')} {ns(best) / ns(one):.1f} times "
            f"at {one.relative_error:.1e}"
            for one in more
        ]
        parts += [
            f"{one.name}, in its own precision, {ns(best) / ns(one):.1f} times as fast as "
            f"{best.name} at {one.relative_error:.1e}"
            for one in short
        ]
        return "; ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "verdicts": self.verdicts}


def _compared(ours: ContestantTime, best: ContestantTime, ratio: float) -> str:
    whose, at = "", ""
    if ours.name != OURS["float32"].name:
        whose = f"{ours.name.removeprefix('sparsejit-')} "
        at = f", at {ours.relative_error:.1e}"
    times = f"{max(ratio, 1 / ratio):.1f} times"
    how = f"{times} as fast as" if ratio >= 1 else f"{times} slower than"
    if times == "1.0 times":
        how = "as fast as"
    return f"{whose}{how} the best other, {best.name}{at}"


def _wrong(one: ContestantTime) -> str:
    return (
        f"{one.name}'s outputs are {one.relative_error:.1e} from float64 as sparsejit reads the "
        "model, so one of the two is wrong"
    )


class AnyTask:
    """A model in files of `folder`, and its exact outputs in float64."""

    def __init__(self, source: NamedModel, folder: Path) -> None:
        self._source, self.folder = source, folder
        self._is_onnx = is_onnx(source.model)
        self._is_saved = isinstance(source.model, CompiledModel)
        self.inputs_file = folder / "inputs.npz"
        np.savez(self.inputs_file, *self._all_inputs)

    @property
    def _arrays(self) -> Arrays:
        return [_array(each) for each in self._source.args]

    @property
    def _all_inputs(self) -> Arrays:
        """All inputs that the file declares, constants included."""
        if not self._is_onnx:
            return self._arrays
        source, given = self._source, iter(self._arrays)
        return [
            np.asarray(source.constants[each.name], each.dtype)
            if each.name in source.constants
            else next(given)
            for each in source.inputs
        ]

    @cached_property
    def _graph(self) -> Graph:
        source = self._source
        if self._is_saved:
            return source.model.graph
        if self._is_onnx:
            return import_onnx(source.model, source.args, False, source.constants).graph()
        found = export(source.model, source.args, source.kwargs, False)
        if found.own_states:
            names = ", ".join(state.name for state in found.own_states)
            raise InvalidInput(
                f"{source.reference} keeps state ({names}), and `bench` calls models; take it as "
                "inputs and return it"
            )
        return found.graph(None)

    @cached_property
    def exact(self) -> Arrays:
        """Outputs in float64: torch's for a torch module, else our own graph's.

        The errors of other engines show whether our graph is right. A file with operators that the
        graph lacks is run by ONNX Runtime instead, in the file's dtypes.
        """
        source = self._source
        if hasattr(source.model, "state_dict") and hasattr(source.model, "double"):
            import torch

            wide = [x.double() if x.is_floating_point() else x for x in source.args]
            with torch.no_grad():
                outputs = copy.deepcopy(source.model).eval().double()(*wide)
            return [each.numpy() for each in _listed(outputs)]
        kinds = {"f": np.float64, "b": np.bool_}
        try:
            graph = self._graph
        except UnsupportedOperator:
            if source.fallback is None:
                raise
            names = [each.name for each in source.inputs]
            given = dict(zip(names, self._all_inputs, strict=True))
            return list(open_session(model_bytes(read_model(source.model))).run(None, given))
        return graph.evaluate([x.astype(kinds.get(x.dtype.kind, np.int64)) for x in self._arrays])

    @cached_property
    def request(self) -> dict[str, Any]:
        """Fields of the "load" request to `PeerWorker` that name the model, besides its files."""
        source = self._source
        if self._is_saved:
            return {"saved": str(Path(source.reference).resolve())}
        if self._is_onnx:
            constants = dict(source.constants)
            file = str(Path(source.model).resolve())
            names = [each.name for each in source.inputs]
            fallback = source.fallback
            return {"file": file, "names": names, "constants": constants, "fallback": fallback}
        if source.reference.endswith(".pt2"):
            return {"program": str(Path(source.reference).resolve())}
        import torch

        state = self.folder / "state.pt"
        torch.save(source.model.state_dict(), state)
        return {"factory": source.reference, "state": str(state)}

    def onnx_file(self, opset: int) -> Path:
        """The given ONNX file, or torch's export of the module. Raises as `export_onnx` does."""
        if self._is_onnx:
            return Path(self._source.model)
        file = self.folder / f"opset{opset}.onnx"
        if not file.exists():
            module = self._source.model
            module = _of_program(module) if hasattr(module, "module_call_graph") else module.eval()
            export_onnx(module, self._source.args, file, opset)
        return file


def compare_any(
    source: NamedModel,
    peers: Sequence[ModelPeer] = tuple(MODEL_PEERS.values()),
    dtypes: Sequence[str] = DTYPES,
    threads: int = 1,
    pace: CallPace | None = None,
    progress: Callable[[str], None] = lambda step: None,
    rounds: int = ROUNDS,
    state: GivenStates | None = None,
) -> AnyComparison:
    """Measure errors, then times, of sparsejit in each of `dtypes` and of the peers.

    An absent engine is skipped, with the reason. `pace` asks for latencies too; with the states
    that `state` names, our native calls are the steps of a stream. Raises InvalidInput for more
    threads than there are cores, and for inputs that the model does not take.
    """
    ours = [OURS[dtype] for dtype in dtypes]
    if isinstance(source.model, CompiledModel):
        ours = [OURS["float32"]]
    unfit = _reasons(source.model, peers)
    runs_it = [each for each in peers if each.name not in unfit]
    name = Path(source.reference).name
    other = spare_core() if pace is not None and pace.is_loaded else None
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="sparsejit-bench-"))
        task = AnyTask(source, Path(folder))
        given = stack, task, name, (*ours, *runs_it), progress, lambda peer: float("inf"), threads
        contest = ModelRounds(*given, both_ways=True)
        refused = [contest.skipped.get(peer.name, "") for peer in ours]
        if all(why.startswith(_REFUSED) for why in refused):
            raise InvalidInput(refused[0].removeprefix(_REFUSED))
        times = contest.times(rounds)
        latency = native = None
        if pace is not None:
            load = "" if other is None else stack.enter_context(busy_core(other))
            latency = _latency(contest, times, pace, load)
            progress(f"{name}, our steps in a native loop")
            native = _native(source, dtypes, threads, state, pace.seconds, load)
        return AnyComparison(name, times, {**unfit, **contest.skipped}, latency, native)


def _reasons(model: Any, peers: Iterable[ModelPeer]) -> dict[str, str]:
    """By name of a peer that cannot read a model in this form, the reason."""
    if isinstance(model, CompiledModel):
        return {each.name: "reads no .sjit file" for each in peers}
    if not is_onnx(model):
        return {}
    return {each.name: "runs no ONNX file" for each in peers if each.opset is None}


def _latency(
    contest: ModelRounds, times: Sequence[ContestantTime], pace: CallPace, load: str
) -> LatencyReport:
    """Latencies of the engines whose median call is shorter than the period of the calls."""
    period_us = 1e6 / pace.rate
    slow = {
        one.name: f"a call takes {one.ns_median / 1000:,.0f} us, one is due every {period_us:,.0f}"
        for one in times
        if one.ns_median / 1000 >= period_us
    }
    late = contest.latencies(pace.seconds, pace.rate, slow)
    return latency_report(pace.rate, late, slow, load)


def _native(
    source: NamedModel,
    dtypes: Sequence[str],
    threads: int,
    state: GivenStates | None,
    seconds: float,
    load: str,
) -> LatencyReport:
    """Latencies of our native calls, or steps, one after another."""
    found, skipped = dict[str, Array](), dict[str, str]()
    for dtype in ["float32"] if isinstance(source.model, CompiledModel) else dtypes:
        own = OURS[dtype].name
        try:
            fast = _compiled(source, dtype, threads, state)
        except SparseJitError as error:
            skipped[own] = str(error)
            continue
        if isinstance(fast, CompiledModel):
            found[own] = native_latencies(fast, seconds)
        else:
            skipped[own] = "it runs in parts, which Python calls in turn"
    return latency_report(0.0, found, skipped, load)


def _compiled(
    source: NamedModel, dtype: str, threads: int, state: GivenStates | None
) -> CompiledModel | PartedModel:
    if isinstance(source.model, CompiledModel):
        return source.model
    return compile_model(
        source.model,
        source.args,
        constants=source.constants,
        state=state,
        fallback=source.fallback,
        dtype=dtype,
        threads=threads,
    )


def _of_program(program: Any) -> Any:
    """The program's module with no-op `train` and `eval`, whose own ones raise in the exporter."""
    module = program.module()
    module.train = module.eval = lambda *mode: module
    return module


def _array(x: Any) -> np.ndarray[Any, Any]:
    return x.numpy() if hasattr(x, "numpy") else np.asarray(x)


def _listed(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]
