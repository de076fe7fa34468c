"""How the time of a layer grows with its batch: it should rise evenly, without cliffs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from sparsejit.api import compile_matrix
from sparsejit.ir.spec import DType, Layout
from sparsejit.perf.kernels import time_at_places
from sparsejit.perf.problems import PROBLEMS, MatVecProblem
from sparsejit.runtime.native_timing import median_of_least

BATCHES = tuple(range(1, 65))


@dataclass(frozen=True)
class SweepRow:
    """One batch size: nanoseconds a call, and that over the most that a smaller batch took."""

    problem: str
    dtype: str
    batch: int
    layout: str
    strategy: str
    ns: float
    growth: float


def sweep(
    problem: MatVecProblem = PROBLEMS["A"],
    batches: Iterable[int] = BATCHES,
    layout: Layout = Layout.BATCH_MAJOR,
    dtype: DType = DType.FLOAT32,
    progress: Callable[[str], None] = lambda step: None,
) -> list[SweepRow]:
    """Time the kernel that strategy="auto" picks for each batch, in ascending order."""
    weights = problem.weights()
    rows: list[SweepRow] = []
    longest = 0.0
    for batch in sorted(batches):
        progress(f"{problem.name}: batch {batch} {layout.value} {dtype.value}")
        kernel = compile_matrix(weights, batch=batch, layout=layout, dtype=dtype)
        shape = kernel.spec.x_shape
        x = np.random.default_rng(batch).standard_normal(shape).astype(np.float32)
        ns = median_of_least(time_at_places(kernel, x))
        growth = ns / longest if longest else 1.0
        case = problem.name, dtype.value, batch, layout.value
        rows.append(SweepRow(*case, kernel.strategy, ns, growth))
        longest = max(longest, ns)
    return rows
