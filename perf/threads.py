"""Compare layers on one thread and on several, synchronisation included.

The caller is pinned to one core, as everywhere here; its workers run where Linux puts them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product

from sparsejit.api.compile_layer import compile_matrix
from sparsejit.api.kernel import Kernel
from sparsejit.ir.spec import DType
from sparsejit.perf.kernels import time_at_places
from sparsejit.perf.problems import FloatArray, MatVecProblem
from sparsejit.perf.timing import RoundsInTurn
from sparsejit.runtime.native_timing import median_of_least

_ROUNDS = 8


@dataclass(frozen=True)
class Gain:
    """Nanoseconds of one layer, alone and shared by threads: least of several places' medians."""

    problem: str
    dtype: str
    kernel: str
    threads: int
    ns_alone: float
    ns_shared: float

    @property
    def speed_up(self) -> float:
        return self.ns_alone / self.ns_shared


@dataclass(frozen=True)
class _ThreadedLayer:
    """One layer compiled for one thread and for several, and its input."""

    problem: str
    alone: Kernel
    shared: Kernel
    x: FloatArray

    def ns_alone(self, _: int) -> float:
        """Nanoseconds on one thread, the median over places in memory."""
        return median_of_least(time_at_places(self.alone, self.x))

    def ns_shared(self, _: int) -> float:
        """Nanoseconds on several threads, the median over places in memory."""
        return median_of_least(time_at_places(self.shared, self.x))

    def gain(self, ns_alone: float, ns_shared: float) -> Gain:
        plan, dtype = self.shared.plan, self.shared.spec.dtype.value
        name, threads = plan.chosen.template.name, self.shared.stats["threads"]
        return Gain(self.problem, dtype, name, threads, ns_alone, ns_shared)


def gains(
    problems: Iterable[MatVecProblem],
    threads: int,
    dtypes: Iterable[DType] = (DType.FLOAT32,),
    progress: Callable[[str], None] = lambda step: None,
) -> list[Gain]:
    """Time every problem in every dtype on one thread and on at most `threads`.

    The least of several rounds over all of them counts: another guest may slow either core for
    seconds (docs/notes/threads.md).
    """
    cases = []
    for problem, dtype in product(problems, tuple(dtypes)):
        progress(f"compiling {problem.name}: {dtype.value}")
        weights, x = problem.weights(), problem.input()
        shared = compile_matrix(weights, dtype=dtype, threads=threads)
        cases.append(_ThreadedLayer(problem.name, compile_matrix(weights, dtype=dtype), shared, x))
    turns = RoundsInTurn(dict(enumerate(t for one in cases for t in (one.ns_alone, one.ns_shared))))
    turns.run(_ROUNDS, progress)
    least = [*turns.least().values()]
    return [one.gain(*ns) for one, *ns in zip(cases, least[::2], least[1::2], strict=True)]
