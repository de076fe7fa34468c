"""Contests between batches of one pruned layer and the best library for pruned weights.

    run_contest            compares the outputs and times all contestants
    contest_table, lines   results as tables and sentences

Contestants called from Python: our kernel with its argument checks, torch's sparse product (which
is MKL's), and DeepSparse in its own process. Contestants called natively: our kernel, and MKL's
product. All are timed in turns on one core, after their outputs are compared with float64.
"""

import math
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from sparsejit.api.kernels.compile_layer import compile_matrix
from sparsejit.api.reports.shown import table_of
from sparsejit.errors import MissingDependency
from sparsejit.ir.sparse_matrix import UNSTRUCTURED, SparseMatrix
from sparsejit.ir.spec import LARGEST_INT8, DType, Layout
from sparsejit.perf.checking.claims import MKL_CSR
from sparsejit.perf.kernels import checked_error, exact_output, exact_product
from sparsejit.perf.model_contest import export_onnx
from sparsejit.perf.peers.batch_peers import make_batch_peer
from sparsejit.perf.peers.model_peers import MODEL_PEERS
from sparsejit.perf.peers.peer_process import PeerFailed, PeerProcess
from sparsejit.perf.peers.peers import single_threaded
from sparsejit.perf.problems import FloatArray, Problem
from sparsejit.perf.timing import RoundsInTurn, time_python
from sparsejit.runtime.native_timing import aligned, pinned, time_native

DTYPES = (DType.FLOAT32, DType.INT8)
SPARSITY = 0.9
ROUNDS = 5
TORCH_CSR, DEEPSPARSE = "torch CSR", "deepsparse"
_SAMPLES, _BUDGET_NS = 60, 40_000_000

# Takes the number of a round; returns its least nanoseconds a call.
_Turn = Callable[[int], float]


@dataclass(frozen=True)
class BatchContest:
    """Times of one layer (out_features, in_features) at one batch size.

    `ours`, `peers` and `native` have each contestant's least nanoseconds a call in every round.
    `name_of` makes the keys of `ours` and `strategies`; `native` has our kernels and MKL, called
    natively.
    """

    shape: tuple[int, int]
    batch: int
    ours: dict[str, list[float]]
    peers: dict[str, list[float]]
    native: dict[str, list[float]]
    strategies: dict[str, str]
    skipped: dict[str, str]

    def ratio(self, ours: str) -> float:
        """Speed-up over the fastest peer, both called from Python."""
        return _ratio(self.peers.values(), self.ours[ours])

    def native_ratio(self, ours: str) -> float:
        """Speed-up over MKL, both called natively."""
        return _ratio([self.native[MKL_CSR]], self.native[ours])

    @property
    def best_peer(self) -> str:
        """Name of the fastest peer called from Python."""
        return min(self.peers, key=lambda name: min(self.peers[name]))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        ratios = {name: self.ratio(name) for name in self.ours}
        return {**asdict(self), "best_peer": self.best_peer, "ratios": ratios}


def _ratio(peers: Iterable[list[float]], ours: list[float]) -> float:
    """Median over rounds of the fastest peer's time over ours."""
    best = (min(times) for times in zip(*peers, strict=True))
    return statistics.median(theirs / mine for theirs, mine in zip(best, ours, strict=True))


def name_of(dtype: DType, layout: Layout) -> str:
    """Name of one of our kernels: dtype and layout, such as "int8 batch-major"."""
    return f"{dtype.value} {layout.value}"


def geometric_mean(contests: Iterable[BatchContest], ours: str) -> float:
    """Geometric mean of the contests' ratios of one of our kernels."""
    return math.exp(statistics.fmean(math.log(contest.ratio(ours)) for contest in contests))


def run_contest(
    shape: tuple[int, int],
    batch: int,
    dtypes: Iterable[DType] = DTYPES,
    progress: Callable[[str], None] = lambda step: None,
    rounds: int = ROUNDS,
) -> BatchContest:
    """Compare the outputs, then time all contestants in turn, `rounds` times.

    DeepSparse is skipped where it is absent, and `skipped` says why. Raises CompileError for a
    wrong output, MissingDependency without MKL.
    """
    where = f"{shape[0]}x{shape[1]}, batch {batch}"
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        stack.enter_context(single_threaded())
        core = stack.enter_context(pinned())
        progress(f"{where}: compiling")
        kernels = {name: one for dtype in dtypes for name, one in _kernels(shape, batch, dtype)}
        ours = {name: kernel.python_turn() for name, kernel in kernels.items()}
        native = {name: kernel.native_turn() for name, kernel in kernels.items()}
        native[MKL_CSR] = _peer_turn(MKL_CSR, shape, batch)
        peers = {TORCH_CSR: _peer_turn(TORCH_CSR, shape, batch)}
        try:
            peers[DEEPSPARSE] = _deepsparse_turn(shape, batch, core, stack)
        except (MissingDependency, PeerFailed) as absence:
            skipped[DEEPSPARSE] = str(absence)
        sides = ours, peers, native
        turns = RoundsInTurn(
            {(side, name): turn for side, one in enumerate(sides) for name, turn in one.items()}
        )
        turns.run(rounds, lambda step: progress(f"{where}: {step}"))
    times = [{name: turns.times[side, name] for name in one} for side, one in enumerate(sides)]
    strategies = {name: kernel.strategy for name, kernel in kernels.items()}
    return BatchContest(shape, batch, times[0], times[1], times[2], strategies, skipped)


