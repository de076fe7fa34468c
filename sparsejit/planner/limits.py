"""The least time that a processor could take, whatever the kernel."""

from sparsejit.machine.target import Target
from sparsejit.planner.cost import cache_level


def least_ns(flops: int, data_bytes: int, other_bytes: int, target: Target) -> float:
    """Of so much work on data that shares caches with `other_bytes` of a model's other layers.

    The larger of what the multipliers need and what the data need to arrive.
    """
    level = cache_level(data_bytes + other_bytes, 0, target, target.l1d_bytes)
    core = target.core
    computing = flops / (2 * core.multipliers * target.lanes)
    loading = data_bytes / core.rates.data[level]
    return max(computing, loading) / core.rates.cycles_per_ns
