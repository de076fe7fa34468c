"""Predicted cost of a batch by a loop over compressed rows, from `csr_shape.CsrCounts`.

    a pass = weights * (a weight + vectors * a product) + segments * vectors * a sum's way
             + inputs * vectors * into the panel + outputs * vectors * to y

Weights from beyond L2 are prefetched: all but a share of their transfer overlaps with this. Prices
are data of the processor (`machine.prices.CsrPrices`).
"""

from sparsejit.asm_templates.batch.csr_core import quad_bytes
from sparsejit.asm_templates.batch.csr_shape import CsrCounts, Pass
from sparsejit.ir.spec import Layout
from sparsejit.machine.prices import CsrPrices
from sparsejit.planner.cost import Cost, cache_level
from sparsejit.whole_numbers import ceil_div


def price_csr(counts: CsrCounts) -> Cost:
    """Cost of all passes, or of the transfer of their weights if that takes longer."""
    spec, target, shape = counts.spec, counts.target, counts.shape
    core = target.core
    stream_bytes = quad_bytes(shape.arithmetic) * counts.quads + 4 * counts.segments
    vector_bytes = 4 * spec.batch * (spec.in_features + spec.out_features)
    level = cache_level(stream_bytes, shape.workspace_bytes, target, 0)
    again = cache_level(stream_bytes, shape.workspace_bytes, target.alone, 0)
    cycles_a_byte = 1 / core.rates.data[level] + (shape.pass_count - 1) / core.rates.data[again]
    fetching = stream_bytes * cycles_a_byte
    computing = core.loops.csr_call + sum(
        part.times * _cycles(counts, part) for part in shape.passes
    )
    exposed = 0.0 if level == "L2" else _prices(counts).fetch * fetching
    cycles = max(fetching, computing + exposed)
    return Cost(
        sum(part.times * part.vectors for part in shape.passes) * counts.weights,
        0,
        stream_bytes + vector_bytes,
        cycles / core.rates.cycles_per_ns,
        "execution" if computing + exposed > fetching else f"data from {level}",
    )


def _prices(counts: CsrCounts) -> CsrPrices:
    return counts.target.core.csr[counts.target.isa, counts.shape.arithmetic.value]


def _cycles(counts: CsrCounts, part: Pass) -> float:
    """Cycles of one pass."""
    spec, shape, prices, target = counts.spec, counts.shape, _prices(counts), counts.target
    layout = int(spec.layout is Layout.BATCH_MAJOR)
    row_blocks = ceil_div(spec.out_features, shape.blocks.rows)
    exceeds = shape.panel_bytes > target.core.loops.csr_near * target.l1d_bytes
    product = prices.product + (prices.far_product if exceeds else 0)
    moved = spec.in_features * row_blocks * prices.into_panel[layout]
    moved += spec.out_features * prices.to_y[layout]
    if spec.added_pitch is not None:
        moved += spec.out_features / target.core.batch.loads
    by_vector = counts.weights * product + counts.segments * prices.sums + moved
    return counts.weights * prices.weight + part.vectors * by_vector + counts.groups * prices.group
