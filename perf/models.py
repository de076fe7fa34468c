"""Whole models against their rivals: outputs first, then times, in many short rounds.

Every contestant, ours too, runs in a process of its own on the same core and is called from
Python. In a round each is timed once, so that a change of the clock meets all alike.
"""

import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from sparsejit.errors import MissingDependency
from sparsejit.perf.peers.model_peers import MODEL_PEERS, ModelPeer
from sparsejit.perf.peers.peer_process import PeerFailed, PeerProcess
from sparsejit.perf.timing import RoundsInTurn
from sparsejit.perf.zoo import ZooModel, pruned
from sparsejit.runtime.native_timing import pinned

OURS = (
    ModelPeer("sparsejit", "this project, called as the model is"),
    ModelPeer("sparsejit-bound", "this project, bound to its arrays"),
)
ROUNDS = 15
SAMPLES_A_ROUND = 100
ROUND_NS = 30_000_000
LARGEST_RELATIVE_ERROR = 1e-5  # of each output's largest value in float64

Arrays = list[npt.NDArray[Any]]


@dataclass(frozen=True)
class ContestantTime:
    """Nanoseconds a call from Python, and the largest error over the largest output in float64."""

    name: str
    version: str
    ns_min: float
    ns_median: float
    relative_error: float
    threads: int


@dataclass(frozen=True)
class ModelComparison:
    """One model at one batch: who took how long, fastest first, and why others are not there.

    density: the share of the pruned weights that is left.
    """

    model: str
    batch: int
    density: float
    times: tuple[ContestantTime, ...]
    skipped: dict[str, str]

    @property
    def reference(self) -> ContestantTime | None:
        """What the others are compared with: ours, else torch, else the fastest."""
        by_name = {time.name: time for time in self.times}
        fastest = self.times[0] if self.times else None
        return by_name.get(OURS[0].name) or by_name.get("torch") or fastest

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `ratio` is each one's least time over that of `reference`."""
        if self.reference is None:
            return asdict(self)
        ratio = {time.name: time.ns_min / self.reference.ns_min for time in self.times}
        return {**asdict(self), "reference": self.reference.name, "ratio": ratio}


class ModelTask:
    """One model at one batch, as files in `folder`, and what it should compute."""

    def __init__(self, model: ZooModel, batch: int, density: float, folder: Path) -> None:
        self.model, self.batch, self.density = model, batch, density
        self.folder = folder
        self._inputs = model.inputs(batch)
        self.inputs_file = folder / "inputs.npz"
        np.savez(self.inputs_file, *(tensor.numpy() for tensor in self._inputs))

    @cached_property
    def exact(self) -> Arrays:
        """The outputs in float64."""
        module = pruned(self.model, self.density).double()
        doubles = (one.double() if one.is_floating_point() else one for one in self._inputs)
        with torch.no_grad():
            outputs = module(*doubles)
        several = isinstance(outputs, tuple)
        return [output.numpy() for output in (outputs if several else [outputs])]

    @property
    def request(self) -> dict[str, Any]:
        """What `PeerWorker.load` is told of the model, besides files."""
        return {"zoo": {"model": self.model.name, "density": self.density}}

    def onnx_file(self, opset: int) -> Path:
        """The model as ONNX for exactly this batch.

        Raises as `export_onnx` does.
        """
        file = self.folder / f"opset{opset}.onnx"
        if not file.exists():
            export_onnx(pruned(self.model, self.density), self._inputs, file, opset)
        return file


class PeerTask(Protocol):
    """What contestants run: files, and what the worker is told besides."""

    @property
    def inputs_file(self) -> Path: ...

    @property
    def request(self) -> dict[str, Any]: ...

    def onnx_file(self, opset: int) -> Path: ...


class CheckedTask(PeerTask, Protocol):
    """With a folder for outputs, and what they should be."""

    folder: Path

    @property
    def exact(self) -> Arrays: ...


def export_onnx(
    module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], file: Path, opset: int
) -> None:
    """Write a module as ONNX with the shapes of `inputs`.

    By tracing: the newer exporter writes no opset that all peers read, and a GRU in pieces. Raises
    MissingDependency without the package onnx, PeerFailed for an operator that ONNX lacks.
    """
    if find_spec("onnx") is None:
        raise MissingDependency(
            "its file needs onnx, which is not installed: pip install 'sparsejit[bench]'"
        )
    with warnings.catch_warnings(), redirect_stdout(StringIO()):  # a failure prints its graph
        warnings.simplefilter("ignore")  # of the exporter's age, and of batches that differ
        try:
            torch.onnx.export(module, inputs, str(file), dynamo=False, opset_version=opset)
        except RuntimeError as problem:
            words = str(problem).splitlines()[0]
            raise PeerFailed(f"no ONNX file of opset {opset}: {words}") from problem


