"""Least time that a processor could take, whatever the kernel."""

from sparsejit.machine.target import Target


def limit_ns(flops: int, data_bytes: int, other_bytes: int, target: Target) -> float:
    """Least nanoseconds of `flops` on data that share caches with `other_bytes` of other layers.

    It is the longer of the multipliers' time and the time of the data's transfer.
    """
    core = target.core
    rates = {**core.rates.data, "L2": max(core.rates.data["L2"], core.rates.data["padded L2"])}
    places = nearest_places(data_bytes, other_bytes, target)
    computing = flops / (2 * core.multipliers * target.lanes)
    loading = sum(count / rates[level] for level, count in places.items())
    return max(computing, loading) / core.rates.cycles_per_ns


def nearest_places(data_bytes: int, other_bytes: int, target: Target) -> dict[str, float]:
    """Bytes of the data that come from each cache at best, when they are read over and over.

    No cache keeps more than its size, and each keeps the same share of the data as of the other
    bytes that are read.
    """
    left = data_bytes + other_bytes
    own = data_bytes / max(left, 1)
    places: dict[str, float] = {}
    for level, size in (
        ("L1", target.l1d_bytes),
        ("L2", target.l2_bytes),
        ("L3", target.l3_bytes),
        ("memory", left),
    ):
        kept = min(left, size)
        left -= kept
        if kept or not places:
            places[level] = own * kept
    return places
