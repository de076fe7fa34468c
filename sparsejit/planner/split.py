"""Division of a layer by rows: over threads, or into parts whose weights stay in L1.

    split       over threads where the plan predicts a gain; `batch_split` splits a batch
    some_rows   one part as a layer
    row_parts   into parts whose weights stay in L1 from one x to the next

Each part is a layer of its own: planned for its rows, compiled as its own function, writing its own
share of y. A row is summed by one part alone in an order fixed at compile time, so a kernel gives
the same bits on every call, whichever thread runs a part and whenever. With another number of
threads, parts may be planned differently, and so round differently.

`row_parts` serves loops over several streams at once: each part runs for all streams, then the next
part. Each part is planned for its rows, whose weights are near. Parts of a looped kernel are loops
too: a plan counts one x, and code that is not near.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.broadcast.loop import Looped
from sparsejit.errors import InvalidInput
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Layer, Layout, MatMul, MatVec
from sparsejit.machine.target import Target
from sparsejit.planner.kernel_choice import AUTO, Plan, plan
from sparsejit.planner.sharing import (
    barrier_ns,
    parallel_ns,
    why_alone,
    worthwhile_threads,
)
from sparsejit.runtime.workers import MAX_THREADS, available_cores
from sparsejit.whole_numbers import ceil_div

# The function that chooses the kernel of a part: `LayerPlanner.plan`.
PlanPart = Callable[[Layer, SparseMatrix], Plan]

# Parts begin where a vector of outputs begins.
ROW_STEP = 16


@dataclass(frozen=True)
class Part:
    """A part of a layer, as a layer of its own: the outputs `first_row` up to `end_row`.

    A part of a batch may instead have all outputs of its `columns` from `first_column` on. Parts
    with the same plan have the same code.
    """

    first_row: int
    spec: Layer
    matrix: SparseMatrix
    plan: Plan
    first_column: int = 0

    @property
    def end_row(self) -> int:
        return self.first_row + self.spec.out_features

    @property
    def columns(self) -> int:
        return self.spec.batch if isinstance(self.spec, MatMul) else 1

    @property
    def share(self) -> str:
        """Rows or columns of the part, in words."""
        if isinstance(self.spec, MatMul) and self.spec.out_features == self.spec.y_features:
            return f"columns {self.first_column} to {self.first_column + self.columns - 1}"
        return f"rows {self.first_row} to {self.end_row - 1}"

    @property
    def x_bytes(self) -> int:
        """Offset in bytes of the part's columns from the start of the whole x."""
        is_one = not isinstance(self.spec, MatMul) or self.spec.layout is Layout.FEATURE_MAJOR
        return 4 * self.first_column * (1 if is_one else self.spec.in_features)

    @property
    def y_bytes(self) -> int:
        """Offset in bytes of the part's rows and columns from the start of the whole y."""
        if not isinstance(self.spec, MatMul):
            return 4 * self.first_row
        if self.spec.y_layout is Layout.FEATURE_MAJOR:
            return 4 * (self.first_row * self.spec.pitch + self.first_column)
        return 4 * (self.first_column * self.spec.y_features + self.first_row)

    @property
    def added_bytes(self) -> int:
        """Offset in bytes of the part's rows and columns from the start of the added operand."""
        assert isinstance(self.spec, MatMul) and self.spec.added_pitch is not None
        return 4 * (self.first_row * self.spec.added_pitch + self.first_column)


@dataclass(frozen=True)
class Split:
    """The parts of a layer in order of their rows, and the reason for their number.

    `saved_ns` is the predicted gain over one thread, in nanoseconds.
    """

    parts: tuple[Part, ...]
    reason: str
    saved_ns: float = 0.0

    def record(self) -> "Split":
        """The same split without lowered layers."""
        parts = tuple(replace(part, plan=part.plan.record()) for part in self.parts)
        return replace(self, parts=parts)

    def lines(self) -> list[str]:
        """Lines for `explain`: the division of rows or columns, and the kernel of each part."""
        lines = [f"threads: {len(self.parts)}: {self.reason}"]
        if len(self.parts) > available_cores():
            lines.append(
                f"this process may use {available_cores()} cores only: some threads share a core"
            )
        if len(self.parts) > 1:
            lines += [
                f"  {part.share}: "
                f"{part.plan.chosen.template.name}, {part.matrix.nnz} nonzeros, "
                f"{part.plan.chosen.cost.ns:.0f} ns predicted"
                for part in self.parts
            ]
        return lines


def parse_threads(threads: int | str) -> int:
    """A number of threads; "auto" is one a core. Raises InvalidInput for anything else."""
    if threads == AUTO:
        return min(available_cores(), MAX_THREADS)
    if isinstance(threads, bool) or not isinstance(threads, int | np.integer):
        raise InvalidInput(
            f"threads={threads!r}; give a number, or {AUTO!r} for one thread for each core"
        )
    if not 1 <= threads <= MAX_THREADS:
        raise InvalidInput(f"threads={threads}; give 1 to {MAX_THREADS}, or {AUTO!r}")
    return int(threads)


