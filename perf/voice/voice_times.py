"""Time networks that make a sample at a time: compiled loops in every dtype, and peers, in turns.

All contestants of a network run in every round on one pinned core: our loops and the C loop in this
process, each peer in its own process, called from Python.
"""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.errors import CompileError, MissingDependency
from sparsejit.machine.target import Target
from sparsejit.perf.model_contest import Contestant
from sparsejit.perf.peers.peer_process import PeerFailed
from sparsejit.perf.peers.peers import single_threaded
from sparsejit.perf.timing import RoundsInTurn
from sparsejit.perf.voice.deck_loop import DTYPES as C_DTYPES
from sparsejit.perf.voice.deck_loop import DeckLoop
from sparsejit.perf.voice.synthesis import sample_us
from sparsejit.perf.voice.voice_networks import SampleNetwork, network_named
from sparsejit.perf.voice.voice_parts import (
    PRODUCTS,
    SamplePart,
    TouchedBytes,
    timed_parts,
    touched_bytes,
)
from sparsejit.perf.voice.voice_peers import STEP_PEERS, StepTask, ready_peers
from sparsejit.planner.calibration import calibrated
from sparsejit.runtime.native_timing import pinned
from sparsejit.voice.spec.sample_loop import SampleLoop, Sampler, compile_sample_loop

DTYPES = ("float32", "bfloat16", "int8")
ROUNDS = 9
# The largest error of a logit over the largest logit, in float32 and the shorter types.
LARGEST_ERROR = {"float32": 1e-5, "bfloat16": 0.03, "float16": 0.005, "int8": 0.3}
_CHECKED_SAMPLES = 60


@dataclass(frozen=True)
class StepPeerTime:
    """Microseconds a sample of a peer, called from Python except for the loop in C."""

    name: str
    us_min: float
    us_median: float


@dataclass(frozen=True)
class VoiceTime:
    """Microseconds a sample on one core, over rounds interleaved with all others.

    `touched` are the bytes of memory that each sample reads. `error` is the largest error of a
    logit over the largest logit in float64.
    """

    network: str
    dtype: str
    us_min: float
    us_median: float
    sample_rate: int
    touched: TouchedBytes
    error: float
    parts: tuple[SamplePart, ...]
    peers: tuple[StepPeerTime, ...]
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def real_time_factor(self) -> float:
        """Seconds of speech per second of computing, at the median."""
        return 1e6 / (self.sample_rate * self.us_median)

    @property
    def predicted_us(self) -> float:
        """Predicted microseconds of the products."""
        return sum(part.predicted_ns or 0.0 for part in self.parts) / 1e3

    @property
    def products_us(self) -> float:
        """Measured microseconds of the products."""
        return sum(part.ns for part in self.parts if part.group == PRODUCTS) / 1e3

    def shares(self) -> dict[str, float]:
        """The shares of products, gates, draw, input rows and signal."""
        found: dict[str, float] = {}
        for part in self.parts:
            found[part.group] = found.get(part.group, 0.0) + part.share
        return found

    def speed_up(self, peer: str) -> float | None:
        """Speed-up over that peer, at the medians; None where it was not run."""
        times = {one.name: one.us_median for one in self.peers}
        return times[peer] / self.us_median if peer in times else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            **asdict(self),
            "touched_bytes": self.touched.total,
            "real_time_factor": self.real_time_factor,
            "products_us": self.products_us,
            "predicted_us": self.predicted_us,
            "shares": self.shares(),
            "speed_up": {one.name: self.speed_up(one.name) for one in self.peers},
        }


