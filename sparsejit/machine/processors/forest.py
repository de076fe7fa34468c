"""Costs of forests, in cycles of Golden Cove; assumed for all other cores.

From 20 forests of 10 to 1000 trees, 4 to 12 levels, at 3.0 GHz: predicted at seven eighths of their
time to a third more in L2, at two thirds to one beyond it.
"""

from sparsejit.machine.prices import ForestPrices

FOREST = ForestPrices(
    gather={"avx512": 9.0, "avx2": 6.2},
    rank=1.5,
    first_pair=1.2,
    pair=4.0,
    group=35.0,
    leaf=3.6,
    row=80.0,
    farther={"L1": 1.0, "L2": 1.6, "L3": 3.0, "memory": 8.0},
)