class Contestant:
    """One that runs the model, in its own process."""

    def __init__(self, peer: ModelPeer, core: int) -> None:
        """Raises MissingDependency where the peer is not installed."""
        self.name, self._opset = peer.name, peer.opset
        self._process = PeerProcess(peer.command(core), peer.environment())
        self.version, self.threads = "", 0

    def __enter__(self) -> "Contestant":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()

    def prepare(self, task: PeerTask) -> None:
        """Load the model. Raises PeerFailed where the peer cannot."""
        onnx = str(task.onnx_file(self._opset)) if self._opset else None
        inputs = str(task.inputs_file)
        reply = self._process.ask(do="load", inputs=inputs, onnx=onnx, **task.request)
        self.version = reply["version"]

    def run(self, folder: Path) -> Arrays:
        """The outputs of one call, which pass through a file in `folder`."""
        file = folder / f"{self.name}.npz"
        self.threads = self._process.ask(do="run", outputs=str(file))["threads"]
        with np.load(file) as outputs:
            return [outputs[name] for name in outputs.files]

    def times(self, _: int = 0) -> list[float]:
        """One round's nanoseconds a call. Raises PeerFailed where the peer ends or refuses."""
        reply = self._process.ask(do="time", samples=SAMPLES_A_ROUND, budget_ns=ROUND_NS)
        return list(reply["ns"])


def compare(
    model: ZooModel,
    batch: int,
    density: float,
    peers: Iterable[ModelPeer] = tuple(MODEL_PEERS.values()),
    progress: Callable[[str], None] = lambda step: None,
    rounds: int = ROUNDS,
) -> ModelComparison:
    """Measure ours and the peers on one model; who is absent or wrong is skipped, with why."""
    with tempfile.TemporaryDirectory(prefix="sparsejit-models-") as folder:
        task = ModelTask(model, batch, density, Path(folder))
        title = f"{model.name}, batch {batch}"
        times, skipped = measure(task, title, (*OURS, *peers), progress, rounds)
    return ModelComparison(model.name, batch, density, times, skipped)


def measure(
    task: CheckedTask,
    title: str,
    peers: Iterable[ModelPeer],
    progress: Callable[[str], None],
    rounds: int = ROUNDS,
    largest: Callable[[str], float] = lambda name: LARGEST_RELATIVE_ERROR,
) -> tuple[tuple[ContestantTime, ...], dict[str, str]]:
    """Who took how long, fastest first, and why others are not there.

    `largest` is the relative error from which on the peer of a name is wrong.
    """
    ready: dict[Contestant, float] = {}
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        core = stack.enter_context(pinned())
        for peer in peers:
            progress(f"{title}: {peer.name} loads")
            try:
                contestant = stack.enter_context(Contestant(peer, core))
                contestant.prepare(task)
                outputs = contestant.run(task.folder)
                ready[contestant] = checked_error(outputs, task.exact, largest(peer.name))
            except (MissingDependency, PeerFailed) as problem:
                skipped[peer.name] = str(problem)
        turns = RoundsInTurn({one: one.times for one in ready}, (PeerFailed,))
        turns.run(rounds, lambda step: progress(f"{title}: {step}"))
    least, medians = turns.least(), turns.medians()
    times = tuple(
        ContestantTime(one.name, one.version, least[one], medians[one], ready[one], one.threads)
        for one in sorted(least, key=least.__getitem__)
    )
    return times, skipped | {one.name: why for one, why in turns.skipped.items()}


def checked_error(
    outputs: Sequence[npt.NDArray[Any]], exact: Arrays, largest: float = LARGEST_RELATIVE_ERROR
) -> float:
    """The largest error over each output's largest value; raises PeerFailed where it is too large.

    Also raises it where count or shapes of the outputs differ.
    """
    shapes, wanted = [one.shape for one in outputs], [one.shape for one in exact]
    if shapes != wanted:
        raise PeerFailed(f"its outputs have shapes {shapes}, not {wanted}")
    pairs = zip(outputs, exact, strict=True)
    error = max(_relative_error(one.astype(float), y.astype(float)) for one, y in pairs)
    if not error <= largest:
        raise PeerFailed(
            f"wrong: its largest error is {error:.2g} of the largest output in float64, "
            f"above {largest:.0e}"
        )
    return error


def _relative_error(found: npt.NDArray[Any], exact: npt.NDArray[Any]) -> float:
    """Of the output's largest value; of nothing but zeros the error itself."""
    largest = np.abs(exact).max(initial=0.0)
    return float(np.abs(found - exact).max(initial=0.0) / (largest or 1.0))
