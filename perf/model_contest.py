"""Compare engines on one model: check outputs, then time them in many short rounds.

Every contestant, sparsejit included, runs in its own process on the same cores and is called from
Python. Each is timed once a round, so that a change of the clock affects all alike.
"""

import os
import warnings
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput, MissingDependency
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
    """Nanoseconds a call from Python, and the largest error over the largest output in float64.

    `ns_min` and `ns_median` are of calls with arrays in a contest of both ways to call, else of the
    engine's fastest way. `bound_ns_min` and `bound_ns_median` are of calls on buffers that were set
    once; None where the engine has none, or the contest is of one way.
    """

    name: str
    version: str
    ns_min: float
    ns_median: float
    relative_error: float
    threads: int
    bound_ns_min: float | None = None
    bound_ns_median: float | None = None

    @property
    def least_bound_ns(self) -> float:
        """Nanoseconds of a bound call; of a plain one where the engine has no other."""
        return self.ns_min if self.bound_ns_min is None else self.bound_ns_min


class PeerTask(Protocol):
    """A model for contestants: its files, and the other fields of the "load" request."""

    @property
    def inputs_file(self) -> Path: ...

    @property
    def request(self) -> dict[str, Any]: ...

    def onnx_file(self, opset: int) -> Path: ...


class CheckedTask(PeerTask, Protocol):
    """A task with a folder for outputs, and the exact outputs."""

    folder: Path

    @property
    def exact(self) -> Arrays: ...


class Contestant:
    """An engine that runs the model in its own process, on one thread for each given core."""

    def __init__(self, peer: ModelPeer, *cores: int) -> None:
        """Raises MissingDependency where the peer is not installed."""
        self.name, self.peer = peer.name, peer
        self._process = PeerProcess(peer.command(*cores), peer.environment(len(cores)))
        self.version, self.threads = "", 0
        self.ways: tuple[str, ...] = ()

    def __enter__(self) -> "Contestant":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()

    def prepare(self, task: PeerTask) -> None:
        """Load the model. Raises PeerFailed where the peer cannot."""
        onnx = str(task.onnx_file(self.peer.opset)) if self.peer.opset else None
        inputs = str(task.inputs_file)
        reply = self._process.ask(do="load", inputs=inputs, onnx=onnx, **task.request)
        self.version, self.ways = reply["version"], tuple(reply["ways"])

    def run(self, folder: Path, way: str = "") -> Arrays:
        """The outputs of one call, which pass through a file in `folder`."""
        file = folder / f"{self.name}.npz"
        self.threads = self._process.ask(do="run", way=way, outputs=str(file))["threads"]
        with np.load(file) as outputs:
            return [outputs[name] for name in outputs.files]

    def times(self, _: int = 0, *, way: str = "") -> list[float]:
        """One round's nanoseconds a call. Raises PeerFailed where the peer ends or refuses."""
        asked = {"samples": SAMPLES_A_ROUND, "budget_ns": ROUND_NS}
        return list(self._process.ask(do="time", way=way, **asked)["ns"])

    def paced(self, calls: int, period_ns: int, way: str, _: int = 0) -> list[float]:
        """Nanoseconds from the due time of each call, one a period, to its end."""
        asked = {"calls": calls, "period_ns": period_ns}
        return list(self._process.ask(do="pace", way=way, **asked)["ns"])


class _Way(NamedTuple):
    """A contestant and a way to call it."""

    one: Contestant
    way: str


