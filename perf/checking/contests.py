"""Contests of `bench check`: measure two sides in turn and return their ratio.

Making a contest checks both sides' outputs against float64; it is then run in rounds.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from sparsejit.api.kernels.compile_layer import compile_matrix
from sparsejit.api.kernels.kernel import Kernel
from sparsejit.errors import UnsupportedTarget
from sparsejit.ir import reference
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import LARGEST_INT8, DType
from sparsejit.perf import structured, threads
from sparsejit.perf.checking import core_contests, survey_contests
from sparsejit.perf.checking.claims import ONE_THREAD, PREDICTED, Claim
from sparsejit.perf.checking.model_contests import MODEL_SUBJECTS, model_against_peer
from sparsejit.perf.kernels import checked_error, exact_product, time_at_places
from sparsejit.perf.peers.batch_peers import make_batch_peer
from sparsejit.perf.peers.peers import Peer, make_peer
from sparsejit.perf.problems import ALL_PROBLEMS, FloatArray, MatVecProblem
from sparsejit.perf.timing import time_python
from sparsejit.runtime.native_timing import aligned, median_of_least
from sparsejit.runtime.workers import pool

# Measures both sides once; returns how many times better ours is.
Round = Callable[[], float]

_PLACES = 3
_IDLE_S = 0.2


def contest_of(claim: Claim) -> Round:
    """Make the contest of a claim.

    Raises MissingDependency where the peer is absent, UnsupportedTarget where this machine cannot
    run it, CompileError where an output is wrong.
    """
    if claim.subject in ALL_PROBLEMS and claim.against not in _OF_PROBLEMS:
        return _kernel_against_peer(claim)
    if claim.subject in ALL_PROBLEMS:
        return _OF_PROBLEMS[claim.against](ALL_PROBLEMS[claim.subject])
    if claim.subject in MODEL_SUBJECTS:
        return model_against_peer(claim.subject, claim.against)
    return CONTESTS[claim.subject, claim.against]()


def _kernel_against_peer(claim: Claim) -> Round:
    problem = ALL_PROBLEMS[claim.subject]
    weights, x = problem.weights(), aligned(problem.input())
    peer = _peer(claim.against, problem, weights, x)
    checked_error(peer.name, peer.output(), exact_product(weights, x, problem.layout))
    kernel = _checked_kernel(problem, weights, x, claim.dtype)

    def one_round() -> float:
        """Alternate kernel and peer at each place in memory: both meet the same disturbances."""
        pairs = [
            (time_at_places(kernel, x, 1)[0].min_ns, peer.time().min_ns) for _ in range(_PLACES)
        ]
        ours, theirs = np.median(pairs, axis=0)
        return float(theirs / ours)

    return one_round


def _peer(name: str, problem: MatVecProblem, weights: FloatArray, x: FloatArray) -> Peer:
    if problem.batch == 1:
        return make_peer(name, weights, x)
    return make_batch_peer(name, weights, x, problem.layout)


def _checked_kernel(
    problem: MatVecProblem, weights: FloatArray, x: FloatArray, dtype: str = "float32"
) -> Kernel:
    scale = float(np.abs(x).max()) / LARGEST_INT8 if DType.parse(dtype) is DType.INT8 else None
    kernel = compile_matrix(
        weights, dtype=dtype, batch=problem.batch, layout=problem.layout, input_scale=scale
    )
    _check(kernel, weights, x)
    return kernel


def _check(kernel: Kernel, weights: FloatArray, x: FloatArray) -> None:
    exact = reference.product(kernel.spec, SparseMatrix(weights), x)
    checked_error(kernel.strategy, kernel(x), exact)


def _between(ours: Kernel, theirs: Kernel, x: FloatArray) -> Round:
    """Contest of two kernels for the same layer, at several places in memory."""

    def one_round() -> float:
        pairs = [
            [time_at_places(kernel, x, 1)[0].min_ns for kernel in (ours, theirs)]
            for _ in range(_PLACES)
        ]
        mine, other = np.median(pairs, axis=0)
        return float(other / mine)

    return one_round


def _tuned_against_predicted(problem: MatVecProblem) -> Round:
    weights, x = problem.weights(), aligned(problem.input())
    tuned, predicted = compile_matrix(weights, tune=True), compile_matrix(weights)
    for kernel in (tuned, predicted):
        _check(kernel, weights, x)
    return _between(tuned, predicted, x)


def _two_threads_against_one(problem: MatVecProblem) -> Round:
    if len(os.sched_getaffinity(0)) < 2:
        raise UnsupportedTarget("one core cannot show the gain of two")
    weights, x = problem.weights(), aligned(problem.input())
    shared, alone = compile_matrix(weights, threads=2), compile_matrix(weights)
    for kernel in (shared, alone):
        _check(kernel, weights, x)
    return _between(shared, alone, x)


def _small_layer(threads: int = 1) -> tuple[Kernel, FloatArray, FloatArray, FloatArray]:
    """A kernel of 16 x 16 weights, which takes almost no time, its weights, an x and a y."""
    random = np.random.default_rng(0)
    weights = random.standard_normal((16, 16)).astype(np.float32)
    x = aligned(random.standard_normal(16).astype(np.float32))
    kernel = compile_matrix(weights, threads=threads)
    _check(kernel, weights, x)
    return kernel, weights, x, aligned(np.zeros(16, np.float32))


def _call_against_numpy() -> Round:
    kernel, weights, x, y = _small_layer()
    return lambda: (
        time_python(lambda: np.dot(weights, x, out=y)).min_ns
        / time_python(lambda: kernel(x, out=y)).min_ns
    )


def _bound_call_against_empty() -> Round:
    """A bound call against the sum of an empty Python call and the kernel's own time."""
    kernel, _, x, y = _small_layer()
    bound = kernel.bind(x, y)

    def one_round() -> float:
        least = time_python(lambda: None).min_ns + median_of_least(time_at_places(kernel, x, 1))
        return least / time_python(bound).min_ns

    return one_round


