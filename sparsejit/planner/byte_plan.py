"""What convolutions of bytes cost, and where they are cheaper than others."""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.convolution.byte_depthwise import ByteChannelWindows
from sparsejit.asm_templates.convolution.byte_heads import ByteHeads
from sparsejit.asm_templates.convolution.byte_norm import ByteNorm
from sparsejit.asm_templates.convolution.byte_planes import LINE, BytePlanes, ByteWindows, lines
from sparsejit.asm_templates.convolution.quads import expected_quads
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.machine.target import Target
from sparsejit.planner.convolution_price import QuadCounts, price_copy, price_quads
from sparsejit.planner.cost import Cost

TOGETHER = (1, 2)  # rows that may share quads


@dataclass(frozen=True)
class QuadPlan:
    """How many rows share their quads, and what that costs."""

    together: int
    cost: Cost


def plan_quads(
    matrix: SparseMatrix, windows: ByteWindows, y: BytePlanes, adds: bool, target: Target
) -> QuadPlan:
    """The cheaper of all."""
    across = float(np.mean([tap % 64 != 0 for tap in windows.taps]))
    moved = windows.planes.bytes + (1 + adds) * y.bytes
    plans = []
    for together in TOGETHER:
        quads = expected_quads(matrix.row_counts, matrix.in_features, together)
        sizes = y.samples * y.vectors, matrix.out_features, quads
        counts = QuadCounts(together, *sizes, across, adds, moved)
        plans.append(QuadPlan(together, price_quads(counts, target)))
    return min(plans, key=lambda plan: plan.cost.ns)


def fills_vectors(columns: int) -> bool:
    """Whether positions in a row leave at most half of their vectors empty."""
    return 2 * columns >= LINE * lines(columns)


def has_quads(target: Target) -> bool:
    """Whether there is code for products of bytes."""
    return target.isa == "avx512" and target.has("avx512_vnni")


def copy_cost(moved_bytes: int, target: Target) -> Cost:
    """To bring images to bytes, to floats and into phases."""
    return price_copy(moved_bytes, target)


def norm_cost(norm: ByteNorm, target: Target) -> Cost:
    """A norm over channels: what each vector of 16 floats takes, thrice."""
    vectors = norm.channels * lines(norm.columns) * 4
    cycles = vectors * (4.0 + 2.0 * len(norm.added) + 2.0 * len(norm.results))
    moved = norm.channels * norm.columns * (len(norm.added) + len(norm.results))
    return Cost(vectors, 0, moved, cycles / target.core.rates.cycles_per_ns, "execution")


def attention_cost(heads: ByteHeads, target: Target) -> Cost:
    """Two products of bytes, and what is done to each score between them."""
    vectors = heads.samples * heads.heads * heads.blocks * heads.rows * 4
    cycles = vectors * (heads.features / 2 + 16.0)
    moved = sum(planes.bytes for planes in heads.planes)
    return Cost(vectors, 0, moved, cycles / target.core.rates.cycles_per_ns, "execution")


def byte_depthwise_cost(windows: ByteChannelWindows, target: Target) -> Cost:
    """Windows by channel: four taps of 16 positions at a time, and the ends of 64."""
    y = windows.y
    runs, quarters = y.vectors, 4 * y.vectors
    if not windows.is_whole:
        runs, quarters = y.rows * lines(y.columns), y.rows * -(-y.columns // 16)
    each = quarters * windows.groups * 1.0 + runs * 16.0
    vectors = y.samples * y.channels * quarters
    ns = y.samples * y.channels * each / target.core.rates.cycles_per_ns
    return Cost(vectors, 0, windows.x.bytes + y.bytes, ns, "execution")


def byte_scaling_cost(y: BytePlanes, target: Target) -> Cost:
    """To multiply and to round 64 positions at a time."""
    vectors = y.samples * y.channels * y.vectors
    ns = 20.0 * vectors / target.core.rates.cycles_per_ns
    return Cost(vectors, 0, 2 * y.bytes, ns, "execution")