def _problem(shape: tuple[int, int], batch: int, layout: Layout) -> Problem:
    return Problem(f"{shape[0]}x{shape[1]}", *shape, SPARSITY, UNSTRUCTURED, 1, batch, layout)


class _OurKernel:
    """One of our kernels with its own x and y; its output is checked."""

    def __init__(self, problem: Problem, dtype: DType) -> None:
        weights, self._x = problem.weights(), aligned(problem.input())
        scale = float(np.abs(self._x).max()) / LARGEST_INT8 if dtype is DType.INT8 else None
        self._kernel = compile_matrix(
            weights,
            batch=problem.batch,
            dtype=dtype.value,
            layout=problem.layout,
            input_scale=scale,
        )
        self.strategy = self._kernel.plan.chosen.template.name
        self._y = aligned(np.zeros(self._kernel.spec.y_shape, np.float32))
        exact = exact_output(self._kernel.spec, SparseMatrix(weights), self._x)
        checked_error(self.strategy, self._kernel(self._x, out=self._y), exact)

    def python_turn(self) -> _Turn:
        def call() -> object:
            return self._kernel(self._x, out=self._y)

        return lambda _: time_python(call, samples=_SAMPLES, budget_ns=_BUDGET_NS).min_ns

    def native_turn(self) -> _Turn:
        arguments = self._x.ctypes.data, self._y.ctypes.data
        limits = {"samples": _SAMPLES, "budget_ns": _BUDGET_NS}
        return lambda _: time_native(self._kernel.pointer, arguments, **limits).min_ns


def _kernels(
    shape: tuple[int, int], batch: int, dtype: DType
) -> Iterator[tuple[str, _OurKernel]]:
    for layout in Layout:
        yield name_of(dtype, layout), _OurKernel(_problem(shape, batch, layout), dtype)


def _peer_turn(name: str, shape: tuple[int, int], batch: int) -> _Turn:
    """Make a peer with a feature-major x, which takes MKL a tenth of the batch-major time.

    Raises MissingDependency where the peer is absent.
    """
    layout = Layout.FEATURE_MAJOR
    problem = _problem(shape, batch, layout)
    weights, x = problem.weights(), aligned(problem.input())
    peer = make_batch_peer(name, weights, x, layout)
    checked_error(name, peer.output(), exact_product(weights, x, layout))
    return lambda _: peer.time().min_ns


def _deepsparse_turn(shape: tuple[int, int], batch: int, core: int, stack: ExitStack) -> _Turn:
    """Load the layer as an ONNX model into a DeepSparse worker, which ends with `stack`."""
    peer = MODEL_PEERS[DEEPSPARSE]
    command = peer.command(core)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sparsejit-batch-")))
    problem = _problem(shape, batch, Layout.BATCH_MAJOR)
    weights, x = problem.weights(), problem.input()
    onnx, inputs, outputs = (folder / name for name in ("layer.onnx", "x.npz", "y.npz"))
    np.savez(inputs, x)
    export_onnx(_linear(weights), (torch.from_numpy(x),), onnx, peer.opset or 14)
    process = stack.enter_context(PeerProcess(command, peer.environment()))
    process.ask(do="load", inputs=str(inputs), onnx=str(onnx), zoo={})
    process.ask(do="run", outputs=str(outputs))
    with np.load(outputs) as found:
        checked_error(DEEPSPARSE, found[found.files[0]], exact_product(weights, x, problem.layout))

    def turn(_: int) -> float:
        return float(min(process.ask(do="time", samples=_SAMPLES, budget_ns=_BUDGET_NS)["ns"]))

    return turn


def _linear(weights: FloatArray) -> torch.nn.Linear:
    rows, columns = weights.shape
    layer = torch.nn.Linear(columns, rows, bias=False).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weights))
    return layer


def contest_table(contest: BatchContest) -> Table:
    """Our kernels and the peers, called from Python, and our kernels and MKL, called natively."""
    rows, columns = contest.shape
    title = f"{rows}x{columns} at 90 % zeros, batch {contest.batch}; microseconds"
    figures = ("from Python", "times faster", "native", "times faster")
    skipped = (f"{name} skipped: {why}" for name, why in contest.skipped.items())
    table = table_of(title, ["who"], figures, skipped)
    for name, times in contest.ours.items():
        table.add_row(
            *(f"{name} ({contest.strategies[name]})", _us(times), f"{contest.ratio(name):.2f}"),
            *(_us(contest.native[name]), f"{contest.native_ratio(name):.2f}"),
        )
    table.add_section()
    for name, times in contest.peers.items():
        table.add_row(name, _us(times))
    table.add_row(MKL_CSR, "", "", _us(contest.native[MKL_CSR]))
    return table


def lines(contests: Sequence[BatchContest]) -> list[str]:
    """A sentence for each of our kernels: geometric mean and least speed-up over the contests."""
    words = []
    for name in contests[0].ours:
        worst = min(contests, key=lambda contest: contest.ratio(name))
        rows, columns = worst.shape
        words.append(
            f"{name}: {geometric_mean(contests, name):.2f} times faster in the geometric mean, "
            f"least {worst.ratio(name):.2f} ({rows}x{columns}, batch {worst.batch}, "
            f"against {worst.best_peer})"
        )
    return words


def _us(times: list[float]) -> str:
    return f"{min(times) / 1000:,.1f}"
