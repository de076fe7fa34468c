"""Predicted cost of kernels on images of bytes, and the choice of the form of quads."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.convolution.byte_depthwise import ByteChannelWindows
from sparsejit.asm_templates.convolution.byte_heads import ByteHeads
from sparsejit.asm_templates.convolution.byte_norm import ByteNorm
from sparsejit.asm_templates.convolution.byte_planes import LINE, BytePlanes, ByteWindows, lines
from sparsejit.asm_templates.convolution.quad_stream import QUAD, QuadForm, expected_quads
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.machine.target import Target
from sparsejit.planner.convolution_price import (
    QuadCounts,
    price_copy,
    price_fours,
    price_quads,
)
from sparsejit.planner.cost import Cost
from sparsejit.whole_numbers import ceil_div

FORMS = tuple(QuadForm(together, fours) for fours in (False, True) for together in (1, 2))


@dataclass(frozen=True)
class QuadPlan:
    """Form in which weights are read, and its cost.

    before_ns: time to convert x for that form first.
    """

    form: QuadForm
    cost: Cost
    before_ns: float = 0.0

    @property
    def ns(self) -> float:
        """Time with the conversion of x."""
        return self.before_ns + self.cost.ns


def plan_quads(
    matrix: SparseMatrix,
    windows: ByteWindows,
    y: BytePlanes,
    adds: bool,
    target: Target,
    forms: Sequence[QuadForm] = FORMS,
) -> QuadPlan:
    """Return the cheapest of `forms`."""
    taps = np.array(windows.taps)
    channels = windows.planes.channels // windows.phases
    ends = {(tap + end) // LINE for tap in windows.taps for end in (0, LINE - 1)}
    met = LINE * channels * len(ends)
    moved = windows.planes.bytes + (1 + adds) * y.bytes
    plans = []
    for form in forms:
        quads = expected_quads(matrix, len(taps), form)
        across = float(np.mean(taps % (LINE * form.offsets // QUAD) != 0))
        sizes = y.samples * y.vectors, matrix.out_features, quads
        counts = QuadCounts(form, *sizes, across, met, adds, moved)
        before = fours_cost(windows.planes, target).ns if form.fours else 0.0
        plans.append(QuadPlan(form, price_quads(counts, target), before))
    return min(plans, key=lambda plan: plan.ns)


def fills_vectors(columns: int) -> bool:
    """Whether positions in a row leave at most half of their vectors empty."""
    return 2 * columns >= LINE * lines(columns)


def has_quads(target: Target) -> bool:
    """Whether the target has the instructions for products of bytes."""
    return target.isa == "avx512" and target.has("avx512_vnni")


def fours_cost(planes: BytePlanes, target: Target) -> Cost:
    """Cost of bringing the channels of planes side by side, four by four."""
    lines = planes.samples * ceil_div(planes.channels, QUAD) * planes.channel // LINE
    return price_fours(lines, 2 * planes.bytes, target)


def copy_cost(moved_bytes: int, target: Target) -> Cost:
    """Cost of converting images to bytes, to floats and into phases."""
    return price_copy(moved_bytes, target)


def norm_cost(norm: ByteNorm, target: Target) -> Cost:
    """Cost of a layer norm over channels, which reads each vector of 16 floats three times."""
    vectors = norm.channels * lines(norm.columns) * 4
    cycles = vectors * (4.0 + 2.0 * len(norm.added) + 2.0 * len(norm.results))
    moved = norm.channels * norm.columns * (len(norm.added) + len(norm.results))
    return Cost(vectors, 0, moved, cycles / target.core.rates.cycles_per_ns, "execution")


def attention_cost(heads: ByteHeads, target: Target) -> Cost:
    """Cost of two products of bytes, and of the work on each score between them."""
    vectors = heads.samples * heads.heads * heads.blocks * heads.rows * 4
    cycles = vectors * (heads.features / 2 + 16.0)
    moved = sum(planes.bytes for planes in heads.planes)
    return Cost(vectors, 0, moved, cycles / target.core.rates.cycles_per_ns, "execution")


def byte_depthwise_cost(windows: ByteChannelWindows, target: Target) -> Cost:
    """Cost of windows by channel: four taps of 16 positions at a time, and the ends of 64."""
    y = windows.y
    runs, quarters = y.vectors, 4 * y.vectors
    if not windows.is_whole:
        runs, quarters = y.rows * lines(y.columns), y.rows * ceil_div(y.columns, 16)
    each = quarters * windows.groups * 1.0 + runs * 16.0
    vectors = y.samples * y.channels * quarters
    ns = y.samples * y.channels * each / target.core.rates.cycles_per_ns
    return Cost(vectors, 0, windows.x.bytes + y.bytes, ns, "execution")


def byte_scaling_cost(y: BytePlanes, target: Target) -> Cost:
    """Cost of multiplying and rounding 64 positions at a time."""
    vectors = y.samples * y.channels * y.vectors
    ns = 20.0 * vectors / target.core.rates.cycles_per_ns
    return Cost(vectors, 0, 2 * y.bytes, ns, "execution")
