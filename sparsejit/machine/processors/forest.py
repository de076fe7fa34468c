"""What forests cost, in cycles of Golden Cove; assumed for all others."""

from sparsejit.machine.core import ForestPrices

FOREST = ForestPrices(
    gather={"avx512": 9.5, "avx2": 6.5}, far_gather=1.45, rank=1.5, pair=3.0, group=45.0, row=80.0
)
