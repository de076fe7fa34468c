"""Times of a layer over its batch size; they should rise evenly, without cliffs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sparsejit.api.kernels.compile_layer import compile_matrix
from sparsejit.asm_templates.batch.lowered_batch import spread_pitch
from sparsejit.ir.spec import DType, Layout
from sparsejit.perf.kernels import time_at_places
from sparsejit.perf.problems import PROBLEMS, MatVecProblem
from sparsejit.runtime.native_timing import median_of_least

# All sizes up to four vectors of sixteen, then sizes at, beside and halfway between whole vectors.
BATCHES = (
    *range(1, 65),
    *(16 * whole + rest for whole in range(4, 16) for rest in (1, 8, 15, 16)),
)


@dataclass(frozen=True)
class SweepRow:
    """Nanoseconds a call at one batch size.

    `growth` is `ns` over the longest time of a smaller batch, `column_step` the time a column over
    the time a column of the next smaller batch; both are 1 for the first.
    """

    problem: str
    dtype: str
    batch: int
    layout: str
    strategy: str
    ns: float
    growth: float
    column_step: float


def sweep(
    problem: MatVecProblem = PROBLEMS["A"],
    batches: Iterable[int] = BATCHES,
    layout: Layout = Layout.BATCH_MAJOR,
    dtype: DType = DType.FLOAT32,
    progress: Callable[[str], None] = lambda step: None,
    padded: bool = False,
) -> list[SweepRow]:
    """Time the kernel that strategy="auto" picks for each batch, in ascending order.

    If `padded`, rows of feature-major x and y are at the pitch that whole models give them.
    """
    weights = problem.weights()
    rows: list[SweepRow] = []
    longest = 0.0
    for batch in sorted(batches):
        progress(f"{problem.name}: batch {batch} {layout.value} {dtype.value}")
        pitch = spread_pitch(batch) if padded and batch > 1 else None
        kernel = compile_matrix(weights, batch=batch, layout=layout, dtype=dtype, pitch=pitch)
        shape = kernel.spec.x_shape
        x = np.random.default_rng(batch).standard_normal(shape).astype(np.float32)
        ns = median_of_least(time_at_places(kernel, x))
        growth = ns / longest if longest else 1.0
        case = problem.name, dtype.value, batch, layout.value
        before = rows[-1].ns / rows[-1].batch if rows else ns / batch
        rows.append(SweepRow(*case, kernel.strategy, ns, growth, ns / batch / before))
        longest = max(longest, ns)
    return rows


def cliffs(rows: Sequence[SweepRow]) -> list[str]:
    """Return two sentences: the least `growth` and the largest `column_step`, each with its batch.

    There must be at least one row.
    """
    least = min(rows, key=lambda row: row.growth)
    worst = max(rows, key=lambda row: row.column_step)
    return [
        f"least time over the longest before: {least.growth:.2f}, at batch {least.batch}",
        f"worst step a column: {worst.column_step:.2f}, at batch {worst.batch}",
    ]
