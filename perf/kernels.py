"""Compare matrix-vector kernels with peers, on the same problem in the same process.

Every output is compared with a float64 product before anything is timed. Kernels and C libraries
are timed in a native loop, Python libraries (and also our own call from Python) in a Python loop;
see `timing.py`.

The time of a kernel whose data is in L2 varies by up to 1.5x with the placement of its pages, so
each kernel is timed at several places in memory, and its figure is the median over places.
"""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.api.kernels.compile_layer import compile_matrix
from sparsejit.api.kernels.kernel import Kernel
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.ir import reference
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import LARGEST_INT8, DType, Layer, Layout, MatMul
from sparsejit.machine.target import Target
from sparsejit.perf.machine import machine_limits
from sparsejit.perf.peers.batch_peers import batch_peers_for
from sparsejit.perf.peers.peers import Peer, peers_for, single_threaded
from sparsejit.perf.problems import PROBLEMS, FloatArray, MatVecProblem
from sparsejit.perf.timing import time_python
from sparsejit.planner.kernel_choice import AUTO
from sparsejit.planner.kernels import KERNELS, families_for
from sparsejit.runtime.native_timing import Timing, aligned, median_of_least, time_copies

PLACES = 5
# A share of the largest output in float64; the project's bound on every kernel.
LARGEST_RELATIVE_ERROR = 1e-5


@dataclass(frozen=True)
class PeerTime:
    """A peer's time for one problem, measured in the "native" or the "python" loop (`call`)."""

    name: str
    call: str
    ns_min: float
    ns_median: float
    max_abs_error: float


@dataclass(frozen=True)
class Row:
    """One kernel on one problem. Times are nanoseconds a call, errors against float64.

    `ns_min` and `ns_median` are medians over `PLACES` allocations, `ns_by_place` the minima;
    `ns_python` is a call from Python. `share_of_limit` is the least time that `limit` allows
    (see `MachineLimits.least_ns`) over `ns_min`. `padding_bytes` of the pool are never read. `auto`
    marks the kernel that strategy="auto" picks.
    """

    problem: str
    strategy: str
    dtype: str
    isa: str
    M: int
    N: int
    nnz: int
    ns_min: float
    ns_median: float
    effective_gflops: float
    real_gflops: float
    code_bytes: int
    pool_bytes: int
    compile_ms: float
    max_abs_error: float
    relative_error: float
    auto: bool
    ns_by_place: tuple[float, ...]
    ns_python: float
    limit: str
    share_of_limit: float
    peers: tuple[PeerTime, ...]
    batch: int = 1
    layout: str = Layout.BATCH_MAJOR.value
    padding_bytes: int = 0

    def speed_up(self, peer: str) -> float:
        """The peer's time over ours, in the peer's loop; KeyError if the peer is absent."""
        return {p.name: p.ns_min for p in self.peers}[peer] / self.ns_min

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with `speed_up` over each peer."""
        speed_up = {peer.name: self.speed_up(peer.name) for peer in self.peers}
        return {**asdict(self), "speed_up": speed_up}


@dataclass(frozen=True)
class Comparison:
    """A problem's rows, fastest first, and the reason for each skipped peer."""

    problem: MatVecProblem
    rows: tuple[Row, ...]
    skipped: dict[str, str]


def run(
    problems: Iterable[MatVecProblem] = tuple(PROBLEMS.values()),
    families: Iterable[str] | None = None,
    progress: Callable[[str], None] = lambda step: None,
    dtypes: Iterable[DType] = tuple(DType),
) -> list[Comparison]:
    """Measure kernels of each of `dtypes` and the peers on every problem.

    `families` may include "auto"; the default is all families for float32, the dtype of the dense
    peers, and "auto" for the other dtypes. A family without a kernel for a dtype is skipped, and so
    is a problem without any. `progress` gets the name of each contestant before it is timed. Raises
    CompileError where an output is wrong.
    """
    target, dtypes = Target.detect(), tuple(dtypes)
    families = None if families is None else tuple(families)
    comparisons = []
    with single_threaded():
        for problem in problems:
            wanted = [(d, one) for d in dtypes for one in _chosen(target, d, problem, families)]
            if wanted:
                comparisons.append(_compare(problem, wanted, target, progress))
    return comparisons


def check_strategies(names: Iterable[str]) -> None:
    """Raise InvalidInput for a name that is neither "auto" nor in the table of kernels."""
    known = dict.fromkeys((AUTO, *(row.name for row in KERNELS)))
    for name in names:
        if name not in known:
            raise InvalidInput(f"strategy {name!r} is unknown; use one of {', '.join(known)}")


def _chosen(
    target: Target, dtype: DType, problem: MatVecProblem, families: Iterable[str] | None
) -> list[str]:
    available = families_for(target, dtype, problem.batch)
    if problem.batch > 1 and problem.batch % target.lanes == 0 and "mixed" in available:
        available.remove("mixed")  # the same code as "panels"
    if families is not None:
        return [one for one in families if one == AUTO or one in available]
    if dtype is DType.FLOAT32:
        return available
    return [AUTO] if available else []


