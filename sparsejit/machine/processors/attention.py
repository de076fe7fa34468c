"""What attention costs, in cycles of Golden Cove; assumed for all others."""

from sparsejit.machine.core import AttentionPrices

ATTENTION = {
    "avx512": AttentionPrices(0.57, 0.52, 0.55, 6.0, 80.0, 4.0, 30.0, 2.0),
    "avx2": AttentionPrices(0.57, 0.52, 0.55, 6.0, 40.0, 4.0, 30.0, 2.0),
}
# Where one vector of 512 bits is multiplied a cycle, not two.
ATTENTION_BY_HALVES = {
    "avx512": AttentionPrices(*(2 * price for price in ATTENTION["avx512"])),
    "avx2": ATTENTION["avx2"],
}