class NetworkContest:
    """One network's compiled loops and its peers, for as long as `stack` is open.

    Raises CompileError where a loop's outputs are wrong, MissingDependency where the network's
    files are not there.
    """

    def __init__(
        self,
        stack: ExitStack,
        core: int,
        name: str,
        path: Path | None = None,
        dtypes: Sequence[str] = DTYPES,
        peers: Iterable[str] = STEP_PEERS,
        progress: Callable[[str], None] = lambda step: None,
    ) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sparsejit-synth-")))
        self.network = network_named(name, path)
        target = calibrated(Target.detect())
        self.loops: dict[str, SampleLoop] = {}
        self.errors: dict[str, float] = {}
        for dtype in dtypes:
            progress(f"{name}: compiling in {dtype}")
            self.loops[dtype] = compile_sample_loop(self.network.graph, target, dtype)
            self.errors[dtype] = checked_network(self.network, dtype)
        self.skipped: dict[str, str] = {}
        ready: list[Contestant] = []
        peers = list(peers)
        if peers:
            task = StepTask(name, path, folder)
            ready, self.skipped = ready_peers(stack, task, folder, core, peers, progress)
        self.deck: dict[str, DeckLoop] = {}
        if name == "deck":
            self._add_deck_loops()
        self._turns = RoundsInTurn(
            {
                **{dtype: partial(self._loop_us, loop) for dtype, loop in self.loops.items()},
                **{name: loop.sample_us for name, loop in self.deck.items()},
                **{one.name: partial(_peer_us, one) for one in ready},
            },
            (PeerFailed,),
        )

    def _add_deck_loops(self) -> None:
        for dtype in C_DTYPES:
            try:
                loop = DeckLoop(self.network, dtype)
            except MissingDependency as problem:
                self.skipped[f"C {dtype}"] = str(problem)
                continue
            given = _given_classes(self.network)
            _checked(f"C {dtype}", loop.logits(given), self.network.exact_logits(given), dtype)
            self.deck[f"C {dtype}"] = loop

    def _loop_us(self, loop: SampleLoop, seed: int) -> float:
        return sample_us(Sampler(loop, seed), self.network.inputs)

    @property
    def us(self) -> dict[str, list[float]]:
        """Microseconds a sample of each contestant, in every round."""
        return self._turns.times

    def round(self, number: int) -> dict[str, float]:
        """Run one round; return microseconds a sample of each contestant that still runs."""
        found = self._turns.round(number)
        self.skipped |= self._turns.skipped
        return found

    def forget(self) -> None:
        """Discard the times so far, which were a warm-up."""
        self._turns.forget()

    def peer_times(self) -> tuple[StepPeerTime, ...]:
        """The times of peers in all rounds."""
        least, medians = self._turns.least(), self._turns.medians()
        others = [name for name in least if name not in self.loops]
        return tuple(StepPeerTime(name, least[name], medians[name]) for name in others)


def _peer_us(contestant: Contestant, number: int) -> list[float]:
    return [ns / 1e3 for ns in contestant.times(number)]


def time_network(
    name: str,
    path: Path | None = None,
    dtypes: Sequence[str] = DTYPES,
    peers: Iterable[str] = STEP_PEERS,
    progress: Callable[[str], None] = lambda step: None,
) -> list[VoiceTime]:
    """Time a network in each dtype and its peers, round after round, on one pinned core.

    name, path: as `voice_networks.network_named` takes them. Raises as `NetworkContest` does.
    """
    with ExitStack() as stack, pinned() as core, single_threaded():
        contest = NetworkContest(stack, core, name, path, dtypes, peers, progress)
        for number in range(ROUNDS + 1):
            progress(f"{name}: round {number} of {ROUNDS}")
            contest.round(number)
            if not number:
                contest.forget()
        progress(f"{name}: parts")
        network = contest.network
        parts = {dtype: timed_parts(network.graph, network.inputs, dtype) for dtype in dtypes}
        times = contest.peer_times()
    return [
        VoiceTime(
            network.name,
            dtype,
            min(contest.us[dtype]),
            float(np.median(contest.us[dtype])),
            network.sample_rate,
            touched_bytes(network.graph, loop),
            contest.errors[dtype],
            parts[dtype],
            times,
            contest.skipped,
        )
        for dtype, loop in contest.loops.items()
    ]


def checked_network(network: SampleNetwork, dtype: str) -> float:
    """The largest error of a logit for given classes; raises CompileError beyond LARGEST_ERROR."""
    loop = compile_sample_loop(network.forced.sample, Target.detect(), dtype)
    given = _given_classes(network)
    (found,) = Sampler(loop, 0).run(network.forced_inputs(given))
    return _checked(network.name, found[: len(given)], network.exact_logits(given), dtype)


def _given_classes(network: SampleNetwork) -> npt.NDArray[np.int64]:
    classes = network.spec.output.parameters
    return np.random.default_rng(0).integers(0, classes, _CHECKED_SAMPLES)


def _checked(
    name: str, found: npt.NDArray[np.float32], exact: npt.NDArray[np.float64], dtype: str
) -> float:
    error = float(np.abs(found - exact).max() / np.abs(exact).max())
    if not error <= LARGEST_ERROR[dtype]:
        raise CompileError(
            f"{name} in {dtype} is wrong: its largest error is {error:.2g} of the largest logit, "
            f"above {LARGEST_ERROR[dtype]:.0e}"
        )
    return error