def _compare(
    problem: MatVecProblem,
    wanted: list[tuple[DType, str]],
    target: Target,
    progress: Callable[[str], None],
) -> Comparison:
    weights, x = problem.weights(), aligned(problem.input())
    exact = exact_product(weights, x, problem.layout)
    if problem.batch == 1:
        peers, skipped = peers_for(weights, x)
    else:
        peers, skipped = batch_peers_for(weights, x, problem.layout)
    peer_times = []
    for peer in peers:
        progress(f"{problem.name}: {peer.name}")
        peer_times.append(_time_peer(peer, exact))
    matrix, rows = SparseMatrix(weights), []
    for dtype, strategy in wanted:
        progress(f"{problem.name}: {strategy} {dtype.value}")
        kernel = compile_matrix(
            weights,
            strategy=strategy,
            dtype=dtype,
            batch=problem.batch,
            layout=problem.layout,
            input_scale=float(np.abs(x).max()) / LARGEST_INT8 if dtype is DType.INT8 else None,
        )
        rows.append(_measure(problem, matrix, kernel, x, target, tuple(peer_times)))
    return Comparison(problem, tuple(sorted(rows, key=lambda row: row.ns_min)), skipped)


def _time_peer(peer: Peer, exact: npt.NDArray[np.float64]) -> PeerTime:
    error = checked_error(peer.name, peer.output(), exact)
    timing = peer.time()
    return PeerTime(peer.name, peer.call, timing.min_ns, timing.median_ns, error)


def _measure(
    problem: MatVecProblem,
    matrix: SparseMatrix,
    kernel: Kernel,
    x: FloatArray,
    target: Target,
    peers: tuple[PeerTime, ...],
) -> Row:
    exact = exact_output(kernel.spec, matrix, x)
    y = aligned(np.empty_like(exact, np.float32))
    error = checked_error(kernel.strategy, kernel(x, out=y), exact)
    places = time_at_places(kernel, x)
    ns_min = median_of_least(places)
    stats = kernel.stats
    data_bytes = stats["pool_bytes"] - stats["padding_bytes"] + x.nbytes + y.nbytes
    flops = 2 * stats["nnz"] * problem.batch
    least_ns, limit = machine_limits(target).least_ns(flops, data_bytes, target)
    return Row(
        problem=problem.name,
        strategy=kernel.strategy,
        dtype=kernel.spec.dtype.value,
        isa=stats["isa"],
        M=problem.out_features,
        N=problem.in_features,
        nnz=stats["nnz"],
        ns_min=ns_min,
        ns_median=statistics.median(timing.median_ns for timing in places),
        effective_gflops=2 * matrix.size * problem.batch / ns_min,
        real_gflops=flops / ns_min,
        code_bytes=stats["code_bytes"],
        pool_bytes=stats["pool_bytes"],
        padding_bytes=stats["padding_bytes"],
        compile_ms=stats["compile_ms"],
        max_abs_error=error,
        relative_error=error / float(np.abs(exact).max()),
        auto=kernel.plan.chosen is kernel.plan.candidates[0],
        ns_by_place=tuple(timing.min_ns for timing in places),
        ns_python=time_python(lambda: kernel(x, out=y)).min_ns,
        limit=limit,
        share_of_limit=least_ns / ns_min,
        peers=peers,
        batch=problem.batch,
        layout=problem.layout.value,
    )


def time_at_places(kernel: Kernel, x: FloatArray, places: int = PLACES) -> list[Timing]:
    """Time `places` copies of a kernel in memory, each with its own x and y."""
    return time_copies(kernel.image.data, x, kernel.spec.y_shape, places, samples=100)


def exact_product(weights: FloatArray, x: FloatArray, layout: Layout) -> npt.NDArray[np.float64]:
    """y in float64 for a vector x, or for a batch in its layout."""
    matrix, values = weights.astype(np.float64), x.astype(np.float64)
    if x.ndim == 1 or layout is Layout.FEATURE_MAJOR:
        return np.asarray(matrix @ values)
    return np.asarray(values @ matrix.T)


def exact_output(spec: Layer, matrix: SparseMatrix, x: FloatArray) -> reference.Float64:
    """y in float64, as by `reference.product`; the weights are rounded once for all columns."""
    each = spec.each if isinstance(spec, MatMul) else spec
    feature_major = isinstance(spec, MatMul) and spec.layout is Layout.FEATURE_MAJOR
    columns = np.atleast_2d(x.T if feature_major else x)
    values = columns.astype(np.float64)
    if spec.dtype is DType.INT8:
        quantised = (reference.quantised_input(each, column) for column in columns)
        values = np.stack([integers * np.float64(scale) for integers, scale in quantised])
    y = values @ reference.stored_weights(matrix, spec.dtype).T
    return (y.T if feature_major else y).reshape(spec.y_shape)


def checked_error(
    name: str, y: FloatArray, exact: npt.NDArray[np.float64], steps: float = 0.0
) -> float:
    """The largest absolute error of y; raises CompileError beyond LARGEST_RELATIVE_ERROR.

    `steps` is allowed beside it.
    """
    error = float(np.abs(y - exact).max())
    bound = LARGEST_RELATIVE_ERROR * float(np.abs(exact).max()) + steps
    if not error <= bound:
        raise CompileError(
            f"{name}: largest error {error:.3g} against float64 exceeds {bound:.3g}; "
            "its time would mean nothing, so nothing more is measured"
        )
    return error
