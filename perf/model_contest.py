"""A model's contestants: outputs first, then times, in many short rounds.

Every contestant, ours too, runs in a process of its own on the same core and is called from
Python. In a round each is timed once, so that a change of the clock meets all alike.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sparsejit.errors import MissingDependency
from sparsejit.perf.peers.model_peers import ModelPeer
from sparsejit.perf.peers.peer_process import PeerFailed, PeerProcess
from sparsejit.perf.timing import RoundsInTurn
from sparsejit.runtime.native_timing import pinned

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
