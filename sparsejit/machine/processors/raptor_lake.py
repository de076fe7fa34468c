"""Raptor Cove, as in Alder and Raptor Lake: Golden Cove without AVX-512, with AVX-VNNI.

Everything is assumed: costs are Golden Cove's at the level of AVX2, where a core for clients has
the same ports; the clock and the bandwidths are by data sheets, with all cores at work. Gracemont
cores beside it are not known to the compiler.
"""

from dataclasses import replace

from sparsejit.machine.core import Rates, caches, models
from sparsejit.machine.price_records import StepPrice
from sparsejit.machine.processors.golden_cove import GOLDEN_COVE

RAPTOR_LAKE = replace(
    GOLDEN_COVE,
    key="raptor_lake",
    models=models(0x97, 0x9A, 0xB7, 0xBA, 0xBF),
    products="Core of the 12th to 14th generation",
    isa="avx2",
    caches=caches(48, 32, 1280, 24 << 10),  # Core i5-13400: the smaller L2
    rates=Rates(
        cycles_per_ns=4.5,  # assumed
        data={"L1": 64.0, "padded L2": 38.0, "L2": 43.0, "L3": 14.0, "memory": 5.0},
        code=GOLDEN_COVE.rates.code,
    ),
    steps={
        key: StepPrice(price.cycles, "assumed, Golden Cove's")
        for key, price in GOLDEN_COVE.steps.items()
    },
    assumed=True,
)
