"""Split a batch over threads, by columns or by rows, where the plan predicts a gain.

    columns   all outputs of some columns: each thread runs the same kernel on its share of x and y
    rows      some outputs of all columns: each thread has a part of the weights, with its own plan

Columns are divided at the bounds of panels, and computed by the family that was chosen for the
whole batch: the bits of a column do not depend on the number of threads. A division by rows leaves
each core a part of the code, and is the only way to share a batch of one panel.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from sparsejit.asm_templates.batch.lowered_batch import whole_vectors
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Layout, MatMul
from sparsejit.machine.target import Target
from sparsejit.planner.batch_plan import price_batch
from sparsejit.planner.cheapest_row import choose, priced
from sparsejit.planner.kernel_choice import Candidate, Plan
from sparsejit.planner.sharing import barrier_ns, why_alone, with_one_thread
from sparsejit.planner.split import (
    ROW_STEP,
    Part,
    PlanPart,
    Split,
    nearest_bounds,
    some_rows,
    undivided,
)
from sparsejit.whole_numbers import ceil_div


def split_batch(
    spec: MatMul,
    matrix: SparseMatrix,
    whole: Plan,
    target: Target,
    plan_part: PlanPart,
    threads: int,
) -> Split:
    """Divide a batch over at most `threads` threads; `plan_part` plans the rows of each."""
    ns = whole.measured_ns.get(whole.chosen.template.name, whole.chosen.cost.ns)
    layer = _Layer(spec, matrix, whole, target, plan_part)
    barrier = barrier_ns(target)
    scale = ns / max(layer.expected_ns(spec, matrix), 1e-9)

    def expected(cut: _Cut) -> float:
        return scale * layer.expected_ns(*cut.longest) + barrier * (len(cut.bounds) - 2)

    rows = [
        priced(cut.name, expected(cut), cut)
        for count in _counts(threads)
        for cut in layer.cuts(count)
    ]
    made = choose("threads", with_one_thread(rows, ns, target), None)
    best = made.row.emitter
    if not isinstance(best, _Cut):
        return undivided(spec, matrix, whole, why_alone(ns, threads, target))
    parts = layer.columns(best.bounds) if best.by_columns else layer.rows(best.bounds)
    reason = f"{ns:.0f} ns expected on one thread, {made.price:.0f} ns on all threads"
    return Split(tuple(parts), reason, ns - made.price)


def ways_to_split(
    spec: MatMul,
    matrix: SparseMatrix,
    whole: Plan,
    target: Target,
    plan_part: PlanPart,
    threads: int,
) -> list[list[Part]]:
    """Divisions of a batch into `threads` parts: by columns and by rows, as far as it has them."""
    layer = _Layer(spec, matrix, whole, target, plan_part)
    return [
        layer.columns(cut.bounds) if cut.by_columns else layer.rows(cut.bounds)
        for cut in layer.cuts(threads)
    ]


def _counts(threads: int) -> list[int]:
    """Numbers of threads to try: powers of two, and `threads` itself."""
    powers = (1 << n for n in range(1, threads.bit_length()))
    return sorted({*(count for count in powers if count <= threads), threads} - {1})


@dataclass(frozen=True)
class _Cut:
    """A division of a batch: the first column or row of each part, and the longest part's layer.

    `bounds` include the end.
    """

    by_columns: bool
    bounds: list[int]
    longest: tuple[MatMul, SparseMatrix]

    @property
    def name(self) -> str:
        """Number of threads, and the way of dividing, in words."""
        return f"{len(self.bounds) - 1} threads by {'columns' if self.by_columns else 'rows'}"


@dataclass(frozen=True)
class _Layer:
    """The layer to divide, its plan, and the planner of its parts."""

    spec: MatMul
    matrix: SparseMatrix
    whole: Plan
    target: Target
    plan_part: PlanPart

    def expected_ns(self, spec: MatMul, matrix: SparseMatrix) -> float:
        """Predicted nanoseconds of a part, by the whole layer's family, from zeros alone."""
        counts = self.whole.chosen.template.expect(spec, matrix, self.target)
        return price_batch(counts).ns

    def cuts(self, count: int) -> list[_Cut]:
        """Divisions of the layer into `count` parts."""
        cuts = []
        columns, rows = self._column_bounds(count), self._row_bounds(count)
        if columns:
            first = self._some_columns(0, columns[1])
            cuts.append(_Cut(True, columns, (first, self.matrix)))
        if rows:
            nnz = [self.matrix.rows(*part).nnz for part in pairwise(rows)]
            longest = list(pairwise(rows))[int(np.argmax(nnz))]
            cuts.append(_Cut(False, rows, (self._some_rows(*longest), self.matrix.rows(*longest))))
        return cuts

    def _column_bounds(self, count: int) -> list[int]:
        """First column of each part, and the end; parts have whole panels. [] for too few panels.

        The first parts have one panel more than the others.
        """
        family = self.whole.chosen.template.family
        alone = family == "rows" and self.spec.layout is Layout.BATCH_MAJOR
        step = 1 if alone else self.target.lanes
        panels = ceil_div(self.spec.batch, step)
        if panels < count:
            return []
        each, more = divmod(panels, count)
        firsts = [part * each + min(part, more) for part in range(count)]
        return [*(step * first for first in firsts), self.spec.batch]

    def _row_bounds(self, count: int) -> list[int]:
        """First row of each part, and the end, so that parts have about equal nonzeros.

        [] for fewer groups of `ROW_STEP` rows than parts.
        """
        starts = np.arange(0, self.spec.out_features, ROW_STEP)
        if len(starts) < count:
            return []
        # A row without weights still has a sum to store.
        reached = np.cumsum(np.add.reduceat(self.matrix.row_counts + 1, starts))
        shares = np.arange(1, count) / count
        return [*nearest_bounds(reached, shares), self.spec.out_features]

    def _some_columns(self, first: int, end: int) -> MatMul:
        padded = self.spec.padded_to is not None and end == self.spec.batch
        room = self.spec.room - first if padded else None  # only behind the last column
        return replace(self.spec, batch=end - first, padded_to=room, part_of=self.spec)

    def _some_rows(self, first: int, end: int) -> MatMul:
        return replace(self.spec, each=some_rows(self.spec.each, first, end), part_of=self.spec)

    def columns(self, bounds: list[int]) -> list[Part]:
        """Parts by columns; parts of equal columns and room have the same code."""
        plans: dict[tuple[int, int], Plan] = {}
        parts = []
        for first, end in pairwise(bounds):
            spec = self._some_columns(first, end)
            key = spec.batch, whole_vectors(spec, self.target)
            if key not in plans:
                plans[key] = self._as_the_whole(spec)
            parts.append(Part(0, spec, self.matrix, plans[key], first))
        return parts

    def _as_the_whole(self, spec: MatMul) -> Plan:
        template = self.whole.chosen.template
        lowered = template.lower(spec, self.matrix, self.target)
        chosen = Candidate(template, price_batch(lowered.counts), is_lowered=True)
        return replace(self.whole, chosen=chosen, lowered=lowered)

    def rows(self, bounds: list[int]) -> list[Part]:
        """Parts by rows, each with its own plan."""
        parts = []
        for first, end in pairwise(bounds):
            spec, rows = self._some_rows(first, end), self.matrix.rows(first, end)
            parts.append(Part(first, spec, rows, self.plan_part(spec, rows)))
        return parts
