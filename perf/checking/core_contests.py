"""Contests about caches, the timer, batches, pruned models and the voice."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from weakref import finalize

import torch
from torch import nn

from sparsejit.api.kernels.compile_layer import compile_matrix
from sparsejit.errors import MissingDependency
from sparsejit.ir.spec import Layout
from sparsejit.machine.target import Target
from sparsejit.measuring.core_loops import least_ns
from sparsejit.perf.batch_sweep import sweep
from sparsejit.perf.machine import SPACINGS, measure_limits, straight_line_bandwidth
from sparsejit.perf.problems import PROBLEMS
from sparsejit.perf.voice.synthesis import time_synthesis
from sparsejit.perf.voice.voice_times import NetworkContest
from sparsejit.prune import Pruner, in_model
from sparsejit.runtime.native_timing import pinned
from sparsejit.voice.bundled import bundled_utterance
from sparsejit.voice.speak.wavernn import WaveRNN
from sparsejit.x86.assembler import Assembler, line
from sparsejit.x86.operands import rcx

REAL_TIME = "real time"


class NetworkSubject:
    """A network in one dtype against a peer or real time, for as long as this object lives."""

    def __init__(self, name: str, dtype: str, against: str) -> None:
        """Raises MissingDependency where the peer, or the network's files, are absent."""
        stack = ExitStack()
        self.close = finalize(self, stack.close)
        self._dtype, self._against = dtype, against
        is_library = against != REAL_TIME and not against.startswith("C ")
        with pinned() as core:
            peers = [against] if is_library else []
            self._contest = NetworkContest(stack, core, name, None, [dtype], peers)
        if against in self._contest.skipped:
            raise MissingDependency(self._contest.skipped[against])

    def __call__(self) -> float:
        """Run a round; return the other side's microseconds over ours, each the least of three."""
        self._contest.forget()
        with pinned():
            for number in range(3):
                self._contest.round(number)
        ours = min(self._contest.us[self._dtype])
        if self._against == REAL_TIME:
            return 1e6 / (self._contest.network.sample_rate * ours)
        theirs = {one.name: one.us_min for one in self._contest.peer_times()}
        return theirs[self._against] / ours


# Measures both sides once; returns how many times better the first is.
Round = Callable[[], float]

_PADDED_BYTES = 128 << 10
_BATCHES = (2, 16, 17, 40, 63, 64)


def _nearer_caches() -> Round:
    """The least ratio of bandwidths, nearer over farther: L1 to L2, L2 to L3, L3 to memory."""

    def one_round() -> float:
        limits = measure_limits(Target.detect())
        rates = (
            *(limits.l1_bytes_per_ns, limits.l2_bytes_per_ns, limits.l3_bytes_per_ns),
            limits.memory_bytes_per_ns,
        )
        return min(near / far for near, far in pairwise(rates))

    return one_round


def _padded_lines() -> Round:
    """Bandwidth of L2 with every fourth line skipped, over all lines in a row: skipping is free."""
    target = Target.detect()
    return lambda: (
        straight_line_bandwidth(target, _PADDED_BYTES, SPACINGS["3"])
        / straight_line_bandwidth(target, _PADDED_BYTES, SPACINGS["all"])
    )


def _timer() -> Round:
    """1 if 1000 dependent multiplications take exactly ten times as long as 100, else less."""
    target = Target.detect()

    def chain(count: int) -> Callable[[Assembler], None]:
        # rcx, unlike rax, is not set by the timing loop: else successive calls would overlap.
        return lambda asm: asm.stamp(count, [line("imul", rcx, rcx)])

    return lambda: _agreement(least_ns(target, chain(1000)) / least_ns(target, chain(100)) / 10)


def _agreement(ratio: float) -> float:
    """The ratio or its inverse, whichever is at most 1."""
    return min(ratio, 1 / ratio)


def _larger_batches() -> Round:
    """Least time of a batch over the longest time of a smaller one; below 1 is a cliff."""

    def one_round() -> float:
        rows = sweep(PROBLEMS["A"], _BATCHES, Layout.FEATURE_MAJOR)
        return min(row.growth for row in rows)

    return one_round


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 16)]
    return nn.Sequential(*layers)


def _us(model: nn.Module) -> float:
    """Microseconds of all matrices of a model, one after another."""
    weights = [p.detach().numpy() for p in model.parameters() if p.ndim == 2]
    return in_model.us_in_turn([compile_matrix(weight) for weight in weights])


def _pruned_model() -> Round:
    """A small network at 95 % zeros against itself dense."""
    dense, pruned = _network(), _network()
    Pruner(0.95, targets="*.weight", allocation="uniform").prepare(pruned)
    return lambda: _us(dense) / _us(pruned)


def _pruned_to_a_budget() -> Round:
    """The budget, half the dense network's time, over the pruned network's time."""
    model = _network()
    budget = _us(model) / 2
    Pruner(budget_us=budget, targets="*.weight").prepare(model)
    return lambda: budget / _us(model)


def _speech(over_torch: bool) -> Round:
    """Seconds of speech a second of computing, or the speed-up over torch eager."""
    voice, mel = WaveRNN.from_pretrained(), bundled_utterance().mel

    def one_round() -> float:
        (times,) = time_synthesis([voice], mel, repeats=1)
        return times.speed_up if over_torch else times.real_time_factor

    return one_round


# By subject and `against` of the claim.
CONTESTS: dict[tuple[str, str], Callable[[], Round]] = {
    ("each cache", "the next one out"): _nearer_caches,
    ("padded lines from L2", "all lines"): _padded_lines,
    ("ten times the work", "ten times the time"): _timer,
    ("a larger batch's time", "the longest before"): _larger_batches,
    ("a network at 95 %", "itself dense"): _pruned_model,
    ("a network pruned for time", "its budget"): _pruned_to_a_budget,
    ("speech", "real time"): lambda: _speech(over_torch=False),
    ("speech", "torch eager"): lambda: _speech(over_torch=True),
    **{
        (f"{name} in {dtype}", against): partial(NetworkSubject, name, dtype, against)
        for name, dtype, against in (
            ("deck", "float32", "C float32"),
            ("deck", "bfloat16", "C bfloat16"),
            ("deck", "int8", "C bfloat16"),
            ("wavernn-16k", "float32", "torch"),
            ("wavernn-16k", "float32", "onnxruntime"),
            ("lpcnet", "int8", REAL_TIME),
        )
    },
}