def _threads_on_one_core() -> Round:
    """A layer for four threads, all pinned to one core, against the same layer for one thread."""
    problem = ALL_PROBLEMS["C90"]
    weights, x = problem.weights(), aligned(problem.input())
    shared, alone = compile_matrix(weights, threads=4), compile_matrix(weights)
    y = aligned(shared(x))
    _check(shared, weights, x)

    def one_round() -> float:
        with _all_on_one_core():
            ours = time_python(lambda: shared(x, out=y)).median_ns
            theirs = time_python(lambda: alone(x, out=y)).median_ns
        return theirs / ours

    return one_round


@contextmanager
def _all_on_one_core() -> Iterator[None]:
    tasks = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    before = {task: os.sched_getaffinity(task) for task in tasks}
    core = {min(os.sched_getaffinity(0))}
    try:
        for task in tasks:
            os.sched_setaffinity(task, core)
        yield
    finally:
        for task, allowed in before.items():
            os.sched_setaffinity(task, allowed)


def _idle_workers() -> Round:
    """Wall-clock time of an idle process over its processor time."""
    compile_matrix(ALL_PROBLEMS["C90"].weights(), threads=2)
    pool().require(2)

    def one_round() -> float:
        time.sleep(_IDLE_S / 10)  # workers look for work a little longer, then sleep
        before = time.process_time()
        time.sleep(_IDLE_S)
        return _IDLE_S / max(time.process_time() - before, _IDLE_S / 1e3)

    return one_round


_OF_PROBLEMS: dict[str, Callable[[MatVecProblem], Round]] = {
    PREDICTED: _tuned_against_predicted,
    ONE_THREAD: _two_threads_against_one,
}

# By subject and `against` of the claim.
CONTESTS: dict[tuple[str, str], Callable[[], Round]] = {
    ("a call from Python", "numpy's of the same size"): _call_against_numpy,
    ("a bound call", "an empty call and the kernel"): _bound_call_against_empty,
    ("four threads on one core", ONE_THREAD): _threads_on_one_core,
    ("idle workers", "one busy core"): _idle_workers,
    **core_contests.CONTESTS,
    **threads.CONTESTS,
    **structured.CONTESTS,
    **survey_contests.CONTESTS,
}
