"""What a convolution on the image as it lies should cost, from its counts."""

from sparsejit.asm_templates.convolution.depthwise_shape import DirectCounts
from sparsejit.machine.target import Target
from sparsejit.planner.cost import Cost, cache_level

# Of the loads all but one in `lanes` touch two cache lines where vectors are as long as these.
_LOADS_OF_A_SHIFT = {"avx512": 1.7, "avx2": 1.35}


def price_direct(counts: DirectCounts, target: Target) -> Cost:
    """The dearest of multiplications, loads, and bytes that pass between L1 and beyond."""
    core = target.core
    cycles = {
        "execution": max(
            counts.products / core.multipliers,
            counts.loads * _LOADS_OF_A_SHIFT[target.isa] / core.batch.loads,
        )
        + counts.stores * core.batch.store_cycles
    }
    level = cache_level(counts.moved_bytes, 0, target, target.l1d_bytes)
    cycles[f"data from {level}"] = counts.moved_bytes / core.rates.data[level]
    bound = max(cycles, key=lambda resource: cycles[resource])
    ns = cycles[bound] / core.rates.cycles_per_ns
    return Cost(counts.products, 0, counts.moved_bytes, ns, bound)