class ModelRounds:
    """All contestants whose outputs are right, loaded for as long as `stack` is open."""

    def __init__(
        self,
        stack: ExitStack,
        task: CheckedTask,
        title: str,
        peers: Iterable[ModelPeer],
        progress: Callable[[str], None],
        largest: Callable[[ModelPeer], float] = lambda peer: LARGEST_RELATIVE_ERROR,
        threads: int = 1,
        both_ways: bool = False,
    ) -> None:
        """`largest` returns the largest relative error that a peer may have.

        `both_ways`: time calls with arrays and bound calls, not the fastest way alone.

        Raises InvalidInput for more threads than there are cores.
        """
        self._title, self._progress, self._both_ways = title, progress, both_ways
        self._errors: dict[Contestant, float] = {}
        self.skipped: dict[str, str] = {}
        cores = _first_cores(threads)
        stack.enter_context(pinned(cores[0]))
        for peer in peers:
            progress(f"{title}: {peer.name} loads")
            try:
                contestant = stack.enter_context(Contestant(peer, *cores))
                contestant.prepare(task)
                self._errors[contestant] = max(
                    checked_error(contestant.run(task.folder, way), task.exact, largest(peer))
                    for way in self._ways(contestant)
                )
            except (MissingDependency, PeerFailed) as problem:
                self.skipped[peer.name] = str(problem)

    def _ways(self, one: Contestant) -> tuple[str, ...]:
        """Names of the ways to call a contestant that are timed; "" is its fastest way."""
        return one.ways if self._both_ways else ("",)

    def times(self, rounds: int = ROUNDS) -> tuple[ContestantTime, ...]:
        """Time all contestants in rounds; return their times, fastest first."""
        ways = {
            _Way(one, way): partial(one.times, way=way)
            for one in self._errors
            for way in self._ways(one)
        }
        turns = RoundsInTurn(ways, (PeerFailed,))
        turns.run(rounds, lambda step: self._progress(f"{self._title}: {step}"))
        self._drop({way.one: why for way, why in turns.skipped.items()})
        least, medians = turns.least(), turns.medians()
        found = []
        for one, error in self._errors.items():
            first, *bound = (_Way(one, way) for way in self._ways(one))
            given = one.name, one.version, least[first], medians[first], error, one.threads
            more = [table[way] for way in bound for table in (least, medians)]
            found.append(ContestantTime(*given, *more))
        return tuple(sorted(found, key=lambda one: one.ns_min))

    def latencies(
        self, seconds: float, rate: float, without: Container[str] = ()
    ) -> dict[str, list[float]]:
        """Nanoseconds from due to done of every call at `rate` calls a second, by contestant.

        Each contestant except `without` is called for `seconds` in all, in windows of a second, in
        turns.
        """
        calls = max(1, round(rate * min(seconds, 1.0)))
        period = round(1e9 / rate)
        taking_part = [one for one in self._errors if one.name not in without]
        way = "called" if self._both_ways else ""
        paced = {one: partial(one.paced, calls, period, way) for one in taking_part}
        turns = RoundsInTurn(paced, (PeerFailed,))
        turns.run(
            max(1, round(seconds * rate / calls)),
            lambda step: self._progress(f"{self._title}, {rate:g} calls a second: {step}"),
        )
        self._drop(turns.skipped)
        return {one.name: times for one, times in turns.times.items()}

    def _drop(self, failed: dict[Contestant, str]) -> None:
        for one, why in failed.items():
            del self._errors[one]
            self.skipped[one.name] = why


def measure(
    task: CheckedTask,
    title: str,
    peers: Iterable[ModelPeer],
    progress: Callable[[str], None],
    rounds: int = ROUNDS,
    largest: float = LARGEST_RELATIVE_ERROR,
) -> tuple[tuple[ContestantTime, ...], dict[str, str]]:
    """Times of all contestants, fastest first, and the reason for each skipped one.

    `largest` is the largest relative error that a contestant may have.
    """
    with ExitStack() as stack:
        contest = ModelRounds(stack, task, title, peers, progress, lambda peer: largest)
        return contest.times(rounds), contest.skipped


def _first_cores(count: int) -> list[int]:
    allowed = sorted(os.sched_getaffinity(0))
    if count > len(allowed):
        raise InvalidInput(f"{count} threads on {len(allowed)} cores; give at most {len(allowed)}")
    return allowed[:count]


def checked_error(
    outputs: Sequence[npt.NDArray[Any]], exact: Arrays, largest: float = LARGEST_RELATIVE_ERROR
) -> float:
    """The largest error over each output's largest value; raises PeerFailed where it is too large.

    PeerFailed is also raised where count or shapes of the outputs differ.
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
    """Largest error over the output's largest value; the error itself where the output is zero."""
    largest = np.abs(exact).max(initial=0.0)
    return float(np.abs(found - exact).max(initial=0.0) / (largest or 1.0))


def export_onnx(
    module: Any,
    inputs: tuple[Any, ...],
    file: Path,
    opset: int,
    names: Sequence[str] | None = None,
) -> None:
    """Write a torch module as ONNX with the shapes of `inputs`, which get these names.

    The module is traced: the newer exporter writes no opset that all peers read, and splits a GRU
    into pieces. Raises MissingDependency without the package onnx, PeerFailed for an operator that
    ONNX lacks.
    """
    import torch

    if find_spec("onnx") is None:
        raise MissingDependency(
            "its file needs onnx, which is not installed: pip install 'sparsejit[bench]'"
        )
    with warnings.catch_warnings(), redirect_stdout(StringIO()):  # a failure prints its graph
        warnings.simplefilter("ignore")  # about the exporter's age, and about batches that differ
        try:
            torch.onnx.export(
                *(module, inputs, str(file)),
                dynamo=False,
                opset_version=opset,
                input_names=None if names is None else list(names),
            )
        except RuntimeError as problem:
            words = str(problem).splitlines()[0]
            raise PeerFailed(f"no ONNX file of opset {opset}: {words}") from problem
