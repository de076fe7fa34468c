"""What a batch by a loop over compressed rows costs: `csr_shape.CsrCounts` to cycles.

    a pass = weights * (a weight + vectors * a product) + segments * vectors * a sum's way
             + inputs * vectors * into the panel + outputs * vectors * to y

Weights from beyond L2 are prefetched and arrive beside this, but for a share. docs/kernels/batch.md
has where the prices come from.
"""

from dataclasses import dataclass

from sparsejit.asm_templates.batch.csr_shape import CsrCounts, Pass
from sparsejit.asm_templates.batch.csr_stream import QUAD
from sparsejit.ir.spec import Layout
from sparsejit.machine.rates import Rates
from sparsejit.planner.cost import Cost, cache_level

# Of fetching weights from beyond L2, what multiplications do not hide.
FETCH_SHARE = 0.3
_CALL_CYCLES = 300  # to save registers and make room
_PANEL_SHARE_OF_L1 = 0.85  # beyond it x comes from L2


@dataclass(frozen=True)
class CsrPrices:
    """Cycles. `weight`: its load and its offset's; `product`: by a vector of x, `far_product` what
    more it takes from L2; `sums`: to load and store a vector of sums; `group`: to change over to
    rows with another number of weights; `into_panel`, `to_y`: a vector, by layout.
    """

    weight: float
    product: float
    far_product: float
    sums: float
    group: float
    into_panel: dict[Layout, float]
    to_y: dict[Layout, float]


# Of 370 layers of 64 to 4096 inputs and outputs, 50 to 99 % zero, batch 2 to 256.
PRICES = {
    "avx512": CsrPrices(
        *(0.4, 0.7, 0.8, 3.2, 30),
        {Layout.FEATURE_MAJOR: 2.4, Layout.BATCH_MAJOR: 3.2},
        {Layout.FEATURE_MAJOR: 8.8, Layout.BATCH_MAJOR: 15},
    ),
    "avx2": CsrPrices(
        *(0.7, 0.54, 0.1, 3.7, 30),
        {Layout.FEATURE_MAJOR: 1.4, Layout.BATCH_MAJOR: 2.7},
        {Layout.FEATURE_MAJOR: 2.3, Layout.BATCH_MAJOR: 5.7},
    ),
}


def price_csr(counts: CsrCounts, rates: Rates) -> Cost:
    """The sum of its passes, or what their weights need to arrive."""
    spec, target, shape = counts.spec, counts.target, counts.shape
    stream_bytes = QUAD.itemsize * counts.quads + 4 * counts.segments
    vector_bytes = 4 * spec.batch * (spec.in_features + spec.out_features)
    level = cache_level(stream_bytes, shape.workspace_bytes, target, 0)
    fetching = shape.pass_count * stream_bytes / rates.data[level]
    computing = _CALL_CYCLES + sum(part.times * _cycles(counts, part) for part in shape.passes)
    exposed = 0.0 if level == "L2" else FETCH_SHARE * fetching
    cycles = max(fetching, computing + exposed)
    return Cost(
        sum(part.times * part.vectors for part in shape.passes) * counts.weights,
        0,
        stream_bytes + vector_bytes,
        cycles / rates.cycles_per_ns,
        "execution" if computing + exposed > fetching else f"data from {level}",
    )


def _cycles(counts: CsrCounts, part: Pass) -> float:
    """Of one pass."""
    spec, shape, prices = counts.spec, counts.shape, PRICES[counts.target.isa]
    row_blocks = -(-spec.out_features // shape.blocks.rows)
    exceeds = shape.panel_bytes > _PANEL_SHARE_OF_L1 * counts.target.l1d_bytes
    product = prices.product + (prices.far_product if exceeds else 0)
    moved = spec.in_features * row_blocks * prices.into_panel[spec.layout]
    moved += spec.out_features * prices.to_y[spec.layout]
    by_vector = counts.weights * product + counts.segments * prices.sums + moved
    return counts.weights * prices.weight + part.vectors * by_vector + counts.groups * prices.group