def undivided(spec: Layer, matrix: SparseMatrix, plan: Plan, reason: str) -> Split:
    """A layer in one part."""
    return Split((Part(0, spec, matrix, plan),), reason)


def split(
    spec: MatVec,
    matrix: SparseMatrix,
    whole: Plan,
    target: Target,
    plan_part: PlanPart,
    threads: int,
) -> Split:
    """Divide a layer over at most `threads` threads; `plan_part` plans the rows of one.

    The parts have about equal predicted cost and begin at multiples of `ROW_STEP` rows.
    """
    steps = ceil_div(spec.out_features, ROW_STEP)
    ns = whole.measured_ns.get(whole.chosen.template.name, whole.chosen.cost.ns)
    count = worthwhile_threads(ns, min(threads, steps), target)
    if count == 1:
        return undivided(spec, matrix, whole, why_alone(ns, threads, target))
    head_start = barrier_ns(target) / ns
    bounds = _balanced_bounds(spec, matrix, whole, target, count, head_start)
    parts = []
    for first, end in pairwise(bounds):
        part_spec, rows = some_rows(spec, first, end), matrix.rows(first, end)
        parts.append(Part(first, part_spec, rows, plan_part(part_spec, rows)))
    expected = parallel_ns(ns, count, target)
    reason = f"{ns:.0f} ns expected on one thread, {expected:.0f} ns on all threads"
    return Split(tuple(parts), reason, ns - expected)


def _balanced_bounds(
    spec: MatVec,
    matrix: SparseMatrix,
    whole: Plan,
    target: Target,
    count: int,
    head_start: float,
) -> list[int]:
    """First row of each part, and the end, so that all parts end at about the same time.

    The first part, the caller's, has `head_start` more of the chosen family's steps, as a share of
    all: workers begin later, and the caller learns of their end later (by 95 ns of a barrier of
    125).
    """
    starts = range(0, matrix.out_features, ROW_STEP)
    groups = [matrix.rows(start, start + ROW_STEP) for start in starts]
    expect = whole.chosen.template.expect
    specs = [replace(spec, out_features=group.out_features, bias=None) for group in groups]
    steps = np.array(
        [expect(each, group, target).steps for each, group in zip(specs, groups, strict=True)]
    )
    # A fixed cost of every group, such as the scale of x, is paid once for each part.
    nothing = groups[0].with_values(np.zeros_like)
    own = np.maximum(steps - expect(specs[0], nothing, target).steps, 0)
    reached = np.cumsum(own if own.any() else steps)
    shares = head_start + (1 - head_start) * np.arange(1, count) / count
    return [*nearest_bounds(reached, shares), matrix.out_features]


def nearest_bounds(reached: npt.NDArray[np.generic], shares: npt.NDArray[np.float64]) -> list[int]:
    """First row of each part, so that parts end near these cumulative shares of the total.

    `reached` is the running total after each `ROW_STEP` rows; each part has some rows. There is one
    more part than shares.
    """
    bounds = [0]
    for number, share in enumerate(shares):
        nearest = int(np.abs(reached - reached[-1] * share).argmin()) + 1
        last = len(reached) - (len(shares) - number)
        bounds.append(min(max(nearest, bounds[-1] + 1), last))
    return [ROW_STEP * number for number in bounds]


def some_rows(spec: MatVec, first: int, end: int) -> MatVec:
    """The layer with the outputs `first` up to `end` alone."""
    bias = None if spec.bias is None else spec.bias[first:end]
    return replace(spec, out_features=end - first, bias=bias)


# Rows whose sums a kernel keeps in registers at once, with AVX-512: parts of whole multiples of
# them take no more steps than the layer does.
_BATCH_ROWS = 128


def row_parts(
    spec: MatVec, matrix: SparseMatrix, whole: Plan, target: Target, part_bytes: int
) -> tuple[Part, ...]:
    """Divide the layer into parts that read about `part_bytes` of weights; `whole` is its plan."""
    batches = ceil_div(spec.out_features, _BATCH_ROWS)
    count = min(batches, ceil_div(whole.lowered.counts.pool_bytes, part_bytes))
    if count <= 1:
        return (Part(0, spec, matrix, whole),)
    bounds = [batches * number // count * _BATCH_ROWS for number in range(count)]
    strategy = whole.chosen.template.family if isinstance(whole.lowered, Looped) else AUTO
    parts = []
    for first, end in pairwise([*bounds, spec.out_features]):
        rows, part = matrix.rows(first, end), some_rows(spec, first, end)
        made = plan(part, rows, target, strategy)
        parts.append(Part(first, part, rows, made))
    return tuple(parts)
