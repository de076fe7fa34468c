"""Data of any core without data of its own, at both levels; calibration improves on them.

Rates, and costs of steps, lie between Zen 5's and Golden Cove's, and no trick is used that gains on
one of them and harms on the other. The rest is from one core: `folding` and `gate_cycles` are Zen
5's; `code_rates`, `batch`, `csr`, `shared_panel_loads`, `halves_share_loads`, `l2_ways` and
`unhidden` Golden Cove's.
"""

from sparsejit.machine.core import Core, Rates, caches
from sparsejit.machine.price_records import SharingPrices, StepPrice
from sparsejit.machine.processors.assumed import ATTENTION, FOREST
from sparsejit.machine.processors.golden_cove import GOLDEN_COVE
from sparsejit.machine.processors.zen5 import ZEN5

# Cycles that the tables of kernels assume where nothing was measured on Zen 5.
_ASSUMED = {
    ("permute-inline", "avx512", "float32"): 1.4,
    ("permute-inline", "avx2", "float32"): 2.2,
    ("broadcast-4x1", "avx2", "float32"): 1.2,
}


def _between(key: tuple[str, str, str]) -> StepPrice:
    one = ZEN5.steps[key].cycles if key in ZEN5.steps else _ASSUMED.get(key, 1.0)
    return StepPrice((one * GOLDEN_COVE.steps[key].cycles) ** 0.5, "assumed, between two cores")


GENERIC = Core(
    key="generic",
    data_of="generic",
    caches=caches(32, 32, 512, 8 << 10),  # the smallest of current servers
    rates=Rates(
        cycles_per_ns=3.0,
        data={"L1": 64.0, "padded L2": 40.0, "L2": 40.0, "L3": 14.0, "memory": 5.0},
        code={"L1": 32.0, "L2": 12.0, "L3": 5.0, "memory": 3.0},
    ),
    steps={key: _between(key) for key in GOLDEN_COVE.steps},
    folding=ZEN5.folding,
    padding=False,
    redirects=True,
    halves_share_loads=True,
    widened={},
    placement=False,
    shared_panel_loads=GOLDEN_COVE.shared_panel_loads,
    shared_window_loads=GOLDEN_COVE.shared_window_loads,
    shared_way=0.15,
    shared_far=0.3,
    l2_ways=16,
    unhidden=0.1,
    code_rates=GOLDEN_COVE.code_rates,
    data_rates={kind: rate**0.5 for kind, rate in GOLDEN_COVE.data_rates.items()},
    batch=GOLDEN_COVE.batch,
    csr=GOLDEN_COVE.csr,
    forest=FOREST,
    attention=ATTENTION,
    gate_cycles=ZEN5.gate_cycles,
    reduction_cycles=25,
    multipliers=2,
    prefetch_distance=16 << 10,
    l3_share=0.5,
    quads=GOLDEN_COVE.quads,
    sharing=SharingPrices(barrier_ns=300.0, crossing_bytes=10.0),
    assumed=True,
)
